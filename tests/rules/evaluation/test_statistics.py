"""A rule's state in a word."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.judgement import NOT_STARTED, JudgementState, unjudged
from gpuwarden_rules.evaluation.statistics import (
    LATE_AFTER,
    RuleRun,
    RuleStatistics,
    is_fresh,
    judgement_of,
)


def test_the_state_of_a_rule_is_its_worst_trouble() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert RuleStatistics().state == "waiting"
    assert RuleStatistics(evaluations=1).state == "ok"
    assert RuleStatistics(evaluations=1, slow_since=now).state == "slow"
    assert RuleStatistics(evaluations=1, slow_since=now, last_error="x").state == "failing"
    assert RuleStatistics(evaluations=1, last_error="x", cannot_run="y").state == "cannot run"


START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def run(judged_after_s: float | None, interval_s: float = 30.0) -> RuleRun:
    at = None if judged_after_s is None else START + timedelta(seconds=judged_after_s)
    return RuleRun(interval_s, START, at)


def test_it_is_not_judged_until_each_rule_has_run() -> None:
    found = judgement_of({"a": run(3), "b": run(None), "c": run(None)}, START)
    assert (found.state, found.since, found.waiting) == (JudgementState.NOT_YET, START, ("b", "c"))
    assert found.sentence == (
        "Not judged yet, since 2026-01-01 12:00:00 UTC: 1 of 3 rules have run on fresh data."
    )
    assert unjudged(found.document()) == found.sentence
    found = judgement_of({"a": run(3), "b": run(9)}, START + timedelta(seconds=9))
    assert (found.state, found.since, found.judged) == (JudgementState.YES, None, 2)
    assert unjudged(found.document()) is None
    assert unjudged(NOT_STARTED.document()) == "Not judged yet: the rules have not started."


def test_rules_that_have_stopped_are_named_with_since_when() -> None:
    rules = {name: run(at) for name, at in zip("abcde", (60, 70, 80, 90, 900), strict=True)}
    rules["slow"] = run(5, interval_s=600.0)
    found = judgement_of(rules, START + timedelta(seconds=900))
    assert (found.state, found.judged) == (JudgementState.STALE, 2)
    assert found.sentence == (
        "Not judged since 2026-01-01 12:01:00 UTC: 2 of 6 rules have run on fresh data, and not a, b, c and 1 more."
    )


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 2_000)), max_size=6),
    st.floats(0, 4_000),
)
def test_judged_means_that_no_rule_is_behind(runs: list[float | None], now_s: float) -> None:
    now = START + timedelta(seconds=now_s)
    found = judgement_of({str(n): run(at) for n, at in enumerate(runs)}, now)
    behind = [at for at in runs if at is None or now_s - at > LATE_AFTER.total_seconds()]
    assert found.judged + len(found.waiting) == len(runs)
    assert len(found.waiting) == len(behind)
    assert (found.state is JudgementState.YES) == (found.since is None) == (not behind)


def test_data_is_fresh_where_it_is_young_or_agents_had_time_to_come() -> None:
    assert is_fresh(5.0, timedelta(0))
    assert not is_fresh(3_600.0, timedelta(days=1))  # a backlog
    assert not is_fresh(None, timedelta(seconds=59))
    assert is_fresh(None, timedelta(seconds=60))
