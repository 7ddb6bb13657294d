"""Implements the sources that a query can read, the cheapest first.

- `RecentQueries`: rows in memory, for a query with a lower bound of `ts` for each of its tables of samples.
- `PrunedLake`: one table, without the files that are outside of the query's bounds of `ts`.
- `NewestRows`: views over files of the newest rows. Its cursor stays open and reads neither lake nor segments. All
  other tables of the query must be tables of the state file, so that the query sees one moment.
- `PlannedStore`: each table is a view of the Parquet files that the plan needs, inlined rows and segment rows.
- `WholeStore`: the whole store, for any query. Views are created again only after the store has changed, because
  binding a view of several tables takes longer than the query.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from gpuwarden_collector.storage.engine import Engine
from gpuwarden_collector.storage.lake_reader import create_view
from gpuwarden_collector.storage.newest_rows import KEPT, kept_of, kept_table
from gpuwarden_collector.storage.recent_rows import RecentRows, Wanted, create_views
from gpuwarden_collector.storage.running_waste import RUNNING
from gpuwarden_collector.storage.segment import SCHEMAS, TABLE_NAMES
from gpuwarden_collector.storage.views import hot_table


class WholeStore:
    """A `QuerySource` of lake, segments and state file, for one thread. Subclasses that read the lake in another way
    override `_open` and `_show`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._held: duckdb.DuckDBPyConnection | None = None
        self._shown_rows: dict[str, Any] = {}
        """Segment rows that the cursor sees, by table."""

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The cursor that stays open. Raises duckdb.Error."""
        yield self.held()

    def held(self) -> duckdb.DuckDBPyConnection:
        """The cursor that stays open, created at the first use. Raises duckdb.Error."""
        if self._held is None:
            self._held = self._open()
        return self._held

    def begin(self, cursor: duckdb.DuckDBPyConnection, names: Iterable[str] | None = None) -> None:
        """Begin a transaction, as `Engine.begin`."""
        self._engine.begin(cursor, names, show=self._show, shown=self._shown_rows)

    def _show(self, cursor: duckdb.DuckDBPyConnection, names: Collection[str]) -> None:
        """Show the cursor the lake's rows of these tables. Raises duckdb.Error."""
        assert self._engine.lake is not None
        self._engine.lake.show(cursor, names)

    def release_memory(self) -> None:
        """Close the cursor, and drop the rows that it sees."""
        if self._held is not None:
            self._held.close()
        self._held, self._shown_rows = None, {}

    def _open(self) -> duckdb.DuckDBPyConnection:
        """Raises duckdb.Error."""
        return self._engine.new_cursor()


