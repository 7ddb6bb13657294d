"""Plans one group commit from the waiting batches and the writer's state; pure.

The plan has the rows to write, the answer to each batch, and the changes of the state, which `apply` makes once the
rows are written.
"""

from bisect import bisect_right
from collections import ChainMap, Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden.gpu_test import GPU_TESTS
from gpuwarden.schema import EVENTS
from gpuwarden.wire import BatchId
from gpuwarden_collector.auth.senders import NOBODY
from gpuwarden_collector.ingest import clock_check as agent_clocks
from gpuwarden_collector.ingest import departures, inventory
from gpuwarden_collector.ingest.clock_check import ClockGaps, is_apart
from gpuwarden_collector.ingest.decode import BatchRows, Decoded
from gpuwarden_collector.ingest.deduplicate import (
    RANGES_MAX,
    BatchLedger,
    Draft,
    LedgerEntry,
    LedgerKey,
    StoredSequences,
    doubtful_rows,
)
from gpuwarden_collector.ingest.gpu_owners import (
    Claims,
    GpuOwner,
    LastReport,
    Reporter,
    gone,
    stored_owner,
)
from gpuwarden_collector.ingest.inventory import BatchSource, Item, Place
from gpuwarden_collector.ingest.late_rows import late_windows
from gpuwarden_collector.ingest.node_owners import (
    TRY_AGAIN_AFTER_S,
    Claimed,
    NodeAgent,
    NodeClaims,
    NodeOwner,
    is_simulated,
    newest_ms,
    nodes_of,
    silent_nodes,
    stored_node_owner,
    without_nodes,
)
from gpuwarden_collector.ingest.own_events import REPEAT_AFTER
from gpuwarden_collector.ingest.prices import PriceBook
from gpuwarden_collector.ingest.xid_gpus import at_that_time, places_of, with_gpus
from gpuwarden_collector.storage.commit import Changes
from gpuwarden_collector.storage.schemas import STORED_SCHEMAS
from gpuwarden_collector.storage.segment import BatchKey
from gpuwarden_collector.storage.state import ranges_from_text, ranges_to_text

LEDGER_KEPT_FOR = timedelta(days=60)
_NO_KEY_RETRY_AFTER_S = 60
_INVENTORY = ("nodes", "gpus")
_SEEN = ("first_seen_at", "last_seen_at")
_HEARD_COLUMNS = {"nodes": "node", "gpus": "gpu_uuid"}

LedgerRow = tuple[str, str, str, int, str, datetime]
"""Sender, agent, boot, floor, ranges, heard_at (naive UTC)."""


@dataclass(slots=True)
class Known:
    """The writer's state: what the store holds, kept in memory."""

    ledger: BatchLedger = field(default_factory=BatchLedger)
    items: dict[str, dict[str, Item]] = field(default_factory=lambda: {"nodes": {}, "gpus": {}})
    heard: dict[str, set[str]] = field(default_factory=lambda: {"nodes": set(), "gpus": set()})
    """Keys seen since `last_seen_at` was last written."""
    places: dict[Place, str] = field(default_factory=dict)
    """By node and PCI address: gpu_uuid of the board that was last reported there."""
    unsaved: set[LedgerKey] = field(default_factory=set)
    """Entries of the ledger that differ from the state file."""
    owners: dict[str, GpuOwner] = field(default_factory=dict)
    """By gpu_uuid: the owner of the GPU."""
    owned: Counter[str] = field(default_factory=Counter)
    """Number of GPUs that each node owns."""
    gpus_of: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By node: gpu_uuid of its rows of `gpus`."""
    gpu_reports: dict[tuple[str, str], LastReport] = field(default_factory=dict)
    """By gpu_uuid and node: the last event about a node that reports another node's GPU."""
    node_owners: dict[str, NodeOwner] = field(default_factory=dict)
    """By node: the agent that owns the name."""
    clock_event_at: dict[str, datetime] = field(default_factory=dict)
    """By node: the time of the last event about its clock."""
    left: set[str] = field(default_factory=set)
    """Nodes that have left (`departures.py`)."""
    closed_until: datetime | None = None
    """Sample rows from before this time (naive UTC) are late: the plan notes their windows."""
    has_peers: bool = False
    """Whether other collectors seal into the same lake."""

    def nodes(self) -> set[str]:
        """Nodes that have rows. Any thread may call it."""
        return {*list(self.items["nodes"]), *list(self.gpus_of), *list(self.node_owners)}

    def own(self, gpu_uuid: str, owner: GpuOwner) -> None:
        """Set the owner of a GPU."""
        self.disown(gpu_uuid)
        self.owners[gpu_uuid] = owner
        self.owned[owner.node] += 1

    def disown(self, gpu_uuid: str) -> None:
        """Remove the owner of a GPU."""
        owner = self.owners.pop(gpu_uuid, None)
        if owner is not None:
            _one_less(self.owned, owner.node)

    def keep_gpu(self, gpu_uuid: str, item: Item) -> None:
        """Set a row of `gpus`."""
        self.forget_gpu(gpu_uuid)
        self.items["gpus"][gpu_uuid] = item
        self.gpus_of[item.row["node"]].add(gpu_uuid)

    def forget_gpu(self, gpu_uuid: str) -> None:
        """Remove a row of `gpus`."""
        item = self.items["gpus"].pop(gpu_uuid, None)
        if item is not None:
            node = item.row["node"]
            self.gpus_of[node].discard(gpu_uuid)
            if not self.gpus_of[node]:
                del self.gpus_of[node]


