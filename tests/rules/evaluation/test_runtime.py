"""A rule's alerts are saved and told of when they change."""

from datetime import UTC, datetime, timedelta

from tests.rules.notify.alerts import make_alert

from gpuwarden.alert import AlertState, Silence, matcher_of
from gpuwarden_rules.definition.language import Rule, parse
from gpuwarden_rules.evaluation.runtime import REFRESH_S, RuleRuntime, mute_reasons
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


def test_silences_that_hold_now_mute_the_alerts_that_they_cover() -> None:
    def silence(begins_h: float, **what: object) -> Silence:
        at = NOW + timedelta(hours=begins_h)
        until = at + timedelta(hours=1)
        return Silence(id="s", author="alice", comment="", starts_at=at, ends_at=until, **what)  # type: ignore[arg-type]

    first, second, third = alerts = [make_alert(node=f"n{n}", at=NOW) for n in (1, 2, 3)]
    silences = [
        silence(0, matchers=(matcher_of("node=n1"),)),
        silence(-0.5, fingerprint=second.fingerprint),
        silence(1, matchers=(matcher_of("node=n3"),)),
    ]
    assert mute_reasons(alerts, silences, NOW) == {
        first.fingerprint: "silenced until 13:00 UTC by alice",
        second.fingerprint: "acknowledged until 12:30 UTC by alice",
    }, third
