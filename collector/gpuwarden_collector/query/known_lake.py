"""Reads of the lake only the files that can hold the rows that a query's plan needs (`needs.py`).

A table is a view of these Parquet files, of the rows that stand in the catalogue, and of the segments' rows.
"""

from collections.abc import Collection
from datetime import datetime

import duckdb

from gpuwarden_collector.query.needs import SLACK, Needs
from gpuwarden_collector.query.whole_store import WholeStore
from gpuwarden_collector.storage.engine import Engine, hot_table
from gpuwarden_collector.storage.lake_reader import create_view
from gpuwarden_collector.storage.recent_rows import create_views
from gpuwarden_collector.storage.segment import SCHEMAS, TABLE_NAMES

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
