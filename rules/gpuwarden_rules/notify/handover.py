"""Lets the alerts of a node continue at another collector of the lake when the node moves there, without a message sent twice.

Each collector claims the nodes that it hears, and publishes its firing alerts and what receivers were sent about them. One
that hears a node of another takes over its alerts, with their times, and the notices of their incidents. The other leaves
them: no rule judges a node that sends elsewhere, and no receiver gets their end.

`turned` decides, and is pure. A message that was sent within the seconds before a collector died may be sent again.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from gpuwarden.alert import Alert, AlertState
from gpuwarden.clock import Clock, to_ms
from gpuwarden.cluster import Cluster, ClusterAnswer, ClusterAsk, MovingState, NodeClaim
from gpuwarden.lifecycle import until
from gpuwarden.query import Querier, QueryError
from gpuwarden_rules.notify.planner import IncidentNotice

log = logging.getLogger(__name__)

ROUND_S = 5.0
BEGIN_S_MAX = 10.0
OVERLAP_MS = 60_000
"""Claims that are this old are read again: another collector's may have been written later than its time says."""
_HEARD_WITHIN = timedelta(seconds=30)
_HEARD = "SELECT node, last_seen_at FROM nodes WHERE last_seen_at > $since::TIMESTAMP AND forgotten_at IS NULL"
_NODES_MAX = 1_000_000


class MovingAlerts(Protocol):
    """The alerts of this collector."""

    @property
    def alerts(self) -> Sequence[Alert]:
        """Pending and firing alerts."""
        ...

    async def leave(self, nodes: frozenset[str]) -> None:
        """Judge these nodes no more, and end their alerts. Raises what the store raises."""
        ...

    async def adopt(self, alerts: Sequence[Alert]) -> None:
        """Continue firing alerts of another collector. Raises what the store raises."""
        ...


class MovingNotices(Protocol):
    """What the receivers of this collector were sent."""

    @property
    def notices(self) -> Mapping[str, IncidentNotice]:
        """By their key."""
        ...

    def leave(self, nodes: frozenset[str]) -> None:
        """Send no end of incidents of these nodes."""
        ...

    def offer(self, notices: Mapping[str, IncidentNotice]) -> None:
        """What another collector sent, in case that this one has the same incident."""
        ...


@dataclass(frozen=True, slots=True)
class HandoverState:
    """What a collector knows of the others."""

    owners: Mapping[str, NodeClaim] = field(default_factory=dict)
    since_ms: int = 0
    published: Mapping[tuple[str, str], MovingState] = field(default_factory=dict)

    @property
    def elsewhere(self) -> frozenset[str]:
        """Nodes that send to other collectors."""
        return frozenset(node for node, owner in self.owners.items() if not owner.is_own)


def claims(state: HandoverState, heard: Mapping[str, datetime]) -> list[str]:
    """Nodes that send to this collector, as far as the others do not know. `heard`: when each was last heard."""
    found = []
    for node, at in heard.items():
        owner = state.owners.get(node)
        if owner is None or (not owner.is_own and to_ms(at) > owner.claimed_ms):
            found.append(node)
    return sorted(found)


def turned(
    state: HandoverState, wanted: Sequence[MovingState], claimed: Sequence[str]
) -> ClusterAsk:
    """What to tell and to ask. `wanted`: what the others must know; `claimed`: as of `claims`."""
    now = {(one.kind, one.id): one for one in wanted}
    put = [one for key, one in now.items() if state.published.get(key) != one]
    gone = sorted(state.published.keys() - now.keys())
    take = [node for node in claimed if node in state.owners]
    return ClusterAsk(claimed, put, gone, state.since_ms, take)


def answered(
    state: HandoverState, wanted: Sequence[MovingState], found: ClusterAnswer
) -> HandoverState:
    """The state after an answer."""
    owners = {**state.owners, **{one.node: one for one in found.owners}}
    newest = max((one.claimed_ms for one in found.owners), default=0)
    return HandoverState(
        owners,
        max(state.since_ms, newest - OVERLAP_MS),
        {(one.kind, one.id): one for one in wanted},
    )


def published(
    alerts: Sequence[Alert], notices: Mapping[str, IncidentNotice], elsewhere: Collection[str]
) -> list[MovingState]:
    """What must continue if this collector dies: firing alerts of its nodes, and what was sent about them."""
    found = []
    for alert in alerts:
        node = alert.labels.get("node", "")
        if alert.state is AlertState.FIRING and node and node not in elsewhere:
            # Without what changes at each evaluation, so that it is written once.
            kept = replace(alert, seen_at=alert.fired_at or alert.active_at, summary=alert.rule, remedy="", value=None, usd_per_hour=None, accounted_usd=None, accounted_until=None, muted=None, unknown_since=None, stale_since=None)  # fmt: skip
            found.append(MovingState("alert", alert.fingerprint, node, _text(kept)))
    for key, notice in notices.items():
        if not notice.is_over:
            found.append(MovingState("notice", key, "", _text(notice)))
    return found