_ROUNDED = timedelta(seconds=1)
"""More than the rounding of instants to microseconds."""
_LATER = timedelta(hours=1)
"""Longer than the time between evaluating `now()` here and in the query."""
_INSTANTS = frozenset({"TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "DATE", "VARCHAR"})


@dataclass(frozen=True, slots=True)
class QueryTimeSpan:
    """A query's bounds of `ts`."""

    table: str
    sql: str
    """A SELECT of the type and value of each bound."""
    parameters: frozenset[str]
    bounds: tuple[bool, ...]
    """For each bound whether it is a lower one."""


def span_of(tree: Mapping[str, Any], cursor: duckdb.DuckDBPyConnection) -> QueryTimeSpan | None:
    """The bounds in a query's syntax tree; None: it has none, or reads more than one table. Raises duckdb.Error."""
    nodes = list(nodes_of(tree))
    tables = [node for node in nodes if node.get("type") in ("BASE_TABLE", "SHOW_REF")]
    selects = [node for node in nodes if node.get("from_table") in tables]
    if len(tables) != 1 or len(selects) != 1:
        return None
    table = tables[0]
    name = str(table.get("table_name", "")).lower()
    is_plain = table["type"] == "BASE_TABLE" and name in TABLE_NAMES
    if not is_plain or any(table.get(key) for key in _NOT_PLAIN):
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


_NOT_PLAIN = ("schema_name", "catalog_name", "sample", "at_clause", "column_name_alias")


class PrunedLake(WholeStore):
    """The store, without files of one table that are outside of a query's bounds."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._span: tuple[datetime | None, datetime | None] = (None, None)
        self._shown: dict[str, str] = {}

    def take(self, span: QueryTimeSpan, params: Mapping[str, Any]) -> bool:
        """Limit the next query to files within its bounds; False: use another source."""
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
        """The lower and upper bound; None: unknown."""
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
        """Create a temporary view of these files, which hides the database's view."""
        for name in names:
            assert self._engine.lake is not None
            of_lake = self._engine.lake.rows_sql(cursor, name, *self._span)
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
        """Close the cursor, and drop the rows that it sees."""
        super().release_memory()
        self._shown = {}


_NAME = "known"
"""DuckDB's name of the database."""


class PlannedStore(WholeStore):
    """The store with only the files whose bounds meet those of the query's plan."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._since: dict[str, datetime | None] = {}
        self._shown: dict[str, str] = {}
        self._is_created = False

    def take(self, now: datetime, needs: Needs) -> bool:
        """Limit the next query to the files that it needs; False: use another source. `now`: the query's moment."""
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

    def _show(self, cursor: duckdb.DuckDBPyConnection, names: Collection[str]) -> None:
        for name in names:
            assert self._engine.lake is not None
            of_lake = self._engine.lake.rows_sql(cursor, name, self._since.get(name))
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
        if not self._is_created:
            create_views(cursor, _NAME, lambda name: f"FROM {hot_table(name)}")
            self._is_created = True
        cursor.execute(f"USE {_NAME}")
        return cursor


def with_hot(name: str, of_lake: str, columns: Iterable[str] | None = None) -> str:
    """A SELECT of a table's rows in lake and segments. `of_lake`: SQL of the lake's rows, "" for none; `columns`: which
    it has; None: all."""
    listed = ", ".join(f'"{column}"' for column in columns or SCHEMAS[name].names)
    hot = f"SELECT {listed} FROM {hot_table(name)}"
    return f"{of_lake} UNION ALL {hot}" if of_lake else hot


class NewestRows:
    """A `QuerySource` of the newest rows, for one thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cursor: duckdb.DuckDBPyConnection | None = None
        self._files: dict[str, str] = {}

    def take(self, views: Iterable[str], files: Mapping[str, str]) -> bool:
        """Let the views read these files, by name; False: not all can be read."""
        names = kept_of(views).keys()
        if not names <= files.keys():
            return False
        try:
            cursor = self._cursor or self._open()
            for name in names:
                if self._files.get(name) != files[name]:
                    cursor.register(kept_table(name), read_rows(files[name]))
                    self._files[name] = files[name]
        except (OSError, pa.ArrowException, duckdb.Error):
            return False
        return True

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The cursor that stays open."""
        yield self._cursor or self._open()

    def begin(self, cursor: duckdb.DuckDBPyConnection, names: Iterable[str] | None = None) -> None:
        """Begin a transaction, as `Engine.begin_outside_lake`."""
        self._engine.begin_outside_lake(cursor, names)

    def _open(self) -> duckdb.DuckDBPyConnection:
        """Raises duckdb.Error."""
        cursor = self._engine.new_cursor()
        for name, kept in kept_of(KEPT).items():
            cursor.register(kept_table(name), kept.schema.empty_table())
        for name, view in KEPT.items():
            # For this cursor it hides the database's view.
            cursor.execute(f"CREATE TEMP VIEW {name} AS {view.sql}")
        self._cursor = cursor
        return cursor


def show_running_waste(cursor: duckdb.DuckDBPyConnection, path: str) -> bool:
    """Let the view `waste` read the current hours from a file (`storage/running_waste.py`); False: it cannot be
    read."""
    try:
        rolled = WASTE_1H.table.name  # the query registers its segment rows when it begins
        cursor.register(hot_table(rolled), SCHEMAS[rolled].empty_table())
        cursor.register(RUNNING, read_rows(path))
        cursor.execute(view_sql(RUNNING))
    except (OSError, pa.ArrowException, duckdb.Error):
        return False
    return True


class RecentQueries:
    """Decides which rows `RecentRows` keeps, for one thread."""

    def __init__(self, rows: RecentRows, needs: QueryNeeds) -> None:
        self.rows = rows
        self._needs = needs

    def take(self, now: datetime, needs: Needs) -> bool:
        """Prepare the rows that a query of that moment needs; False: use another source."""
        reads = {
            name: Wanted(need.columns, now - need.back - SLACK)
            for name, need in needs.items()
            if need.back is not None
        }
        return len(reads) == len(needs) and self.rows.take(reads)

    def expect(self, queries: Sequence[ExpectedQuery]) -> None:
        """Let each kept table hold what all of these queries need."""
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
        self.rows.expect(expected)
