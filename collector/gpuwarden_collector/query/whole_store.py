"""Reads lake, segments and state through one cursor that stays: what it sees of the segments is registered anew only
where it has changed, which for a view of several tables takes longer than the query."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import duckdb

from gpuwarden_collector.storage.engine import Engine


class WholeStore:
    """A source of queries for one thread: see `QuerySource` in `execute.py`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cursor: duckdb.DuckDBPyConnection | None = None
        self._shown: dict[str, Any] = {}

    @contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The one that stays. Raises duckdb.Error."""
        if self._cursor is None:
            self._cursor = self._engine.new_cursor()
        yield self._cursor

    def begin(self, cursor: duckdb.DuckDBPyConnection, names: Iterable[str] | None = None) -> None:
        """As `Engine.begin`."""
        self._engine.begin(cursor, names)

    def begin_as_known(
        self, cursor: duckdb.DuckDBPyConnection, names: Iterable[str] | None = None
    ) -> bytes | None:
        """As `Engine.begin_as_known`."""
        return self._engine.begin_as_known(cursor, names, self._shown)

    def let_go(self) -> None:
        """Hold no rows."""
        if self._cursor is not None:
            self._cursor.close()
        self._cursor, self._shown = None, {}
