"""Decides to which node a GPU belongs: pure, from tables to the same without rows about another node's GPU.

A GPU belongs to the node whose samples of it came first. It goes to another that has samples of it once
the first has let go of it (`gpu_lost`), once the first has been silent about it for a while, or at once
when the same agent has another name. Until then the other's rows about it are left out, counted, and
told as an event; what they say of the time before it belonged to anybody known is kept.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden.clock import to_ms
from gpuwarden.schema import EVENTS, WIRE_TABLES
from gpuwarden_collector.auth.senders import NOBODY
from gpuwarden_collector.storage.schemas import STORED_SCHEMAS

GONE_AFTER = timedelta(minutes=10)
"""A node that has said nothing of a GPU for so long does not have it any more, as when a board was moved."""
GONE_AFTER_WITHOUT_TOKENS = timedelta(minutes=1)
"""The same where nobody is asked who he is. Only mistakes are found there, such as two machines made from
one image, which both speak all the time; and a machine that comes back under another name is the rule."""
NODE_GPUS_MAX = 1_024
"""GPUs and MIG instances that a node may speak of within GONE_AFTER: eight times what the largest hosts have. Names
fill memory, state file and pages, and who has a node's token can invent them."""
NODE_GPUS_KNOWN_MAX = 16_384
"""Rows of `gpus` that a node may have in all; instances that were made anew leave theirs until they are forgotten."""
TOLD_EVERY = timedelta(minutes=10)
"""How often it is told at most that a node speaks of a certain GPU of another."""
TOLD_MAX = 1_000
"""Most pairs of GPU and node that are told of in that time; more are counted only."""
CLAIMED_TWICE = "gpu_claimed_twice"
TOO_MANY = "gpus_too_many"
_ANY = ""
"""In the place of a gpu_uuid: more GPUs than a node may speak of."""
_HEARD_STEP = timedelta(seconds=15)
"""How exactly it is known when a node last spoke of a GPU."""
_LOST = "gpu_lost"
_SINCE_EVER_MS = -(2**62)
_SEPARATOR = "\x1f"

# An agent goes on to count what it misses of a GPU that is gone, and to tell of it.
_SAYS_IT_IS_THERE = tuple(
    name
    for name, table in WIRE_TABLES.items()
    if {"ts", "gpu_uuid"} <= set(table.names) and name not in ("coverage", EVENTS.name)
)
_ABOUT_GPUS = (*_SAYS_IT_IS_THERE, "coverage", EVENTS.name)


class Speaker(NamedTuple):
    """Who was let in, and the agent that its batch names."""

    sender: str | None
    """None: not known, as from before this start."""
    agent_id: str | None


class GpuOwner(NamedTuple):
    """The node that a GPU belongs to."""

    node: str
    since_ms: int
    """Rows of others from before that are no concern of its."""
    heard_at: datetime
    speaker: Speaker
    has_let_go: bool = False


class Told(NamedTuple):
    """When an event last told of a GPU and a node that it does not belong to, and rows left out since."""

    at: datetime
    rows: int


