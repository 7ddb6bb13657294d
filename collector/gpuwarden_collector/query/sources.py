"""Sources of a query, from the cheapest: rows kept for rules, one table's files within a span of time, the newest rows,
the files that a plan needs, the whole store.

- `RecentQueries`: rows in memory, for a query all of whose tables of samples have a lower bound of `ts`.
- `PrunedLake`: one table, of whose files those are read that the bounds of the query leave.
- `NewestRows`: views that read a file of the newest rows. The cursor stays open and touches neither lake nor segments. A
  query is for it if all else that it reads are tables of the state file, so that it shows one moment only.
- `KnownLake`: a table is a view of the Parquet files that the plan needs, the rows in the catalogue and the segments' rows.
- `WholeStore`: any query. The views are bound anew only after the store has changed: for a view of several tables that
  takes longer than the query.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa

from gpuwarden.query import ExpectedQuery
from gpuwarden.waste import WASTE_1H, view_sql
from gpuwarden_collector.query.guard import nodes_of
from gpuwarden_collector.query.needs import SLACK, Needs, QueryNeeds
from gpuwarden_collector.query.time_bounds import bounds_of, conditions
from gpuwarden_collector.storage.arrow_files import read_rows
from gpuwarden_collector.storage.engine import Engine, hot_table
from gpuwarden_collector.storage.lake_reader import create_view
from gpuwarden_collector.storage.newest_rows import KEPT, kept_table
from gpuwarden_collector.storage.recent_rows import RecentRows, Wanted, create_views
from gpuwarden_collector.storage.running_waste import RUNNING
from gpuwarden_collector.storage.segment import SCHEMAS, TABLE_NAMES


class WholeStore:
    """A source of queries for one thread: see `QuerySource` in `execute.py`. Lake, segments and state as they are; who
    reads the lake otherwise says so in `_open` and `_show`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._held: duckdb.DuckDBPyConnection | None = None
        self._shown_rows: dict[str, Any] = {}
        """What the cursor sees of the segments, by table."""

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The one that stays. Raises duckdb.Error."""
        yield self.held()

    def held(self) -> duckdb.DuckDBPyConnection:
        """The same, made when it is first needed. Raises duckdb.Error."""
        if self._held is None:
            self._held = self._open()
        return self._held

    def begin(self, cursor: duckdb.DuckDBPyConnection, names: Iterable[str] | None = None) -> None:
        """As `Engine.begin`."""
        self._engine.begin(cursor, names, show=self._show, shown=self._shown_rows)

    def _show(self, cursor: duckdb.DuckDBPyConnection, names: Collection[str]) -> None:
        """Have it see what the lake has of these tables. Raises duckdb.Error."""
        assert self._engine.lake is not None
        self._engine.lake.show(cursor, names)

    def release_memory(self) -> None:
        """Hold no rows."""
        if self._held is not None:
            self._held.close()
        self._held, self._shown_rows = None, {}

    def _open(self) -> duckdb.DuckDBPyConnection:
        """Raises duckdb.Error."""
        return self._engine.new_cursor()


_ROUNDED = timedelta(seconds=1)
"""More than what is lost where instants are made microseconds."""
_LATER = timedelta(hours=1)
"""More than passes between asking for `now()` here and in the query."""
_INSTANTS = frozenset({"TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "DATE", "VARCHAR"})


@dataclass(frozen=True, slots=True)
class QueryTimeSpan:
    """What a query says of the time of its rows."""

    table: str
    sql: str
    """SELECT of pairs: the later one of a lower and an upper bound, with the type of each."""
    parameters: frozenset[str]
    bounds: tuple[bool, ...]
    """Of each bound whether it is a lower one."""


def span_of(tree: Mapping[str, Any], cursor: duckdb.DuckDBPyConnection) -> QueryTimeSpan | None:
    """From the syntax tree of a query; None: it is not for this. Raises duckdb.Error."""
    nodes = list(nodes_of(tree))
    tables = [node for node in nodes if node.get("type") in ("BASE_TABLE", "SHOW_REF")]
    selects = [node for node in nodes if node.get("from_table") in tables]
    if len(tables) != 1 or len(selects) != 1:
        return None
    table = tables[0]
    name = str(table.get("table_name", "")).lower()
    is_plain = table["type"] == "BASE_TABLE" and name in TABLE_NAMES
    if not is_plain or any(table.get(key) for key in _BESIDE):
        return None
    bounds = [
        bound for part in conditions(selects[0].get("where_clause")) for bound in bounds_of(part)
    ]
    if not bounds:
        return None
    names = {
        node["identifier"]
        for _, expression in bounds
        for node in nodes_of(expression)
        if node.get("class") == "PARAMETER"
    }
    select = json.loads(cursor.execute("SELECT json_serialize_sql('SELECT 1')").fetchall()[0][0])
    texts = []
    for _, expression in bounds:
        select["statements"][0]["node"]["select_list"] = [expression]
        row = cursor.execute(
            "SELECT json_deserialize_sql($1::JSON)", [json.dumps(select)]
        ).fetchall()[0]
        texts.append(str(row[0]).removeprefix("SELECT "))
    sql = "SELECT " + ", ".join(f"typeof({t}), CAST({t} AS TIMESTAMP)" for t in texts)
    return QueryTimeSpan(name, sql, frozenset(names), tuple(is_lower for is_lower, _ in bounds))


_BESIDE = ("schema_name", "catalog_name", "sample", "at_clause", "column_name_alias")


class PrunedLake(WholeStore):
    """The store, of which the files of one table are read that a query's bounds leave."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._span: tuple[datetime | None, datetime | None] = (None, None)
        self._shown: dict[str, str] = {}

    def take(self, span: QueryTimeSpan, params: Mapping[str, Any]) -> bool:
        """Have the next query, of that span, read only files that matter; False: it is to be asked otherwise."""
        if self._engine.lake is None:
            return False
        try:
            bounds = self._bounds(span, params)
            if bounds is None:
                return False
            lower, upper = bounds
            self._span = lower and lower - _ROUNDED, upper and upper + _LATER
        except OverflowError:  # there is no such instant
            self._span = None, None
        except duckdb.Error:
            return False
        return True

    def _bounds(
        self, span: QueryTimeSpan, params: Mapping[str, Any]
    ) -> tuple[datetime | None, datetime | None] | None:
        """From when and until when; None: that is not known."""
        cursor = self.held()
        bound = {name: params[name] for name in span.parameters}
        row = cursor.execute(span.sql, bound).fetchall()[0]
        lower: datetime | None = None
        upper: datetime | None = None
        for at, is_lower in enumerate(span.bounds):
            kind, instant = row[2 * at], row[2 * at + 1]
            if kind not in _INSTANTS or not isinstance(instant, datetime):
                return None
            if is_lower:
                lower = max(lower or instant, instant)
            else:
                upper = min(upper or instant, instant)
        return lower, upper

    def _show(self, cursor: duckdb.DuckDBPyConnection, names: Collection[str]) -> None:
        """Have the cursor see these files as the table, before the view of the database."""
        for name in names:
            assert self._engine.lake is not None
            of_lake, _ = self._engine.lake.rows_sql(cursor, name, *self._span)
            sql = with_hot(name, of_lake)
            if self._shown.get(name) == sql:
                continue
            self._shown.pop(name, None)
            if name not in self._shown_rows:
                self._shown_rows[name] = SCHEMAS[name].empty_table()
                cursor.register(hot_table(name), self._shown_rows[name])
            if create_view(cursor, f"TEMP VIEW {name}", name, sql):
                self._shown[name] = sql

    def release_memory(self) -> None:
        """Hold no rows."""
        super().release_memory()
        self._shown = {}


