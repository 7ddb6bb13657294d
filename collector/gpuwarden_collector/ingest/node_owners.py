"""Decides which agent may send as a node: pure, from batches and what is known to what becomes of each.

A name belongs to one agent in one boot of its machine. The same agent in another boot has it at once, as
after a restart, with the first rows of a later time: what its spool kept of an earlier boot claims nothing. Another agent, such as one of a machine that was installed anew, has it once the first
has stopped in order or has been silent for a while; until then its batches are to be sent again. Where
both go on, there are two machines with one name: batches of the second are refused with a sentence, and
an event names both. What the earlier one kept of the time before it lost the name is stored.

Time is that of arrival, as clocks of two machines need not agree.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden.clock import to_ms
from gpuwarden.schema import EVENTS
from gpuwarden_collector.ingest.decode import BatchRows, Decoded, RefusedBody
from gpuwarden_collector.storage.schemas import STORED_SCHEMAS

SILENT_AFTER = timedelta(minutes=1)
"""An agent that has sent nothing for so long has let go of the name: agents send every five seconds, and
every 30 where a collector asks for it."""
BOTH_SPEAK_AFTER = timedelta(seconds=10)
"""An agent that is heard so long after another first sent as its node is there: what comes before that may
be a request that was under way when its process ended."""
TRY_AGAIN_AFTER_S = 10
TOLD_EVERY = timedelta(minutes=10)
CLAIMED_TWICE = "node_claimed_twice"
STOPPED = "agent_stopped"
_OTHERS_MAX = 8
"""Most agents that are remembered of a node besides its own."""
_ID_CHARS = 12
"""Of an agent's identity as sentences have it."""


class NodeAgent(NamedTuple):
    """An agent in one boot of its machine, as its batches name it."""

    agent_id: str
    boot_id: str


class NodeOwner(NamedTuple):
    """The agent that a node's name belongs to, and others that sent as the node."""

    agent: NodeAgent
    sender: str | None
    """Who was let in; None: not known, as from before this start."""
    peer: str
    """Address that it sends from; "": not known."""
    since_ms: int
    heard_at: datetime
    has_stopped: bool = False
    earlier: tuple[NodeAgent, ...] = ()
    """Who had the name before."""
    others: tuple[tuple[NodeAgent, datetime], ...] = ()
    """Who sent as the node while it was another's, and when first."""
    told_at: datetime | None = None
    refused: int = 0
    """Batches that were refused since an event told of it."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The name is another agent's."""

    node: str
    reason: str
    is_settled: bool
    """Whether both go on; else the batch may be sent again, and taken then."""


