"""Routes of the pages and of what their scripts ask for, for the collector to serve."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any
from urllib.parse import quote

from aiohttp import web

from gpuwarden.access import COOKIE, LOGIN_PATH
from gpuwarden.clock import Clock, from_ms
from gpuwarden.query import Querier, QueryError
from gpuwarden_dashboards.assets import PATH, load_assets
from gpuwarden_dashboards.fleet import COLOURS, read_fleet, read_map
from gpuwarden_dashboards.page import SECURITY_POLICY, Pages
from gpuwarden_dashboards.place import read_gpu_uuid, read_place
from gpuwarden_dashboards.series import GPUS_MAX, Place, SeriesError, Span, read_series, span_of
from gpuwarden_dashboards.timeline import read_timeline
from gpuwarden_dashboards.usage import BY, SINCE, read_subject, read_usage

_HEADERS = {
    "Content-Security-Policy": SECURITY_POLICY,
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_COLUMNS = 500
_LATEST_MS = 253_402_300_799_000
"""The last second of the year 9999."""


def routes(querier: Querier, clock: Clock) -> Iterable[web.AbstractRouteDef]:
    """Pages, assets and their data."""
    page = _Page(querier, clock)
    return [
        web.get("/", page.fleet),
        web.get("/nodes/{node}", page.node),
        web.get("/gpus/{gpu_uuid}", page.gpu),
        web.get("/usage", page.usage),
        web.get("/jobs/{name:.+}", page.job),
        web.get("/users/{name}", page.user),
        web.get("/sql", page.sql),
        web.get(LOGIN_PATH, page.login),
        web.get(PATH, page.assets.serve),
        web.get("/v1/map", page.map),
        web.get("/v1/series", page.series),
        web.get("/v1/timeline", page.timeline),
    ]


class _Page:
    def __init__(self, querier: Querier, clock: Clock) -> None:
        self._querier = querier
        self._clock = clock
        self.assets = load_assets()
        self._pages = Pages(self.assets)

    async def fleet(self, _request: web.Request) -> web.Response:
        """GET /: what is wrong, and every GPU."""
        try:
            fleet = await read_fleet(self._querier, self._clock.now())
        except QueryError as error:
            return _unread(error)
        return _html(self._pages.fleet(fleet))

    async def node(self, request: web.Request) -> web.Response:
        """GET /nodes/{node}; with `gpu`, the page of that GPU of the node is shown."""
        node, gpu = request.match_info["node"], request.query.get("gpu")
        try:
            if gpu is not None and gpu.isdecimal():
                uuid = await read_gpu_uuid(self._querier, node, int(gpu[:6]))
                if uuid is not None:
                    raise web.HTTPSeeOther(f"/gpus/{quote(uuid, safe='')}")
            return await self._place(Place(node=node))
        except QueryError as error:
            return _unread(error)

    async def gpu(self, request: web.Request) -> web.Response:
        """GET /gpus/{gpu_uuid}."""
        return await self._place(Place(gpu_uuids=(request.match_info["gpu_uuid"],)))

    async def usage(self, request: web.Request) -> web.Response:
        """GET /usage: GPU hours and dollars by user, team, job, node or model."""
        by = request.query.get("by", "user")
        if by not in BY:
            return _wrong(f"by must be one of {', '.join(BY)}")
        try:
            since, begin, end = self._since(request)
            usages = await read_usage(self._querier, by, begin, end)
        except SeriesError as error:
            return _wrong(str(error))
        except QueryError as error:
            return _unread(error)
        return _html(self._pages.usage(usages, by, since))

    async def job(self, request: web.Request) -> web.Response:
        """GET /jobs/{name}: a Slurm job's id, or namespace/pod."""
        return await self._subject("job", request)

    async def user(self, request: web.Request) -> web.Response:
        """GET /users/{name}: what one person used."""
        return await self._subject("user", request)

    async def _subject(self, kind: str, request: web.Request) -> web.Response:
        try:
            since, begin, end = self._since(request)
            name = request.match_info["name"]
            subject = await read_subject(self._querier, kind, name, begin, end)
        except SeriesError as error:
            return _wrong(str(error))
        except QueryError as error:
            return _unread(error)
        if subject is None:
            raise web.HTTPNotFound
        return _html(self._pages.subject(subject, since))

    def _since(self, request: web.Request) -> tuple[str, datetime, datetime]:
        since = request.query.get("since", "7d")
        if since not in SINCE:
            raise SeriesError(f"since must be one of {', '.join(SINCE)}")
        now = self._clock.now()
        return since, now - SINCE[since], now

    async def sql(self, _request: web.Request) -> web.Response:
        """GET /sql: questions in SQL."""
        return _html(self._pages.sql())

    async def login(self, request: web.Request) -> web.Response:
        """GET /login: for a token, in exchange for the cookie."""
        after, why = request.query.get("next", "/"), request.query.get("why", "")
        return _html(self._pages.login(after, why, is_logged_in=COOKIE in request.cookies))

    async def _place(self, place: Place) -> web.Response:
        try:
            found = await read_place(self._querier, place, self._clock.now())
        except QueryError as error:
            return _unread(error)
        if found is None:
            raise web.HTTPNotFound
        return _html(self._pages.place(found))

    async def map(self, request: web.Request) -> web.Response:
        """GET /v1/map: every GPU of the fleet by one reading."""
        colour = request.query.get("colour", "util_percent")
        if colour not in COLOURS:
            return _wrong(f"colour must be one of {', '.join(COLOURS)}")
        try:
            return _json({"colour": colour, "nodes": await read_map(self._querier, colour)})
        except QueryError as error:
            return _failed(error)

    async def series(self, request: web.Request) -> web.Response:
        """GET /v1/series: metrics over a span, downsampled."""
        try:
            place, span = _place_of(request), self._span_of(request)
            metrics = [name for name in request.query.get("metrics", "").split(",") if name]
            lines = await read_series(self._querier, place, metrics, span)
        except SeriesError as error:
            return _wrong(str(error))
        except QueryError as error:
            return _failed(error)
        return _json({**_said(span), "lines": [asdict(line) for line in lines]})

    async def timeline(self, request: web.Request) -> web.Response:
        """GET /v1/timeline: what happened over a span."""
        try:
            place, span = _place_of(request), self._span_of(request)
            found = await read_timeline(self._querier, place, span)
        except SeriesError as error:
            return _wrong(str(error))
        except QueryError as error:
            return _failed(error)
        return _json({**_said(span), **asdict(found)})

    def _span_of(self, request: web.Request) -> Span:
        now_ms = int(self._clock.now().timestamp() * 1000)
        end_ms = _whole(request, "end", now_ms)
        begin_ms = _whole(request, "begin", end_ms - 3_600_000)
        return span_of(from_ms(begin_ms), from_ms(end_ms), _whole(request, "columns", _COLUMNS))


