"""Reads the store through one cursor that stays: what it sees of the segments is registered anew only where it has
changed, which for a view of several tables takes longer than the query."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import duckdb

from gpuwarden_collector.storage.engine import Engine


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

    def let_go(self) -> None:
        """Hold no rows."""
        if self._held is not None:
            self._held.close()
        self._held, self._shown_rows = None, {}

    def _open(self) -> duckdb.DuckDBPyConnection:
        """Raises duckdb.Error."""
        return self._engine.new_cursor()
