"""Keeps the ledger of stored batches, so that a batch sent twice is stored once; pure.

For each sender, agent and boot it has a floor, below which the agent will send nothing again, and the stored sequences
from the floor on, as ranges. Ranges merge as sequences arrive and disappear as the floor rises, so a healthy
agent needs one short row.

Agent and boot are what the batch names; the sender is authenticated. Batches of one sender never affect those of
another, and no sender can use more than its share of the ledger.
"""

from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden.wire import BatchId
from gpuwarden_collector.auth.senders import NOBODY, is_of_node, is_of_token, sender_text
from gpuwarden_collector.storage.state import Range

RANGES_MAX = 4_096
"""Ranges of one agent and boot. Only an agent that leaves gaps and never declares them final has so many."""

LEDGER_KEYS_MAX = 500_000
"""Entries in all: 100,000 nodes that each restart five times in 60 days."""
NODE_KEYS_MAX = 256
"""Agents and boots of a token that is bound to a node. Each start of an agent counts: the batches of an agent that
ends after each batch and starts again 5 s later wait from the 256th start on."""
TOKEN_KEYS_MAX = LEDGER_KEYS_MAX // 2
"""Agents and boots of a token for any node, which a whole fleet may share."""
FORGET_AFTER = timedelta(hours=1)
"""An agent and boot that was seen within this time is never forgotten to make room: a batch of it may be on its way a
second time. A spool sends its oldest batches first, so batches of a boot are answered before those of many later boots
of the same sender arrive."""

LedgerKey = tuple[str, str, str]
"""Sender, agent and boot."""


@dataclass(frozen=True, slots=True)
class StoredSequences:
    """The stored sequences of one agent and boot.

    Every sequence below `floor` counts as stored; `ranges` (first, last; both included) are sorted, have
    gaps between them, and begin at or above `floor`.
    """

    floor: int = 1
    ranges: tuple[Range, ...] = ()

    def has(self, sequence: int) -> bool:
        """Whether the batch is stored, or will never be stored."""
        if sequence < self.floor:
            return True
        at = bisect_right(self.ranges, (sequence, 1 << 62)) - 1
        return at >= 0 and self.ranges[at][1] >= sequence

    def having(self, sequence: int) -> "StoredSequences":
        """A copy with this sequence stored."""
        if self.has(sequence):
            return self
        at = bisect_right(self.ranges, (sequence, 1 << 62))
        before, after = list(self.ranges[:at]), list(self.ranges[at:])
        first = last = sequence
        if before and before[-1][1] == sequence - 1:
            first = before.pop()[0]
        if after and after[0][0] == sequence + 1:
            last = after.pop(0)[1]
        return _settled(self.floor, (*before, (first, last), *after))

    def raised(self, floor: int) -> "StoredSequences":
        """A copy with at least this floor; a floor never falls."""
        return _settled(floor, self.ranges) if floor > self.floor else self


