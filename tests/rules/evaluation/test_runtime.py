"""A rule's alerts are saved and told of when they change."""

from datetime import UTC, datetime, timedelta

from gpuwarden.alert import AlertState
from gpuwarden_rules.definition.language import Rule, parse
from gpuwarden_rules.evaluation.runtime import REFRESH_S, RuleRuntime
from gpuwarden_rules.evaluation.state import step

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def rule() -> Rule:
    (made,) = parse(
        "rules: [{name: a, severity: info, labels: [node], summary: s, remedy: r, sql: SELECT $now}]",
        "r.yaml",
    )
    return made


def runtime_after(rows: list[dict[str, object]]) -> RuleRuntime:
    runtime = RuleRuntime(rule())
    runtime.state, transitions = step(runtime.state, rows, runtime.rule, NOW)
    runtime.mark(transitions, NOW)
    return runtime


def test_what_is_muted_is_told_and_saved_with_its_reason() -> None:
    runtime = runtime_after([{"node": "n1"}, {"node": "n2"}])
    (first, second) = runtime.state
    runtime.mute({first: "silenced"})
    assert {a.fingerprint: a.muted for a in runtime.unnotified} == {first: "silenced", second: None}
    assert {a.fingerprint: a.muted for a in runtime.unsaved.values()} == {
        first: "silenced",
        second: None,
    }
    runtime.count()
    assert (runtime.stats.firing, runtime.stats.muted) == (2, 1)


def test_what_is_saved_waits_for_a_minute_or_a_change() -> None:
    runtime = runtime_after([{"node": "n1"}])
    runtime.saved(dict(runtime.unsaved), NOW)
    assert runtime.unsaved == {}
    for seconds, waits in ((REFRESH_S - 1, 0), (REFRESH_S, 1)):
        now = NOW + timedelta(seconds=seconds)
        runtime.state, transitions = step(runtime.state, [{"node": "n1"}], runtime.rule, now)
        runtime.mark(transitions, now)
        assert len(runtime.unsaved) == waits


def test_a_muted_alert_that_is_over_is_told_as_such() -> None:
    runtime = runtime_after([{"node": "n1"}])
    (key,) = runtime.state
    runtime.mute({key: "silenced"})
    runtime.unnotified.clear()
    runtime.state, transitions = step(runtime.state, [], runtime.rule, NOW + timedelta(minutes=1))
    runtime.mark(transitions, NOW + timedelta(minutes=1))
    runtime.mute({})
    (told,) = runtime.unnotified
    assert (told.state, told.muted) == (AlertState.RESOLVED, "silenced")
