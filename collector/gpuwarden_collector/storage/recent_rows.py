"""Keeps rows of the last minutes and hours as tables in memory: what rules look at, again and again.

A rule looks at the same few minutes of the same few columns every half minute. From lake and segments
each look costs tens of milliseconds, most of them for finding and opening what it reads; from a table
in memory it costs what its plan does.

A table is read once, at one moment of the store, and then given what comes to the segments (`RowsSince`).
Whatever else may change its rows has it read again: a commit to the lake that does more than seal,
merge or flush, and a segment that was gone before it was read to its end. Where none of that can be
told (a lake that collectors share), or where the rows would need more memory than they may, nothing is
kept and the query is for the store.
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
from gpuwarden.schema import TABLES, UPSERTED, column_sql, stored_columns, views_sql
from gpuwarden.table import Column
from gpuwarden_collector.storage.engine import Engine
from gpuwarden_collector.storage.errors import StoreUnavailableError, one_line
from gpuwarden_collector.storage.hot import RowsSince
from gpuwarden_collector.storage.lake_catalogue import LakeChange
from gpuwarden_collector.storage.segment import SCHEMAS, TABLE_NAMES, SegmentError

log = logging.getLogger(__name__)

_NAME = "recent"
"""What DuckDB calls the database."""
_SLACK = timedelta(minutes=1)
"""More than passes between planning a query and running it."""
_FORGET_AFTER = timedelta(minutes=35)
"""A table that nobody has asked for so long is let go of: rules run at least every half hour."""
_REFUSED_FOR = timedelta(minutes=10)
"""How long it is not tried again to keep what was too much."""
_TEXT_BYTES = 40
_TRIES = 3
_SAME_ROWS = frozenset(
    {"compacted_table", "merge_adjacent", "rewrite_delete", "inline_flush", "flushed_inlined"}
)
"""Changes of the lake that leave its rows what they were, as DuckLake names them:
https://ducklake.select/docs/stable/specification/tables/ducklake_snapshot_changes"""
_CHANGE = re.compile(r"(\w+):(\d+)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rows of a table that a query needs."""

    columns: frozenset[str]
    since: datetime
    """From when on (naive UTC)."""


@dataclass(slots=True)
class _Kept:
    """A table in memory."""

    columns: tuple[Column, ...]
    since: datetime
    """All rows of after that are there."""
    span: timedelta
    """How far back rows are kept."""
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
    """What was too much to be kept."""

    until: datetime
    columns: frozenset[str]
    span: timedelta


class RecentRows:
    """A source of queries for one thread: see `QuerySource` in `query/execute.py`."""

    def __init__(self, engine: Engine, rows_since: RowsSince, clock: Clock, bytes_max: int) -> None:
        """`engine`: one that reads alone, and the lake. `rows_since`: its own. `bytes_max`: of all tables, about. Raises duckdb.Error."""
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
        """The newest segment that the lake was seen to hold."""
        self._snapshot = -1
        self._cursor = engine.new_cursor()
        self._create()

    def expect(self, expected: Mapping[str, tuple[frozenset[str], timedelta]]) -> None:
        """Keep at least these columns of each table, for so long, once it is kept at all."""
        self._expected = expected

    def take(self, wanted: Mapping[str, Wanted]) -> bool:
        """Have rows of these tables of samples, as the store has them now; False: not all are kept."""
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
        """The one that stays."""
        yield self._cursor

    def begin(self, cursor: duckdb.DuckDBPyConnection, names: Iterable[str] | None = None) -> None:
        """As `Engine.begin_beside`, with all of the state file."""
        self._engine.begin_beside(cursor)

    @property
    def tables(self) -> Mapping[str, frozenset[str]]:
        """Names of the columns that are kept, by table."""
        return {name: kept.names for name, kept in self._kept.items()}

    @property
    def bytes(self) -> int:
        """What all tables need, about."""
        return sum(kept.bytes for kept in self._kept.values())

    def _has(self, name: str, wanted: Wanted) -> bool:
        return name in self._kept and self._kept[name].has(wanted)

    def _follow(self, now: datetime) -> bool:
        """Learn what has changed; False: that cannot be told now."""
        for name in [n for n, kept in self._kept.items() if now - kept.used_at > _FORGET_AFTER]:
            self._forget([name])
        mark = self._lake.mark()
        if mark is None:
            return False
        if mark != self._mark:
            sealed, snapshot, changed = self._asked()
            if self._lake.mark() != mark:
                return False
            self._forget(list(self._kept) if changed is None else changed & self._kept.keys())
            self._mark, self.sealed, self._snapshot = mark, sealed, snapshot
        self._engine.look(self.sealed)
        if self._since.has_gap:
            self._forget(list(self._kept))
            self._since.has_gap = False
        return True

    def _asked(self) -> tuple[int, int, set[str] | None]:
        """The newest segment and snapshot of the lake, and tables whose rows have changed but by seals; None:
        any may have."""
        sealed, snapshots = self._lake.changes_since(self._snapshot)
        newest = max((s.number for s in snapshots), default=self._snapshot)
        is_known = len(snapshots) == newest - self._snapshot
        return sealed, newest, changed_tables(snapshots) if is_known else None

    def _read(self, name: str, wanted: Wanted, now: datetime) -> bool:
        """Keep a table, instead of what is kept of it; False: it would be too much."""
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
        # `begin` has read the segments up to what the query saw: what comes now comes after it.
        self._since.tables[name] = []
        self._keep(name, _Kept(columns, since, span, 0, now))
        self._insert(name, found)
        return True

    def _append(self, name: str, now: datetime) -> None:
        """Give a table the rows that came, and let go of those that are too old."""
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
        """The same tables and views as of the store."""
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
    """Have a database, attached if it is not there, show the public tables and views. `rows`: SELECT of a table
    behind the lake, by name. The cursor uses the store's, as before. Raises duckdb.Error."""
    store = cursor.execute("SELECT current_database()").fetchall()[0][0]
    cursor.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {database}")
    cursor.execute(f"USE {database}")
    for name in TABLE_NAMES:
        cursor.execute(f"CREATE VIEW main.{name} AS {rows(name)}")
    for name in UPSERTED:
        cursor.execute(f"CREATE VIEW main.{name} AS FROM {store}.main.{name}")
    cursor.execute(views_sql())
    cursor.execute(f"USE {store}")


def changed_tables(snapshots: Sequence[LakeChange]) -> set[str] | None:
    """Tables whose rows other commits than seals have changed; None: that cannot be told."""
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
    """About what a row needs."""
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
