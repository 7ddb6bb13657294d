"""A rule's state in a word."""

from datetime import UTC, datetime

from gpuwarden_rules.evaluation.statistics import RuleStatistics


def test_the_worst_is_said() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert RuleStatistics().state == "waiting"
    assert RuleStatistics(evaluations=1).state == "ok"
    assert RuleStatistics(evaluations=1, slow_since=now).state == "slow"
    assert RuleStatistics(evaluations=1, slow_since=now, last_error="x").state == "failing"
    assert RuleStatistics(evaluations=1, last_error="x", cannot_run="y").state == "cannot run"
