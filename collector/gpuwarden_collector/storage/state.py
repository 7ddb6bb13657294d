"""Stores rows that are updated: inventory, alerts, the ledger, progress. One SQLite file in WAL mode.

Every write is one transaction, synced when it returns. Rows of public tables have a revision, so that a
reader copies only what changed since its last read (`changes`).

A process opens this file only by Python's SQLite: DuckDB has its own copy of the library, and closing the
file in one would drop the locks of the other.
"""

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden import __version__
from gpuwarden.clock import EPOCH
from gpuwarden.data_folder import STATE
from gpuwarden.lifecycle import StartError
from gpuwarden.metrics import Type
from gpuwarden.schema import TABLES, UPSERTED, stored_columns
from gpuwarden_collector.storage.errors import RowsRefusedError, StoreUnavailableError
from gpuwarden_collector.storage.segment import SCHEMAS, BatchKey

FILE_NAME = STATE
SCHEMA_VERSION = 3
Range = tuple[int, int]
"""First and last sequence of stored batches, both included."""
LEDGER_COLUMNS = ("sender", "agent_id", "boot_id", "floor", "ranges", "heard_at")
PROGRESS = ("closed_until", "minutes_until", "hours_until")
_BUSY_S = 10.0
_EPOCH = EPOCH.replace(tzinfo=None)
_TYPES = {
    Type.STRING: "TEXT",
    Type.FLOAT32: "REAL",
    Type.FLOAT64: "REAL",
}  # all others are INTEGER, instants in microseconds too
_TABLES = tuple(sorted(UPSERTED))
SEEN_KEYS = {"nodes": "node", "gpus": "gpu_uuid"}
"""Key of the tables with `last_seen_at`."""
_FORGOTTEN_IF = {
    "gpus": "heard_at + coalesce(billed_silent_s, 0) * 1000000 < $now",
    "nodes": "$now IS NOT NULL AND node NOT IN (SELECT node FROM gpus WHERE node IS NOT NULL)",
}
"""Condition, besides silence, for deleting a row of such a table."""
_LATER = "max(last_seen_at, excluded.last_seen_at)"
_SQL = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS last_seen (
    name TEXT NOT NULL, key TEXT NOT NULL, last_seen_at INTEGER NOT NULL, revision INTEGER NOT NULL,
    PRIMARY KEY (name, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS last_seen_revision ON last_seen (revision);
CREATE TABLE IF NOT EXISTS ledger (
    sender TEXT NOT NULL, agent_id TEXT NOT NULL, boot_id TEXT NOT NULL, floor INTEGER NOT NULL,
    ranges TEXT NOT NULL, heard_at INTEGER NOT NULL, PRIMARY KEY (sender, agent_id, boot_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS late (number INTEGER PRIMARY KEY AUTOINCREMENT, node TEXT, ts INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS late_window ON late (ts / 3600000000, node, ts);
CREATE TABLE IF NOT EXISTS doubtful (
    segment INTEGER NOT NULL, agent_id TEXT NOT NULL, boot_id TEXT NOT NULL, sequence INTEGER NOT NULL,
    node TEXT NOT NULL, first_ts INTEGER NOT NULL, last_ts INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS saved_queries (
    saved_by TEXT NOT NULL, name TEXT NOT NULL, sql TEXT NOT NULL, author TEXT, saved_at INTEGER NOT NULL,
    PRIMARY KEY (saved_by, name)
) WITHOUT ROWID;
"""
_ANNOTATION_TIMES = "CREATE INDEX IF NOT EXISTS annotation_times ON annotations (began_at)"


@dataclass(frozen=True, slots=True)
class Changed:
    """Changes of a public table since a revision."""

    revision: int
    is_whole: bool
    """Whether `rows` are all rows of the table, because some were deleted or none were known."""
    rows: Any
    """Arrow table in the stored schema."""
    last_seen: Any | None
    """Arrow table of `key` and `last_seen_at` of rows seen since; None: the table has no `last_seen_at`."""


@dataclass(frozen=True, slots=True)
class SavedQuery:
    """SQL that a user saved under a name, which others may use too."""

    saved_by: str
    """Id of the token, the first one if it was rotated; empty: no tokens are required."""
    name: str
    sql: str
    author: str | None
    """The token's owner, for people."""
    saved_at: datetime


class StateFile:
    """The open file. Methods may be called from any thread."""

    def __init__(
        self, path: Path, *, is_read_only: bool = False, collector: str | None = None
    ) -> None:
        """Open the file, or create it with `collector` or a new identity. Raises sqlite3.Error, StartError for a newer
        version."""
        self.path = path
        self._first_identity = collector or str(uuid4())
        self._lock = threading.RLock()
        uri = f"{path.absolute().as_uri()}?mode={'ro' if is_read_only else 'rwc'}"
        self._connection = sqlite3.connect(
            uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            if is_read_only:
                return
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._create()
        except BaseException:
            self._connection.close()
            raise

    @property
    def collector(self) -> str:
        """The identity of this collector in the lake."""
        return str(self.meta("collector"))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def meta(self, name: str) -> Any:
        """A value by name; None: absent. Raises StoreUnavailableError."""
        with self._lock, translating():
            row = self._connection.execute(
                "SELECT value FROM meta WHERE name = ?", [name]
            ).fetchone()
        return None if row is None else row[0]

    @contextmanager
    def writing(self) -> Iterator["Writing"]:
        """A transaction, synced when the block ends. Raises StoreUnavailableError, RowsRefusedError."""
        with self._lock, translating():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield Writing(self._connection)
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All rows of a public table or the ledger, with instants in naive UTC. Raises StoreUnavailableError."""
        with self._lock, translating():
            if name == "ledger":
                found = self._connection.execute(f"SELECT {', '.join(LEDGER_COLUMNS)} FROM ledger")
                entries = [dict(zip(LEDGER_COLUMNS, row, strict=True)) for row in found]
                return [{**e, "heard_at": instant(e["heard_at"])} for e in entries]
            changed = self._changes(name, -1)
        rows: list[dict[str, Any]] = changed.rows.to_pylist()
        if changed.last_seen is not None:
            key = SEEN_KEYS[name]
            seen = dict(zip(*(c.to_pylist() for c in changed.last_seen.columns), strict=True))
            for row in rows:
                row["last_seen_at"] = seen.get(row[key], row["last_seen_at"])
        return rows

    def changes(self, name: str, since: int, deleted: int) -> Changed | None:
        """Changes for a reader that knows a table as of revision `since` and deletion count `deleted`; None: there
        are none. `since` -1: the reader knows no rows yet."""
        with self._lock, translating():
            row = self._connection.execute(
                "SELECT (SELECT value FROM meta WHERE name = 'revision'), "
                "(SELECT value FROM meta WHERE name = $1)",
                [f"deleted {name}"],
            ).fetchone()
            if row[0] == since and since >= 0:
                return None
            return self._changes(name, since if row[1] == deleted else -1)

    def deletions(self, name: str) -> int:
        """The number of times that rows of a table were deleted."""
        return int(self.meta(f"deleted {name}"))

    def progress(self) -> dict[str, datetime | None]:
        """The stored progress of rollups, naive UTC."""
        return {name: instant(self.meta(name)) for name in PROGRESS}

    def late_numbers(self) -> tuple[int, int]:
        """Numbers of the newest and the oldest late window; 0: none."""
        with self._lock, translating():
            row = self._connection.execute(
                # Each alone reads the end of an index; both together would read the whole table.
                "SELECT (SELECT coalesce(max(number), 0) FROM late), "
                "(SELECT coalesce(min(number), 0) FROM late)"
            ).fetchone()
        return int(row[0]), int(row[1])

    def late(self, until_number: int, before: datetime | None, limit: int) -> Any:
        """Arrow table (node, ts) of late windows up to a number, from their oldest hour, sorted by node.

        `before`: only windows before that; None: all. The cost depends on `limit`, not on the number of late windows.
        """
        most = to_us(before) if before is not None else 1 << 62
        with self._lock, translating():
            first = self._connection.execute(
                "SELECT ts / 3600000000 FROM late INDEXED BY late_window "
                "WHERE ts / 3600000000 <= ?2 / 3600000000 AND number <= ?1 AND ts < ?2 "
                "ORDER BY ts / 3600000000 LIMIT 1",
                [until_number, most],
            ).fetchone()
            rows = self._connection.execute(
                "SELECT DISTINCT node, ts FROM late INDEXED BY late_window "
                "WHERE ts / 3600000000 = ?3 AND number <= ?1 AND ts < ?2 ORDER BY node, ts LIMIT ?4",
                [until_number, most, first and first[0], limit],
            ).fetchall()
        return _table(rows, LATE_SCHEMA)

    def saved_queries(self) -> list[SavedQuery]:
        """Saved queries, sorted by name. Raises StoreUnavailableError."""
        with self._lock, translating():
            rows = self._connection.execute(
                "SELECT saved_by, name, sql, author, saved_at FROM saved_queries ORDER BY name, saved_by"
            ).fetchall()
        return [
            SavedQuery(saved_by, name, sql, author, EPOCH + timedelta(microseconds=at))
            for saved_by, name, sql, author, at in rows
        ]

    def annotations(self, begin: datetime, end: datetime, limit: int) -> list[dict[str, Any]]:
        """Annotations that touch a time range, the newest `limit`, sorted by time; instants in naive UTC.
        Raises StoreUnavailableError."""
        schema = SCHEMAS["annotations"]
        with self._lock, translating():
            rows = self._connection.execute(
                f"SELECT {', '.join(schema.names)} FROM annotations WHERE began_at < ? "
                "AND coalesce(ended_at, began_at) >= ? ORDER BY began_at DESC, id LIMIT ?",
                [to_us(end), to_us(begin), limit],
            ).fetchall()
        found: list[dict[str, Any]] = _table(rows[::-1], schema).to_pylist()
        return found

    def annotation_count(self) -> int:
        """The number of annotations. Raises StoreUnavailableError."""
        with self._lock, translating():
            row = self._connection.execute("SELECT count(*) FROM annotations").fetchone()
        return int(row[0])

    def doubtful(self, segment: int | None = None) -> Any:
        """Arrow table of the doubtful batches of a segment; None: of all segments."""
        condition = "" if segment is None else "WHERE segment = $1"
        parameters = [] if segment is None else [segment]
        names = ", ".join(DOUBTFUL_SCHEMA.names)
        with self._lock, translating():
            rows = self._connection.execute(
                f"SELECT {names} FROM doubtful {condition}", parameters
            ).fetchall()
        return _table(rows, DOUBTFUL_SCHEMA)

    def backup(self, target: Path) -> None:
        """Copy one moment of the file. Raises StoreUnavailableError."""
        with translating(), closing(sqlite3.connect(target)) as copy:
            with self._lock:
                self._connection.backup(copy)
            copy.execute("PRAGMA journal_mode = WAL")

    def _changes(self, name: str, since: int) -> Changed:
        revision = self._connection.execute(
            "SELECT value FROM meta WHERE name = 'revision'"
        ).fetchone()[0]
        names = SCHEMAS[name].names
        rows = self._connection.execute(
            f"SELECT {', '.join(names)} FROM {name} WHERE revision > ?", [since]
        ).fetchall()
        seen = None
        if name in SEEN_KEYS:
            # Also of changed rows, whose own `last_seen_at` may be earlier.
            found = self._connection.execute(
                "SELECT key, last_seen_at FROM last_seen WHERE name = $1 AND (revision > $2 "
                f"OR key IN (SELECT {SEEN_KEYS[name]} FROM {name} WHERE revision > $2))",
                [name, since],
            ).fetchall()
            seen = _table(found, SEEN_SCHEMA)
        return Changed(revision, since < 0, _table(rows, SCHEMAS[name]), seen)

    def _create(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        for statement in _SQL.split(";"):
            self._connection.execute(statement)
        row = self._connection.execute(
            "SELECT value FROM meta WHERE name = 'schema_version'"
        ).fetchone()
        if row is not None and row[0] > SCHEMA_VERSION:
            raise newer_error(self.path, row[0])
        for name in _TABLES:
            _create_table(self._connection, name)
        self._connection.execute(_ANNOTATION_TIMES)
        first = {
            "schema_version": SCHEMA_VERSION,
            "collector": self._first_identity,
            "revision": 0,
            "ledger_until": 0,
            **dict.fromkeys(PROGRESS),
            **{f"deleted {name}": 0 for name in _TABLES},
        }
        self._connection.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", first.items())
        self._connection.execute("COMMIT")


class Writing:
    """Writes within one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._revision: int | None = None

    def set_meta(self, values: Mapping[str, Any]) -> None:
        """Set values by name; instants in naive UTC."""
        self._connection.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)",
            [(n, to_us(v) if isinstance(v, datetime) else v) for n, v in values.items()],
        )

    def upsert(self, name: str, rows: Any) -> None:
        """Replace rows of a public table by their key. `rows`: Arrow table."""
        table, schema = TABLES[name], SCHEMAS[name]
        names = schema.names
        changed = ", ".join(
            # A changed row may come without `last_seen_at`.
            f"{n} = max(coalesce({n}, excluded.{n}), coalesce(excluded.{n}, {n}))"
            if n == "last_seen_at"
            else f"{n} = excluded.{n}"
            for n in (*names, "revision")
            if n not in table.key
        )
        places = ", ".join("?" * (len(names) + 1))
        self._connection.executemany(
            f"INSERT INTO {name} ({', '.join(names)}, revision) VALUES ({places}) "
            f"ON CONFLICT ({', '.join(table.key)}) DO UPDATE SET {changed}",
            _plain_rows(rows.select(names), self._next_revision()),
        )
        if name in SEEN_KEYS:
            seen = rows.filter(pc.is_valid(rows["last_seen_at"]))
            self._see(name, _plain_rows(seen.select([SEEN_KEYS[name], "last_seen_at"])), _LATER)

    def see(self, name: str, keys: Iterable[str], at: datetime) -> None:
        """Set `last_seen_at` of nodes or GPUs, even if a wrong clock had set a later time."""
        at_us = to_us(at)
        self._see(name, ((key, at_us) for key in keys), "excluded.last_seen_at")

    def _see(self, name: str, seen: Iterable[Sequence[Any]], wins: str) -> None:
        revision = self._next_revision()
        self._connection.executemany(
            "INSERT INTO last_seen VALUES ($1, $2, $3, $4) ON CONFLICT (name, key) DO UPDATE "
            f"SET last_seen_at = {wins}, revision = excluded.revision",
            ((name, *one, revision) for one in seen),
        )

    def add_late(self, windows: Any) -> None:
        """Note windows with late rows (Arrow table of `node`, `ts`)."""
        self._connection.executemany(
            "INSERT INTO late (node, ts) VALUES (?, ?)",
            _plain_rows(windows.select(["node", "ts"])),
        )

    def forget_late(self, until_number: int, windows: Any) -> None:
        """Delete late windows up to a number that were computed again."""
        self._connection.executemany(
            "DELETE FROM late WHERE ts / 3600000000 = ?3 / 3600000000 AND node IS ?2 AND ts = ?3 "
            "AND number <= ?1",
            ((until_number, *row) for row in _plain_rows(windows.select(["node", "ts"]))),
        )

    def add_doubtful(self, segment: int, rows: Any) -> None:
        """Note batches that another collector may hold too; see `resent.py`."""
        self._connection.executemany(
            "INSERT INTO doubtful VALUES (?, ?, ?, ?, ?, ?, ?)",
            ((segment, *row) for row in _plain_rows(rows.select(DOUBTFUL_SCHEMA.names))),
        )

    def move_doubtful(self, segment: int, to: int, batches: Iterable[BatchKey]) -> None:
        """Move doubtful batches of a segment to another one."""
        self._connection.executemany(
            "UPDATE doubtful SET segment = ? WHERE segment = ? AND agent_id = ? AND boot_id = ? AND sequence = ?",
            ((to, segment, b.agent_id, b.boot_id, b.sequence) for b in batches),
        )

    def forget_doubtful(self, segment: int) -> None:
        """Delete the doubtful batches of sealed segments."""
        self._connection.execute("DELETE FROM doubtful WHERE segment <= ?", [segment])

    def save_query(self, query: SavedQuery) -> None:
        """Save a query, or replace that of the same user and name."""
        self._connection.execute(
            "INSERT OR REPLACE INTO saved_queries VALUES (?, ?, ?, ?, ?)",
            (query.saved_by, query.name, query.sql, query.author, to_us(query.saved_at)),
        )

    def delete_query(self, saved_by: str, name: str) -> bool:
        """Delete a saved query; whether it was there."""
        gone = self._connection.execute(
            "DELETE FROM saved_queries WHERE saved_by = ? AND name = ?", [saved_by, name]
        )
        return bool(gone.rowcount)

    def delete_annotation(self, name: str) -> bool:
        """Delete the annotation with this id; whether it was there."""
        gone = self._connection.execute("DELETE FROM annotations WHERE id = ?", [name]).rowcount
        if gone:
            self._note_deletion("annotations")
        return bool(gone)

    def save_ledger(self, entries: Iterable[Sequence[Any]]) -> None:
        """Save entries in the order of LEDGER_COLUMNS, with `heard_at` in naive UTC."""
        self._connection.executemany(
            "INSERT OR REPLACE INTO ledger VALUES (?, ?, ?, ?, ?, ?)",
            ((*entry[:-1], to_us(entry[-1])) for entry in entries),
        )

    def forget_ledger_keys(self, keys: Iterable[Sequence[str]]) -> None:
        """Delete entries by sender, agent and boot."""
        self._connection.executemany(
            "DELETE FROM ledger WHERE sender = ? AND agent_id = ? AND boot_id = ?", keys
        )

    def forget_ledger(self, before: datetime) -> None:
        """Delete entries of agents and boots that sent nothing since then."""
        self._connection.execute("DELETE FROM ledger WHERE heard_at < ?", [to_us(before)])

    def delete(self, name: str, condition: str, before: datetime) -> int:
        """Delete rows of a public table; how many. In `condition` `?` is the instant."""
        gone = self._connection.execute(
            f"DELETE FROM {name} WHERE {condition}", [to_us(before)]
        ).rowcount
        if gone:
            self._note_deletion(name)
        return gone

    def replace(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Make these the only rows of a public table."""
        self._connection.execute(f"DELETE FROM {name}")
        self._note_deletion(name)
        self.upsert(name, pa.Table.from_pylist([*rows], schema=SCHEMAS[name]))

    def forget_silent(self, before: datetime, now: datetime) -> dict[str, set[str]]:
        """Delete GPUs that were last seen before that and are not billed at `now`, and nodes that are left without GPUs;
        keys by table. Imported GPUs were never seen and stay."""
        gone: dict[str, set[str]] = {}
        for name, rest in _FORGOTTEN_IF.items():
            key = SEEN_KEYS[name]
            rows = self._connection.execute(
                f"DELETE FROM {name} WHERE {key} IN (SELECT {key} FROM (SELECT t.*, coalesce("
                f"s.last_seen_at, t.last_seen_at) AS heard_at FROM {name} t LEFT JOIN last_seen s "
                f"ON s.name = '{name}' AND s.key = t.{key}) "
                f"WHERE heard_at < $before AND {rest}) RETURNING {key}",
                {"before": to_us(before), "now": to_us(now)},
            ).fetchall()
            gone[name] = {key for (key,) in rows}
            self._connection.executemany(
                "DELETE FROM last_seen WHERE name = ? AND key = ?", ((name, k) for k in gone[name])
            )
            if rows:
                self._note_deletion(name)
        return gone

    def _note_deletion(self, name: str) -> None:
        self._connection.execute(
            "UPDATE meta SET value = value + 1 WHERE name = ?", [f"deleted {name}"]
        )
        self._next_revision()

    def _next_revision(self) -> int:
        if self._revision is None:
            self._connection.execute("UPDATE meta SET value = value + 1 WHERE name = 'revision'")
            row = self._connection.execute("SELECT value FROM meta WHERE name = 'revision'")
            self._revision = int(row.fetchone()[0])
        return self._revision


SEEN_SCHEMA = pa.schema([("key", pa.string()), ("last_seen_at", pa.timestamp("us"))])
LATE_SCHEMA = pa.schema([("node", pa.string()), ("ts", pa.timestamp("us"))])
DOUBTFUL_SCHEMA = pa.schema(
    [
        ("agent_id", pa.string()),
        ("boot_id", pa.string()),
        ("sequence", pa.int64()),
        ("node", pa.string()),
        ("first_ts", pa.timestamp("us")),
        ("last_ts", pa.timestamp("us")),
    ]
)


@contextmanager
def translating() -> Iterator[None]:
    """Raise SQLite's errors within the block as StoreUnavailableError or RowsRefusedError."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError) as error:
        raise RowsRefusedError(str(error)) from error
    except sqlite3.Error as error:
        raise StoreUnavailableError(f"{FILE_NAME}: {error}") from error
    except (OverflowError, UnicodeEncodeError) as error:
        raise RowsRefusedError(str(error)) from error


def newer_error(path: Path, version: int) -> StartError:
    """The error for a state file of a newer gpuwarden, which this one must not change."""
    return StartError(
        f"{path} has schema version {version}, this gpuwarden ({__version__}) knows up to {SCHEMA_VERSION}: "
        "nothing is changed; install the newer gpuwarden again, or choose another --data-dir"
    )


def to_us(at: datetime) -> int:
    """Microseconds since 1970 of an instant; naive is UTC."""
    since = at - (EPOCH if at.tzinfo else _EPOCH)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def instant(at_us: int | None) -> datetime | None:
    """Naive UTC; the inverse of `to_us`."""
    if at_us is None:
        return None
    found: datetime = pa.scalar(at_us, pa.timestamp("us")).as_py()
    return found


def _create_table(connection: sqlite3.Connection, name: str) -> None:
    table = TABLES[name]
    columns = [
        f"{c.name} {_TYPES.get(c.type, 'INTEGER')}{' NOT NULL' if c.required else ''}"
        for c in stored_columns(table)
    ]
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(columns)}, revision INTEGER NOT NULL, "
        f"PRIMARY KEY ({', '.join(table.key)})) WITHOUT ROWID"
    )
    known = {row[1] for row in connection.execute(f"PRAGMA table_info({name})")}
    for column in stored_columns(table):
        if column.name not in known:  # newer than the file: NULL in existing rows
            connection.execute(
                f"ALTER TABLE {name} ADD COLUMN {column.name} {_TYPES.get(column.type, 'INTEGER')}"
            )
    connection.execute(f"CREATE INDEX IF NOT EXISTS {name}_revision ON {name} (revision)")


def _plain_rows(rows: Any, *more: Any) -> Iterator[tuple[Any, ...]]:
    """Rows of an Arrow table in SQLite's types, each with `more` appended."""
    columns = [
        column.cast(pa.timestamp("us")).cast(pa.int64())
        if pa.types.is_timestamp(column.type)
        else column
        for column in rows.columns
    ]
    return ((*row, *more) for row in zip(*(c.to_pylist() for c in columns), strict=True))


def _table(rows: Sequence[Sequence[Any]], schema: Any) -> Any:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [_array(values, f.type) for values, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(values: Sequence[Any], kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_boolean(kind):
        return pa.array([None if v is None else bool(v) for v in values], kind)
    return pa.array(values, kind)


def ranges_to_text(ranges: Sequence[Range]) -> str:
    """Ranges in the form of the ledger's column `ranges`: `4709-4711 4713-4713`."""
    return " ".join(f"{first}-{last}" for first, last in ranges)


def ranges_from_text(text: str) -> tuple[Range, ...]:
    """The inverse of `ranges_to_text`."""
    pairs = (pair.partition("-") for pair in text.split())
    return tuple((int(first), int(last)) for first, _, last in pairs)
