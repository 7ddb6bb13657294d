"""Runs clients' queries in a fair order, and writes each to `query_log` some seconds later.

No query waits for the log. If the store takes no rows, or too many come, the oldest entries are dropped and counted.
"""

import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from gpuwarden.access import Scope
from gpuwarden.clock import Clock
from gpuwarden.query import QueryError, QueryTimeoutError
from gpuwarden.query_log import QUERY_LOG, SQL_CHARACTERS_MAX
from gpuwarden_collector.auth.token_store import Granted
from gpuwarden_collector.ingest.writer import WRITE_ERRORS, Writer
from gpuwarden_collector.query.fair_queue import QueryQueue, QueueFullError, user_at
from gpuwarden_collector.query.guard import ALL, NOBODY
from gpuwarden_collector.query.port import RowStream
from gpuwarden_collector.query.querier import QueryStream, SqlQuerier
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.commit import Changes, naive
from gpuwarden_collector.storage.schemas import arrow_schema

log = logging.getLogger(__name__)

FLUSH_S = 2.0
_HELD_MAX = 5_000
_SCHEMA = arrow_schema(QUERY_LOG.columns)


@dataclass(slots=True)
class QueryNote:
    """The log entry of a query, filled in while it runs."""

    ts: datetime
    began_s: float
    username: str | None
    token: str | None
    address: str | None
    sql: str = ""
    form: str = "json"
    outcome: str = "left"
    """The client left, unless the query ends in another way."""
    error: str | None = None
    wait_seconds: float | None = None
    rows: int | None = None
    bytes: int | None = None
    memory_bytes: int | None = None

    def failed(self, outcome: str, error: str) -> None:
        """Note that the query failed."""
        self.outcome, self.error = outcome, error

    def ended(self, rows: QueryStream) -> None:
        """Note that the client has all its rows."""
        self.outcome = "truncated" if rows.truncated else "ok"
        self.rows, self.memory_bytes = rows.rows, rows.memory_bytes


def outcome_of(error: QueryError) -> str:
    """The outcome of a failed query."""
    return "timeout" if isinstance(error, QueryTimeoutError) else "wrong"


class QueryLog:
    """Collects log entries. Call `flush` every FLUSH_S seconds."""

    def __init__(self, collector: str, writer: Writer, clock: Clock) -> None:
        self._collector = collector
        self._writer = writer
        self._clock = clock
        self._numbers = itertools.count(1)
        self._held: deque[dict[str, Any]] = deque()
        self._dropped = 0

    def begin(self, grant: Granted | None, address: str | None) -> QueryNote:
        """Begin the entry of a query."""
        name, token = (None, None) if grant is None else (grant.entry.name, grant.entry.first_id)
        return QueryNote(self._clock.now(), self._clock.monotonic(), name, token, address)

    def now_s(self) -> float:
        """The monotonic clock."""
        return self._clock.monotonic()

    def elapsed_s(self, note: QueryNote) -> float:
        """Time since the query arrived."""
        return self._clock.monotonic() - note.began_s

    def end(self, note: QueryNote) -> None:
        """Add the entry of an answered query."""
        if len(self._held) >= _HELD_MAX:
            self._held.popleft()
            self._dropped += 1
        self._held.append(
            {
                "ts": naive(note.ts),
                "collector": self._collector,
                "number": next(self._numbers),
                "username": note.username,
                "address": note.address,
                "token": note.token,
                "sql": note.sql[:SQL_CHARACTERS_MAX],
                "form": note.form,
                "outcome": note.outcome,
                "error": note.error,
                "wait_seconds": note.wait_seconds,
                "duration_seconds": self.elapsed_s(note),
                "rows": note.rows,
                "bytes": note.bytes,
                "memory_bytes": note.memory_bytes,
            }
        )

    async def flush(self) -> None:
        """Write the collected entries."""
        if not self._held:
            return
        rows = list(self._held)
        table = pa.Table.from_pylist(rows, _SCHEMA)
        try:
            await self._writer.write(Changes(appended={QUERY_LOG.name: table}))
        except WRITE_ERRORS as error:
            log.debug("the query log could not be written", extra={"reason": str(error)})
            return
        for _ in rows:
            if self._held:
                self._held.popleft()
        if self._dropped:
            log.warning("entries of the query log were dropped", extra={"queries": self._dropped})
            self._dropped = 0


class QueryService:
    """Runs clients' queries: each waits for its turn, is limited by its token, and is logged."""

    def __init__(
        self, querier: SqlQuerier, queue: QueryQueue, query_log: QueryLog, stats: Stats
    ) -> None:
        self._querier = querier
        self._queue = queue
        self._log = query_log
        self._stats = stats

    @asynccontextmanager
    async def logged(self, grant: Granted | None, address: str | None) -> AsyncIterator[QueryNote]:
        """Log a query at the end of the block, if its SQL is known by then."""
        note = self._log.begin(grant, address)
        try:
            yield note
        finally:
            if note.sql:
                self._log.end(note)

    @asynccontextmanager
    async def answering(
        self,
        note: QueryNote,
        grant: Granted | None,
        form: str,
        sql: str,
        params: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        row_limit: int | None = None,
        dialect: str = "",
    ) -> AsyncIterator[QueryStream]:
        """Wait for the query's turn, which lasts to the end of the block, and yield its rows. `form`, `dialect` and the
        others are those of `SqlQuerier.stream`. Raises QueryError, QueueFullError, here and from the stream."""
        note.sql, note.form = sql, form
        user = user_at(note.address) if grant is None else grant.entry.user
        team = None if grant is None else grant.team
        sees_all = grant is None or (grant.entry.scope is Scope.ADMIN and team is None)
        log_of = ALL if sees_all else note.token or NOBODY
        try:
            async with self._queue.turn(user):
                note.wait_seconds = self._log.elapsed_s(note)
                async with self._querier.stream(
                    form,
                    sql,
                    params,
                    timeout_s=timeout_s,
                    row_limit=row_limit,
                    log_of=log_of,
                    dialect=dialect,
                    team=team,
                ) as rows:
                    self._stats.queries = self._stats.queries.answered(self._log.now_s())
                    yield rows
        except QueueFullError as error:
            self._stats.query_errors["busy"] += 1
            note.failed("refused", str(error))
            raise
        except QueryError as error:
            self._stats.queries = self._stats.queries.doubted()
            note.failed(outcome_of(error), str(error))
            raise

    @asynccontextmanager
    async def run(
        self,
        form: str,
        sql: str,
        params: Mapping[str, Any],
        *,
        grant: Any,
        address: str,
        timeout_s: float | None,
        row_limit: int | None,
        dialect: str,
    ) -> AsyncIterator[RowStream]:
        """`Queries.run`."""
        async with (
            self.logged(grant, address) as note,
            self.answering(
                note,
                grant,
                form,
                sql,
                params,
                timeout_s=timeout_s,
                row_limit=row_limit,
                dialect=dialect,
            ) as rows,
        ):
            yield _NotedRows(rows, note)


class _NotedRows:
    """Rows of a query that notes their size and end in its log entry."""

    def __init__(self, rows: QueryStream, note: QueryNote) -> None:
        self._rows = rows
        self._note = note

    @property
    def rows(self) -> int:
        """As of RowStream."""
        return self._rows.rows

    @property
    def truncated(self) -> bool:
        """As of RowStream."""
        return self._rows.truncated

    async def whole(self) -> bytes | bytearray:
        """As of RowStream."""
        found = await self._rows.whole()
        self._note.bytes = (self._note.bytes or 0) + len(found)
        if not found:
            self._note.ended(self._rows)
        return found
