"""Serves the HTTP API: ingest, health, metrics and nodes; docs/api.md describes it.

Every error is answered with `{"error": "one sentence", "status": n}`, where a browser asks for a page with a page.
"""

import html
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, assert_never

from aiohttp import web

from gpuwarden.clock import Clock
from gpuwarden.wire import BATCH_SECONDS_HEADER, INGEST_PATH
from gpuwarden_collector.http.bodies import BODY_S, Busy, LateBodyError, within_time
from gpuwarden_collector.http.receive import Ingest
from gpuwarden_collector.ingest.commit_plan import Rejected, RetryLater, Stored
from gpuwarden_collector.ingest.decode import RefusedBody
from gpuwarden_collector.ingest.pacing import Pacing
from gpuwarden_collector.ingest.writer import WRITE_ERRORS, NodeForgotten, Writer
from gpuwarden_collector.ops.readiness import ReadyPart, not_ready, part_lines
from gpuwarden_collector.ops.readiness_probe import Readiness
from gpuwarden_collector.stats import Levels, Stats

log = logging.getLogger(__name__)

_RETRY_AFTER_S = 5
_BODY_SPARE_S = 1.0
"""Added to the time limit, so that `BodyReader` ends its bodies first."""
_LOG_INTERVAL_S = 60.0
_LOGGED_PATHS_MAX = 20

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """The request handlers; `levels` reads the gauges of /metrics."""

    def __init__(
        self,
        ingest: Ingest,
        stats: Stats,
        clock: Clock,
        levels: Callable[[], Levels],
        readiness: Readiness,
        *,
        body_timeout_s: float = BODY_S,
        more_metrics: Callable[[], str],
        pacing: Pacing,
        middlewares: Sequence[Any],
    ) -> None:
        """`body_timeout_s`: for bodies that `BodyReader` does not read. `middlewares`: those within the one that answers
        errors, such as the gate.
        """
        self._ingest = ingest
        self._stats = stats
        self._clock = clock
        self._levels = levels
        self._readiness = readiness
        self._more_metrics = more_metrics
        self._pacing = pacing
        self._body_timeout_s = body_timeout_s
        self._logged_at_s: dict[str, float] = {}
        """By path: when a failure was last logged."""
        self._middlewares = middlewares

    def application(self, more: Iterable[web.AbstractRouteDef] = ()) -> web.Application:
        """The aiohttp application with the API's routes and `more`."""
        app = web.Application(middlewares=[self._answer_errors, *self._middlewares])
        app.add_routes(
            [
                web.post(INGEST_PATH, self.take_batch),
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
            case RetryLater(reason, retry_after_s, status) | Busy(reason, retry_after_s, status):
                answer = error_response(status, reason, retry_after_s)
            case _:
                assert_never(outcome)
        self._stats.refused[str(answer.status)] += 1
        return closing(request, answer)

    async def healthz(self, request: web.Request) -> web.Response:
        """GET /healthz: the process answers."""
        return web.json_response({"status": "ok"})

    async def readyz(self, request: web.Request) -> web.Response:
        """GET /readyz: whether each part does its work."""
        text = request.query.get("part")
        if text is not None and text not in [*ReadyPart]:
            return error_response(400, f"part is none of {', '.join(ReadyPart)}")
        part = None if text is None else ReadyPart(text)
        state = await self._readiness.look(at_queries=part in (None, ReadyPart.QUERIES))
        lines = {"parts": dict(part_lines(state, part))}
        failed = not_ready(state, part)
        for check, reason in failed.items():
            names = [one.name for one in failed]
            return error_response(503, reason, check.retry_after_s, checks=names, **lines)
        return web.json_response({"status": "ready", **lines})

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics: the metrics of the collector and of all else in its process."""
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
                with within_time(request, self._body_timeout_s + _BODY_SPARE_S):
                    return await handler(request)
            except web.HTTPException as error:
                if error.status < 400:
                    raise
                answer = _error_answer(request, error)
                if "Allow" in error.headers:
                    answer.headers["Allow"] = error.headers["Allow"]
                return answer
            except LateBodyError as error:
                return closing(request, error_response(408, str(error)))
            except Exception:
                self._stats.request_failures += 1
                if self._is_news(request.path):
                    log.exception("request failed", extra={"path": request.path})
                return error_response(500, "the collector failed on this request; see its log")

        return answer_errors

    def _is_news(self, path: str) -> bool:
        """Whether no failure at this path was logged within a minute: clients can send many requests."""
        now_s = self._clock.monotonic()
        logged = self._logged_at_s.items()
        self._logged_at_s = {p: at_s for p, at_s in logged if now_s - at_s < _LOG_INTERVAL_S}
        if path in self._logged_at_s or len(self._logged_at_s) >= _LOGGED_PATHS_MAX:
            return False
        self._logged_at_s[path] = now_s
        return True


def _asking(batch_s: int) -> dict[str, str]:
    return {BATCH_SECONDS_HEADER: str(batch_s)} if batch_s else {}


def error_response(
    status: int, reason: str, retry_after_s: int | None = None, **more: object
) -> web.Response:
    """The form of every error. `more`: other keys of the JSON."""
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    said = {"error": reason, "status": status, **more}
    return web.json_response(said, status=status, headers=headers)


def _error_answer(request: web.Request, error: web.HTTPException) -> web.Response:
    """JSON, or for a person who mistyped the address of a page, a page."""
    reason = _sentence(request, error)
    is_page = request.method == "GET" and not request.path.startswith(("/v1/", "/api/"))
    if not is_page or "text/html" not in request.headers.get("Accept", ""):
        return error_response(error.status, reason)
    text = f"""<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark"><title>{error.status} · gpuwarden</title>
<h1>{html.escape(error.reason)}</h1><p>{html.escape(reason[:1].upper() + reason[1:])}.</p><p><a href="/">The fleet</a></p></html>"""
    headers = {"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff"}
    return web.Response(text=text, status=error.status, content_type="text/html", headers=headers)


def closing(request: web.Request, answer: web.Response) -> web.Response:
    """Close the connection if the body was not read to its end, so that the rest is not sent."""
    if not request.content.is_eof():
        answer.force_close()
    return answer


def _sentence(request: web.Request, error: web.HTTPException) -> str:
    if error.status == 404:
        return f"there is nothing at {request.path}"
    if error.status == 405:
        return f"{request.path} does not take {request.method}"
    return error.reason


def store_busy(error: Exception) -> web.Response:
    """The answer when the store could not take a change."""
    return error_response(503, f"the store cannot take it now: {error}", _RETRY_AFTER_S)


def node_routes(writer: Writer) -> Iterable[web.AbstractRouteDef]:
    """The routes of nodes."""

    async def forget(request: web.Request) -> web.Response:
        node = request.match_info["node"]
        try:
            outcome = await writer.forget_node(node)
        except WRITE_ERRORS as error:
            return store_busy(error)
        match outcome:
            case NodeForgotten.UNKNOWN:
                return error_response(404, f"there is no node {node!r}")
            case NodeForgotten.SENDS:
                return error_response(
                    409, f"{node} sends data: stop its agent, and the node leaves by itself"
                )
        log.info("node forgotten", extra={"node": node})
        return web.Response(status=204)

    return [web.delete("/v1/nodes/{node}", forget)]