def _text(one: Alert | IncidentNotice) -> str:
    return msgspec.json.encode(one).decode()


def taken(rows: Sequence[MovingState]) -> tuple[list[Alert], dict[str, IncidentNotice]]:
    """The alerts and notices of another collector; those that cannot be read are logged and left out."""
    alerts: list[Alert] = []
    notices: dict[str, IncidentNotice] = {}
    for row in rows:
        try:
            if row.kind == "alert":
                alerts.append(msgspec.json.decode(row.body, type=Alert))
            elif row.kind == "notice":
                notices[row.id] = msgspec.json.decode(row.body, type=IncidentNotice)
        except ValueError as error:
            log.warning("shared state cannot be read", extra={"kind": row.kind, "id": row.id, "reason": str(error)})  # fmt: skip
    return alerts, notices


class Handover:
    """Follows which collector hears which node. `run` it."""

    def __init__(
        self,
        cluster: Cluster,
        alerts: MovingAlerts,
        notices: MovingNotices,
        querier: Querier,
        clock: Clock,
        is_ready: Callable[[], bool],
    ) -> None:
        """`is_ready`: whether the stored alerts are loaded."""
        self._cluster = cluster
        self._alerts = alerts
        self._notices = notices
        self._querier = querier
        self._clock = clock
        self._is_ready = is_ready
        self.state = HandoverState()
        self._is_known = False
        self.failing: str | None = None
        """Why the last round failed; None: it did not."""

    async def begin(self) -> None:
        """Learn which nodes send to others, before rules judge: after a pause all nodes look silent. Without an answer
        `run` learns it."""
        try:
            async with asyncio.timeout(BEGIN_S_MAX):
                await self._learn()
        except (QueryError, TimeoutError) as error:
            self._failed(str(error) or type(error).__name__)

    async def run(self, stop: asyncio.Event) -> None:
        """Follow until `stop`."""
        while not stop.is_set():
            try:
                if self._is_ready():
                    await self.round()
                    self._failed(None)
            except (QueryError, TimeoutError) as error:
                self._failed(str(error) or type(error).__name__)
            await until(stop, ROUND_S if self._is_known else 1.0)

    async def round(self) -> None:
        """Tell the others and take over once. Raises QueryError, TimeoutError."""
        if not self._is_known:
            await self._learn()
        claimed = claims(self.state, await self._heard())
        elsewhere = self.state.elsewhere - set(claimed)
        wanted = published(self._alerts.alerts, self._notices.notices, elsewhere)
        found = await self._cluster.exchange(turned(self.state, wanted, claimed))
        self._answered(wanted, found)
        # Notices first: what is taken over must not be sent before it is known that it was.
        self._notices.leave(self.state.elsewhere)
        alerts, notices = taken(found.taken)
        self._notices.offer(notices)
        await self._alerts.leave(self.state.elsewhere)
        if alerts:
            log.info("alerts of nodes that moved here continue", extra={"alerts": len(alerts)})
            await self._alerts.adopt(alerts)

    async def _learn(self) -> None:
        self._answered((), await self._cluster.exchange(ClusterAsk()))
        self._is_known = True
        self._notices.leave(self.state.elsewhere)
        await self._alerts.leave(self.state.elsewhere)

    def _answered(self, wanted: Sequence[MovingState], found: ClusterAnswer) -> None:
        before = self.state.elsewhere
        self.state = answered(self.state, wanted, found)
        left = self.state.elsewhere - before
        if left and self._is_known:
            log.info("nodes send to another collector now", extra={"nodes": len(left)})

    async def _heard(self) -> dict[str, datetime]:
        since = self._clock.now() - _HEARD_WITHIN
        found = await self._querier.query(_HEARD, {"since": since}, row_limit=_NODES_MAX)
        return {row["node"]: row["last_seen_at"] for row in found.records()}

    def _failed(self, reason: str | None) -> None:
        if reason is not None and self.failing is None:
            log.warning("moving nodes are not followed; will retry", extra={"reason": reason})
        elif reason is None and self.failing is not None:
            log.info("moving nodes are followed again")
        self.failing = reason
