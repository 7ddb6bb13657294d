"""Decides which agent may send rows of a node; pure.

A node name belongs to one agent in one boot of its machine. After a reboot the same agent gets the name at once, with
its first rows of a later time; rows that its spool kept from an earlier boot claim nothing. Another agent, for example
after the machine was installed again, gets the name when the first agent has stopped in order or has been silent for a
while; until then it must send its batches again. If both agents keep sending, two machines have one name: batches of
the second are refused, and an event names both. Rows that the earlier agent kept from before it lost the name are
stored.

Times are times of arrival, because the clocks of two machines can differ.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden.clock import to_ms
from gpuwarden_collector.ingest.decode import BatchRows, Decoded, RefusedBody
from gpuwarden_collector.ingest.own_events import REPEAT_AFTER, event_table, warning

SILENT_AFTER = timedelta(minutes=1)
"""An agent that has sent nothing for this long loses the name: agents send every 5 s, or every 30 s when the
collector asks for it."""
BOTH_SPEAK_AFTER = timedelta(seconds=10)
"""An agent that sends this long after another agent first sent its node name is running. A batch before that may
be a request that was on its way when the process ended."""
TRY_AGAIN_AFTER_S = 10
CLAIMED_TWICE = "node_claimed_twice"
STOPPED = "agent_stopped"
_OTHERS_MAX = 8
"""Agents that are remembered of a node besides its owner."""
_ID_CHARS = 12
"""Characters of an agent's id in messages."""


class NodeAgent(NamedTuple):
    """An agent in one boot of its machine, as its batches name it."""

    agent_id: str
    boot_id: str


class NodeOwner(NamedTuple):
    """The agent that owns a node name, and others that sent rows of the node."""

    agent: NodeAgent
    sender: str | None
    """The authenticated sender; None: unknown, because it sent before this start."""
    peer: str
    """Address of the client; "": unknown."""
    since_ms: int
    heard_at: datetime
    has_stopped: bool = False
    earlier: tuple[NodeAgent, ...] = ()
    """Earlier owners of the name."""
    others: tuple[tuple[NodeAgent, datetime], ...] = ()
    """Agents that sent rows of the node while another agent owned it, and when first."""
    event_at: datetime | None = None
    """Time of the last event about two agents with this name."""
    refused: int = 0
    """Batches that were refused since that event."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The name belongs to another agent."""

    node: str
    reason: str
    is_settled: bool
    """Whether both agents keep sending; otherwise the batch may be sent again."""


