"""Keeps requests of senders that are not agents on disk, from their answer until their rows are stored.

`received.sqlite` in the data folder, WAL, synchronous=FULL:

    requests  each request until no open row has a part of it, and the digests of the last ones
    devices   GPUs and hosts, with what the next row of each needs of the row before
    closed    times of the last closed rows of each device
    batches   bodies of closed rows, until the writer has stored them
    meta      boot_id, made with the file

A batch gets its sequence when its rows are closed, in the same transaction, and the collector's ledger stores each sequence
once: so rows are stored once, wherever the process ends. A file that SQLite cannot read is set aside under a new name.
Call it from one thread.
"""

import contextlib
import sqlite3
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuwarden.clock import Clock, to_ms
from gpuwarden.data_folder import RECEIVED
from gpuwarden.lifecycle import StartError
from gpuwarden.sqlite_file import move_aside, transaction
from gpuwarden_collector.ingest.open_rows import Device, DueRow, OpenRows
from gpuwarden_collector.ingest.port import Before, Cells, MappedRequest, RowPart

FILE_NAME = RECEIVED
FORMAT_VERSION = 1
DIGESTS_MAX = 50_000
"""Requests whose digests are kept after their rows are closed."""
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS requests (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    digest BLOB NOT NULL UNIQUE,
    sender TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    parts BLOB
);
CREATE TABLE IF NOT EXISTS devices (
    number INTEGER PRIMARY KEY,
    sender TEXT NOT NULL, source TEXT NOT NULL, table_name TEXT NOT NULL, key TEXT NOT NULL,
    before_ms INTEGER, before BLOB,
    UNIQUE (sender, source, table_name, key)
);
CREATE TABLE IF NOT EXISTS closed (
    device INTEGER NOT NULL, ts_ms INTEGER NOT NULL, PRIMARY KEY (device, ts_ms)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batches (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    sender TEXT NOT NULL, node TEXT NOT NULL, rows INTEGER NOT NULL, body BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
PRAGMA user_version = {FORMAT_VERSION};
COMMIT;
"""


class WaitingBatch(NamedTuple):
    """A batch of one node that the writer has not stored yet."""

    sequence: int
    sender: str
    node: str
    rows: int
    body: bytes


class ClosedBatch(NamedTuple):
    """Closed rows of one node as a body."""

    sender: str
    node: str
    rows: int
    body: bytes


class ReceivedStore:
    """The file, and the open rows that it has the parts of."""

    def __init__(self, folder: Path, open_rows: OpenRows, clock: Clock) -> None:
        """Open or create the file, and join the parts again. Raises StartError, sqlite3.Error, OSError."""
        self.open_rows = open_rows
        self._clock = clock
        path = folder / FILE_NAME
        try:
            self._db = _opened(path)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            move_aside(path, to_ms(clock.now()))
            self._db = _opened(path)
        self._numbers: dict[Device, int] = {}
        self._before: dict[Device, Before] = {}
        self.boot_id = self._meta("boot_id", uuid.uuid4().hex)
        self._restore()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @property
    def bytes_waiting(self) -> int:
        """Size of parts of open rows and of batches."""
        return self._parts_bytes + self.batch_bytes

    def add(self, requests: Sequence[tuple[MappedRequest, str]]) -> list[Counter[str]]:
        """Put requests, each with its sender, on disk. By request the number of readings by outcome;
        `again` for a request that was there. Raises sqlite3.Error."""
        now_ms = to_ms(self._clock.now())
        numbers: list[int | None] = []
        size = 0
        with transaction(self._db):
            for request, sender in requests:
                parts = msgspec.msgpack.encode(request.parts)
                row = self._db.execute(
                    "INSERT INTO requests (digest, sender, at_ms, parts) VALUES (?, ?, ?, ?)"
                    " ON CONFLICT DO NOTHING RETURNING number",
                    (request.digest, sender, now_ms, parts),
                ).fetchone()
                numbers.append(row[0] if row else None)
                size += len(parts) if row else 0
        self._parts_bytes += size
        counts = []
        for (request, sender), number in zip(requests, numbers, strict=True):
            if number is None:
                counts.append(Counter(again=sum(len(part.cells) for part in request.parts)))
                continue
            counts.append(self.open_rows.take(number, sender, request.parts, now_ms))
            if not self.open_rows.is_used(number):
                self._empty([number])
        return counts

    def before(self, device: Device) -> Before | None:
        """What was kept of the device's last closed row."""
        return self._before.get(device)

    def commit(
        self,
        batches: Iterable[ClosedBatch],
        closed: Sequence[DueRow],
        carried: Mapping[Device, Before],
    ) -> None:
        """Close rows, with the batches that have them, in one transaction. Raises sqlite3.Error."""
        size = 0
        device_numbers: dict[Device, int] = {}
        with transaction(self._db):
            for batch in batches:
                size += len(batch.body)
                self._db.execute(
                    "INSERT INTO batches (sender, node, rows, body) VALUES (?, ?, ?, ?)", batch
                )
            for device in {due.device: None for due in closed}:
                device_numbers[device] = self._numbers.get(device) or self._new_number(device)
            self._db.executemany(
                "INSERT OR IGNORE INTO closed VALUES (?, ?)",
                ((device_numbers[due.device], due.ts_ms) for due in closed),
            )
            self._db.executemany(
                "UPDATE devices SET before_ms = ?, before = ? WHERE number = ?",
                (
                    (before.ts_ms, msgspec.msgpack.encode(before.cells), device_numbers[device])
                    for device, before in carried.items()
                ),
            )
        self._numbers |= device_numbers
        self._before |= carried
        self.batch_bytes += size
        self._forget(closed)

    def oldest(self, without: Iterable[tuple[str, str]], limit: int) -> list[WaitingBatch]:
        """The oldest batch of each sender and node, but of those in `without`: an agent's batches are stored in order."""
        skipped = set(without)
        chosen: list[int] = []
        for number, *whose in self._db.execute(
            "SELECT sequence, sender, node FROM batches ORDER BY sequence"
        ):
            if len(chosen) == limit:
                break
            if (*whose,) not in skipped:
                skipped.add((*whose,))
                chosen.append(number)
        return [
            WaitingBatch(
                *self._db.execute(
                    "SELECT sequence, sender, node, rows, body FROM batches WHERE sequence = ?",
                    (n,),
                ).fetchone()
            )
            for n in chosen
        ]

    def delivered(self, batches: Sequence[WaitingBatch]) -> None:
        """Delete batches that are stored, or refused permanently. Raises sqlite3.Error."""
        with transaction(self._db):
            self._db.executemany(
                "DELETE FROM batches WHERE sequence = ?", ((b.sequence,) for b in batches)
            )
        self.batch_bytes -= sum(len(batch.body) for batch in batches)

    def _forget(self, closed: Sequence[DueRow]) -> None:
        """Forget what closed rows no longer need. If this fails, the next start does it."""
        gone: list[tuple[int, int]] = []
        unused: list[int] = []
        for due in closed:
            times, requests = self.open_rows.close(due)
            gone += [(self._numbers[due.device], ts_ms) for ts_ms in times]
            unused += requests
        with transaction(self._db):
            self._db.executemany("DELETE FROM closed WHERE device = ? AND ts_ms = ?", gone)
            for device in self.open_rows.forgotten:
                if (number := self._numbers.pop(device, None)) is not None:
                    self._db.execute("DELETE FROM closed WHERE device = ?", (number,))
                    self._db.execute("DELETE FROM devices WHERE number = ?", (number,))
                self._before.pop(device, None)
            self.open_rows.forgotten.clear()
        self._empty(unused)

    def _empty(self, numbers: Sequence[int]) -> None:
        """Delete the parts of requests, and the oldest digests."""
        if not numbers:
            return
        with transaction(self._db):
            for number in numbers:
                (size,) = self._db.execute(
                    "SELECT length(parts) FROM requests WHERE number = ?", (number,)
                ).fetchone()
                self._parts_bytes -= size or 0
            self._db.executemany(
                "UPDATE requests SET parts = NULL WHERE number = ?", ((n,) for n in numbers)
            )
            self._db.execute(
                "DELETE FROM requests WHERE parts IS NULL AND number <="
                " (SELECT max(number) FROM requests) - ?",
                (DIGESTS_MAX,),
            )

    def _new_number(self, device: Device) -> int:
        row = self._db.execute(
            "INSERT INTO devices (sender, source, table_name, key) VALUES (?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET sender = sender RETURNING number",
            device,
        ).fetchone()
        return int(row[0])

    def _meta(self, key: str, value: str) -> str:
        with transaction(self._db):
            self._db.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (key, value))
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return str(row[0])

    def _restore(self) -> None:
        now_ms = to_ms(self._clock.now())
        devices: dict[int, Device] = {}
        rows = self._db.execute(
            "SELECT number, before_ms, before, sender, source, table_name, key FROM devices"
        )
        for number, before_ms, before, *name in rows:
            device = devices[number] = Device(*name)
            self._numbers[device] = number
            if before is not None:
                cells: Cells = msgspec.msgpack.decode(before, type=dict[str, float])
                self._before[device] = Before(before_ms, cells)
        for number, times in self._closed_times():
            if number in devices:
                self.open_rows.restore(devices[number], times, now_ms)
        (self._parts_bytes,) = self._sum("SELECT sum(length(parts)) FROM requests")
        (self.batch_bytes,) = self._sum("SELECT sum(length(body)) FROM batches")
        """Size of the batches."""
        unused = []
        requests = self._db.execute(
            "SELECT number, sender, parts FROM requests WHERE parts IS NOT NULL ORDER BY number"
        )
        for number, sender, parts in requests:
            decoded = msgspec.msgpack.decode(parts, type=list[RowPart])
            self.open_rows.take(number, sender, decoded, now_ms, is_restored=True)
            if not self.open_rows.is_used(number):
                unused.append(number)
        self._empty(unused)

    def _closed_times(self) -> Iterator[tuple[int, list[int]]]:
        device: int | None = None
        times: list[int] = []
        for number, ts_ms in self._db.execute("SELECT device, ts_ms FROM closed ORDER BY 1, 2"):
            if number != device:
                if device is not None:
                    yield device, times
                device, times = number, []
            times.append(ts_ms)
        if device is not None:
            yield device, times

    def _sum(self, sql: str) -> tuple[int]:
        return (int(self._db.execute(sql).fetchone()[0] or 0),)


def _opened(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > FORMAT_VERSION:
            raise StartError(
                f"{path} has version {version}, and this collector knows {FORMAT_VERSION}: upgrade the collector"
            )
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.executescript(_SCHEMA)
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.close()
        raise
    return db
