"""A rule that fails or is slow is itself an alert."""

from datetime import UTC, datetime, timedelta

from gpuwarden.alert import AlertState
from gpuwarden_rules.evaluation.rule_failing import NAME, failing_rows, failing_rule
from gpuwarden_rules.evaluation.state import step
from gpuwarden_rules.evaluation.statistics import RuleStatistics

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_its_text_says_which_rule_since_when_and_why() -> None:
    rule = failing_rule()
    assert rule.name == NAME
    stats = {
        "good": RuleStatistics(),
        "bad": RuleStatistics(failing_since=NOW, last_error="Binder Error: no column x"),
        "slow": RuleStatistics(slow_since=NOW, last_seconds=31.25),
    }
    state, _ = step({}, failing_rows(stats), rule, NOW)
    state, transitions = step(state, failing_rows(stats), rule, NOW + timedelta(minutes=2))
    assert sorted(
        (t.alert.state, t.alert.labels["rule"], t.alert.summary) for t in transitions
    ) == [
        (AlertState.FIRING, "bad", "Rule bad fails, for 2 min now: Binder Error: no column x"),
        (
            AlertState.FIRING,
            "slow",
            "Rule slow is slow, for 2 min now: 31.2 s for the last evaluation",
        ),
    ]


def test_rules_that_work_make_no_rows() -> None:
    assert failing_rows({"good": RuleStatistics(evaluations=3)}) == []
