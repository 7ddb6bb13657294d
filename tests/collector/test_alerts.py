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


async def test_active_alerts_come_back_as_saved_also_after_a_restart(start: Any, wire: Any) -> None:
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
    async with start() as collector:
        assert await collector.alerts.active() == [pending, bare]


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
        never = replace(resolved, fingerprint="f2", fired_at=None)
        await collector.alerts.save([never, alert(wire, fingerprint="f3", active_at=later)])
        assert await collector.alerts.resolved_since(later - timedelta(seconds=1)) == [resolved]
        assert await collector.alerts.resolved_since(later) == []
        count = await collector.querier.query("SELECT count(*) FROM alerts")
        assert count.rows == [(4,)]
        await collector.alerts.save([])


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
