"""Implements the sources that a query can read, the cheapest first.

- `NewestRows`: views over a file of the newest rows. Its cursor stays open and reads neither lake nor segments. All
  other tables of the query must be tables of the state file, so that the query sees one moment.
- `KnownLake`: each table is a view of the Parquet files that the plan needs, inlined rows and segment rows.
- `WholeStore`: the whole store, for any query. Views are created again only after the store has changed, because
  binding a view of several tables takes longer than the query.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import duckdb
import pyarrow as pa

from gpuwarden.schema import UPSERTED, views_sql
from gpuwarden.waste import WASTE_1H, view_sql
from gpuwarden_collector.query.needs import SLACK, Needs
from gpuwarden_collector.storage.arrow_files import read_rows
from gpuwarden_collector.storage.engine import Engine
from gpuwarden_collector.storage.lake_reader import create_view
from gpuwarden_collector.storage.newest_rows import KEPT, kept_table
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


_NAME = "known"
"""DuckDB's name of the database."""


class KnownLake(WholeStore):
    """The store, with only the files that a query's plan needs."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._spans: dict[str, tuple[datetime | None, datetime | None]] = {}
        self._shown: dict[str, str] = {}
        self._is_created = False

    def take(self, now: datetime, needs: Needs) -> bool:
        """Limit the next query to the files that it needs; False: use another source. `now`: the query's moment."""
        if self._engine.lake is None:
            return False
        try:
            self._spans = {
                name: (
                    None if need.back is None else now - need.back - SLACK,
                    None if need.ahead is None else now + need.ahead + SLACK,
                )
                for name, need in needs.items()
            }
        except OverflowError:  # there is no such instant
            return False
        return True

    def _show(self, cursor: duckdb.DuckDBPyConnection, names: Collection[str]) -> None:
        for name in names:
            assert self._engine.lake is not None
            of_lake = self._engine.lake.rows_sql(cursor, name, *self._spans.get(name, (None, None)))
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
            _create_views(cursor)
            self._is_created = True
        cursor.execute(f"USE {_NAME}")
        return cursor


def _create_views(cursor: duckdb.DuckDBPyConnection) -> None:
    """Create the public tables and views in the database `_NAME`. Raises duckdb.Error."""
    store = cursor.execute("SELECT current_database()").fetchall()[0][0]
    cursor.execute(f"ATTACH ':memory:' AS {_NAME}")
    cursor.execute(f"USE {_NAME}")
    for name in TABLE_NAMES:
        cursor.execute(f"CREATE VIEW main.{name} AS FROM {hot_table(name)}")
    for name in UPSERTED:
        cursor.execute(f"CREATE VIEW main.{name} AS FROM {store}.main.{name}")
    cursor.execute(views_sql())
    cursor.execute(f"USE {store}")


def with_hot(name: str, of_lake: str) -> str:
    """A SELECT of a table's rows in lake and segments. `of_lake`: SQL of the lake's rows, "" for none."""
    columns = ", ".join(f'"{column}"' for column in SCHEMAS[name].names)
    hot = f"SELECT {columns} FROM {hot_table(name)}"
    return f"{of_lake} UNION ALL {hot}" if of_lake else hot


class NewestRows:
    """A `QuerySource` of the newest rows, for one thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cursor: duckdb.DuckDBPyConnection | None = None
        self._files: dict[str, str] = {}

    def take(self, views: Iterable[str], files: Mapping[str, str]) -> bool:
        """Let the views read these files, by table; False: not all can be read."""
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
        """The cursor that stays open."""
        yield self._cursor or self._open()

    def begin(self, cursor: duckdb.DuckDBPyConnection, names: Iterable[str] | None = None) -> None:
        """Begin a transaction, as `Engine.begin_beside`."""
        self._engine.begin_beside(cursor, names)

    def _open(self) -> duckdb.DuckDBPyConnection:
        """Raises duckdb.Error."""
        cursor = self._engine.new_cursor()
        for view in KEPT.values():
            cursor.register(kept_table(view.table), SCHEMAS[view.table].empty_table())
            # For this cursor it hides the database's view.
            cursor.execute(f"CREATE TEMP VIEW {view.view} AS {view.view_sql}")
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
