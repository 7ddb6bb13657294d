"""Decides which node owns a GPU, and removes rows about GPUs of other nodes; pure.

A GPU belongs to the node whose samples of it came first. Another node that has samples of it gets it when the
owner has released it (`gpu_lost`) or has sent nothing about it for a while, and at once when it is the same
agent under a new node name. Until then the other node's rows about it are left out, counted, and reported as
an event. Its rows from before the owner got the GPU are kept.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden.clock import to_ms
from gpuwarden.gpu_test import GPU_TESTS
from gpuwarden.schema import EVENTS, WIRE_TABLES
from gpuwarden_collector.auth.senders import NOBODY
from gpuwarden_collector.ingest.own_events import REPEAT_AFTER, event_table, warning

GONE_AFTER = timedelta(minutes=10)
"""A node that has sent nothing about a GPU for this long does not have it any more, as when a board was moved."""
GONE_AFTER_WITHOUT_TOKENS = timedelta(minutes=1)
"""The same where no tokens are required. There the check only finds mistakes, such as two machines with one
image, which both send all the time; a machine that comes back under another name is normal."""
NODE_GPUS_MAX = 1_024
"""GPUs and MIG instances that a node may report within GONE_AFTER: eight times what the largest hosts have. The
holder of a node's token can invent names, and names fill memory, the state file and pages."""
NODE_GPUS_KNOWN_MAX = 16_384
"""Rows of `gpus` that a node may have in all: recreated MIG instances keep their old rows until these are forgotten."""
PAIRS_REPORTED_MAX = 1_000
"""Pairs of GPU and node with an event within REPEAT_AFTER; further pairs are only counted."""
CLAIMED_TWICE = "gpu_claimed_twice"
TOO_MANY = "gpus_too_many"
_ANY = ""
"""In place of a gpu_uuid: the node reports more GPUs than it may."""
_HEARD_STEP = timedelta(seconds=15)
"""Resolution of the time at which a node last reported a GPU."""
_LOST = "gpu_lost"
_SINCE_EVER_MS = -(2**62)
_SEPARATOR = "\x1f"

# Coverage and events do not count: an agent sends them also for a GPU that is gone.
_SHOWS_PRESENCE = tuple(
    name
    for name, table in WIRE_TABLES.items()
    if {"ts", "gpu_uuid"} <= set(table.names) and name not in ("coverage", EVENTS.name)
)
_ABOUT_GPUS = (*_SHOWS_PRESENCE, "coverage", EVENTS.name, GPU_TESTS.name)


class Reporter(NamedTuple):
    """The authenticated sender of a batch, and the agent that the batch names."""

    sender: str | None
    """None: unknown, because the batch came before this start."""
    agent_id: str | None


class GpuOwner(NamedTuple):
    """The node that a GPU belongs to."""

    node: str
    since_ms: int
    """Other nodes' rows from before this time are kept."""
    heard_at: datetime
    reporter: Reporter
    is_released: bool = False


class LastReport(NamedTuple):
    """Time of the last event about a GPU and a node that does not own it, and rows left out since then."""

    at: datetime
    rows: int