@dataclass(slots=True)
class NodeClaims:
    """Changes of node owners by one commit. Does not change `owners`."""

    owners: Mapping[str, NodeOwner]
    """By node."""
    now: datetime
    changed: dict[str, NodeOwner] = field(default_factory=dict)
    _events: list[dict[str, Any]] = field(default_factory=list)

    def owner(self, node: str) -> NodeOwner | None:
        """The owner of a node name."""
        return self.changed.get(node) or self.owners.get(node)

    def judge(
        self,
        node: str,
        agent: NodeAgent,
        sender: str,
        peer: str,
        newest_ms: Callable[[], int],
        *,
        simulated: Callable[[], bool] = lambda: False,
    ) -> Claimed | None:
        """Why a batch with rows of the node is refused; None: it is not.

        `newest_ms`: the time of its newest row; `simulated`: whether its rows are simulated. Both are called only
        if another agent owns the name.
        """
        owner = self.owner(node)
        if owner is None:
            self.changed[node] = NodeOwner(agent, sender, peer, to_ms(self.now), self.now)
            return None
        if owner.agent == agent:
            self.changed[node] = owner._replace(
                heard_at=self.now, sender=sender, peer=peer, has_stopped=False
            )
            return None
        is_same = agent.agent_id == owner.agent.agent_id
        if (is_same or agent in owner.earlier) and newest_ms() <= owner.since_ms:
            return None
        if self._is_free(owner, agent, sender):
            earlier = (*(a for a in owner.earlier if a != agent), owner.agent)[-_OTHERS_MAX:]
            self.changed[node] = NodeOwner(
                agent,
                sender,
                peer,
                to_ms(self.now),
                self.now,
                earlier=earlier,
                event_at=owner.event_at,
            )
            return None
        return self._refused(node, owner, agent, peer, simulated)

    def stopped(self, events: Any) -> None:
        """Note agents that stopped in order, from admitted events."""
        rows = events.filter(pc.equal(events["kind"], STOPPED))
        for node in rows["node"].to_pylist() if rows.num_rows else ():
            if (owner := self.owner(node)) is not None:
                self.changed[node] = owner._replace(has_stopped=True)

    def events(self) -> Any | None:
        """Rows of `events` about nodes with two agents; None: there are no events."""
        return event_table(self._events)

    def _is_free(self, owner: NodeOwner, agent: NodeAgent, sender: str) -> bool:
        if self.now - owner.heard_at >= SILENT_AFTER:
            return True
        if agent.agent_id == owner.agent.agent_id and agent not in owner.earlier:
            return True
        return owner.has_stopped and owner.sender in (sender, None)

    def _refused(
        self,
        node: str,
        owner: NodeOwner,
        agent: NodeAgent,
        peer: str,
        simulated: Callable[[], bool],
    ) -> Claimed:
        first_at = dict(owner.others).get(agent)
        if first_at is None:
            first_at = self.now
            others = (*owner.others, (agent, first_at))[-_OTHERS_MAX:]
            self.changed[node] = owner = owner._replace(others=others)
        owned_by = _named(owner.agent, owner.peer)
        if owner.heard_at - first_at < BOTH_SPEAK_AFTER:
            reason = (
                f"node {node} belongs to {owned_by}, which sent within the last minute; another agent may send as"
                f" {node} once that agent has stopped or has been silent for a minute"
            )
            return Claimed(node, reason, is_settled=False)
        self._report(node, owner, agent, peer, simulated)
        reason = (
            f"node {node} belongs to {owned_by}, which keeps sending: two machines must not have one name; give"
            " this one another name (setting node, or its host name), or stop the other"
        )
        return Claimed(node, reason, is_settled=True)

    def _report(
        self,
        node: str,
        owner: NodeOwner,
        agent: NodeAgent,
        peer: str,
        simulated: Callable[[], bool],
    ) -> None:
        refused = owner.refused + 1
        if owner.event_at is not None and self.now - owner.event_at < REPEAT_AFTER:
            self.changed[node] = owner._replace(refused=refused)
            return
        self.changed[node] = owner._replace(event_at=self.now, refused=0)
        message = (
            f"two agents send as node {node}: {_named(owner.agent, owner.peer)}, which owns the name, and"
            f" {_named(agent, peer)}, whose batches are refused ({refused} since the last event); give one"
            " of the two machines another name"
        )
        details = {
            "batches": refused,
            "owner_agent": owner.agent.agent_id,
            "owner_boot": owner.agent.boot_id,
            "owner_address": owner.peer or None,
            "other_agent": agent.agent_id,
            "other_boot": agent.boot_id,
            "other_address": peer or None,
        }
        self._events.append(
            warning(CLAIMED_TWICE, node, message, details, now=self.now, simulated=simulated())
        )


def _named(agent: NodeAgent, peer: str) -> str:
    where = f" at {peer}" if peer else ""
    return f"agent {agent.agent_id[:_ID_CHARS]}{where} (boot {agent.boot_id[:_ID_CHARS]})"


