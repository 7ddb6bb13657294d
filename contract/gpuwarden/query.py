"""Defines the port through which rules and dashboards read data: SQL in, rows out."""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

ARROW_TYPE = "application/vnd.apache.arrow.stream"
PARQUET_TYPE = "application/vnd.apache.parquet"
NDJSON_TYPE = "application/x-ndjson"
"""Media types of rows over HTTP."""
TRUNCATED = "gpuwarden.truncated"
"""Marks truncated rows over HTTP, at their end, except in JSON."""
ERROR = "gpuwarden.error"
"""Key of the last line of NDJSON that ended with an error."""
ROLE_FUNCTIONS = frozenset({"user", "current_user", "session_user", "current_role"})
"""Functions that DuckDB calls for a name without parentheses where no column has it."""

QUERY_SEND_S = 60.0
"""Most time for a client to receive the rows of a query."""

_First = TypeVar("_First")
_Second = TypeVar("_Second")
Record = dict[str, Any]
"""A row by the names of its columns."""


def role_refusal(name: str) -> str:
    """Why a query may not call one of `ROLE_FUNCTIONS`."""
    return f"`{name}` is a function of DuckDB; the column is `username`"


@dataclass(frozen=True, slots=True)
class Result:
    """Rows of a query. TIMESTAMP values are aware datetimes, UTC; NULL is None."""

    columns: Sequence[str]
    types: Sequence[str]
    rows: Sequence[tuple[Any, ...]]
    truncated: bool = False
    """Whether there were more rows than the limit."""

    def records(self) -> list[Record]:
        """Each row as a dictionary."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class TextPlace:
    """A character of a query; lines and columns are counted from 1."""

    line: int
    column: int
    offset: int

    @classmethod
    def of(cls, sql: str, offset: int) -> "TextPlace":
        """The place of the character at `offset`."""
        before = sql[:offset]
        return cls(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1, offset)


@dataclass(frozen=True, slots=True)
class ExpectedQuery:
    """A query that runs repeatedly with a new `$now`."""

    sql: str
    params: Mapping[str, Any]
    """Includes `now`."""
    before_s: float = 0.0
    """How far in the past its `$now` may be."""


class QueryError(ValueError):
    """The query is wrong or not allowed; the message says what to change."""

    def __init__(self, reason: str, *, offset: int | None = None, hint: str | None = None) -> None:
        """`offset`: of the character of the query with the error; `hint`: a correction."""
        super().__init__(reason if hint is None else f"{reason}; {hint}")
        self.reason = reason
        self.offset = offset
        self.hint = hint

    def document(self, sql: str, status: int) -> dict[str, Any]:
        """The JSON of the API."""
        said: dict[str, Any] = {"error": self.reason, "status": status}
        if self.hint is not None:
            said["hint"] = self.hint
        if self.offset is not None and self.offset <= len(sql):
            said["position"] = asdict(TextPlace.of(sql, self.offset))
        return said


class QueryTimeoutError(QueryError):
    """The query ran longer than its limit."""


class LakeAwayError(QueryError):
    """The query needs the lake, whose catalogue or files cannot be read now."""


def text_sql(value: str) -> str:
    """A text as an SQL literal. NUL characters cannot be in one."""
    return "'" + value.replace("'", "''") + "'"


def timestamp_sql(instant: datetime) -> str:
    """An instant (UTC) as an SQL literal, for places without parameters."""
    return f"TIMESTAMP '{instant.replace(tzinfo=None).isoformat(sep=' ')}'"


def first_paragraph(error: Exception | str) -> str:
    """An error in one line, without the part of the query that DuckDB shows after an empty line."""
    return " ".join(str(error).partition("\n\n")[0].split())


class Querier(Protocol):
    """Runs read-only SQL."""

    async def query(
        self,
        sql: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        row_limit: int | None = None,
    ) -> Result:
        """Rows of one SELECT (or EXPLAIN) statement; `$name` in it takes `params["name"]`.

        Datetime parameters are aware. Raises QueryError, QueryTimeoutError.
        """
        ...


async def query_all(
    querier: Querier, asked: Iterable[tuple[str, Mapping[str, Any] | None]]
) -> list[Result]:
    """Run several queries concurrently. Raises as `query`."""
    with _first_error():
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(querier.query(sql, params)) for sql, params in asked]
    return [task.result() for task in tasks]


async def both(
    first: Coroutine[Any, Any, _First], second: Coroutine[Any, Any, _Second]
) -> tuple[_First, _Second]:
    """Run two readers concurrently. Raises as `Querier.query`."""
    with _first_error():
        async with asyncio.TaskGroup() as group:
            tasks = group.create_task(first), group.create_task(second)
    return tasks[0].result(), tasks[1].result()


@contextmanager
def _first_error() -> Iterator[None]:
    """Raise the first of a group of QueryErrors alone."""
    try:
        yield
    except* QueryError as errors:
        one: BaseException = errors
        while isinstance(one, BaseExceptionGroup):
            one = one.exceptions[0]
        raise one from None
