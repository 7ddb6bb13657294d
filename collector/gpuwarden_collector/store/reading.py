"""Parses SQL and runs one query on a reading cursor, bounded in rows and bytes."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from gpuwarden.query import QueryError
from gpuwarden_collector.store.database import Database
from gpuwarden_collector.store.errors import lost_file, one_line
from gpuwarden_collector.store.statement import split

_NOT_A_SELECT = "Only SELECT statements"
_CHUNK_ROWS = 2_048  # DuckDB's own vector size, so the row limit costs at most one vector more
RESULT_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Parsed:
    """What the guard decides on."""

    word: str
    """First word of the query, in capitals: the kind of statement that it seems to be."""
    selects: tuple[Mapping[str, Any], ...] | None
    """Syntax tree of each statement, for EXPLAIN of what it explains; None: not all are SELECT."""
    parameters: frozenset[str]
    sql: str
    """The text to run: the one that the trees are of, behind an EXPLAIN if it is to be explained."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Result of a query: an Arrow table, and the SQL type of each column."""

    data: Any
    types: tuple[str, ...]
    truncated: bool


class Interrupted(Exception):  # noqa: N818  an outcome that the caller expects
    """The query was ended from outside."""


class Reading:
    """One query's cursor and read-only transaction, for use in one thread.

    `interrupt` may be called from any thread at any time.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cursor: duckdb.DuckDBPyConnection | None = None
        self._is_interrupted = False

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Hold a cursor for `parse` and `run`. Raises StoreUnavailableError."""
        with self._database.reading() as cursor:
            self._cursor = cursor
            try:
                yield
            finally:
                self._cursor = None

    def interrupt(self) -> None:
        """End what runs, and do not start what has not begun."""
        self._is_interrupted = True
        cursor = self._cursor
        if cursor is not None:
            with suppress(duckdb.Error):
                cursor.interrupt()

    def parse(self, sql: str) -> Parsed:
        """Parse without running anything. Raises QueryError on a syntax error, Interrupted."""
        try:
            return parse(self._open(), sql)
        except duckdb.InterruptException as error:
            raise Interrupted("the query was interrupted") from error

    def run(self, sql: str, params: Mapping[str, Any], row_limit: int) -> Rows:
        """The first `row_limit` rows. Raises QueryError, Interrupted."""
        try:
            return _run(self._open(), sql, params, row_limit)
        except duckdb.InterruptException as error:
            raise Interrupted("the query was interrupted") from error

    def _open(self) -> duckdb.DuckDBPyConnection:
        if self._is_interrupted or self._cursor is None:
            raise Interrupted("the query was interrupted before it began")
        return self._cursor


def parse(cursor: duckdb.DuckDBPyConnection, sql: str) -> Parsed:
    """Parse without running anything. Raises QueryError on a syntax error.

    The text is given to nothing but json_serialize_sql: it reads a text as running it would, odd
    blanks included, and knows SELECT alone. `extract_statements` would run arguments of a PRAGMA.
    """
    statement = split(sql)
    tree = _serialized(cursor, statement.select)
    if tree is None:
        return Parsed(statement.word, None, frozenset(), statement.sql)
    selects = tuple(tree["statements"])
    names = frozenset(named["key"] for s in selects for named in s["named_param_map"])
    return Parsed(statement.word, selects, names, statement.sql)


def _serialized(cursor: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any] | None:
    """DuckDB's syntax tree; None where a statement is not a SELECT."""
    try:
        row = cursor.execute("SELECT json_serialize_sql($1)", [sql]).fetchone()
    except duckdb.InterruptException:
        raise
    except duckdb.Error as error:
        raise QueryError(one_line(error)) from error
    try:
        tree: dict[str, Any] = json.loads(row[0] if row else "")
    except RecursionError as error:
        raise QueryError("the query is nested too deeply") from error
    except ValueError as error:
        raise QueryError("the query cannot be judged: write it in another way") from error
    if not tree["error"]:
        return tree
    message = str(tree["error_message"])
    if message.startswith(_NOT_A_SELECT):
        return None
    raise QueryError(message.partition("\n")[0][:500])


def _run(
    cursor: duckdb.DuckDBPyConnection, sql: str, params: Mapping[str, Any], row_limit: int
) -> Rows:
    try:
        cursor.execute(sql, dict(params)) if params else cursor.execute(sql)
        types = tuple(str(column[1]) for column in cursor.description or ())
        reader = cursor.to_arrow_reader(_CHUNK_ROWS)
        batches, rows, used_bytes = [], 0, 0
        for batch in reader:
            batches.append(batch)
            rows += batch.num_rows
            used_bytes += batch.nbytes
            if used_bytes > RESULT_BYTES_MAX:
                raise QueryError(
                    f"the result is larger than {RESULT_BYTES_MAX // 2**20} MiB: "
                    "select fewer columns or rows, or aggregate"
                )
            if rows > row_limit:
                break
        data = pa.Table.from_batches(batches, schema=reader.schema)
    except duckdb.InterruptException:
        raise
    except duckdb.OutOfMemoryException as error:
        raise QueryError(
            f"the query needs more memory than the collector gives it ({one_line(error)}): "
            "select a shorter time or fewer columns, or aggregate"
        ) from error
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        if file := lost_file(error):
            raise QueryError(
                f"{file} is missing or damaged: `gpuwarden collector check` on the collector's host "
                "says what is lost; queries that do not need it work"
            ) from error
        # OSError is how Arrow says that it lacks one of DuckDB's types.
        raise QueryError(str(error).strip()[:2_000]) from error
    return Rows(data.slice(0, row_limit), types, rows > row_limit)
