"""Quick rules never wait for slow ones."""

import pytest

from gpuwarden_rules.definition.language import parse
from gpuwarden_rules.evaluation.concurrency import QUICK_S, SOON_S, EvaluationSlots, is_quick
from gpuwarden_rules.evaluation.runtime import RuleRuntime


def watch_of(interval_s: float, last_seconds: float | None) -> RuleRuntime:
    (rule,) = parse(
        f"""
        rules:
          - {{name: r, severity: info, labels: [], interval: {interval_s:g}s, summary: s, remedy: r,
             sql: "SELECT 1 AS value WHERE $now IS NULL"}}
        """,
        "r.yaml",
    )
    runtime = RuleRuntime(rule)
    runtime.stats.last_seconds = last_seconds
    return runtime


@pytest.mark.parametrize(
    ("interval_s", "last_seconds", "expected"),
    [
        (SOON_S, None, True),
        (SOON_S + 1, None, False),
        (60, QUICK_S, True),
        (60, QUICK_S + 0.1, False),
        (1, QUICK_S + 0.1, False),
    ],
)
def test_a_rule_is_quick_by_its_last_evaluation_or_else_its_interval(
    interval_s: float, last_seconds: float | None, expected: bool
) -> None:
    runtime, slots = watch_of(interval_s, last_seconds), EvaluationSlots()
    assert is_quick(runtime) is expected
    assert slots.of(runtime) is (slots.quick if expected else slots.slow)
