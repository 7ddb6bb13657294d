"""Reads the lake's files that are known since its last commit, instead of asking DuckLake for them at each query.

DuckLake (1.5.5) asks its catalogue for the files of each table by several statements, and for statistics of every
column where joins are put in order: 20 to 500 ms for a query of several tables that itself takes 5 to 20. Here a table
is a view of the Parquet files that can hold the rows that the query's plan needs (`needs.py`) and of the segments' rows. A
table of which rows were deleted or stand in the catalogue itself, or with too many files, is read by DuckLake still.

As what is known is of one commit, `Engine.begin_as_known` and `is_unchanged` tell whether the query saw that one.
"""

from collections.abc import Iterable
from datetime import datetime

import duckdb

from gpuwarden_collector.query.needs import SLACK, Needs
from gpuwarden_collector.query.whole_store import WholeStore
from gpuwarden_collector.storage.engine import Engine, hot_table
from gpuwarden_collector.storage.lake import SampleFile
from gpuwarden_collector.storage.recent_rows import create_views
from gpuwarden_collector.storage.segment import SCHEMAS, TABLE_NAMES

_NAME = "known"
"""What DuckDB calls the database."""
FILES_MAX = 64
"""With more files DuckLake's own way costs no more."""

Lake = tuple[str, ...] | None
"""Paths of the files that are read of a table; None: it is read by DuckLake."""


class KnownLake(WholeStore):
    """The store, of which files of the lake are read that are known."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._shown: dict[str, Lake] = {}
        self._is_made = False

    def take(self, now: datetime, needs: Needs) -> bytes | None:
        """Have a query read only files that matter; the mark of the lake that they are of.

        `now`: the moment that it is of. None: it is to be asked otherwise.
        """
        mark = self._engine.mark()
        lake: dict[str, Lake] = {}
        try:
            for name, need in needs.items():
                known = self._engine.files_as_known(name)
                if known is not None and known[0] != mark:
                    return None
                since = None if need.back is None else now - need.back - SLACK
                lake[name] = None if known is None else paths_of(known[1], since)
            if all(paths is None for paths in lake.values()):
                return None
            cursor = self.held()
            for name, paths in lake.items():
                if name not in self._shown or self._shown[name] != paths:
                    self._show(cursor, name, paths)
        except (duckdb.Error, OverflowError):
            return None
        return mark

    @property
    def files(self) -> dict[str, int]:
        """How many are read of each table that DuckLake does not read."""
        return {name: len(paths) for name, paths in self._shown.items() if paths is not None}

    def _show(self, cursor: duckdb.DuckDBPyConnection, name: str, paths: Lake) -> None:
        self._shown.pop(name, None)
        cursor.execute(f"CREATE OR REPLACE VIEW {_NAME}.main.{name} AS {rows_sql(name, paths)}")
        self._shown[name] = paths

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


def rows_sql(name: str, paths: Lake) -> str:
    """SELECT of a table's rows, in files of the lake and in segments."""
    columns = ", ".join(f'"{column}"' for column in SCHEMAS[name].names)
    sources = [hot_table(name)]
    if paths is None:
        sources.insert(0, f"lake.main.{name}")
    elif paths:
        listed = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
        options = "union_by_name = true, hive_partitioning = false"
        sources.insert(0, f"read_parquet([{listed}], {options})")
    return " UNION ALL ".join(f"SELECT {columns} FROM {source}" for source in sources)


def may_hold(file: SampleFile, lower: datetime | None, upper: datetime | None) -> bool:
    """Whether a file may hold rows of that time, both ends included; None: it has no such end."""
    is_before = lower is not None and file.last is not None and file.last < lower
    is_behind = upper is not None and file.first is not None and file.first > upper
    return not is_before and not is_behind


def paths_of(
    files: Iterable[SampleFile] | None, lower: datetime | None, upper: datetime | None = None
) -> Lake:
    """Files that may hold rows of that time; None: that is not known, or they are too many."""
    if files is None:
        return None
    paths = tuple(file.path for file in files if may_hold(file, lower, upper))
    return paths if len(paths) <= FILES_MAX else None
