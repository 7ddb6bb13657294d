"""Parses SQL and runs one query on a reading cursor, bounded in rows and bytes."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from gpuwarden.query import QueryError
from gpuwarden_collector.store.database import Database
from gpuwarden_collector.store.errors import lost_file, one_line

_WORD = re.compile(rb"\w+|.", re.DOTALL)
_ANALYZE = (b"ANALYZE", b"ANALYSE")
_OPTIONS = (*_ANALYZE, b"FORMAT")
_CHUNK_ROWS = 2_048  # DuckDB's own vector size, so the row limit costs at most one vector more
RESULT_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Parsed:
    """What the guard decides on."""

    kinds: tuple[str, ...]
    """Kind of each statement, in DuckDB's words: SELECT, EXPLAIN, INSERT..."""
    tree: Mapping[str, Any] | None
    """Syntax tree of the SELECT, for EXPLAIN of what it explains; None where there is none."""
    parameters: frozenset[str]


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
        """Parse without running anything. Raises QueryError on a syntax error."""
        return parse(self._open(), sql)

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
    """Parse without running anything. Raises QueryError on a syntax error."""
    try:
        statements = cursor.extract_statements(sql)
    except duckdb.Error as error:
        raise QueryError(one_line(error)) from error
    kinds = tuple(statement.type.name for statement in statements)
    parameters = frozenset(name for s in statements for name in s.named_parameters)
    if len(kinds) != 1:
        return Parsed(kinds, None, parameters)
    select = _explained(sql) if kinds == ("EXPLAIN",) else sql
    row = cursor.execute("SELECT json_serialize_sql($1)", [select]).fetchone()
    try:
        tree: dict[str, Any] = json.loads(row[0]) if row else {"error": True}
    except RecursionError as error:
        raise QueryError("the query is nested too deeply") from error
    # An empty text serializes too, as no statement.
    is_select = not tree.get("error") and len(tree["statements"]) == 1
    return Parsed(kinds, tree if is_select else None, parameters)


def _explained(sql: str) -> str:
    """The statement that an EXPLAIN is about; "" when it cannot be told.

    The guard judges this text and DuckDB runs the whole, so only what cannot be misread counts:
    EXPLAIN [ANALYZE] statement, or EXPLAIN (options) statement. Parentheses are options only if an
    option stands first in them; they may as well hold the statement itself.
    """
    encoded = sql.encode()
    starts = [offset for offset, kind in duckdb.tokenize(sql) if kind != duckdb.token_type.comment]
    words = [found[0].upper() for s in starts if (found := _WORD.match(encoded, s))]
    try:
        at = words.index(b"EXPLAIN") + 1
        if words[at] in _ANALYZE:
            at += 1
        elif words[at] == b"(" and words[at + 1] in _OPTIONS:
            at = words.index(b")", at) + 1
        return encoded[starts[at] :].decode("utf-8", "replace")
    except (IndexError, ValueError):
        return ""


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