def nodes_of(batches: Sequence[Mapping[str, BatchRows]]) -> list[frozenset[str]]:
    """The nodes in the rows of each batch.

    The rows of most batches follow each other in one table, so its node names are dictionary-encoded once.
    """
    nodes: list[set[str]] = [set() for _ in batches]
    wholes: dict[int, tuple[Any, list[tuple[int, int, int]]]] = {}
    for number, parts in enumerate(batches):
        for part in parts.values():
            if part.rows:
                spans = wholes.setdefault(id(part.whole), (part.whole, []))[1]
                spans.append((part.start, part.start + part.rows, number))
    for whole, spans in wholes.values():
        # The store refuses a row without a node.
        encoded = whole["node"].fill_null("").combine_chunks().dictionary_encode()
        names = encoded.dictionary.to_pylist()
        if len(names) == 1:
            for _, _, number in spans:
                nodes[number].add(names[0])
            continue
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        spans.sort()
        starts = np.array([start for start, _, _ in spans])
        # No span goes beyond the start of the next. Rows between two spans belong to other commits.
        lows, highs = np.minimum.reduceat(codes, starts), np.maximum.reduceat(codes, starts)
        for (start, end, number), low, high in zip(
            spans, lows.tolist(), highs.tolist(), strict=True
        ):
            if low == high:
                nodes[number].add(names[low])
            else:
                nodes[number].update(names[code] for code in np.unique(codes[start:end]).tolist())
    return [frozenset(names - {""}) for names in nodes]


def without_nodes(batch: Decoded, nodes: Iterable[str]) -> Decoded:
    """The batch without rows of these nodes."""
    values = pa.array(sorted(nodes), pa.string())
    remaining = {}
    for name, data in batch.tables.items():
        data = data.filter(pc.invert(pc.is_in(data["node"], value_set=values)))
        if data.num_rows:
            remaining[name] = data
    return Decoded.of(remaining, batch.memory_bytes, batch.unknown_columns)


def newest_ms(batch: Decoded) -> int:
    """The time of a batch's newest row; 0: its tables have no times."""
    newest_ms = [
        pc.max(t["ts"].cast(pa.int64())).as_py()
        for t in batch.tables.values()
        if "ts" in t.schema.names
    ]
    return max((ms for ms in newest_ms if ms is not None), default=0)


def is_simulated(batch: Decoded) -> bool:
    """Whether the first row of a batch is simulated."""
    return any(
        bool(table["simulated"][0].as_py()) for table in batch.tables.values() if table.num_rows
    )


def stored_node_owner(row: Mapping[str, Any], now: datetime) -> NodeOwner | None:
    """The owner of a node name by its stored row (times naive UTC), as if it had sent now: the collector was
    stopped, not the agent. None: no owner, or the agent was last seen long ago."""
    agent_id, boot_id, seen_at = row.get("agent_id"), row.get("boot_id"), row.get("last_seen_at")
    if not agent_id or not boot_id or seen_at is None:
        return None
    if now - seen_at.replace(tzinfo=UTC) >= REPEAT_AFTER:
        return None
    return NodeOwner(NodeAgent(agent_id, boot_id), None, "", to_ms(now), now)


def silent_nodes(owners: Mapping[str, NodeOwner], now: datetime) -> list[str]:
    """Nodes whose agents have been silent for so long that their entries can be forgotten."""
    return [node for node, owner in owners.items() if now - owner.heard_at >= 2 * REPEAT_AFTER]


_Runs = tuple[list[int], list[str | None]]
"""Where each run ends, and its name."""


class NodeColumns:
    """Run-end encodes the columns `node` of tables, once for one group of batches."""

    def __init__(self) -> None:
        self._known: dict[int, _Runs] = {}

    def refusal(self, batch: Decoded, node: str) -> RefusedBody | None:
        """Why a batch has rows of other nodes; None: it has not."""
        for part in batch.parts.values():
            ends, names = self._runs(part.whole)
            end = part.start + part.rows
            run = bisect_right(ends, part.start)
            while part.start < end and run < len(ends):
                if names[run] != node:
                    return RefusedBody(
                        403,
                        f"the token is for node {node}, and the batch has rows of node {names[run]}:"
                        " enroll that node, or give the agent its old name",
                    )
                if ends[run] >= end:
                    break
                run += 1
        return None

    def _runs(self, table: Any) -> _Runs:
        runs = self._known.get(id(table))
        if runs is None:
            encoded = pc.run_end_encode(table.column("node").combine_chunks())
            runs = self._known[id(table)] = encoded.run_ends.to_pylist(), encoded.values.to_pylist()
        return runs