@dataclass(slots=True)
class Claims:
    """What a group of batches changes of who owns what; `owners` and `told` themselves stay as they are."""

    owners: Mapping[str, GpuOwner]
    """By gpu_uuid."""
    told: Mapping[tuple[str, str], Told]
    """By gpu_uuid and node."""
    now: datetime
    owned: Mapping[str, int] = field(default_factory=dict)
    """How many GPUs each node has."""
    known: Mapping[str, int] = field(default_factory=dict)
    """How many rows of `gpus` each node has."""
    changed: dict[str, GpuOwner] = field(default_factory=dict)
    changed_told: dict[tuple[str, str], Told] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    """Rows by table."""
    _denied: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    """By gpu_uuid and node: rows left out, and whether the first of them was simulated."""
    _gained: Counter[str] = field(default_factory=Counter)
    """By node: GPUs that this group has brought it, less those that it has lost."""
    _named: dict[str, set[str]] = field(default_factory=dict)
    """By node: GPUs nobody has that this group tells of in `gpus`."""

    def owner(self, gpu_uuid: str) -> GpuOwner | None:
        """Whom a GPU belongs to."""
        return self.changed.get(gpu_uuid) or self.owners.get(gpu_uuid)

    def without_others(
        self,
        tables: Mapping[str, Any],
        speaker_at: Callable[[str, int], Speaker],
        *,
        is_import: bool = False,
    ) -> dict[str, Any]:
        """The tables without rows about GPUs of other nodes.

        `speaker_at`: who sent a row of a table, by its number. `is_import`: they are history, which
        says nothing about where a GPU is now.
        """
        kept = dict(tables)
        for name in _ABOUT_GPUS:
            if name in tables:
                claims = name in _SAYS_IT_IS_THERE and not is_import
                wrong = self._judge(name, tables[name], speaker_at, claims=claims)
                if wrong:
                    kept[name] = self._filtered(name, tables[name], wrong)
        if EVENTS.name in kept and not is_import:
            self._let_go(kept[EVENTS.name])
        return {name: table for name, table in kept.items() if table.num_rows}

    def admits(self, row: Mapping[str, Any], speaker: Speaker) -> bool:
        """Whether a node may say this row of `gpus`, of a GPU and what it is part of; else it is left out."""
        named: list[str] = [row["gpu_uuid"]]
        if (parent := row.get("parent_gpu_uuid")) is not None:
            named.append(parent)
        for gpu_uuid in named:
            owner = self.owner(gpu_uuid)
            if owner is None and not self._has_row(row["node"], gpu_uuid):
                self.left_out["gpus"] += 1
                self._deny(_ANY, row["node"], 1, simulated=bool(row["simulated"]))
                return False
            if owner is None or owner.node == row["node"] or self._is_free(owner, speaker):
                continue
            self.left_out["gpus"] += 1
            self._deny(gpu_uuid, row["node"], 1, simulated=bool(row["simulated"]))
            return False
        return True

    def let_go(self, gpu_uuid: str, node: str) -> None:
        """The node has the GPU no more; nothing, if it did not have it."""
        owner = self.owner(gpu_uuid)
        if owner is not None and owner.node == node:
            self.changed[gpu_uuid] = owner._replace(has_let_go=True)

    def events(self) -> Any | None:
        """Rows of `events` about what was left out; None: nothing is to be told."""
        if not self._denied:
            return None
        rows = []
        recent = sum(self.now - told.at < TOLD_EVERY for told in self.told.values())
        for (gpu_uuid, node), (left_out, simulated) in self._denied.items():
            before = self.told.get((gpu_uuid, node))
            is_due = before is None or self.now - before.at >= TOLD_EVERY
            total = left_out + (before.rows if before else 0)
            if before is not None and not is_due:
                self.changed_told[gpu_uuid, node] = Told(before.at, total)
            elif recent < TOLD_MAX:
                recent += 1
                self.changed_told[gpu_uuid, node] = Told(self.now, 0)
                rows.append(self._event(gpu_uuid, node, total, simulated=simulated))
        return pa.Table.from_pylist(rows, schema=STORED_SCHEMAS[EVENTS.name]) if rows else None

    def _judge(
        self, name: str, table: Any, speaker_at: Callable[[str, int], Speaker], *, claims: bool
    ) -> dict[tuple[str, str], int]:
        """Pairs of GPU and node that do not belong together, and since when they have not."""
        wrong: dict[tuple[str, str], int] = {}
        pairs = _pairs_of(table)
        for gpu_uuid, node, pair in pairs:
            owner = self.owner(gpu_uuid)
            if owner is not None and owner.node == node:
                if claims and (owner.has_let_go or self.now - owner.heard_at >= _HEARD_STEP):
                    heard = GpuOwner(node, owner.since_ms, self.now, owner.speaker)
                    self.changed[gpu_uuid] = heard
                continue
            if owner is None and not claims:
                continue
            first_row, first_ms = pairs.first(pair)
            speaker = speaker_at(name, first_row)
            if owner is None or self._is_free(owner, speaker):
                if claims and not self._has_room(node):
                    wrong[gpu_uuid, node] = _SINCE_EVER_MS
                elif claims:
                    self._gained[node] += 1
                    if owner is not None:
                        self._gained[owner.node] -= 1
                    # A clock that is ahead would leave the time until then to others.
                    since_ms = min(first_ms, to_ms(self.now))
                    self.changed[gpu_uuid] = GpuOwner(node, since_ms, self.now, speaker)
            else:
                wrong[gpu_uuid, node] = owner.since_ms
        return wrong

    def _has_room(self, node: str) -> bool:
        return self.owned.get(node, 0) + self._gained[node] < NODE_GPUS_MAX

    def _has_row(self, node: str, gpu_uuid: str) -> bool:
        """Whether a node may have a row of `gpus` more."""
        named = self._named.setdefault(node, set())
        if gpu_uuid in named:
            return True
        if self.known.get(node, 0) + len(named) >= NODE_GPUS_KNOWN_MAX:
            return False
        named.add(gpu_uuid)
        return True

    def _is_free(self, owner: GpuOwner, speaker: Speaker) -> bool:
        """Whether another node may have the owner's GPU."""
        is_open = speaker.sender == NOBODY
        is_same_sender = owner.speaker.sender == speaker.sender or (
            is_open and owner.speaker.sender is None
        )
        if is_same_sender and owner.speaker.agent_id == speaker.agent_id:
            return True
        silent = self.now - owner.heard_at
        gone_after = GONE_AFTER_WITHOUT_TOKENS if is_open else GONE_AFTER
        return owner.has_let_go or silent >= gone_after

    def _filtered(self, name: str, table: Any, wrong: Mapping[tuple[str, str], int]) -> Any:
        keys = pa.array([_SEPARATOR.join(pair) for pair in wrong], pa.string())
        since = pa.array(list(wrong.values()), pa.int64())
        of_row = pc.binary_join_element_wise(table["gpu_uuid"], table["node"], _SEPARATOR)
        pair_of_row = pc.index_in(of_row, value_set=keys)
        is_out = pc.greater_equal(pc.cast(table["ts"], pa.int64()), pc.take(since, pair_of_row))
        is_out = pc.fill_null(is_out, False)
        out = table.filter(is_out)
        if not out.num_rows:
            return table
        pairs = pair_of_row.filter(is_out).to_numpy()
        found, first, counts = np.unique(pairs, return_index=True, return_counts=True)
        simulated = out["simulated"].take(pa.array(first)).to_pylist()
        numbered = list(wrong)
        for number, rows, is_simulated in zip(found, counts, simulated, strict=True):
            gpu_uuid, node = numbered[int(number)]
            told_of = _ANY if wrong[gpu_uuid, node] == _SINCE_EVER_MS else gpu_uuid
            self._deny(told_of, node, int(rows), simulated=is_simulated)
        self.left_out[name] += out.num_rows
        return table.filter(pc.invert(is_out))

    def _deny(self, gpu_uuid: str, node: str, rows: int, *, simulated: bool) -> None:
        self._denied.setdefault((gpu_uuid, node), [0, simulated])[0] += rows

    def _let_go(self, events: Any) -> None:
        # Rows of the same group may be younger than that; then the next ones say that it is there.
        lost = events.filter(pc.equal(events["kind"], _LOST)).select(["gpu_uuid", "node"])
        for row in lost.to_pylist():
            self.let_go(row["gpu_uuid"], row["node"])

    def _event(self, gpu_uuid: str, node: str, rows: int, *, simulated: bool) -> dict[str, Any]:
        if gpu_uuid == _ANY:
            return self._crowd_event(node, rows, simulated=simulated)
        owner = self.owner(gpu_uuid)
        assert owner is not None
        message = (
            f"node {node} speaks of {gpu_uuid}, which node {owner.node} has: {rows} rows of {node} about it"
            " were left out; see whether the two are copies of one machine, or revoke the token of the"
            " one that does not have it"
        )
        details = {"node": node, "owner": owner.node, "rows": rows}
        return {
            "ts": self.now.replace(tzinfo=None),
            "node": node,
            "gpu_uuid": gpu_uuid,
            "simulated": simulated,
            "kind": CLAIMED_TWICE,
            "severity": "warning",
            "message": message,
            "details": json.dumps(details, sort_keys=True),
        }

    def _crowd_event(self, node: str, rows: int, *, simulated: bool) -> dict[str, Any]:
        message = (
            f"node {node} speaks of more than {NODE_GPUS_MAX} GPUs, or {NODE_GPUS_KNOWN_MAX} in all: {rows} rows"
            " about the others were left out; revoke its token if it is not what it should be"
        )
        return {
            "ts": self.now.replace(tzinfo=None),
            "node": node,
            "gpu_uuid": None,
            "simulated": simulated,
            "kind": TOO_MANY,
            "severity": "warning",
            "message": message,
            "details": json.dumps({"node": node, "rows": rows}, sort_keys=True),
        }


