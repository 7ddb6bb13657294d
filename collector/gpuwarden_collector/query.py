"""Runs read-only SQL on a pool of reader threads: `gpuwarden.query.Querier` on the store."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from gpuwarden.clock import Clock
from gpuwarden.query import QueryError, QueryTimeoutError, Result
from gpuwarden_collector import guard
from gpuwarden_collector.answers import python_rows
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.store.database import Database
from gpuwarden_collector.store.errors import StoreUnavailableError
from gpuwarden_collector.store.reading import Interrupted, Parsed, Reading, Rows

T = TypeVar("T")

_INTERRUPT_AGAIN_S = 0.2
_INTERRUPT_WAIT_S = 5.0
_KNOWN_MAX = 256
"""Texts whose verdict is remembered: rules and pages ask the same again and again."""


class SqlQuerier:
    """At most `queries_max` queries at a time; each has a deadline and a row limit."""

    def __init__(
        self,
        database: Database,
        stats: Stats,
        clock: Clock,
        *,
        queries_max: int = 4,
        timeout_s: float = 30.0,
        rows_max: int = 100_000,
    ) -> None:
        self._database = database
        self._stats = stats
        self._clock = clock
        self._queries_max = queries_max
        self._timeout_s = timeout_s
        self._rows_max = rows_max
        self._slots = asyncio.Semaphore(queries_max)
        self._threads = ThreadPoolExecutor(queries_max, "query")
        self._known: dict[str, Parsed] = {}

    async def query(
        self,
        sql: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        row_limit: int | None = None,
    ) -> Result:
        return await self.run(_result, sql, params, timeout_s=timeout_s, row_limit=row_limit)

    async def run(
        self,
        work: Callable[[Rows], T],
        sql: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        row_limit: int | None = None,
    ) -> T:
        """`work` on the rows of the query, done in the reader thread.

        `timeout_s` and `row_limit` can only be shorter than the settings say. Raises QueryError.
        """
        limit_s = min(timeout_s or self._timeout_s, self._timeout_s)
        rows = min(self._rows_max if row_limit is None else row_limit, self._rows_max)
        started = self._clock.monotonic()
        try:
            return await self._within(limit_s, work, sql, _bindable(params or {}), rows)
        except QueryTimeoutError:
            self._stats.query_errors["timeout"] += 1
            raise
        except QueryError:
            self._stats.query_errors["wrong"] += 1
            raise
        finally:
            self._stats.query_seconds.observe(self._clock.monotonic() - started)

    async def _within(
        self,
        limit_s: float,
        work: Callable[[Rows], T],
        sql: str,
        params: Mapping[str, Any],
        row_limit: int,
    ) -> T:
        reading = Reading(self._database)
        future: asyncio.Future[T] | None = None
        try:
            async with asyncio.timeout(limit_s):
                await self._slots.acquire()
                future = asyncio.get_running_loop().run_in_executor(
                    self._threads, self._job, reading, work, sql, params, row_limit
                )
                future.add_done_callback(self._release)
                return await asyncio.shield(future)
        except TimeoutError as error:
            if future is None:
                raise QueryTimeoutError(
                    f"no query could start within {limit_s:g} s: {self._queries_max} run already"
                ) from error
            await _ended(reading, future)
            raise QueryTimeoutError(
                f"the query took longer than {limit_s:g} s: select a shorter time, or aggregate"
            ) from error
        except Interrupted as error:
            raise QueryTimeoutError(
                "the query was ended: a commit needed its memory, or the collector stops; "
                "select a shorter time"
            ) from error
        except asyncio.CancelledError:
            if future is not None:
                _interrupt_until_done(reading, future)
            raise

    def _job(
        self,
        reading: Reading,
        work: Callable[[Rows], T],
        sql: str,
        params: Mapping[str, Any],
        row_limit: int,
    ) -> T:
        guard.check_text(sql)
        try:
            with reading.opened():
                judged = self._judged(reading, sql)
                names = judged.parameters
                missing = sorted(names - params.keys())
                if missing:
                    raise QueryError(f"the query needs values for ${', $'.join(missing)}")
                rows = reading.run(judged.sql, {name: params[name] for name in names}, row_limit)
                return work(rows)
        except StoreUnavailableError as error:
            raise QueryError(f"the database cannot be read now: {error}") from error

    def _judged(self, reading: Reading, sql: str) -> Parsed:
        """A query that may run; it is parsed and judged once. Raises QueryError."""
        judged = self._known.get(sql)
        if judged is None:
            parsed = reading.parse(sql)
            guard.check(parsed)
            judged = replace(parsed, selects=())  # the trees are large, and no longer needed
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[sql] = judged
        return judged

    def _release(self, future: "asyncio.Future[Any]") -> None:
        # Looked at here, so that an abandoned query's error is not reported as unheard of.
        if not future.cancelled():
            future.exception()
        self._slots.release()

    async def close(self) -> None:
        """End running queries and the threads."""
        self._database.interrupt_readers()
        self._threads.shutdown(wait=False, cancel_futures=True)


async def _ended(reading: Reading, future: "asyncio.Future[Any]") -> None:
    """Interrupt until the thread is free, for a bounded time; after that it frees its slot late."""
    _interrupt_until_done(reading, future)
    await asyncio.wait({future}, timeout=_INTERRUPT_WAIT_S)


def _interrupt_until_done(reading: Reading, future: "asyncio.Future[Any]") -> None:
    # An interrupt just before the query starts would be lost, hence again and again.
    if not future.done():
        reading.interrupt()
        loop = asyncio.get_running_loop()
        loop.call_later(_INTERRUPT_AGAIN_S, _interrupt_until_done, reading, future)


def _bindable(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as DuckDB takes them: instants become naive UTC, to compare with TIMESTAMP."""
    return {name: _bound(name, value) for name, value in params.items()}


def _bound(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise QueryError(f"parameter ${name} is a datetime without time zone: make it aware")
        return value.astimezone(UTC).replace(tzinfo=None)
    return value


def _result(rows: Rows) -> Result:
    return Result(tuple(rows.data.schema.names), rows.types, python_rows(rows), rows.truncated)
