"""The service saves what changed, notifies its listeners, and continues after a restart or a full store."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from tests.rules.notify.alerts import make_alert

from gpuwarden.alert import Alert
from gpuwarden.incident import Incident, IncidentState
from gpuwarden_rules.definition.language import builtin_rules
from gpuwarden_rules.incidents.service import RETRY_S, IncidentService

RULES = builtin_rules()


class IncidentMemory:
    """An IncidentStore that remembers; it can be told to fail."""

    def __init__(self) -> None:
        self.kept: dict[str, Incident] = {}
        self.saves = 0
        self.is_full = False

    async def incidents_since(self, resolved_after: datetime) -> Sequence[Incident]:
        return [
            i for i in self.kept.values() if not i.resolved_at or i.resolved_at > resolved_after
        ]

    async def save_incidents(self, incidents: Sequence[Incident]) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        self.saves += 1
        self.kept |= {incident.id: incident for incident in incidents}


class World:
    """A service, the alerts that it sees, and how often it told."""

    def __init__(self, database, clock, store: IncidentMemory) -> None:
        self.alerts: list[Alert] | None = []
        self.told = 0
        self.service = IncidentService(
            lambda: self.alerts, lambda: RULES, store, database, clock, self._tell
        )

    def _tell(self) -> None:
        self.told += 1


def lost(clock, **changes) -> Alert:
    alert = make_alert("gpu_lost", at=clock.now())
    return replace(alert, seen_at=clock.now(), **changes)


async def test_incidents_are_saved_when_they_change_and_reworded_once_a_minute(
    database, clock
) -> None:
    store = IncidentMemory()
    world = World(database, clock, store)
    world.alerts = [lost(clock)]
    wake_at = await world.service.update()
    assert wake_at == clock.now() + timedelta(seconds=15)
    assert (store.kept, world.told) == ({}, 1)
    clock.advance(15)
    await world.service.update()
    (incident,) = store.kept.values()
    assert (incident.state, incident.place) == (IncidentState.OPEN, "dgx-07 GPU 0")
    world.alerts = [replace(world.alerts[0], summary="it costs more")]
    clock.advance(30)
    await world.service.update()
    assert store.saves == 1
    assert world.service.view.incidents[0].summary == "it costs more"
    clock.advance(31)
    await world.service.update()
    assert store.saves == 2
    await world.service.update()
    assert store.saves == 2


async def test_a_restart_changes_nothing_also_while_the_rules_have_not_started(
    database, clock
) -> None:
    store = IncidentMemory()
    world = World(database, clock, store)
    world.alerts = [lost(clock)]
    clock.advance(15)
    await world.service.update()
    again = World(database, clock, store)
    again.alerts = None
    assert await again.service.update() == clock.now() + timedelta(seconds=1)
    assert again.service.view is None
    again.alerts = world.alerts
    await again.service.update()
    assert (again.service.view, store.saves) == (world.service.view, 1)
    again.alerts = []
    await again.service.update()
    assert [i.state for i in store.kept.values()] == [IncidentState.RESOLVED]


async def test_a_full_store_silences_no_incident_and_what_it_missed_has_the_same_id(
    database, clock, caplog
) -> None:
    store = IncidentMemory()
    store.is_full = True
    world = World(database, clock, store)
    world.alerts = [lost(clock)]
    clock.advance(15)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(world.service.run(stop))
        async with asyncio.timeout(10):
            while "incidents not saved; tried again" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert world.told
        stop.set()
    (first,) = world.service.view.incidents
    store.is_full = False
    again = World(database, clock, store)
    again.alerts = world.alerts
    clock.advance(RETRY_S)
    await again.service.update()
    assert list(store.kept) == [first.id]


async def test_labels_of_nodes_come_from_the_inventory(database, clock) -> None:
    at = clock.now().replace(tzinfo=None)
    rows = [
        {
            "node": f"n{n}",
            "labels": f'{{"rack": "r{n // 2}"}}',
            "first_seen_at": at,
            "last_seen_at": at,
        }
        for n in range(4)
    ]
    database.insert(
        "nodes", [{**row, "simulated": False, "agent_id": "a", "boot_id": "b"} for row in rows]
    )
    world = World(database, clock, IncidentMemory())
    alerts = [make_alert("node_down", node=f"n{n}", at=clock.now()) for n in (2, 3)]
    world.alerts = [replace(a, labels={"node": a.labels["node"]}) for a in alerts]
    clock.advance(15)
    await world.service.update()
    (incident,) = world.service.view.incidents
    assert incident.summary.startswith("2 nodes of rack r1 stopped reporting at ")
    assert incident.labels == {"rack": "r1"}