@dataclass(slots=True)
class Claims:
    """Changes of ownership by one commit. Does not change `owners` and `reported`."""

    owners: Mapping[str, GpuOwner]
    """By gpu_uuid."""
    reported: Mapping[tuple[str, str], LastReport]
    """By gpu_uuid and node."""
    now: datetime
    owned: Mapping[str, int] = field(default_factory=dict)
    """Number of GPUs that each node owns."""
    known: Mapping[str, Collection[str]] = field(default_factory=dict)
    """By node: GPUs of its rows of `gpus`."""
    changed: dict[str, GpuOwner] = field(default_factory=dict)
    changed_reports: dict[tuple[str, str], LastReport] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    """Rows by table."""
    _denied: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    """By gpu_uuid and node: rows left out, and whether the first of them was simulated."""
    _gained: Counter[str] = field(default_factory=Counter)
    """By node: GPUs that it got in this commit minus GPUs that it lost."""
    _named: dict[str, set[str]] = field(default_factory=dict)
    """By node: GPUs without an owner in its rows of `gpus` in this commit."""

    def owner(self, gpu_uuid: str) -> GpuOwner | None:
        """The owner of a GPU."""
        return self.changed.get(gpu_uuid) or self.owners.get(gpu_uuid)

    def without_others(
        self,
        tables: Mapping[str, Any],
        reporter_at: Callable[[str, int], Reporter],
        *,
        claims_nothing: bool = False,
    ) -> dict[str, Any]:
        """The tables without rows about GPUs of other nodes.

        `reporter_at`: who sent a row, by table and row number. `claims_nothing`: the rows do not show where a GPU is
        now, as those of history and of tests.
        """
        remaining = dict(tables)
        for name in _ABOUT_GPUS:
            if name in tables:
                claims = name in _SHOWS_PRESENCE and not claims_nothing
                wrong = self._judge(name, tables[name], reporter_at, claims=claims)
                if wrong:
                    remaining[name] = self._filtered(name, tables[name], wrong)
        if EVENTS.name in remaining and not claims_nothing:
            self._release_lost(remaining[EVENTS.name])
        return {name: table for name, table in remaining.items() if table.num_rows}

    def admits(
        self, row: Mapping[str, Any], reporter: Reporter, *, claims_nothing: bool = False
    ) -> bool:
        """Whether a row of `gpus` is kept: the node may report this GPU and its parent. Otherwise it is left out.

        `claims_nothing`: as for `without_others`; such a row is merged into the row of the owner.
        """
        named: list[str] = [row["gpu_uuid"]]
        if (parent := row.get("parent_gpu_uuid")) is not None:
            named.append(parent)
        for gpu_uuid in named:
            owner = self.owner(gpu_uuid)
            if owner is None and not self._has_row(row["node"], gpu_uuid):
                self.left_out["gpus"] += 1
                self._deny(_ANY, row["node"], 1, simulated=bool(row["simulated"]))
                return False
            is_free = owner is None or owner.node == row["node"] or claims_nothing
            if is_free or (owner is not None and self._is_free(owner, reporter)):
                continue
            self.left_out["gpus"] += 1
            self._deny(gpu_uuid, row["node"], 1, simulated=bool(row["simulated"]))
            return False
        return True

    def release(self, gpu_uuid: str, node: str) -> None:
        """Note that the node no longer has the GPU, if the node owned it."""
        owner = self.owner(gpu_uuid)
        if owner is not None and owner.node == node:
            self.changed[gpu_uuid] = owner._replace(is_released=True)

    def events(self) -> Any | None:
        """Rows of `events` about rows that were left out; None: there are no events."""
        if not self._denied:
            return None
        rows = []
        recent = sum(self.now - last.at < REPEAT_AFTER for last in self.reported.values())
        for (gpu_uuid, node), (left_out, simulated) in self._denied.items():
            before = self.reported.get((gpu_uuid, node))
            is_due = before is None or self.now - before.at >= REPEAT_AFTER
            total = left_out + (before.rows if before else 0)
            if before is not None and not is_due:
                self.changed_reports[gpu_uuid, node] = LastReport(before.at, total)
            elif recent < PAIRS_REPORTED_MAX:
                recent += 1
                self.changed_reports[gpu_uuid, node] = LastReport(self.now, 0)
                rows.append(self._event(gpu_uuid, node, total, simulated=simulated))
        return event_table(rows)

    def _judge(
        self, name: str, table: Any, reporter_at: Callable[[str, int], Reporter], *, claims: bool
    ) -> dict[tuple[str, str], int]:
        """Pairs of GPU and node where the node is not the owner, and since when it is not."""
        wrong: dict[tuple[str, str], int] = {}
        pairs = _pairs_of(table)
        for gpu_uuid, node, pair in pairs:
            owner = self.owner(gpu_uuid)
            if owner is not None and owner.node == node:
                if claims and (owner.is_released or self.now - owner.heard_at >= _HEARD_STEP):
                    heard = GpuOwner(node, owner.since_ms, self.now, owner.reporter)
                    self.changed[gpu_uuid] = heard
                continue
            if owner is None and not claims:
                continue
            first_row, first_ms = pairs.first(pair)
            reporter = reporter_at(name, first_row)
            if owner is None or self._is_free(owner, reporter):
                if claims and not self._has_room(node):
                    wrong[gpu_uuid, node] = _SINCE_EVER_MS
                elif claims:
                    self._gained[node] += 1
                    if owner is not None:
                        self._gained[owner.node] -= 1
                    # Not the time of a clock that is ahead: other nodes' rows until then would be kept.
                    since_ms = min(first_ms, to_ms(self.now))
                    self.changed[gpu_uuid] = GpuOwner(node, since_ms, self.now, reporter)
            else:
                wrong[gpu_uuid, node] = owner.since_ms
        return wrong

    def _has_room(self, node: str) -> bool:
        return self.owned.get(node, 0) + self._gained[node] < NODE_GPUS_MAX

    def _has_row(self, node: str, gpu_uuid: str) -> bool:
        """Whether a node may have a row of `gpus` for this GPU."""
        named = self._named.setdefault(node, set())
        if gpu_uuid in named:
            return True
        if len(self.known.get(node, ())) + len(named) >= NODE_GPUS_KNOWN_MAX:
            return False
        named.add(gpu_uuid)
        return True

    def _is_free(self, owner: GpuOwner, reporter: Reporter) -> bool:
        """Whether another node may take over the owner's GPU."""
        is_open = reporter.sender == NOBODY
        is_same_sender = owner.reporter.sender == reporter.sender or (
            is_open and owner.reporter.sender is None
        )
        if is_same_sender and owner.reporter.agent_id == reporter.agent_id:
            return True
        silent = self.now - owner.heard_at
        gone_after = GONE_AFTER_WITHOUT_TOKENS if is_open else GONE_AFTER
        return owner.is_released or silent >= gone_after

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
        unique_pairs, first, counts = np.unique(pairs, return_index=True, return_counts=True)
        simulated = out["simulated"].take(pa.array(first)).to_pylist()
        numbered = list(wrong)
        for number, rows, is_simulated in zip(unique_pairs, counts, simulated, strict=True):
            gpu_uuid, node = numbered[int(number)]
            reported = _ANY if wrong[gpu_uuid, node] == _SINCE_EVER_MS else gpu_uuid
            self._deny(reported, node, int(rows), simulated=is_simulated)
        self.left_out[name] += out.num_rows
        return table.filter(pc.invert(is_out))

    def _deny(self, gpu_uuid: str, node: str, rows: int, *, simulated: bool) -> None:
        self._denied.setdefault((gpu_uuid, node), [0, simulated])[0] += rows

    def _release_lost(self, events: Any) -> None:
        # Samples in the same commit may be newer than the loss; then the next samples take the GPU back.
        lost = events.filter(pc.equal(events["kind"], _LOST)).select(["gpu_uuid", "node"])
        for row in lost.to_pylist():
            self.release(row["gpu_uuid"], row["node"])

    def _event(self, gpu_uuid: str, node: str, rows: int, *, simulated: bool) -> dict[str, Any]:
        if gpu_uuid == _ANY:
            return self._too_many_event(node, rows, simulated=simulated)
        owner = self.owner(gpu_uuid)
        assert owner is not None
        message = (
            f"node {node} reports {gpu_uuid}, which belongs to node {owner.node}: {rows} rows of {node} about it"
            " were left out; check whether the two nodes are copies of one machine, or revoke the token of"
            " the one that does not have the GPU"
        )
        details = {"node": node, "owner": owner.node, "rows": rows}
        return warning(
            CLAIMED_TWICE,
            node,
            message,
            details,
            now=self.now,
            simulated=simulated,
            gpu_uuid=gpu_uuid,
        )

    def _too_many_event(self, node: str, rows: int, *, simulated: bool) -> dict[str, Any]:
        message = (
            f"node {node} reports more than {NODE_GPUS_MAX} GPUs, or {NODE_GPUS_KNOWN_MAX} in all: {rows} rows"
            " about further GPUs were left out; revoke its token if the node cannot have so many"
        )
        details = {"node": node, "rows": rows}
        return warning(TOO_MANY, node, message, details, now=self.now, simulated=simulated)


