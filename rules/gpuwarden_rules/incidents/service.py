"""Keeps the incidents of an engine's alerts: updates them when an alert changes, saves and reports them.

A store that fails delays rows, not messages: the same alerts make the same incidents, with the same ids, at
the next update.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from gpuwarden.alert import Alert
from gpuwarden.clock import Clock, from_ms, to_ms
from gpuwarden.incident import Incident, IncidentStore
from gpuwarden.query import Querier, QueryError
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.evaluation.fleet import node_labels
from gpuwarden_rules.evaluation.schedule import repeat
from gpuwarden_rules.incidents.graph import NodeLabels, graph_of
from gpuwarden_rules.incidents.state import IncidentView, step

log = logging.getLogger(__name__)

UPDATE_S = 10.0
"""Longest time between two updates."""
REFRESH_S = 60.0
"""How often changed texts and costs are saved, and labels of nodes are read."""
RETRY_S = 5.0
SAVE_TIMEOUT_S = 10.0


class IncidentService:
    """The incidents of `alerts()`. `run` it; `wake` it when an alert changes."""

    def __init__(
        self,
        alerts: Callable[[], Sequence[Alert] | None],
        rules: Callable[[], Sequence[Rule]],
        store: IncidentStore,
        querier: Querier,
        clock: Clock,
        on_update: Callable[[], None] = lambda: None,
    ) -> None:
        """`alerts`: all active alerts; None: not known yet. `on_update` is called after each update."""
        self._alerts = alerts
        self._rules = rules
        self._store = store
        self._querier = querier
        self._clock = clock
        self._on_update = on_update
        self._changed = asyncio.Event()
        self._incidents: dict[str, Incident] | None = None
        self._saved: dict[str, tuple[Incident, datetime]] = {}
        self._nodes: NodeLabels = {}
        self._nodes_at: datetime | None = None
        self._is_stuck = False
        self.view: IncidentView | None = None
        """The incidents of the last update; None: there was none yet."""

    def wake(self) -> None:
        """Update at once. Call it in the event loop's thread."""
        self._changed.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Update until `stop` is set; changes are saved when it returns."""
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(
                repeat(self._update_again, self._changed, stop, self._clock), name="incidents"
            )
            await stop.wait()
            self._changed.set()
            await looking

    async def update(self) -> datetime | None:
        """Update the incidents once; returns when to update again if no alert changes. Raises what the store raises."""
        now = from_ms(to_ms(self._clock.now()))
        alerts = self._alerts()
        if self._incidents is None:
            graph = graph_of(self._rules())
            longest = graph.reopens_within(["", *graph.reopens_s])
            found = await self._store.incidents_since(now - longest)
            self._incidents = {incident.id: incident for incident in found}
            self._saved = {incident.id: (incident, now) for incident in found}
        if alerts is None:
            return now + timedelta(seconds=1)
        await self._refresh_nodes(now)
        # In a thread: ten thousand alerts take a quarter of a second.
        done = await asyncio.to_thread(
            step, self._incidents, list(alerts), graph_of(self._rules()), self._nodes, now
        )
        self._incidents = done.incidents
        firing = {a.fingerprint: a for a in alerts}
        self.view = IncidentView(list(done.incidents.values()), firing)
        try:
            await self._save(now)
        finally:
            self._on_update()  # also when the store fails
        return done.wake_at

    async def _save(self, now: datetime) -> None:
        """Save changed incidents at once, and those with only new texts or amounts every REFRESH_S."""
        assert self._incidents is not None
        due = []
        for key, incident in self._incidents.items():
            before, saved_at = self._saved.get(key, (None, now))
            if (
                before is None
                or _without_texts(before) != _without_texts(incident)
                or before != incident
                and not 0 <= (now - saved_at).total_seconds() < REFRESH_S
            ):
                due.append(incident)
        self._saved = {key: self._saved[key] for key in self._incidents if key in self._saved}
        if due:
            async with asyncio.timeout(SAVE_TIMEOUT_S):
                await self._store.save_incidents(due)
            self._saved |= {incident.id: (incident, now) for incident in due}

    async def _refresh_nodes(self, now: datetime) -> None:
        if self._nodes_at is not None and 0 <= (now - self._nodes_at).total_seconds() < REFRESH_S:
            return
        try:
            self._nodes = await node_labels(self._querier)
        except QueryError as error:
            log.warning("labels of nodes not read", extra={"reason": str(error)})
        self._nodes_at = now

    async def _update_again(self) -> float:
        """Update once; seconds until the next update."""
        try:
            wake_at = await self.update()
        except Exception as error:  # noqa: BLE001 - a store that fails must not end the process
            if not self._is_stuck:
                reason = str(error) or type(error).__name__
                log.error("incidents not saved; tried again", extra={"reason": reason})
            self._is_stuck = True
            return RETRY_S
        self._is_stuck = False
        if wake_at is None:
            return UPDATE_S
        return min(UPDATE_S, (wake_at - self._clock.now()).total_seconds())


def _without_texts(incident: Incident) -> Incident:
    """The incident without its texts and amounts."""
    return replace(incident, summary="", remedy="", usd_per_hour=None, unknown_since=None)
