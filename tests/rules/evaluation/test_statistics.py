"""A rule's state in a word."""

from datetime import UTC, datetime

from gpuwarden_rules.evaluation.statistics import RuleStats


def test_the_worst_is_said() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert RuleStats().state == "waiting"
    assert RuleStats(evaluations=1).state == "ok"
    assert RuleStats(evaluations=1, slow_since=now).state == "slow"
    assert RuleStats(evaluations=1, slow_since=now, last_error="x").state == "failing"
    assert RuleStats(evaluations=1, last_error="x", cannot_run="y").state == "cannot run"
