"""Remembers which batches are stored already: pure bookkeeping behind exactly-once ingest.

For each (sender, agent, boot with its spool's opening) it keeps a floor, below which nothing will be sent again, and the
sequences at or above it that are stored, as ranges. Ranges close up as sequences arrive and vanish as
the floor rises, so a healthy agent costs one short row however long it runs.

Agent and boot are what a batch says of itself; the sender is who was let in. What one sender says
never decides about another's batches, and none can take up more than its share.
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
"""Most separate ranges of one agent and boot. Only an agent that leaves holes and never says that
they are final comes near."""

LEDGER_KEYS_MAX = 500_000
"""Most entries; a fleet of 100,000 nodes that all restart five times in 60 days."""
NODE_KEYS_MAX = 256
"""Most agents and boots of a token that is bound to a node. Each start of an agent counts: one that ends
after each batch, and is started again 5 s later, has its batches wait from the 256th on."""
TOKEN_KEYS_MAX = LEDGER_KEYS_MAX // 2
"""Most of a token for any node, which a whole fleet may share."""
FORGET_AFTER = timedelta(hours=1)
"""An agent and boot that was heard of within that time is never forgotten to make room: a batch of it
may be on its way a second time. Its spool sends the oldest first, so that what comes after many other
boots of the same sender has been answered."""

LedgerKey = tuple[str, str, str]
"""Sender, agent and boot."""


@dataclass(frozen=True, slots=True)
class StoredSequences:
    """What is stored of one agent and boot.

    Every sequence below `floor` counts as stored; `ranges` (first, last; both included) are
    sorted, apart by at least one sequence, and begin at or above `floor`.
    """

    floor: int = 1
    ranges: tuple[Range, ...] = ()

    def has(self, sequence: int) -> bool:
        """Whether that batch is stored, or is never to be stored."""
        if sequence < self.floor:
            return True
        at = bisect_right(self.ranges, (sequence, 1 << 62)) - 1
        return at >= 0 and self.ranges[at][1] >= sequence

    def having(self, sequence: int) -> "StoredSequences":
        """The same with that sequence stored."""
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
        """The same with nothing below `floor` to come; a floor never falls."""
        return _settled(floor, self.ranges) if floor > self.floor else self


def _settled(floor: int, ranges: tuple[Range, ...]) -> StoredSequences:
    """Ranges below the floor dropped, and the floor raised over a range that it touches."""
    kept = [(max(first, floor), last) for first, last in ranges if last >= floor]
    if kept and kept[0][0] == floor:
        floor = kept.pop(0)[1] + 1
    return StoredSequences(floor, tuple(kept))


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What is stored of one sender, agent and boot, and when it was last heard of."""

    stored: StoredSequences
    heard_at: datetime


class BatchLedger:
    """Entries by key; of each sender in the order in which they were last heard of."""

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
        """The entry, if there is one."""
        of_sender = self._by_sender.get(key[0])
        return None if of_sender is None else of_sender.get(key)

    def count(self, sender: str) -> int:
        """Entries of a sender."""
        return len(self._by_sender.get(sender, ()))

    def of(self, sender: str) -> Iterator[tuple[LedgerKey, LedgerEntry]]:
        """Entries of a sender, the one first that was not heard of for longest."""
        return iter(self._by_sender.get(sender, {}).items())

    def update(self, entries: Mapping[LedgerKey, LedgerEntry]) -> None:
        """Take entries, which were heard of last, in the place of those that are there."""
        for key, entry in entries.items():
            of_sender = self._by_sender.setdefault(key[0], OrderedDict())
            self._count += key not in of_sender
            of_sender[key] = entry
            of_sender.move_to_end(key)

    def forget(self, keys: Iterable[LedgerKey]) -> None:
        """Let entries go."""
        for key in keys:
            of_sender = self._by_sender[key[0]]
            del of_sender[key]
            self._count -= 1
            if not of_sender:
                del self._by_sender[key[0]]

    def heard_before(self, instant: datetime) -> list[LedgerKey]:
        """Keys that were last heard of before that."""
        return [
            key
            for entries in self._by_sender.values()
            for key, entry in entries.items()
            if entry.heard_at < instant
        ]


class Draft:
    """What a group of batches changes of a ledger, which itself stays as it is."""

    def __init__(self, ledger: BatchLedger, coming: AbstractSet[LedgerKey], now: datetime) -> None:
        """`coming`: keys of all batches of the group; none of them is forgotten."""
        self._ledger = ledger
        self._coming = coming
        self._now = now
        self._grown: Counter[str] = Counter()
        self._total = len(ledger)
        self._oldest: dict[str, Iterator[tuple[LedgerKey, LedgerEntry]]] = {}
        self.changed: dict[LedgerKey, LedgerEntry] = {}
        self.forgotten: list[LedgerKey] = []

    def get(self, key: LedgerKey) -> LedgerEntry | None:
        """What counts for a key: its own entry, or else what was stored before senders were told apart."""
        own = self.changed.get(key) or self._ledger.get(key)
        return own or self._ledger.get((NOBODY, *key[1:]))

    def refusal(self, key: LedgerKey) -> str | None:
        """Why there is no room for a key; None: there is, or was made, by forgetting one of the sender."""
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
            f"{count} agents and boots{whose} are known, which is the most, and each has sent within"
            " the last hour: send it again later, and see what makes so many"
        )

    def put(self, key: LedgerKey, stored: StoredSequences) -> None:
        """What is stored of a key from now on; there is room for it."""
        if key not in self.changed and self._ledger.get(key) is None:
            self._grown[key[0]] += 1
            self._total += 1
        self.changed[key] = LedgerEntry(stored, self._now)

    def _forget_of(self, sender: str) -> bool:
        # Where it stands is remembered: to look through the forgotten ones again for each batch would
        # take longer with each.
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
    """Most entries of a sender."""
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
    """Time that the rows of each batch that was sent before span, by node; None: there is none.

    `batches`: identity and Arrow tables of each.
    """
    found = [
        _spans(batch, [table for table in tables.values() if "ts" in table.schema.names])
        for batch, tables in batches
        if batch.is_sent_before
    ]
    spans = [table for table in found if table is not None]
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
