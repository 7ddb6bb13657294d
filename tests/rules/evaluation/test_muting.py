"""Whoever silences or acknowledges an alert hears nothing of it."""

from datetime import UTC, datetime, timedelta

from gpuwarden.alert import Alert, AlertState, Severity, Silence, matcher_of
from gpuwarden_rules.evaluation.muting import reasons

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def alert(rule: str, node: str) -> Alert:
    return Alert(
        fingerprint=f"{rule} {node}",
        rule=rule,
        severity=Severity.INFO,
        state=AlertState.FIRING,
        labels={"node": node},
        summary="",
        remedy="",
        value=None,
        usd_per_hour=None,
        began_at=NOW,
        active_at=NOW,
        seen_at=NOW,
    )


def test_silences_that_hold_now_mute_the_alerts_that_they_cover() -> None:
    def silence(begins_h: float, **what: object) -> Silence:
        at = NOW + timedelta(hours=begins_h)
        until = at + timedelta(hours=1)
        return Silence(id="s", author="alice", comment="", starts_at=at, ends_at=until, **what)  # type: ignore[arg-type]

    silences = [
        silence(0, matchers=(matcher_of("node=n1"),)),
        silence(-0.5, fingerprint="gpu_lost n2"),
        silence(1, matchers=(matcher_of("node=n3"),)),
    ]
    found = reasons([alert("gpu_lost", f"n{n}") for n in (1, 2, 3)], silences, NOW)
    assert found == {
        "gpu_lost n1": "silenced until 13:00 UTC by alice",
        "gpu_lost n2": "acknowledged until 12:30 UTC by alice",
    }