def _settled(floor: int, ranges: tuple[Range, ...]) -> StoredSequences:
    """Drop ranges below the floor, and raise the floor over a range that begins there."""
    remaining = [(max(first, floor), last) for first, last in ranges if last >= floor]
    if remaining and remaining[0][0] == floor:
        floor = remaining.pop(0)[1] + 1
    return StoredSequences(floor, tuple(remaining))


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The stored sequences of one sender, agent and boot, and when it was last seen."""

    stored: StoredSequences
    heard_at: datetime


class BatchLedger:
    """Entries by key; the entries of each sender are ordered by the time they were last seen."""

    def __init__(self, entries: Mapping[LedgerKey, LedgerEntry] | None = None) -> None:
        self._by_sender: dict[str, OrderedDict[LedgerKey, LedgerEntry]] = {}
        self._count = 0
        self.update(entries or {})

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchLedger) and self._by_sender == other._by_sender

    __hash__ = None  # type: ignore[assignment]

    def get(self, key: LedgerKey) -> LedgerEntry | None:
        """The entry of a key; None: there is none."""
        of_sender = self._by_sender.get(key[0])
        return None if of_sender is None else of_sender.get(key)

    def count(self, sender: str) -> int:
        """Number of entries of a sender."""
        return len(self._by_sender.get(sender, ()))

    def of(self, sender: str) -> Iterator[tuple[LedgerKey, LedgerEntry]]:
        """Entries of a sender, the one that was seen longest ago first."""
        return iter(self._by_sender.get(sender, {}).items())

    def update(self, entries: Mapping[LedgerKey, LedgerEntry]) -> None:
        """Add or replace entries; they are the last seen."""
        for key, entry in entries.items():
            of_sender = self._by_sender.setdefault(key[0], OrderedDict())
            self._count += key not in of_sender
            of_sender[key] = entry
            of_sender.move_to_end(key)

    def forget(self, keys: Iterable[LedgerKey]) -> None:
        """Remove entries."""
        for key in keys:
            of_sender = self._by_sender[key[0]]
            del of_sender[key]
            self._count -= 1
            if not of_sender:
                del self._by_sender[key[0]]

    def heard_before(self, instant: datetime) -> list[LedgerKey]:
        """Keys that were last seen before `instant`."""
        return [
            key
            for entries in self._by_sender.values()
            for key, entry in entries.items()
            if entry.heard_at < instant
        ]


class Draft:
    """The changes of the ledger by one commit. Does not change the ledger."""

    def __init__(self, ledger: BatchLedger, coming: AbstractSet[LedgerKey], now: datetime) -> None:
        """`coming`: keys of all batches of the commit, none of which is forgotten."""
        self._ledger = ledger
        self._coming = coming
        self._now = now
        self._grown: Counter[str] = Counter()
        self._total = len(ledger)
        self._oldest: dict[str, Iterator[tuple[LedgerKey, LedgerEntry]]] = {}
        self.changed: dict[LedgerKey, LedgerEntry] = {}
        self.forgotten: list[LedgerKey] = []

    def get(self, key: LedgerKey) -> LedgerEntry | None:
        """The entry of a key; or the one without a sender, from versions that did not record senders."""
        own = self.changed.get(key) or self._ledger.get(key)
        return own or self._ledger.get((NOBODY, *key[1:]))

    def refusal(self, key: LedgerKey) -> str | None:
        """Why there is no room for a key. None: there is, maybe because another entry of the sender was forgotten."""
        sender = key[0]
        if key in self.changed or self._ledger.get(key) is not None:
            return None
        count = self._ledger.count(sender) + self._grown[sender]
        if count >= share_of(sender):
            whose = "" if sender == NOBODY else f" of {sender_text(sender)}"
            giving = sender
        elif self._total >= LEDGER_KEYS_MAX:
            count, whose, giving = self._total, "", NOBODY
        else:
            return None
        if self._forget_of(giving) or (giving != sender and self._forget_of(sender)):
            return None
        return (
            f"{count} agents and boots{whose} are known, which is the limit, and each has sent within"
            " the last hour: send it again later, and find out what starts so many"
        )

    def put(self, key: LedgerKey, stored: StoredSequences) -> None:
        """Set the stored sequences of a key for which there is room."""
        if key not in self.changed and self._ledger.get(key) is None:
            self._grown[key[0]] += 1
            self._total += 1
        self.changed[key] = LedgerEntry(stored, self._now)

    def _forget_of(self, sender: str) -> bool:
        # The iterator continues where it stopped: to skip the forgotten entries again would take longer for each
        # batch.
        oldest = self._oldest.setdefault(sender, self._ledger.of(sender))
        for key, entry in oldest:
            if self._now - entry.heard_at < FORGET_AFTER:
                self._oldest[sender] = iter(())
                return False
            if key not in self._coming:
                self.forgotten.append(key)
                self._grown[sender] -= 1
                self._total -= 1
                return True
        return False


def share_of(sender: str) -> int:
    """Entries that a sender may have."""
    if is_of_node(sender):
        return NODE_KEYS_MAX
    return TOKEN_KEYS_MAX if is_of_token(sender) else LEDGER_KEYS_MAX


DOUBTFUL_SCHEMA = pa.schema(
    [
        ("agent_id", pa.string()),
        ("boot_id", pa.string()),
        ("sequence", pa.int64()),
        ("node", pa.string()),
        ("first_ts", pa.timestamp("ms")),
        ("last_ts", pa.timestamp("ms")),
    ]
)


def doubtful_rows(batches: Sequence[tuple[BatchId, Mapping[str, Any]]]) -> Any | None:
    """By node the time span of each batch that may also be stored by another collector; None: there is none.

    `batches`: identity and Arrow tables of each batch.
    """
    optional_spans = [
        _spans(batch, [table for table in tables.values() if "ts" in table.schema.names])
        for batch, tables in batches
        if batch.is_sent_before
    ]
    spans = [table for table in optional_spans if table is not None]
    return pa.concat_tables(spans) if spans else None


def _spans(batch: BatchId, tables: Sequence[Any]) -> Any | None:
    parts = [table.select(["node", "ts"]) for table in tables if table.num_rows]
    if not parts:
        return None
    spans = pa.concat_tables(parts).group_by("node").aggregate([("ts", "min"), ("ts", "max")])
    rows = spans.num_rows
    columns = [
        pa.repeat(batch.agent_id, rows),
        pa.repeat(batch.boot_id, rows),
        pa.repeat(pa.scalar(batch.sequence, pa.int64()), rows),
        spans["node"],
        pc.cast(spans["ts_min"], pa.timestamp("ms")),
        pc.cast(spans["ts_max"], pa.timestamp("ms")),
    ]
    return pa.Table.from_arrays(columns, schema=DOUBTFUL_SCHEMA)