@dataclass(slots=True)
class NodeClaims:
    """What a group of batches changes of whose nodes are whose; `owners` itself stays as it is."""

    owners: Mapping[str, NodeOwner]
    """By node."""
    now: datetime
    changed: dict[str, NodeOwner] = field(default_factory=dict)
    _told: list[dict[str, Any]] = field(default_factory=list)

    def owner(self, node: str) -> NodeOwner | None:
        """Whom a node's name belongs to."""
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
        """What stands against a batch that speaks of the node; None: nothing.

        `newest_ms`: the time of its newest row; `simulated`: whether they are simulated. Both are asked
        for where another agent has the name.
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
                told_at=owner.told_at,
            )
            return None
        return self._against(node, owner, agent, peer, simulated)

    def stopped(self, events: Any) -> None:
        """Take note of agents that stopped in order: events that were admitted."""
        rows = events.filter(pc.equal(events["kind"], STOPPED))
        for node in rows["node"].to_pylist() if rows.num_rows else ():
            if (owner := self.owner(node)) is not None:
                self.changed[node] = owner._replace(has_stopped=True)

    def events(self) -> Any | None:
        """Rows of `events` about nodes that two agents send as; None: there is nothing to tell."""
        if not self._told:
            return None
        return pa.Table.from_pylist(self._told, schema=STORED_SCHEMAS[EVENTS.name])

    def _is_free(self, owner: NodeOwner, agent: NodeAgent, sender: str) -> bool:
        if self.now - owner.heard_at >= SILENT_AFTER:
            return True
        if agent.agent_id == owner.agent.agent_id and agent not in owner.earlier:
            return True
        return owner.has_stopped and owner.sender in (sender, None)

    def _against(
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
        theirs = _named(owner.agent, owner.peer)
        if owner.heard_at - first_at < BOTH_SPEAK_AFTER:
            reason = (
                f"node {node} is {theirs}, heard of within the last minute; another agent may send as"
                f" {node} once that one has stopped, or has been silent for a minute"
            )
            return Claimed(node, reason, is_settled=False)
        self._tell(node, owner, agent, peer, simulated)
        reason = (
            f"node {node} is {theirs}, and goes on sending: two machines must not have one name; give"
            " this one another (setting node, or its host name), or stop the other"
        )
        return Claimed(node, reason, is_settled=True)

    def _tell(
        self,
        node: str,
        owner: NodeOwner,
        agent: NodeAgent,
        peer: str,
        simulated: Callable[[], bool],
    ) -> None:
        refused = owner.refused + 1
        if owner.told_at is not None and self.now - owner.told_at < TOLD_EVERY:
            self.changed[node] = owner._replace(refused=refused)
            return
        self.changed[node] = owner._replace(told_at=self.now, refused=0)
        message = (
            f"two agents send as node {node}: {_named(owner.agent, owner.peer)}, which has the name, and"
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
        self._told.append(
            {
                "ts": self.now.replace(tzinfo=None),
                "node": node,
                "simulated": simulated(),
                "kind": CLAIMED_TWICE,
                "severity": "warning",
                "message": message,
                "details": json.dumps(details, sort_keys=True),
            }
        )


def _named(agent: NodeAgent, peer: str) -> str:
    where = f" at {peer}" if peer else ""
    return f"agent {agent.agent_id[:_ID_CHARS]}{where} (boot {agent.boot_id[:_ID_CHARS]})"


def nodes_of(batches: Sequence[Mapping[str, BatchRows]]) -> list[frozenset[str]]:
    """The nodes that rows of each batch name.

    Batches are rows of one table mostly, one after another: its names become codes once.
    """
    found: list[set[str]] = [set() for _ in batches]
    wholes: dict[int, tuple[Any, list[tuple[int, int, int]]]] = {}
    for number, parts in enumerate(batches):
        for part in parts.values():
            if part.rows:
                spans = wholes.setdefault(id(part.whole), (part.whole, []))[1]
                spans.append((part.start, part.start + part.rows, number))
    for whole, spans in wholes.values():
        # A row without a node is for the store to refuse.
        encoded = whole["node"].fill_null("").combine_chunks().dictionary_encode()
        names = encoded.dictionary.to_pylist()
        if len(names) == 1:
            for _, _, number in spans:
                found[number].add(names[0])
            continue
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        spans.sort()
        starts = np.array([start for start, _, _ in spans])
        # Each span ends at most where the next begins; what lies between is of other groups.
        lows, highs = np.minimum.reduceat(codes, starts), np.maximum.reduceat(codes, starts)
        for (start, end, number), low, high in zip(
            spans, lows.tolist(), highs.tolist(), strict=True
        ):
            if low == high:
                found[number].add(names[low])
            else:
                found[number].update(names[code] for code in np.unique(codes[start:end]).tolist())
    return [frozenset(names - {""}) for names in found]


def without_nodes(batch: Decoded, nodes: Iterable[str]) -> Decoded:
    """The batch without rows of these nodes."""
    values = pa.array(sorted(nodes), pa.string())
    kept = {}
    for name, data in batch.tables.items():
        data = data.filter(pc.invert(pc.is_in(data["node"], value_set=values)))
        if data.num_rows:
            kept[name] = data
    return Decoded.of(kept, batch.memory_bytes, batch.unknown_columns)


def newest_ms(batch: Decoded) -> int:
    """The time of a batch's newest row; 0: none of its tables has times."""
    found = [
        pc.max(t["ts"].cast(pa.int64())).as_py()
        for t in batch.tables.values()
        if "ts" in t.schema.names
    ]
    return max((ms for ms in found if ms is not None), default=0)


def is_simulated(batch: Decoded) -> bool:
    """Whether the first row of a batch is of something simulated."""
    return any(
        bool(table["simulated"][0].as_py()) for table in batch.tables.values() if table.num_rows
    )


def stored_node_owner(row: Mapping[str, Any], now: datetime) -> NodeOwner | None:
    """Whom a name belongs to by its stored row (times naive UTC): as if heard of now, as it was the
    collector that was away; None: nobody, or it was away for long."""
    agent_id, boot_id, seen_at = row.get("agent_id"), row.get("boot_id"), row.get("last_seen_at")
    if not agent_id or not boot_id or seen_at is None:
        return None
    if now - seen_at.replace(tzinfo=UTC) >= TOLD_EVERY:
        return None
    return NodeOwner(NodeAgent(agent_id, boot_id), None, "", to_ms(now), now)


def silent_nodes(owners: Mapping[str, NodeOwner], now: datetime) -> list[str]:
    """Nodes whose agents have been silent for so long that nothing of them matters any more."""
    return [node for node, owner in owners.items() if now - owner.heard_at >= 2 * TOLD_EVERY]


_Runs = tuple[list[int], list[str | None]]
"""Where each run ends, and its name."""


class NodeColumns:
    """The columns `node` of tables as runs; for one group of batches."""

    def __init__(self) -> None:
        self._known: dict[int, _Runs] = {}

    def refusal(self, batch: Decoded, node: str) -> RefusedBody | None:
        """Why a batch is not this node's; None: it is."""
        for part in batch.parts.values():
            ends, names = self._runs(part.whole)
            end = part.start + part.rows
            run = bisect_right(ends, part.start)
            while part.start < end and run < len(ends):
                if names[run] != node:
                    return RefusedBody(
                        403,
                        f"the token is for node {node}, and the batch has rows of node {names[run]}:"
                        " enroll that node, or give the agent its own name back",
                    )
                if ends[run] >= end:
                    break
                run += 1
        return None

    def _runs(self, table: Any) -> _Runs:
        runs = self._known.get(id(table))
        if runs is None:
            found = pc.run_end_encode(table.column("node").combine_chunks())
            runs = self._known[id(table)] = found.run_ends.to_pylist(), found.values.to_pylist()
        return runs
