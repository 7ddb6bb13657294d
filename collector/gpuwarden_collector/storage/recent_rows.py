"""Keeps rows of the last minutes and hours as tables in memory, for rules.

A rule reads the same few minutes of the same few columns every half minute. From lake and segments each
read takes tens of milliseconds, most of them for finding and opening files; from a table in memory it takes
only the time of its plan.

A table is read once, at one moment of the store, and then gets the rows that come to the segments
(`RowsSince`). It is read again when its rows may have changed in another way: by a commit to the lake that
does more than seal, merge or flush, or when a segment was deleted before it was read to its end. If changes
cannot be detected (in a shared lake), or the rows need too much memory, nothing is kept and the query reads
the store.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

import duckdb
import pyarrow as pa

from gpuwarden.clock import Clock
from gpuwarden.metrics import Type
from gpuwarden.schema import TABLES, UPSERTED, column_sql, stored_columns
from gpuwarden.table import Column
from gpuwarden_collector.storage.engine import Engine
from gpuwarden_collector.storage.errors import StoreUnavailableError, one_line
from gpuwarden_collector.storage.hot import RowsSince
from gpuwarden_collector.storage.lake_catalogue import LakeChange
from gpuwarden_collector.storage.segment import SCHEMAS, TABLE_NAMES, SegmentError
from gpuwarden_collector.storage.views import create_public

log = logging.getLogger(__name__)

_NAME = "recent"
"""DuckDB's name of the database."""
_SLACK = timedelta(minutes=1)
"""Longer than the time between planning a query and running it."""
_FORGET_AFTER = timedelta(minutes=35)
"""A table that no query has read for this long is dropped: rules run at least every half hour."""
_REFUSED_FOR = timedelta(minutes=10)
"""How long a table that was too large is not tried again."""
_TEXT_BYTES = 40
_TRIES = 3
_SAME_ROWS = frozenset(
    {"compacted_table", "merge_adjacent", "rewrite_delete", "inline_flush", "flushed_inlined"}
)
"""Changes of the lake that keep its rows the same, by DuckLake's names:
https://ducklake.select/docs/stable/specification/tables/ducklake_snapshot_changes"""
_CHANGE = re.compile(r"(\w+):(\d+)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rows of a table that a query needs."""

    columns: frozenset[str]
    since: datetime
    """The first instant (naive UTC)."""


@dataclass(slots=True)
class _Kept:
    """A table in memory."""

    columns: tuple[Column, ...]
    since: datetime
    """It has all rows after that instant."""
    span: timedelta
    """How long rows are kept."""
    rows: int
    used_at: datetime

    @property
    def bytes(self) -> int:
        return self.rows * row_bytes(self.columns)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(column.name for column in self.columns)

    def has(self, wanted: Wanted) -> bool:
        return self.since <= wanted.since and wanted.columns <= self.names


@dataclass(frozen=True, slots=True)
class _Refused:
    """A request that needed too much memory."""

    until: datetime
    columns: frozenset[str]
    span: timedelta


class RecentRows:
    """A `QuerySource` (`query/port.py`) of rows in memory, for one thread."""

    def __init__(self, engine: Engine, rows_since: RowsSince, clock: Clock, bytes_max: int) -> None:
        """`engine`: reads alone, with the lake. `rows_since`: of the engine. `bytes_max`: approximate size of all
        tables. Raises duckdb.Error."""
        assert engine.lake is not None
        self._engine, self._lake = engine, engine.lake
        self._clock = clock
        self._bytes_max = bytes_max
        self._since = rows_since
        self._kept: dict[str, _Kept] = {}
        self._refused: dict[str, _Refused] = {}
        self._expected: Mapping[str, tuple[frozenset[str], timedelta]] = {}
        self._mark: bytes | None = None
        self.sealed = 0
        """The newest sealed segment that was seen."""
        self._snapshot = -1
        self._cursor = engine.new_cursor()
        self._create()

    def expect(self, expected: Mapping[str, tuple[frozenset[str], timedelta]]) -> None:
        """Keep at least these columns of each table for this long, from the next time that it is read."""
        self._expected = expected

    def take(self, wanted: Mapping[str, Wanted]) -> bool:
        """Prepare the current rows of these tables; False: not all can be kept."""
        now = self._clock.now().replace(tzinfo=None)
        try:
            for _ in range(_TRIES):
                if not self._follow(now):
                    return False
                lacking = [n for n, of in wanted.items() if not self._has(n, of)]
                if not lacking:
                    for name in wanted:
                        self._append(name, now)
                    return True
                if not all(self._read(name, wanted[name], now) for name in lacking):
                    return False
        except (
            duckdb.Error,
            pa.ArrowException,
            StoreUnavailableError,
            SegmentError,
            OSError,
        ) as error:
            log.warning("rows are not kept for rules", extra={"reason": one_line(error)})
            self._forget(list(self._kept))
        return False

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The cursor that stays open."""
        yield self._cursor

    def begin(self, cursor: duckdb.DuckDBPyConnection, names: Iterable[str] | None = None) -> None:
        """Begin a transaction with all tables of the state file."""
        self._engine.begin_outside_lake(cursor)

    @property
    def tables(self) -> Mapping[str, frozenset[str]]:
        """Names of the kept columns, by table."""
        return {name: kept.names for name, kept in self._kept.items()}

    @property
    def bytes(self) -> int:
        """Approximate size of all tables."""
        return sum(kept.bytes for kept in self._kept.values())

    def _has(self, name: str, wanted: Wanted) -> bool:
        return name in self._kept and self._kept[name].has(wanted)

    def _follow(self, now: datetime) -> bool:
        """Read the changes since the last call; False: they cannot be detected now."""
        for name in [n for n, kept in self._kept.items() if now - kept.used_at > _FORGET_AFTER]:
            self._forget([name])
        mark = self._lake.mark()
        if mark is None:
            return False
        if mark != self._mark:
            sealed, snapshot, changed = self._read_changes()
            if self._lake.mark() != mark:
                return False
            self._forget(list(self._kept) if changed is None else changed & self._kept.keys())
            self._mark, self.sealed, self._snapshot = mark, sealed, snapshot
        self._engine.look(self.sealed)
        if self._since.has_gap:
            self._forget(list(self._kept))
            self._since.has_gap = False
        return True

    def _read_changes(self) -> tuple[int, int, set[str] | None]:
        """The newest sealed segment and snapshot of the lake, and tables whose rows changed other than by seals;
        None: any may have changed."""
        sealed, snapshots = self._lake.changes_since(self._snapshot)
        newest = max((s.number for s in snapshots), default=self._snapshot)
        is_known = len(snapshots) == newest - self._snapshot
        return sealed, newest, changed_tables(snapshots) if is_known else None

    def _read(self, name: str, wanted: Wanted, now: datetime) -> bool:
        """Read a table, in place of its kept rows; False: it would be too large."""
        kept = self._kept.get(name)
        columns, span = wanted.columns, now - wanted.since
        if kept is not None:
            columns, span = columns | kept.names, max(span, kept.span)
        more, longer = self._expected.get(name, (frozenset(), timedelta()))
        for attempt in dict.fromkeys(((columns | more, max(span, longer)), (columns, span))):
            if self._is_refused(name, *attempt, now):
                continue
            if self._read_span(name, *attempt, now):
                return True
            self._refused[name] = _Refused(now + _REFUSED_FOR, *attempt)
        return False

    def _is_refused(
        self, name: str, columns: frozenset[str], span: timedelta, now: datetime
    ) -> bool:
        refused = self._refused.get(name)
        return (
            refused is not None
            and now < refused.until
            and columns >= refused.columns
            and span >= refused.span
        )

    def _read_span(self, name: str, names: frozenset[str], span: timedelta, now: datetime) -> bool:
        kept = self._kept.get(name)
        since = now - span - _SLACK
        room = self._bytes_max - self.bytes + (kept.bytes if kept else 0)
        columns = tuple(c for c in stored_columns(TABLES[name]) if c.name in names)
        with self._engine.cursor() as cursor:
            self._engine.begin(cursor, [name])
            try:
                where = f"FROM main.{name} WHERE ts > $1"
                counted = cursor.execute(f"SELECT count(*) {where}", [since]).fetchall()
                if int(counted[0][0]) * row_bytes(columns) > room:
                    return False
                listed = ", ".join(f'"{column.name}"' for column in columns)
                found = cursor.execute(f"SELECT {listed} {where}", [since]).to_arrow_table()
            finally:
                with suppress(duckdb.Error):
                    cursor.execute("ROLLBACK")
        # `begin` has read the segments for this query: rows that come now are newer.
        self._since.tables[name] = []
        self._keep(name, _Kept(columns, since, span, 0, now))
        self._insert(name, found)
        return True

    def _append(self, name: str, now: datetime) -> None:
        """Insert the new rows of a table, and drop those that are too old."""
        kept = self._kept[name]
        kept.used_at = now
        batches = self._since.take(name)
        if batches:
            rows = pa.Table.from_batches(batches, SCHEMAS[name])
            self._insert(name, rows.select([column.name for column in kept.columns]))
        if now - kept.since > kept.span + max(timedelta(minutes=5), kept.span / 4):
            kept.since = now - kept.span - _SLACK
            self._cursor.execute(
                f"CREATE OR REPLACE TABLE kept.{name} AS FROM kept.{name} WHERE ts > $1",
                [kept.since],
            )
            kept.rows = int(
                self._cursor.execute(f"SELECT count(*) FROM kept.{name}").fetchall()[0][0]
            )
        if self.bytes > self._bytes_max:
            self._forget([max(self._kept, key=lambda of: self._kept[of].bytes)])

    def _insert(self, name: str, rows: pa.Table) -> None:
        self._cursor.register("incoming", rows)
        self._cursor.execute(f"INSERT INTO kept.{name} SELECT * FROM incoming")
        self._cursor.unregister("incoming")
        self._kept[name].rows += rows.num_rows

    def _keep(self, name: str, kept: _Kept) -> None:
        columns = ", ".join(column_sql(column) for column in kept.columns)
        self._cursor.execute(f"CREATE OR REPLACE TABLE kept.{name} ({columns})")
        self._kept[name] = kept
        has = {column.name for column in kept.columns}
        shown = ", ".join(
            f'"{column.name}"'
            if column.name in has
            else f'NULL::{column_sql(column).partition(" ")[2]} AS "{column.name}"'
            for column in stored_columns(TABLES[name])
        )
        self._cursor.execute(
            f"CREATE OR REPLACE VIEW main.{name} AS SELECT {shown} FROM kept.{name}"
        )

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            del self._kept[name]
            self._since.tables.pop(name, None)
            with suppress(duckdb.Error):
                self._cursor.execute(f"DELETE FROM kept.{name}")

    def _create(self) -> None:
        """Create the store's tables and views."""
        execute = self._cursor.execute
        execute(f"ATTACH ':memory:' AS {_NAME}")
        execute(f"CREATE SCHEMA {_NAME}.kept")
        for name in TABLE_NAMES:
            columns = ", ".join(map(column_sql, stored_columns(TABLES[name])))
            execute(f"CREATE TABLE {_NAME}.kept.{name} ({columns})")
        create_views(self._cursor, _NAME, lambda name: f"FROM kept.{name}")
        execute(f"USE {_NAME}")


def create_views(
    cursor: duckdb.DuckDBPyConnection, database: str, rows: Callable[[str], str]
) -> None:
    """Create the public tables and views in a database, and attach it if needed. `rows`: gives the SELECT of a
    table of samples by name. The cursor continues to use the store's database. Raises duckdb.Error."""
    store = cursor.execute("SELECT current_database()").fetchall()[0][0]
    cursor.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {database}")
    cursor.execute(f"USE {database}")
    for name in TABLE_NAMES:
        cursor.execute(f"CREATE VIEW main.{name} AS {rows(name)}")
    for name in UPSERTED:
        cursor.execute(f"CREATE VIEW main.{name} AS FROM {store}.main.{name}")
    create_public(cursor, database)
    cursor.execute(f"USE {store}")


def changed_tables(snapshots: Sequence[LakeChange]) -> set[str] | None:
    """Tables whose rows were changed by commits other than seals; None: unknown."""
    found: set[str] = set()
    for snapshot in snapshots:
        if snapshot.is_own_seal:
            continue
        changes = _CHANGE.findall(snapshot.changes)
        if len(changes) != len([one for one in snapshot.changes.split(",") if one]):
            return None
        for kind, table_id in changes:
            if kind in _SAME_ROWS:
                continue
            name = snapshot.tables.get(int(table_id))
            if name is None:
                return None
            found.add(name)
    return found


def row_bytes(columns: Iterable[Column]) -> int:
    """Approximate size of a row."""
    return sum(_BYTES.get(column.type, _TEXT_BYTES) for column in columns)


_BYTES = {
    Type.TIMESTAMP: 8,
    Type.BOOL: 1,
    Type.INT16: 2,
    Type.INT32: 4,
    Type.INT64: 8,
    Type.FLOAT32: 4,
    Type.FLOAT64: 8,
}
