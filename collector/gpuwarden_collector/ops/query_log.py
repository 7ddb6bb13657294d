"""Keeps what people asked and what came of it as rows of `query_log`, written some seconds later.

Nothing waits for it: where the store takes no rows, or too many come, the oldest are dropped and counted.
"""

import itertools
import logging
from collections import deque
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from gpuwarden.clock import Clock
from gpuwarden.query import QueryError, QueryTimeoutError
from gpuwarden.query_log import QUERY_LOG, SQL_CHARACTERS_MAX
from gpuwarden_collector.ingest.writer import Writer
from gpuwarden_collector.storage.commit import Changes, WriterStopped, naive
from gpuwarden_collector.storage.errors import RowsRefusedError, StoreUnavailableError
from gpuwarden_collector.storage.schemas import arrow_schema

log = logging.getLogger(__name__)

FLUSH_S = 2.0
_HELD_MAX = 5_000
_SCHEMA = arrow_schema(QUERY_LOG.columns)


@dataclass(slots=True)
class QueryNote:
    """One query, filled in while it is answered."""

    ts: datetime
    began_s: float
    user_name: str | None
    token: str | None
    address: str | None
    sql: str = ""
    form: str = "json"
    outcome: str = "left"
    """Unless it comes to another end."""
    error: str | None = None
    wait_seconds: float | None = None
    rows: int | None = None
    bytes: int | None = None
    memory_bytes: int | None = None

    def failed(self, outcome: str, error: str) -> None:
        """It ends without all its rows."""
        self.outcome, self.error = outcome, error


def outcome_of(error: QueryError) -> str:
    """Of a query that failed."""
    return "timeout" if isinstance(error, QueryTimeoutError) else "wrong"


class QueryLog:
    """Takes notes; `flush` every FLUSH_S."""

    def __init__(self, collector: str, writer: Writer, clock: Clock) -> None:
        self._collector = collector
        self._writer = writer
        self._clock = clock
        self._numbers = itertools.count(1)
        self._held: deque[dict[str, Any]] = deque()
        self._dropped = 0

    def begin(
        self, user_name: str | None, address: str | None, token: str | None = None
    ) -> QueryNote:
        """A query that has come."""
        return QueryNote(self._clock.now(), self._clock.monotonic(), user_name, token, address)

    def elapsed_s(self, note: QueryNote) -> float:
        """Since it came."""
        return self._clock.monotonic() - note.began_s

    def end(self, note: QueryNote) -> None:
        """It is answered."""
        if len(self._held) >= _HELD_MAX:
            self._held.popleft()
            self._dropped += 1
        self._held.append(
            {
                "ts": naive(note.ts),
                "collector": self._collector,
                "number": next(self._numbers),
                "user_name": note.user_name,
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
        """Write what is held."""
        if not self._held:
            return
        rows = list(self._held)
        table = pa.Table.from_pylist(rows, _SCHEMA)
        try:
            await self._writer.write(Changes(appended={QUERY_LOG.name: table}))
        except (StoreUnavailableError, RowsRefusedError, WriterStopped) as error:
            log.debug("the query log is not written now", extra={"reason": str(error)})
            return
        for _ in rows:
            if self._held:
                self._held.popleft()
        if self._dropped:
            log.warning("notes of queries were dropped", extra={"queries": self._dropped})
            self._dropped = 0