_NAME = "known"
"""What DuckDB calls the database."""


class KnownLake(WholeStore):
    """The store, of which files are read that a query's plan needs."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._since: dict[str, datetime | None] = {}
        self._shown: dict[str, str] = {}
        self._files: dict[str, int] = {}
        self._is_made = False

    def take(self, now: datetime, needs: Needs) -> bool:
        """Have the next query read only files that matter; False: it is to be asked otherwise.

        `now`: the moment that it is of.
        """
        if self._engine.lake is None:
            return False
        try:
            self._since = {
                name: None if need.back is None else now - need.back - SLACK
                for name, need in needs.items()
            }
        except OverflowError:  # there is no such instant
            return False
        return True

    @property
    def files(self) -> dict[str, int]:
        """How many are read of each table."""
        return self._files

    def _show(self, cursor: duckdb.DuckDBPyConnection, names: Collection[str]) -> None:
        for name in names:
            assert self._engine.lake is not None
            of_lake, self._files[name] = self._engine.lake.rows_sql(
                cursor, name, self._since.get(name)
            )
            sql = with_hot(name, of_lake)
            if self._shown.get(name) != sql:
                self._shown.pop(name, None)
                if create_view(cursor, f"VIEW {_NAME}.main.{name}", name, sql):
                    self._shown[name] = sql

    def _open(self) -> duckdb.DuckDBPyConnection:
        """Raises duckdb.Error."""
        cursor = self._engine.new_cursor()
        for name in TABLE_NAMES:
            self._shown_rows[name] = SCHEMAS[name].empty_table()
            cursor.register(hot_table(name), self._shown_rows[name])
        if not self._is_made:
            create_views(cursor, _NAME, lambda name: f"FROM {hot_table(name)}")
            self._is_made = True
        cursor.execute(f"USE {_NAME}")
        return cursor


def with_hot(name: str, of_lake: str) -> str:
    """SELECT of a table's rows in the lake, of which there may be none, and in segments."""
    columns = ", ".join(f'"{column}"' for column in SCHEMAS[name].names)
    hot = f"SELECT {columns} FROM {hot_table(name)}"
    return f"{of_lake} UNION ALL {hot}" if of_lake else hot