def _one_less(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


@dataclass(frozen=True, slots=True)
class Batch:
    """An admitted batch."""

    id: BatchId
    decoded: Decoded
    body_bytes: int = 0
    sender: str = NOBODY
    """The authenticated sender (`auth/senders.py`)."""
    peer: str = ""
    """Address of the client."""
    ahead_s: float | None = None
    """How far the sender's clock is ahead of the collector's confirmed clock; None: unknown."""

    @property
    def key(self) -> LedgerKey:
        """Its key in the ledger."""
        return self.sender, self.id.agent_id, self.id.boot_id

    @property
    def reporter(self) -> Reporter:
        """The sender and the agent."""
        return Reporter(self.sender, self.id.agent_id)

    @property
    def claims_nothing(self) -> bool:
        """Whether its rows do not show which nodes and GPUs are there now."""
        return self.id.is_import or GPU_TESTS.name in self.decoded.parts


@dataclass(frozen=True, slots=True)
class Stored:
    """The batch is stored; `is_duplicate`: it was stored before, or is twice in the group."""

    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class RetryLater:
    """The batch is not stored and may be sent again."""

    reason: str
    retry_after_s: int
    status: int = 503


@dataclass(frozen=True, slots=True)
class Rejected:
    """The batch is not stored and must not be sent again."""

    reason: str
    status: int = 422


Outcome = Stored | RetryLater | Rejected


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """Rows to write, the answer to each batch, and the changes of `Known` once they are written."""

    changes: Changes
    outcomes: Sequence[Outcome]
    ledger: Mapping[LedgerKey, LedgerEntry]
    forgotten: Sequence[LedgerKey]
    items: Mapping[str, Mapping[str, Item]]
    places: Mapping[Place, str]
    heard: Mapping[str, set[str]]
    claims: Claims
    node_claims: NodeClaims
    clock_gaps: ClockGaps
    rows: Mapping[str, int]
    newest: datetime | None
    """Newest timestamp of the stored rows that are not imported."""
    imported_rows: int = 0
    """Rows that were read from files."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.changes.batches and not self.changes.appended


def plan(known: Known, batches: Sequence[Batch], prices: PriceBook, now: datetime) -> CommitPlan:
    """The plan that stores those of the batches that are new. Does not change `known`."""
    draft = Draft(known.ledger, {batch.key for batch in batches}, now)
    items: dict[str, dict[str, Item]] = {name: {} for name in _INVENTORY}
    places: dict[Place, str] = {}
    node_claims = NodeClaims(known.node_owners, now)
    outcomes, fresh = _outcomes(batches, draft, node_claims)
    live = [batch for batch in fresh if not batch.claims_nothing]
    history = [batch for batch in fresh if batch.claims_nothing]
    claims = Claims(known.owners, known.gpu_reports, now, known.owned, known.gpus_of)
    of_live = claims.without_others(_concatenated(live), _Reporters(live))
    of_history = claims.without_others(
        _concatenated(history), _Reporters(history), claims_nothing=True
    )
    inventory_rows = dict.fromkeys(_INVENTORY, 0)
    heard: dict[str, set[str]] = {name: set() for name in _INVENTORY}
    for batch in fresh:
        for name, keys in _take_inventory(known, items, places, claims, batch, prices, now):
            inventory_rows[name] += len(keys)
            if not batch.id.is_import:
                heard[name].update(keys)
                heard["nodes"].update(batch.decoded.parts[name].data["node"].to_pylist())
    tables = _joined(
        _with_gpus(of_live, _Whereabouts(known, items, places)),
        _with_gpus(of_history, _Whereabouts(known, items)),
    )
    if EVENTS.name in of_live:
        node_claims.stopped(of_live[EVENTS.name])
    _hear(heard, of_live)
    items["nodes"] |= departures.moved(
        ChainMap(items["nodes"], known.items["nodes"]),
        of_live.get(EVENTS.name),
        heard["nodes"],
        known.left,
        prices.billing,
        now,
    )
    clock_gaps = _clock_gaps(known, live, now)
    for events in (claims.events(), node_claims.events(), clock_gaps.events()):
        if events is not None:
            tables = _joined(tables, {EVENTS.name: events})
    changes = Changes(
        appended=tables,
        upserted={
            name: inventory_table(name, changed)
            for name in _INVENTORY
            if (changed := _changed(known.items[name], items[name]))
        },
        batches=[
            BatchKey(*batch.key, batch.id.sequence, batch.id.oldest_sequence) for batch in fresh
        ],
        late=late_windows(tables, known.closed_until),
        doubtful=_doubtful(fresh) if known.has_peers else None,
    )
    rows = {name: table.num_rows for name, table in tables.items()}
    rows.update({name: count for name, count in inventory_rows.items() if count})
    return CommitPlan(
        changes,
        outcomes,
        draft.changed,
        draft.forgotten,
        items,
        places,
        heard,
        claims,
        node_claims,
        clock_gaps,
        rows,
        _newest(of_live),
        _imported_rows(of_history, history),
    )


def _clock_gaps(known: Known, batches: Sequence[Batch], now: datetime) -> ClockGaps:
    gaps = ClockGaps(known.clock_event_at, now)
    for batch in batches:
        if batch.ahead_s is not None and is_apart(batch.ahead_s):
            (nodes,) = nodes_of([batch.decoded.parts])
            gaps.note(nodes, batch.ahead_s, simulated=is_simulated(batch.decoded))
    return gaps


def _imported_rows(tables: Mapping[str, Any], batches: Sequence[Batch]) -> int:
    """Number of imported rows: samples and events that are kept, and all rows of nodes and GPUs."""
    rows = sum(int(table.num_rows) for name, table in tables.items() if name != GPU_TESTS.name)
    for batch in batches:
        parts = batch.decoded.parts
        rows += sum(parts[name].rows for name in _INVENTORY if name in parts)
    return rows


def _doubtful(batches: Sequence[Batch]) -> Any | None:
    return doubtful_rows(
        [
            (b.id, {name: part.data for name, part in b.decoded.parts.items()})
            for b in batches
            if b.id.is_sent_before
        ]
    )


def _outcomes(
    batches: Sequence[Batch], draft: Draft, claims: NodeClaims
) -> tuple[list[Outcome], list[Batch]]:
    """The outcome of each batch, and the batches that are new."""
    outcomes: list[Outcome] = []
    fresh: list[Batch] = []
    named = nodes_of([{} if b.claims_nothing else b.decoded.parts for b in batches])
    for batch, nodes in zip(batches, named, strict=True):
        outcome, own = _outcome(batch, nodes, draft, claims)
        outcomes.append(outcome)
        if isinstance(outcome, Stored) and not outcome.is_duplicate:
            fresh.append(own)
    return outcomes, fresh


def _outcome(
    batch: Batch, nodes: AbstractSet[str], draft: Draft, claims: NodeClaims
) -> tuple[Outcome, Batch]:
    """The outcome of a batch, and the part of it that is stored. Notes a stored batch in `draft`."""
    entry = draft.get(batch.key)
    before = entry.stored if entry else StoredSequences()
    is_duplicate = before.has(batch.id.sequence)
    after = before.raised(batch.id.oldest_sequence).having(batch.id.sequence)
    if not is_duplicate and len(after.ranges) > RANGES_MAX:
        reason = (
            f"more than {RANGES_MAX} gaps in this agent's sequences: "
            "Gpuwarden-Oldest-Sequence must say which will never be sent"
        )
        return Rejected(reason), batch
    if (no_room := draft.refusal(batch.key)) is not None:
        return RetryLater(no_room, _NO_KEY_RETRY_AFTER_S), batch
    if not is_duplicate:
        against, batch = _own(batch, nodes, claims)
        if against is not None:
            return against, batch
    draft.put(batch.key, after)
    return Stored(is_duplicate), batch


def _own(
    batch: Batch, nodes: AbstractSet[str], claims: NodeClaims
) -> tuple[RetryLater | Rejected | None, Batch]:
    """Why a batch is refused whose node names belong to another agent; or the batch without such nodes."""
    against: list[Claimed] = []
    agent = NodeAgent(batch.id.agent_id, batch.id.kernel_boot_id)
    for node in sorted(nodes):
        conflict = claims.judge(
            node,
            agent,
            batch.sender,
            batch.peer,
            lambda: newest_ms(batch.decoded),
            simulated=lambda: is_simulated(batch.decoded),
        )
        if conflict is not None:
            against.append(conflict)
    if not against:
        return None, batch
    if unsettled := next((one for one in against if not one.is_settled), None):
        return RetryLater(unsettled.reason, TRY_AGAIN_AFTER_S), batch
    if len(against) == len(nodes):
        return Rejected(against[0].reason, 409), batch
    return None, replace(batch, decoded=without_nodes(batch.decoded, {o.node for o in against}))


def _take_inventory(
    known: Known,
    items: dict[str, dict[str, Item]],
    places: dict[Place, str],
    claims: Claims,
    batch: Batch,
    prices: PriceBook,
    now: datetime,
) -> Iterator[tuple[str, list[str]]]:
    """Merge a batch's rows of nodes and GPUs; by table the keys of the rows that are kept."""
    source = BatchSource(batch.sender, batch.id.agent_id, batch.id.sequence, batch.id.is_import)
    for name in _INVENTORY:
        part = batch.decoded.parts.get(name)
        if part is None:
            continue
        key_column = _HEARD_COLUMNS[name]
        keys = []
        changed = set()
        for sent in part.data.to_pylist():
            key = sent[key_column]
            if name == "gpus" and not claims.admits(
                sent, batch.reporter, claims_nothing=source.is_import
            ):
                continue
            keys.append(key)
            before = items[name].get(key) or known.items[name].get(key)
            item = inventory.merged(before, sent, source, now)
            if name == "gpus":
                node = item.row["node"]
                at = items["nodes"].get(node) or known.items["nodes"].get(node)
                row = inventory.priced(item.row, at.row if at else None, prices)
                item = Item(row, item.source)
            elif before is not None and inventory.changes_prices(before.row, item.row):
                changed.add(key)
            items[name][key] = item
            if name == "gpus" and not source.is_import:
                _settle(known, items["gpus"], places, claims, key, before)
        _price_again(known, items, changed, prices)
        yield name, keys


def _price_again(
    known: Known, items: dict[str, dict[str, Item]], nodes: Collection[str], prices: PriceBook
) -> None:
    """Price the GPUs of nodes that changed; their own rows come at most an hour later."""
    if not nodes:
        return
    keys = {key for node in nodes for key in known.gpus_of.get(node, ())}
    keys |= {key for key, item in items["gpus"].items() if item.row["node"] in nodes}
    for key in keys:
        item = items["gpus"].get(key) or known.items["gpus"][key]
        if (node := item.row["node"]) in nodes:  # a GPU may have moved
            row = inventory.priced(item.row, items["nodes"][node].row, prices)
            if row != item.row:
                items["gpus"][key] = Item(row, item.source)


def _settle(
    known: Known,
    items: dict[str, Item],
    places: dict[Place, str],
    claims: Claims,
    key: str,
    before: Item | None,
) -> None:
    """Note the board at its PCI address, and the board that it replaces."""
    item = items[key]
    place = inventory.place_of(item.row)
    if place is None:
        return
    holder_key = places.get(place) or known.places.get(place) or ""
    if item.row.get("replaced_by"):
        items[key] = item = Item({**item.row, "replaced_by": None}, item.source)
    if holder_key == key:
        return
    holder = items.get(holder_key) or known.items["gpus"].get(holder_key)
    if holder and item.source and item.source.is_before(holder.source):
        return
    places[place] = key
    if holder and inventory.replaces(item, before, holder):
        items[holder_key] = Item({**holder.row, "replaced_by": key}, holder.source)
        claims.release(holder_key, holder.row["node"])


def _changed(known: Mapping[str, Item], items: Mapping[str, Item]) -> dict[str, Item]:
    """Items whose row differs from the stored one."""
    return {k: i for k, i in items.items() if k not in known or known[k].row != i.row}


def _concatenated(batches: Sequence[Batch]) -> dict[str, Any]:
    """Rows of samples and events by table. Rows that were decoded together stay in one piece."""
    parts_by_table: dict[str, list[BatchRows]] = {}
    for batch in batches:
        for name, part in batch.decoded.parts.items():
            if name not in _INVENTORY and part.rows:
                parts = parts_by_table.setdefault(name, [])
                last = parts[-1] if parts else None
                if last and last.whole is part.whole and last.start + last.rows == part.start:
                    parts[-1] = BatchRows(last.whole, last.start, last.rows + part.rows)
                else:
                    parts.append(part)
    return {name: pa.concat_tables(part.data for part in p) for name, p in parts_by_table.items()}


class _Reporters:
    """Who sent each row of `_concatenated` tables."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = batches
        self._by_table: dict[str, tuple[list[int], list[Batch]]] = {}

    def __call__(self, name: str, row: int) -> Reporter:
        if name not in self._by_table:
            having = [b for b in self._batches if name in b.decoded.parts]
            ends = list(accumulate(b.decoded.parts[name].rows for b in having))
            self._by_table[name] = ends, having
        ends, having = self._by_table[name]
        return having[bisect_right(ends, row)].reporter


class _Whereabouts:
    """Finds the GPU at a PCI address, from the stored inventory and from this commit."""

    def __init__(
        self,
        known: Known,
        items: Mapping[str, Mapping[str, Item]],
        places: Mapping[Place, str] | None = None,
    ) -> None:
        """`places`: where boards are now; None: use the board that was there at the row's time."""
        self._known = known
        self._items = items
        self._places = places
        self._rows: dict[Place, list[Mapping[str, Any]]] | None = None

    def __call__(self, place: Place, ts: datetime) -> Mapping[str, Any] | None:
        if self._places is not None:
            key = self._places.get(place) or self._known.places.get(place) or ""
            item = self._items["gpus"].get(key) or self._known.items["gpus"].get(key)
            return item.row if item and item.row["node"] == place[0] else None
        if self._rows is None:
            gpus = {**self._known.items["gpus"], **self._items["gpus"]}
            self._rows = places_of(item.row for item in gpus.values())
        return at_that_time(self._rows.get(place, ()), ts)


def _with_gpus(tables: Mapping[str, Any], whereabouts: _Whereabouts) -> dict[str, Any]:
    named = dict(tables)
    if EVENTS.name in named:
        named[EVENTS.name] = with_gpus(named[EVENTS.name], whereabouts)
    return named


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    names = dict.fromkeys((*first, *second))
    return {
        name: pa.concat_tables([group[name] for group in (first, second) if name in group])
        for name in names
    }


def _hear(heard: Mapping[str, set[str]], tables: Mapping[str, Any]) -> None:
    """Add the nodes and GPUs of all rows."""
    for table in tables.values():
        for name, column in _HEARD_COLUMNS.items():
            if column in table.schema.names:
                heard[name].update(k for k in pc.unique(table[column]).to_pylist() if k)


def _newest(tables: Mapping[str, Any]) -> datetime | None:
    newest = [pc.max(table["ts"]).as_py() for table in tables.values()]
    return max(newest).replace(tzinfo=UTC) if newest else None


def _rows_table(name: str, rows: Sequence[Mapping[str, Any]]) -> Any:
    return pa.Table.from_pylist(
        [{k: _naive(v) for k, v in row.items()} for row in rows], schema=STORED_SCHEMAS[name]
    )


def inventory_table(name: str, items: Mapping[str, Item]) -> Any:
    """The items as rows of `nodes` or `gpus`."""
    return _rows_table(name, [item.row for item in items.values()])


def ledger_rows(known: Known, keys: Iterable[LedgerKey]) -> list[LedgerRow]:
    """Entries as rows of the state file; a forgotten key has no row."""
    return [
        (*key, entry.stored.floor, ranges_to_text(entry.stored.ranges), _naive(entry.heard_at))
        for key in keys
        if (entry := known.ledger.get(key)) is not None
    ]


def loaded(
    ledger: Sequence[Mapping[str, Any]],
    inventory_rows: Mapping[str, Sequence[dict[str, Any]]],
    batches: Iterable[BatchKey],
    now: datetime,
) -> Known:
    """The writer's state after a start, from rows of the state file (timestamps are naive UTC) and from batches in
    segments that the state file does not have yet."""
    known = Known()
    for row in sorted(ledger, key=lambda one: one["heard_at"]):
        stored = StoredSequences(row["floor"], ranges_from_text(row["ranges"]))
        heard_at = row["heard_at"].replace(tzinfo=UTC)
        where = (row["sender"], row["agent_id"], row["boot_id"])
        known.ledger.update({where: LedgerEntry(stored, heard_at)})
    for batch in batches:
        where = (batch.sender, batch.agent_id, batch.boot_id)
        before = known.ledger.get(where)
        stored = (
            (before.stored if before else StoredSequences())
            .raised(batch.floor)
            .having(batch.sequence)
        )
        known.ledger.update({where: LedgerEntry(stored, now)})
        known.unsaved.add(where)
    for name, rows in inventory_rows.items():
        key = _HEARD_COLUMNS[name]
        known.items[name] = {row[key]: Item(row) for row in rows}
    for gpu_uuid, item in known.items["gpus"].items():
        known.gpus_of[item.row["node"]].add(gpu_uuid)
    for node, item in known.items["nodes"].items():
        if (owner := stored_node_owner(item.row, now)) is not None:
            known.node_owners[node] = owner
        if departures.has_left(item.row):
            known.left.add(node)
    # A board that only imported rows name is not there.
    present = {k: i for k, i in known.items["gpus"].items() if i.row.get("last_seen_at")}
    for key, item in sorted(present.items(), key=lambda one: one[1].row["last_seen_at"]):
        place = inventory.place_of(item.row)
        if place is not None and item.row.get("replaced_by") is None:
            known.places[place] = key
        if item.row.get("replaced_by") is None:
            at = known.items["nodes"].get(item.row["node"])
            seen = {n: item.row[n].replace(tzinfo=UTC) for n in _SEEN if item.row.get(n)}
            agent_id = at.row.get("agent_id") if at else None
            known.own(key, stored_owner(item.row | seen, agent_id, seen["last_seen_at"]))
    return known


def apply(known: Known, done: CommitPlan) -> None:
    """Change the state as a plan says that has been written."""
    known.ledger.forget(done.forgotten)
    known.ledger.update(done.ledger)
    known.unsaved.update(done.ledger, done.forgotten)
    known.items["nodes"].update(done.items["nodes"])
    for key, item in done.items["gpus"].items():
        known.keep_gpu(key, item)
    for name in _INVENTORY:
        known.heard[name] |= done.heard[name]
    note_left(known, done.items["nodes"])
    known.places.update(done.places)
    for key, owner in done.claims.changed.items():
        known.own(key, owner)
    known.gpu_reports.update(done.claims.changed_reports)
    known.node_owners.update(done.node_claims.changed)
    known.clock_event_at.update(done.clock_gaps.changed)


def note_left(known: Known, nodes: Mapping[str, Item]) -> None:
    """Note which of these nodes have left."""
    for node, item in nodes.items():
        if departures.has_left(item.row):
            known.left.add(node)
        else:
            known.left.discard(node)


def forget_gone(known: Known, now: datetime) -> None:
    """Forget owners of GPUs and node names, and events, that are too old to matter."""
    for key in gone(known.owners, now):
        known.disown(key)
    for node in silent_nodes(known.node_owners, now):
        del known.node_owners[node]
    for node in agent_clocks.forgotten(known.clock_event_at, now):
        del known.clock_event_at[node]
    reports = known.gpu_reports.items()
    known.gpu_reports = {pair: last for pair, last in reports if now - last.at < REPEAT_AFTER}


def forget_items(known: Known, gone: Mapping[str, set[str]]) -> None:
    """Forget the items, by table, that were removed from the state file."""
    for key in gone.get("nodes", ()):
        known.items["nodes"].pop(key, None)
    for key in gone.get("gpus", ()):
        known.forget_gpu(key)
    gpus, nodes = gone.get("gpus", set()), gone.get("nodes", set())
    known.places = {place: uuid for place, uuid in known.places.items() if uuid not in gpus}
    for uuid in gpus:
        known.disown(uuid)
    for node in nodes & known.node_owners.keys():
        del known.node_owners[node]
    known.left -= nodes


def expired(known: Known, now: datetime) -> list[LedgerKey]:
    """Agents and boots that were last seen more than LEDGER_KEPT_FOR ago."""
    return known.ledger.heard_before(now - LEDGER_KEPT_FOR)


def _naive(value: Any) -> Any:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value
