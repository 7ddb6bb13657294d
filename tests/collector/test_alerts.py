"""Alerts are kept by fingerprint and episode, and come back as they were saved."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from gpuwarden.alert import Alert, AlertState, Severity, Silence, matcher_of


def alert(wire: Any, **changes: Any) -> Alert:
    made = Alert(
        fingerprint="f1",
        rule="GpuIdle",
        severity=Severity.WARNING,
        state=AlertState.PENDING,
        labels={"node": "n1", "gpu": "3", "gpu_uuid": "GPU-3", "team": "Ünï"},
        summary="GPU 3 of n1 is idle.",
        remedy="End the job.",
        value=0.5,
        usd_per_hour=2.95,
        began_at=wire.now - timedelta(minutes=30),
        active_at=wire.now,
        seen_at=wire.now,
        simulated=True,
    )
    return replace(made, **changes)


async def test_active_alerts_come_back_as_saved(start: Any, wire: Any) -> None:
    pending = alert(
        wire, owner="alice", muted="silenced", unknown_since=wire.now, stale_since=wire.now
    )
    pending = replace(pending, resolved_reason="n1 is away")
    bare = alert(wire, fingerprint="f2", labels={}, value=None, usd_per_hour=None)
    async with start() as collector:
        await collector.alerts.save([pending, bare])
        assert await collector.alerts.active() == [pending, bare]
        rows = await collector.querier.query(
            "SELECT node, gpu, gpu_uuid FROM alerts ORDER BY fingerprint"
        )
        assert rows.rows == [("n1", 3, "GPU-3"), (None, None, None)]


async def test_an_episode_is_one_row_whose_state_moves_on(start: Any, wire: Any) -> None:
    later = wire.now + timedelta(minutes=5)
    firing = alert(wire, state=AlertState.FIRING, fired_at=later, seen_at=later)
    resolved = replace(firing, state=AlertState.RESOLVED, resolved_at=later)
    again = alert(wire, active_at=later)
    async with start() as collector:
        await collector.alerts.save([alert(wire), firing])
        assert await collector.alerts.active() == [firing]
        await collector.alerts.save([resolved, again])
        assert await collector.alerts.active() == [again]
        count = await collector.querier.query("SELECT count(*) FROM alerts")
        assert count.rows == [(2,)]
        await collector.alerts.save([])


async def test_alerts_survive_a_restart(start: Any, wire: Any) -> None:
    async with start() as collector:
        await collector.alerts.save([alert(wire)])
    async with start() as collector:
        assert await collector.alerts.active() == [alert(wire)]


async def test_what_has_fired_and_was_over_since_an_instant(start: Any, wire: Any) -> None:
    fired = alert(wire, fired_at=wire.now, state=AlertState.RESOLVED, resolved_at=wire.now)
    never = alert(wire, fingerprint="f2", state=AlertState.RESOLVED, resolved_at=wire.now)
    async with start() as collector:
        await collector.alerts.save([fired, never, alert(wire, fingerprint="f3")])
        earlier = wire.now - timedelta(seconds=1)
        assert await collector.alerts.resolved_since(earlier) == [fired]
        assert await collector.alerts.resolved_since(wire.now) == []


async def test_silences_survive_a_restart_until_they_end(start: Any, wire: Any) -> None:
    silence = Silence(
        id="s1",
        matchers=(matcher_of("node=~n1|n2"), matcher_of('team!="Ünï')),
        author="alice",
        comment="rack moves",
        starts_at=wire.now,
        ends_at=wire.now + timedelta(days=30),
    )
    known = replace(silence, id="s2", matchers=(), fingerprint="f1")
    over = replace(silence, id="s3", ends_at=wire.now - timedelta(days=30))
    async with start() as collector:
        await collector.alerts.save_silences([over, silence, known])
        await collector.alerts.save_silences([])
    async with start() as collector:
        assert await collector.alerts.silences() == [silence, known]
        await collector.alerts.save_silences([replace(known, ends_at=over.ends_at)])
        assert await collector.alerts.silences() == [silence]