def _place_of(request: web.Request) -> Place:
    node, listed = request.query.get("node"), request.query.get("gpu_uuid", "")
    uuids = tuple(filter(None, listed.split(",")))
    if (node is None) == (not uuids):
        raise SeriesError("give either node or gpu_uuid")
    if len(uuids) > GPUS_MAX:
        raise SeriesError(f"at most {GPUS_MAX} GPUs at once")
    return Place(node, uuids)


def _whole(request: web.Request, name: str, usual: int) -> int:
    text = request.query.get(name)
    if text is None:
        return usual
    if not text.isascii() or not text.isdecimal() or int(text[:16]) > _LATEST_MS:
        raise SeriesError(f"{name} must be a whole number; times are milliseconds since 1970")
    return int(text[:16])


def _said(span: Span) -> dict[str, int]:
    return {
        "begin_ms": span.begin_ms,
        "step_ms": span.step_ms,
        "columns": span.columns,
        "resolution_s": span.resolution_s,
    }


def _html(content: str) -> web.Response:
    answer = web.Response(text=content, content_type="text/html", headers=_HEADERS)
    answer.enable_compression()
    return answer


def _json(content: Any) -> web.Response:
    body = json.dumps(content, separators=(",", ":"))
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    answer = web.Response(text=body, content_type="application/json", headers=headers)
    answer.enable_compression()
    return answer


def _wrong(reason: str) -> web.Response:
    return web.json_response({"error": reason, "status": 400}, status=400)


def _failed(error: QueryError) -> web.Response:
    return web.json_response({"error": str(error), "status": 503}, status=503)


def _unread(error: QueryError) -> web.Response:
    return web.Response(status=503, text=f"the fleet cannot be read now: {error}\n")
