"""A test file passes when everything is as it says, and else says what was there instead."""

from pathlib import Path

import pytest

from gpuwarden_rules.backtest import query
from gpuwarden_rules.definition.language import parse
from gpuwarden_rules.testing import run_file

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

CASE = """\
cases:
  - name: a case
    tables:
      gpu_samples:
        - {node: n1, gpu: 0, gpu_uuid: a, every: 1m, temperature_celsius: 95x9}
    expect:
"""


FORM = """\
rules:
  - name: hot
    severity: warning
    of: gpu
    window: WINDOW
    measure: {celsius: avg(temperature_celsius)}
    when: celsius > 90 C
    until: celsius < 80 C
    summary: GPU {gpu} is at {celsius:.0f}
    remedy: cool it
"""


@pytest.fixture
def run(tmp_path: Path):
    (tmp_path / "hot.yaml").write_text(RULES)

    def run_expecting(*expectations: str) -> list[str]:
        path = tmp_path / "hot.test.yaml"
        path.write_text(CASE + "".join(f"      - {text}\n" for text in expectations))
        (result,) = run_file(path)
        assert (result.name, result.line) == ("a case", 2)
        assert result.passed == (not result.failures)
        return list(result.failures)

    return run_expecting


def test_what_is_as_expected_passes(run) -> None:
    assert (
        run(
            "{at: 1m, rule: hot, pending: [{gpu: 0}]}",
            "{at: 2m, rule: hot, firing: [{node: n1, gpu: 0, value: 95, usd_per_hour: 3,"
            " began: 0s, summary: GPU 0, remedy: [cool, it], simulated: false}]}",
            "{at: 15m, rule: hot, quiet: true}",
        )
        == []
    )


def test_a_query_of_many_instants_that_finds_other_alerts_counts_for_nothing(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = query.lateral_sql
    monkeypatch.setattr(
        query, "lateral_sql", lambda *args, **named: whole(*args, **named) + " WHERE false"
    )
    assert run("{at: 2m, rule: hot, firing: [{gpu: 0, began: 0s}]}") == []


@pytest.mark.parametrize(
    ("expectation", "failure"),
    [
        ("{at: 2m, rule: hot, quiet: true}", "not expected: firing {node=n1, gpu=0}: GPU 0 is at"),
        ("{at: 2m, rule: hot, pending: [{gpu: 0}]}", "but      it is firing"),
        ("{at: 2m, rule: hot, firing: [{gpu: 1}]}", "expected firing {gpu=1}"),
        ("{at: 2m, rule: hot, firing: [{gpu: 0}, {gpu: 0}]}", "expected firing {gpu=0}"),
        ("{at: 2m, rule: hot, firing: [{value: 90}]}", "value is 95.0"),
        ("{at: 2m, rule: hot, firing: [{usd_per_hour: unknown}]}", "usd_per_hour is 3.0"),
        ("{at: 2m, rule: hot, firing: [{began: 1m}]}", "began is 0 s"),
        ("{at: 2m, rule: hot, firing: [{summary: cold}]}", "summary lacks 'cold': GPU 0 is at 95"),
        ("{at: 2m, rule: hot, firing: [{simulated: true}]}", "simulated is False"),
    ],
)
def test_what_is_not_as_expected_is_told(run, expectation: str, failure: str) -> None:
    (text,) = run(expectation)
    assert text.startswith("at 2 min hot:\n")
    assert failure in text


def test_a_rule_that_fails_fails_the_case(tmp_path: Path) -> None:
    (tmp_path / "hot.yaml").write_text(RULES.replace("> 90", "> oops"))
    path = tmp_path / "hot.test.yaml"
    path.write_text(CASE + "      - {at: 2m, rule: hot, quiet: true}\n")
    (result,) = run_file(path)
    assert not result.passed
    assert "hot fails: " in result.failures[0]
    assert "oops" in result.failures[0]


def test_samples_whose_rollup_the_rule_reads_fail_the_case_and_say_what_it_lacks(
    tmp_path: Path,
) -> None:
    rule = FORM.replace("WINDOW", "10m")
    (tmp_path / "hot.yaml").write_text(rule)
    case = tmp_path / "hot.test.yaml"
    case.write_text(CASE + "      - {at: 9m, rule: hot, quiet: true}\n")
    (result,) = run_file(case)
    (failure,) = result.failures
    assert "reads gpu_1m" in failure and "temperature_celsius_avg" in failure
    (tmp_path / "hot.yaml").write_text(FORM.replace("WINDOW", "5m"))
    (result,) = run_file(case)
    assert "reads" not in str(result.failures)


def test_the_example_of_the_documentation_works(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "rules.md").read_text()
    rules, cases, of_job, *_ = (part.split("```")[0] for part in page.split("```yaml\n")[1:])
    (tmp_path / "gpu_memory_hot.yaml").write_text(rules)
    (tmp_path / "gpu_memory_hot.test.yaml").write_text(cases)
    (result,) = run_file(tmp_path / "gpu_memory_hot.test.yaml")
    assert result.difference == ""
    (rule,) = parse(of_job, "rules.md")
    assert (rule.name, rule.labels) == ("job_wastes_power", ("job",))
