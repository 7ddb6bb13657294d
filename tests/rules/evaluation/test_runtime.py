"""What has to be saved and told of a rule's alerts."""

from datetime import UTC, datetime, timedelta

from gpuwarden.alert import AlertState
from gpuwarden_rules.definition.language import Rule, parse
from gpuwarden_rules.evaluation.runtime import REFRESH_S, Watch
from gpuwarden_rules.evaluation.state import step

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def rule() -> Rule:
    (made,) = parse(
        "rules: [{name: a, severity: info, labels: [node], summary: s, remedy: r, sql: SELECT $now}]",
        "r.yaml",
    )
    return made


def watch_after(rows: list[dict[str, object]]) -> Watch:
    watch = Watch(rule())
    watch.state, transitions = step(watch.state, rows, watch.rule, NOW)
    watch.mark(transitions, NOW)
    return watch


def test_what_is_muted_is_told_and_saved_with_its_reason() -> None:
    watch = watch_after([{"node": "n1"}, {"node": "n2"}])
    (first, second) = watch.state
    watch.mute({first: "silenced"})
    assert {a.fingerprint: a.muted for a in watch.untold} == {first: "silenced", second: None}
    assert {a.fingerprint: a.muted for a in watch.unsaved.values()} == {
        first: "silenced",
        second: None,
    }
    watch.count()
    assert (watch.stats.firing, watch.stats.muted) == (2, 1)


def test_what_is_saved_waits_for_a_minute_or_a_change() -> None:
    watch = watch_after([{"node": "n1"}])
    watch.saved(dict(watch.unsaved), NOW)
    assert watch.unsaved == {}
    for seconds, waits in ((REFRESH_S - 1, 0), (REFRESH_S, 1)):
        now = NOW + timedelta(seconds=seconds)
        watch.state, transitions = step(watch.state, [{"node": "n1"}], watch.rule, now)
        watch.mark(transitions, now)
        assert len(watch.unsaved) == waits


def test_a_muted_alert_that_is_over_is_told_as_such() -> None:
    watch = watch_after([{"node": "n1"}])
    (key,) = watch.state
    watch.mute({key: "silenced"})
    watch.untold.clear()
    watch.state, transitions = step(watch.state, [], watch.rule, NOW + timedelta(minutes=1))
    watch.mark(transitions, NOW + timedelta(minutes=1))
    watch.mute({})
    (told,) = watch.untold
    assert (told.state, told.muted) == (AlertState.RESOLVED, "silenced")
