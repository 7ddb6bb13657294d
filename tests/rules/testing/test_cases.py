"""Test files are read as strictly as rule files."""

from pathlib import Path

import pytest

from gpuwarden_rules.definition.yaml_positions import RuleFileError
from gpuwarden_rules.testing import load_cases

RULES = """\
rules:
  - name: hot
    severity: warning
    labels: [node, gpu]
    interval: 1m
    for: 2m
    summary: GPU {gpu} is at {value:.0f}
    remedy: cool it
    sql: >-
      SELECT node, gpu, temperature_celsius AS value, 3.0 AS usd_per_hour, simulated
      FROM gpu_samples WHERE ts = $now::TIMESTAMP AND temperature_celsius > 90
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cases: []\nrulez: x", ":2:1: unknown key 'rulez'"),
        ("cases: [{name: a}]", "key 'expect' is missing"),
        ("cases: [{name: a, expect: []}]", "a case must expect something"),
        ("cases: [{name: a, expect: [{at: 1m, rule: cold, quiet: true}]}]", "unknown rule 'cold'"),
        ("cases: [{name: a, expect: [{at: 1m, rule: hot}]}]", "give either `quiet: true`, or"),
        (
            "cases: [{name: a, expect: [{at: 1m, rule: hot, quiet: true, firing: []}]}]",
            "give either `quiet: true`, or",
        ),
        (
            "cases: [{name: a, expect: [{at: 1m, rule: hot, firing: [{gpuu: 1}]}]}]",
            "unknown key 'gpuu'; known: node, gpu, value",
        ),
        (
            "cases: [{name: a, expect: [{at: 1m, rule: hot, firing: [{value: big}]}]}]",
            "must be a number or `unknown`",
        ),
        ("rules: none.yaml\ncases: []", "none.yaml:1:1: cannot be read"),
    ],
)
def test_a_mistake_in_a_test_file_is_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "hot.yaml").write_text(RULES)
    path = tmp_path / "hot.test.yaml"
    path.write_text(text)
    with pytest.raises(RuleFileError) as caught:
        load_cases(path)
    assert problem in str(caught.value)
