"""Answers `gpus_now` and its like from the newest rows that the collector keeps (`storage/newest_rows.py`).

One cursor stays open, on which the views read a file of such rows and touch neither lake nor segments.
A query is for it if all else that it reads are tables of the state file, so that nothing it shows may
be of another moment.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import duckdb
import pyarrow as pa

from gpuwarden.waste import WASTE_1H, view_sql
from gpuwarden_collector.storage.arrow_files import read_rows
from gpuwarden_collector.storage.engine import Engine, hot_table
from gpuwarden_collector.storage.newest_rows import KEPT, kept_table
from gpuwarden_collector.storage.running_waste import RUNNING
from gpuwarden_collector.storage.segment import SCHEMAS


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