_FEW_ROWS = 200


def _pairs_of(table: Any) -> "_Pairs | _FewPairs":
    """GPUs and nodes that rows of a table name together. A row without either is for the store to refuse."""
    return _FewPairs(table) if table.num_rows <= _FEW_ROWS else _Pairs(table)


class _FewPairs:
    """As `_Pairs`, for so few rows that each call of Arrow costs more than all of them."""

    def __init__(self, table: Any) -> None:
        self._ts = table["ts"]
        gpus, nodes = (table[name].to_pylist() for name in ("gpu_uuid", "node"))
        self._rows: list[tuple[str, str]] = list(zip(gpus, nodes, strict=True))
        self._pairs = [pair for pair in dict.fromkeys(self._rows) if None not in pair]

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        for number, (gpu, node) in enumerate(self._pairs):
            yield gpu, node, number

    def first(self, pair: int) -> tuple[int, int]:
        """As `_Pairs.first`."""
        named = self._pairs[pair]
        ts = pc.cast(self._ts, pa.int64()).to_pylist()
        times = [at for at, row in zip(ts, self._rows, strict=True) if row == named]
        return self._rows.index(named), min(times)


class _Pairs:
    """By codes instead of texts, and nearly always without sorting: it is done for every row that comes."""

    def __init__(self, table: Any) -> None:
        self._ts = table["ts"]
        gpus, nodes = (_encoded(table[name]) for name in ("gpu_uuid", "node"))
        self.gpus: list[str] = gpus.dictionary.to_pylist()
        self.nodes: list[str] = nodes.dictionary.to_pylist()
        is_pair = pc.and_(gpus.is_valid(), nodes.is_valid())
        self._rows = np.flatnonzero(is_pair.to_numpy(zero_copy_only=False))
        self._gpu_of_row = gpus.indices.fill_null(0).to_numpy()[self._rows]
        self._node_of_row = nodes.indices.fill_null(0).to_numpy()[self._rows]

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """GPU, node, and where the pair is looked up with `first`."""
        node_of_gpu = np.full(len(self.gpus), -1)
        node_of_gpu[self._gpu_of_row] = self._node_of_row
        if np.array_equal(node_of_gpu[self._gpu_of_row], self._node_of_row):
            found = zip(range(len(self.gpus)), node_of_gpu.tolist(), strict=True)
        else:
            codes = np.unique(self._codes)
            found = zip(
                (codes // len(self.nodes)).tolist(),
                (codes % len(self.nodes)).tolist(),
                strict=True,
            )
        for gpu, node in found:
            if node >= 0:
                yield self.gpus[gpu], self.nodes[node], gpu * len(self.nodes) + node

    def first(self, pair: int) -> tuple[int, int]:
        """The first row of a pair, and its first time in milliseconds."""
        rows, times = self._firsts
        return rows[pair], times[pair]

    @cached_property
    def _codes(self) -> Any:
        return self._gpu_of_row.astype(np.int64) * len(self.nodes) + self._node_of_row

    @cached_property
    def _firsts(self) -> tuple[dict[int, int], dict[int, int]]:
        ts = pc.cast(self._ts, pa.int64()).to_numpy()[self._rows]
        codes, rows, at = np.unique(self._codes, return_index=True, return_inverse=True)
        times = np.full(len(codes), np.iinfo(np.int64).max)
        np.minimum.at(times, at, ts)
        names = codes.tolist()
        return (
            dict(zip(names, self._rows[rows].tolist(), strict=True)),
            dict(zip(names, times.tolist(), strict=True)),
        )


def _encoded(column: Any) -> Any:
    return column.combine_chunks().dictionary_encode()


def stored_owner(row: Mapping[str, Any], agent_id: str | None, heard_at: datetime) -> GpuOwner:
    """Whom a GPU belongs to by its stored row (times with their zone), and the agent of its node."""
    first = row.get("first_seen_at") or heard_at
    return GpuOwner(row["node"], to_ms(first), heard_at, Speaker(None, agent_id))


def gone(owners: Mapping[str, GpuOwner], now: datetime) -> list[str]:
    """GPUs whose owners have been silent about them for so long that anybody may have them."""
    return [key for key, owner in owners.items() if now - owner.heard_at >= GONE_AFTER]