_FEW_ROWS = 200


def _pairs_of(table: Any) -> "_Pairs | _FewPairs":
    """The pairs of GPU and node in a table. The store refuses a row without one of them."""
    return _FewPairs(table) if table.num_rows <= _FEW_ROWS else _Pairs(table)


class _FewPairs:
    """`_Pairs` for a few rows, where one call of Arrow costs more than a loop over them."""

    def __init__(self, table: Any) -> None:
        self._ts = table["ts"]
        gpus, nodes = (table[name].to_pylist() for name in ("gpu_uuid", "node"))
        self._rows: list[tuple[str, str]] = list(zip(gpus, nodes, strict=True))
        self._pairs = [pair for pair in dict.fromkeys(self._rows) if None not in pair]

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        for number, (gpu, node) in enumerate(self._pairs):
            yield gpu, node, number

    def first(self, pair: int) -> tuple[int, int]:
        """The first row of a pair, and its first time in milliseconds."""
        named = self._pairs[pair]
        ts = pc.cast(self._ts, pa.int64()).to_pylist()
        times = [at for at, row in zip(ts, self._rows, strict=True) if row == named]
        return self._rows.index(named), min(times)


class _Pairs:
    """Pairs of GPU and node by dictionary codes, nearly always without sorting: this runs for every row."""

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
        """GPU, node, and the number of the pair for `first`."""
        node_of_gpu = np.full(len(self.gpus), -1)
        node_of_gpu[self._gpu_of_row] = self._node_of_row
        if np.array_equal(node_of_gpu[self._gpu_of_row], self._node_of_row):
            gpu_nodes = zip(range(len(self.gpus)), node_of_gpu.tolist(), strict=True)
        else:
            codes = np.unique(self._codes)
            gpu_nodes = zip(
                (codes // len(self.nodes)).tolist(),
                (codes % len(self.nodes)).tolist(),
                strict=True,
            )
        for gpu, node in gpu_nodes:
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
    """The owner of a GPU by its stored row (times with their zone); `agent_id`: the agent of its node."""
    first = row.get("first_seen_at") or heard_at
    return GpuOwner(row["node"], to_ms(first), heard_at, Reporter(None, agent_id))


def gone(owners: Mapping[str, GpuOwner], now: datetime) -> list[str]:
    """GPUs whose owners have not reported them for GONE_AFTER, so that any node may have them."""
    return [key for key, owner in owners.items() if now - owner.heard_at >= GONE_AFTER]