class NewestRows:
    """A source of queries for one thread: see `Source` in `execute.py`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cursor: duckdb.DuckDBPyConnection | None = None
        self._files: dict[str, str] = {}

    def take(self, views: Iterable[str], files: Mapping[str, str]) -> bool:
        """Have the views read these files, by table; False: not all of them can be read."""
        tables = {KEPT[view].table for view in views}
        if not tables <= files.keys():
            return False
        try:
            cursor = self._cursor or self._open()
            for name in tables:
                if self._files.get(name) != files[name]:
                    cursor.register(kept_table(name), read_rows(files[name]))
                    self._files[name] = files[name]
        except (OSError, pa.ArrowException, duckdb.Error):
            return False
        return True

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The one that stays."""
        yield self._cursor or self._open()

    def begin(self, cursor: duckdb.DuckDBPyConnection, names: Iterable[str] | None = None) -> None:
        """As `Engine.begin_beside`."""
        self._engine.begin_beside(cursor, names)

    def _open(self) -> duckdb.DuckDBPyConnection:
        """Raises duckdb.Error."""
        cursor = self._engine.new_cursor()
        for view in KEPT.values():
            cursor.register(kept_table(view.table), SCHEMAS[view.table].empty_table())
            # For this cursor it comes before the view of the database.
            cursor.execute(f"CREATE TEMP VIEW {view.view} AS {view.view_sql}")
        self._cursor = cursor
        return cursor


def show_running_waste(cursor: duckdb.DuckDBPyConnection, path: str) -> bool:
    """Have a cursor read the file (`storage/running_waste.py`) where the view `waste` labels the hours that
    run; False: it cannot be read."""
    try:
        rolled = (
            WASTE_1H.table.name
        )  # its rows behind the lake are registered when the query begins
        cursor.register(hot_table(rolled), SCHEMAS[rolled].empty_table())
        cursor.register(RUNNING, read_rows(path))
        cursor.execute(view_sql(RUNNING))
    except (OSError, pa.ArrowException, duckdb.Error):
        return False
    return True


class RecentQueries:
    """A source of queries for one thread: see `QuerySource` in `execute.py`."""

    def __init__(self, rows: RecentRows, needs: QueryNeeds) -> None:
        self._rows = rows
        self._needs = needs

    def take(self, now: datetime, needs: Needs) -> bool:
        """Have the rows that a query of that moment needs; False: it is to be asked otherwise."""
        wanted = {
            name: Wanted(need.columns, now - need.back - SLACK)
            for name, need in needs.items()
            if need.back is not None
        }
        return len(wanted) == len(needs) and self._rows.take(wanted)

    def expect(self, queries: Sequence[ExpectedQuery]) -> None:
        """Have a table that is kept hold at once what all of these need of it."""
        expected: dict[str, tuple[frozenset[str], timedelta]] = {}
        for query in queries:
            now = query.params.get("now")
            if not isinstance(now, datetime):
                continue
            for name, need in (self._needs.live(query.sql, query.params, now) or {}).items():
                if need.back is None:
                    continue
                known, longest = expected.get(name, (frozenset(), timedelta()))
                back = need.back + timedelta(seconds=query.before_s) + SLACK
                expected[name] = known | need.columns, max(longest, back)
        self._rows.expect(expected)

    def cursor(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """As of `RecentRows`."""
        return self._rows.cursor()

    def begin(self, cursor: duckdb.DuckDBPyConnection, names: Iterable[str] | None = None) -> None:
        """As of `RecentRows`."""
        self._rows.begin(cursor, names)
