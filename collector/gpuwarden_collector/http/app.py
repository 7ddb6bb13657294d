"""The HTTP API: ingest, SQL, health and metrics. `docs/api.md` is the full text.

Every error is answered with `{"error": "one sentence", "status": n}`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, assert_never

from aiohttp import web

from gpuwarden.clock import Clock
from gpuwarden.query import QueryError, QueryTimeoutError
from gpuwarden.wire import BATCH_SECONDS_HEADER, INGEST_PATH
from gpuwarden_collector.http.bodies import BodyReader, Busy
from gpuwarden_collector.http.sql_request import (
    SQL_BODY_BYTES_MAX,
    Form,
    SqlRequest,
    sql_request_of,
)
from gpuwarden_collector.ingest.commit_plan import Rejected, RetryLater, Stored
from gpuwarden_collector.ingest.decode import RefusedBody
from gpuwarden_collector.ingest.pacing import Pacing
from gpuwarden_collector.ingest.receive import NO_ROOM_RETRY_AFTER_S, Ingest
from gpuwarden_collector.ops.metrics import Levels, Stats
from gpuwarden_collector.query.querier import SqlQuerier

log = logging.getLogger(__name__)

SQL_WAITING_MAX = 32
"""Most requests to `/v1/sql` that wait or run; above it 429."""

SQL_WAIT_S = 30.0
"""Most time that such a request waits for its turn."""

SQL_SEND_S = 30.0
"""Most time that a client may take to receive its rows."""

_RETRY_AFTER_S = 5

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """Request handlers; `levels` reads the gauges of /metrics."""

    def __init__(
        self,
        ingest: Ingest,
        querier: SqlQuerier,
        bodies: BodyReader,
        stats: Stats,
        clock: Clock,
        levels: Callable[[], Levels],
        *,
        queries_max: int,
        more_metrics: Callable[[], str] = str,
        pacing: Pacing | None = None,
        guard: Any = None,
    ) -> None:
        """`pacing`: how large batches should be; None: as agents like. `guard`: middleware that lets
        requests in; None: all."""
        self._ingest = ingest
        self._querier = querier
        self._bodies = bodies
        self._stats = stats
        self._clock = clock
        self._levels = levels
        self._more_metrics = more_metrics
        self._pacing = pacing or Pacing(clock, stats.acknowledge_seconds)
        self._guards = () if guard is None else (guard,)
        self._sql_slots = asyncio.Semaphore(queries_max)
        self._sql_waiting = 0

    def application(self, more: Iterable[web.AbstractRouteDef] = ()) -> web.Application:
        """The aiohttp application with the API's routes and `more`."""
        app = web.Application(middlewares=[self._answer_errors, *self._guards])
        app.add_routes(
            [
                web.post(INGEST_PATH, self.take_batch),
                web.post("/v1/sql", self.run_sql),
                web.get("/healthz", self.healthz),
                web.get("/readyz", self.readyz),
                web.get("/metrics", self.metrics),
                *more,
            ]
        )
        return app

    async def take_batch(self, request: web.Request) -> web.Response:
        """POST /v1/ingest."""
        outcome = await self._ingest.take(request)
        match outcome:
            case Stored():
                return web.Response(status=204, headers=_asking(self._pacing.batch_s))
            case RefusedBody(status, reason):
                answer = error_response(status, reason, _RETRY_AFTER_S if status == 503 else None)
            case Rejected(reason, status):
                answer = error_response(status, reason)
            case RetryLater(reason, retry_after_s):
                answer = error_response(503, reason, retry_after_s)
            case Busy(reason, retry_after_s, status):
                answer = error_response(status, reason, retry_after_s)
            case _:
                assert_never(outcome)
        self._stats.refused[str(answer.status)] += 1
        return _closing(request, answer)

    async def run_sql(self, request: web.Request) -> web.Response:
        """POST /v1/sql."""
        body = await self._bodies.read(request, SQL_BODY_BYTES_MAX)
        match body:
            case RefusedBody(status, reason):
                return _closing(request, error_response(status, reason))
            case Busy(reason, retry_after_s, status):
                return _closing(request, error_response(status, reason, retry_after_s))
        self._bodies.release(len(body))
        # Asked only now: while bodies arrive, any number of requests would find room.
        if self._sql_waiting >= SQL_WAITING_MAX:
            self._stats.query_errors["busy"] += 1
            return error_response(429, f"{self._sql_waiting} queries are waiting or running", 1)
        self._sql_waiting += 1
        try:
            asked = sql_request_of(body, request.content_type, request.headers.get("Accept", ""))
            try:
                async with asyncio.timeout(SQL_WAIT_S):
                    await self._sql_slots.acquire()
            except TimeoutError:
                self._stats.query_errors["busy"] += 1
                return error_response(429, f"no query could start within {SQL_WAIT_S:g} s", 5)
            try:
                # Sent while the slot is held: answers that nobody takes must not pile up.
                return await _sent(request, await self._query(asked))
            finally:
                self._sql_slots.release()
        except QueryTimeoutError as error:
            return error_response(504, str(error))
        except QueryError as error:
            return error_response(400, str(error))
        finally:
            self._sql_waiting -= 1

    async def _query(self, asked: SqlRequest) -> web.Response:
        answer = await self._querier.run(asked.form.name.lower(), asked.sql, asked.params)
        charset = "utf-8" if asked.form in (Form.JSON, Form.CSV) else None
        return web.Response(
            body=answer.body,
            content_type=asked.form.value,
            charset=charset,
            headers={"Gpuwarden-Truncated": "true" if answer.truncated else "false"},
        )

    async def healthz(self, request: web.Request) -> web.Response:
        """GET /healthz: the process answers."""
        return web.json_response({"status": "ok"})

    async def readyz(self, request: web.Request) -> web.Response:
        """GET /readyz: batches are being stored."""
        levels = self._levels()
        if not levels.is_alive:
            return error_response(503, "the writer makes no progress", 5)
        if levels.is_failing:
            return error_response(503, "the store takes no batches; see the collector's log", 5)
        if levels.disk_refusal is not None:
            return error_response(503, levels.disk_refusal, NO_ROOM_RETRY_AFTER_S)
        return web.json_response({"status": "ready"})

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics: the collector about itself, and what else runs in its process."""
        from gpuwarden_collector.ops.exposition import exposition

        body = exposition(self._stats, self._levels()) + self._more_metrics().encode()
        content_type = "text/plain; version=0.0.4; charset=utf-8"
        answer = web.Response(body=body, headers={"Content-Type": content_type})
        answer.enable_compression()
        return answer

    @property
    def _answer_errors(self) -> Any:
        @web.middleware
        async def answer_errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
            try:
                return await handler(request)
            except web.HTTPException as error:
                if error.status < 400:
                    raise
                answer = error_response(error.status, _sentence(request, error))
                if "Allow" in error.headers:
                    answer.headers["Allow"] = error.headers["Allow"]
                return answer
            except Exception:
                self._stats.request_failures += 1
                log.exception("request failed", extra={"path": request.path})
                return error_response(500, "the collector failed on this request; see its log")

        return answer_errors


def _asking(batch_s: int) -> dict[str, str]:
    return {BATCH_SECONDS_HEADER: str(batch_s)} if batch_s else {}


def error_response(status: int, reason: str, retry_after_s: int | None = None) -> web.Response:
    """The one shape of errors."""
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return web.json_response({"error": reason, "status": status}, status=status, headers=headers)


def _closing(request: web.Request, answer: web.Response) -> web.Response:
    """Close the connection when its body was not read to the end: the rest is not wanted."""
    if not request.content.is_eof():
        answer.force_close()
    return answer


async def _sent(request: web.Request, answer: web.Response) -> web.Response:
    """The answer once the client has it, but for what the operating system buffers."""
    try:
        async with asyncio.timeout(SQL_SEND_S):
            await answer.prepare(request)
            await answer.write_eof()
    except TimeoutError:
        log.info("a client did not take its rows in time", extra={"client": request.remote})
        if request.transport is not None:
            request.transport.abort()
    return answer


def _sentence(request: web.Request, error: web.HTTPException) -> str:
    if error.status == 404:
        return f"there is nothing at {request.path}"
    if error.status == 405:
        return f"{request.path} does not take {request.method}"
    return error.reason
