"""Incidents come back from the store as they were saved, with all their alerts."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from gpuwarden.alert import Consequence, Severity
from gpuwarden.incident import Incident, IncidentAlert, IncidentState


def incident(wire: Any, name: str, **changes: Any) -> Incident:
    members = {
        key: IncidentAlert(
            fingerprint=key,
            active_at=wire.now,
            rule="gpu_lost",
            labels={"node": "n1", "rack": "Ünï"},
            cause=cause,
            joined_at=wire.now,
            ended_at=ended_at,
        )
        for key, cause, ended_at in (("a", None, None), ("b", "a", wire.now))
    }
    made = Incident(
        id=name,
        root="a",
        rule="gpu_lost",
        severity=Severity.CRITICAL,
        consequence=Consequence.LOST_WORK,
        summary="GPU 0 of n1 does not answer.",
        remedy="Look.",
        place="n1 GPU 0",
        labels={"node": "n1", "rack": "Ünï"},
        nodes=1,
        roots=1,
        members=members,
        began_at=wire.now,
        opened_at=wire.now,
    )
    return replace(made, **changes)


async def test_incidents_come_back_as_saved_and_over_ones_for_a_while(
    start: Any, wire: Any
) -> None:
    past = wire.now - timedelta(hours=1)
    kept = [
        incident(
            wire, "1", usd_per_hour=2.5, owner="ann", muted="silenced", unknown_since=wire.now
        ),
        incident(wire, "2", state=IncidentState.MERGED, resolved_at=wire.now, merged_into="1"),
    ]
    over = incident(wire, "3", state=IncidentState.RESOLVED, resolved_at=past)
    async with start() as collector:
        await collector.incidents.save_incidents([*kept, over])
    async with start() as collector:
        since = past + timedelta(seconds=1)
        assert await collector.incidents.incidents_since(since) == kept
        again = replace(
            kept[0], members={**kept[0].members, "b": replace(kept[0].members["b"], ended_at=None)}
        )
        await collector.incidents.save_incidents([again])
        assert await collector.incidents.incidents_since(since) == [again, kept[1]]
        rows = await collector.querier.query(
            "SELECT i.id, i.alerts, i.firing, a.cause FROM incidents_now i "
            "JOIN incident_alerts a ON a.incident = i.id ORDER BY a.fingerprint"
        )
        assert rows.rows == [("1", 2, 2, None), ("1", 2, 2, "a")]
