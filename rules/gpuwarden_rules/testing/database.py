"""Provides a DuckDB in memory with the public tables and views, as a Querier."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa

from gpuwarden.idleness import IDLE_1M, INSTANTS, Minute, advanced, minutes_sql
from gpuwarden.query import QueryError, Result
from gpuwarden.schema import TABLES, create_sql, parsed_sql, views_sql

_PRUNING_ONLY = "statistics_propagation,filter_pushdown,empty_result_pullup"
"""Optimizers that remove scans of empty tables, or columns that only filter, from a plan."""


_numbers = itertools.count()


@cache
def _empty() -> duckdb.DuckDBPyConnection:
    """A connection that uses a database of the public schema: a copy takes a quarter of the time to create it."""
    connection = duckdb.connect(":memory:", config={"threads": 1})
    connection.execute("SET GLOBAL TimeZone = 'UTC'; ATTACH ':memory:' AS empty; USE empty")
    for table in TABLES.values():
        connection.execute(create_sql(table))
    connection.execute(views_sql())
    return connection


class MemoryDatabase:
    """The public schema, without rows at first. A Querier without limits of time."""

    def __init__(self) -> None:
        self._name = f"copy_{next(_numbers)}"
        self.connection = _empty().cursor()
        self.connection.execute(f"ATTACH ':memory:' AS {self._name}")
        self.connection.execute(f"COPY FROM DATABASE empty TO {self._name}; USE {self._name}")

    def insert(self, table: str, rows: Sequence[Mapping[str, Any]], into: str = "") -> None:
        """Add rows; columns that a row does not have are NULL. Datetimes are aware, maps and lists Python's. `into`: another
        table of the same columns."""
        if not rows:
            return
        columns = list(dict.fromkeys(column for row in rows for column in row))
        batch = pa.table({name: [_stored(row.get(name)) for row in rows] for name in columns})
        self.connection.register("_batch", batch)
        names = ", ".join(columns)
        parsed = parsed_sql(TABLES[table], columns)
        self.connection.execute(
            f"INSERT INTO {into or table} ({names}) SELECT {parsed} FROM _batch"
        )
        self.connection.unregister("_batch")

    def advance_idleness(self) -> None:
        """Compute `idle_1m` from the minutes that are there, as the collector does, unless it has rows."""
        if self.connection.execute("SELECT 1 FROM idle_1m LIMIT 1").fetchall():
            return
        self.connection.execute("DELETE FROM idle_1m")
        sql = minutes_sql("gpu_1m", "process_1m", "allocation_samples")
        minutes = self.connection.execute(sql).fetchall()
        rows, _ = advanced({}, map(Minute._make, minutes))
        if not rows:
            return
        columns = zip(IDLE_1M.names, zip(*rows, strict=True), strict=True)
        self.connection.register("_batch", pa.table({name: [*values] for name, values in columns}))
        instants = ", ".join(f"make_timestamp({name}) AS {name}" for name in INSTANTS)
        self.connection.execute(f"INSERT INTO idle_1m SELECT * REPLACE ({instants}) FROM _batch")
        self.connection.unregister("_batch")

    def execute(self, sql: str) -> None:
        """Run any statement, for rows that notation cannot express."""
        self.connection.execute(sql)

    def run(self, sql: str, params: Mapping[str, Any] | None = None) -> Result:
        """Run a query, like `query` but blocking. Raises QueryError."""
        bound = {name: _naive(value) for name, value in (params or {}).items()}
        try:
            cursor = self.connection.execute(sql, bound)
            rows = cursor.fetchall()
        except duckdb.Error as error:
            raise QueryError(_first_line(error)) from error
        described = cursor.description or []
        return Result(
            columns=[name for name, *_ in described],
            types=[str(kind) for _, kind, *_ in described],
            rows=[tuple(_aware(value) for value in row) for row in rows],
        )

    def columns_read(self, sql: str, params: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
        """Table and column of everything that the statement reads, from DuckDB's plan. Raises QueryError."""
        self.connection.execute(f"SET disabled_optimizers = '{_PRUNING_ONLY}'")
        try:
            rows = self.run(f"EXPLAIN (FORMAT JSON) {sql}", params).rows
        finally:
            self.connection.execute("RESET disabled_optimizers")
        return frozenset(
            found for _, plan in rows for node in json.loads(plan) for found in _scanned(node)
        )

    async def query(
        self,
        sql: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        row_limit: int | None = None,
    ) -> Result:
        """The Querier port; see `gpuwarden.query`."""
        result = self.run(sql, params)
        if row_limit is None or len(result.rows) <= row_limit:
            return result
        return Result(result.columns, result.types, result.rows[:row_limit], truncated=True)

    def close(self) -> None:
        """Close the database."""
        self.connection.close()
        _empty().execute(f"DETACH DATABASE IF EXISTS {self._name}")


def _scanned(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Tables and columns that a part of a plan scans."""
    info = node["extra_info"]
    if "Table" in info:
        table = str(info["Table"]).rpartition(".")[2]
        columns = info.get("Projections") or []
        for column in [columns] if isinstance(columns, str) else columns:
            yield table, column
    for child in node["children"]:
        yield from _scanned(child)


def _first_line(error: duckdb.Error) -> str:
    return " ".join(str(error).split("\n\n")[0].split())


def _naive(value: Any) -> Any:
    return value.astimezone(UTC).replace(tzinfo=None) if isinstance(value, datetime) else value


def _stored(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list | tuple) else _naive(value)


def _aware(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value
