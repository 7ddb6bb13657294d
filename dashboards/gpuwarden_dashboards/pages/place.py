"""Serves the pages of a node and of a GPU, and the data of their charts, map and tables."""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from aiohttp import web

from gpuwarden.clock import Clock, from_ms, to_ms
from gpuwarden.query import Querier, Record
from gpuwarden_dashboards.http import (
    NotKnownError,
    ParameterError,
    SharedAnswers,
    data,
    html,
    whole,
)
from gpuwarden_dashboards.pages.page import JudgementOf, Page, judged
from gpuwarden_dashboards.read.health import read_health
from gpuwarden_dashboards.read.live import LIVE_SECONDS_MAX, LiveRows, live_sources, read_live
from gpuwarden_dashboards.read.model_band import band_span, read_model_band
from gpuwarden_dashboards.read.place import GROUPS, NODE_GROUPS, PlaceNow, read_gpu_uuid, read_place
from gpuwarden_dashboards.read.processes import PROCESS_STATES
from gpuwarden_dashboards.read.series import (
    GPUS_MAX,
    Place,
    Span,
    described,
    read_series,
    span_of,
)
from gpuwarden_dashboards.read.timeline import read_coverage, read_timeline
from gpuwarden_dashboards.read.topology import read_topology
from gpuwarden_dashboards.read.usual import HOUR_MS, read_usual
from gpuwarden_dashboards.templates import (
    ABSENT,
    Templates,
    celsius,
    gigabytes,
    percent,
    power,
)

_COLUMNS = 500
BESIDE = (
    ("util_percent", "utilization"), ("power_watts", "power"), ("temperature_celsius", "temperature"),
    ("sm_clock_mhz", "SM clock"), ("memory_used_bytes", "memory used"), ("sm_active_percent", "SMs active"),
)  # fmt: skip
"""Metrics by which other GPUs are shown beside one."""
_LIVE_AGE_S = 0.9
"""Within it all pages that show the same live get one answer; they ask every two seconds."""


class PlacePages(Page):
    """GET /nodes/{node}, /gpus/{gpu_uuid}, /v1/series and what else its charts need."""

    def __init__(
        self, templates: Templates, querier: Querier, clock: Clock, judgement: JudgementOf = judged
    ) -> None:
        super().__init__(templates, querier, clock, judgement)
        self._shared = SharedAnswers(clock)

    def routes(self) -> Iterable[web.RouteDef]:
        """The pages and their data."""
        return [
            web.get("/nodes/{node}", self._node),
            web.get("/gpus/{gpu_uuid}", self._gpu),
            web.get("/v1/series", self._series),
            web.get("/v1/series/model", self._model),
            web.get("/v1/live", self._live),
            web.get("/v1/usual", self._usual),
            web.get("/v1/timeline", self._timeline),
            web.get("/v1/health", self._health),
            web.get("/v1/coverage", self._coverage),
            web.get("/v1/topology", self._topology),
        ]

    def render(self, place: PlaceNow) -> str:
        """Its HTML."""
        is_gpu = place.gpu_uuid is not None
        groups = [{"title": t, "metrics": m} for t, m in (GROUPS if is_gpu else NODE_GROUPS)]
        return self._templates.render(
            "place.html",
            place=place,
            tiles=[tile(gpu) for gpu in place.gpus],
            groups=groups,
            metrics=list(described()),
            process_states=PROCESS_STATES,
            beside_metrics=BESIDE,
        )

    async def _node(self, request: web.Request) -> web.Response:
        """With `gpu`, redirect to the page of that GPU of the node."""
        node = request.match_info["node"]
        if "gpu" in request.query:
            uuid = await read_gpu_uuid(self._querier, node, whole(request, "gpu", 0))
            if uuid is not None:
                raise web.HTTPSeeOther(f"/gpus/{quote(uuid, safe='')}")
        return await self._show(Place(node=node), f"node {node}")

    async def _gpu(self, request: web.Request) -> web.Response:
        uuid = request.match_info["gpu_uuid"]
        return await self._show(Place(gpu_uuids=(uuid,)), f"GPU {uuid}")

    async def _show(self, place: Place, name: str) -> web.Response:
        found = await read_place(self._querier, place, self._clock.now())
        if found is None:
            raise NotKnownError(f"there is no {name}: it never reported, or its rows were deleted")
        return html(self.render(found))

    async def _series(self, request: web.Request) -> web.Response:
        place, span = _place_of(request), self._span_of(request)
        metrics = [name for name in request.query.get("metrics", "").split(",") if name]
        lines = await read_series(self._querier, place, metrics, span)
        return data({**_span_document(span), "lines": [asdict(line) for line in lines]})

    async def _live(self, request: web.Request) -> web.Response:
        place = _place_of(request)
        metrics = [name for name in request.query.get("metrics", "").split(",") if name]
        seconds = whole(request, "seconds", 60)
        if not 1 <= seconds <= LIVE_SECONDS_MAX:
            raise ParameterError(f"seconds must be 1 to {LIVE_SECONDS_MAX}")
        live_sources(metrics)  # before the answer has a place among those that are kept

        async def made() -> str:
            now = self._clock.now()
            begin = now - timedelta(seconds=seconds)
            rows = await read_live(self._querier, place, metrics, begin, now)
            return await asyncio.to_thread(_live_document, rows, begin, now)

        key = f"{place} {metrics} {seconds}"
        return await self._shared.answer(request, key, _LIVE_AGE_S, made)

    async def _model(self, request: web.Request) -> web.Response:
        place, span = _place_of(request), band_span(self._span_of(request))
        if len(place.gpu_uuids) != 1:
            raise ParameterError("give one gpu_uuid")
        metrics = [name for name in request.query.get("metrics", "").split(",") if name]
        band = await read_model_band(self._querier, place.gpu_uuids[0], metrics, span)
        return data({**_span_document(span), **asdict(band)})

    async def _usual(self, request: web.Request) -> web.Response:
        # Not of columns, which may be longer than what was asked for.
        place, (begin, end) = _place_of(request), self._times_of(request)
        if len(place.gpu_uuids) != 1:
            raise ParameterError("give one gpu_uuid")
        metrics = [name for name in request.query.get("metrics", "").split(",") if name]
        first_ms, bands = await read_usual(self._querier, place.gpu_uuids[0], metrics, begin, end)
        lines = [asdict(band) for band in bands]
        return data({"begin_ms": first_ms, "step_ms": HOUR_MS, "lines": lines})

    async def _timeline(self, request: web.Request) -> web.Response:
        place, span = _place_of(request), self._span_of(request)
        found = await read_timeline(self._querier, place, span)
        return data({**_span_document(span), **asdict(found)})

    async def _health(self, request: web.Request) -> web.Response:
        place, span = _place_of(request), self._span_of(request)
        return data(asdict(await read_health(self._querier, place, span)))

    async def _coverage(self, request: web.Request) -> web.Response:
        place, span = _place_of(request), self._span_of(request)
        tables = await read_coverage(self._querier, place, span)
        return data({**_span_document(span), "tables": [asdict(table) for table in tables]})

    async def _topology(self, request: web.Request) -> web.Response:
        node = request.query.get("node")
        if not node:
            raise ParameterError("node is missing")
        end = from_ms(whole(request, "end", to_ms(self._clock.now())))
        return data(asdict(await read_topology(self._querier, node, end)))

    def _span_of(self, request: web.Request) -> Span:
        begin, end = self._times_of(request)
        return span_of(begin, end, whole(request, "columns", _COLUMNS))

    def _times_of(self, request: web.Request) -> tuple[datetime, datetime]:
        end_ms = whole(request, "end", to_ms(self._clock.now()))
        begin_ms = whole(request, "begin", end_ms - 3_600_000)
        return from_ms(begin_ms), from_ms(end_ms)


def _place_of(request: web.Request) -> Place:
    node, listed = request.query.get("node"), request.query.get("gpu_uuid", "")
    uuids = tuple(filter(None, listed.split(",")))
    if (node is None) == (not uuids):
        raise ParameterError("give either node or gpu_uuid")
    if len(uuids) > GPUS_MAX:
        raise ParameterError(f"at most {GPUS_MAX} GPUs at once")
    return Place(node, uuids, request.query.get("job"))


def _live_document(rows: Sequence[LiveRows], begin: datetime, now: datetime) -> str:
    """JSON of many rows; `asdict` would copy each value."""
    said = {
        "begin_ms": to_ms(begin),
        "now_ms": to_ms(now),
        "rows": [
            {
                "node": one.node,
                "gpu": one.gpu,
                "gpu_uuid": one.gpu_uuid,
                "part": one.part,
                "at_ms": one.at_ms,
                "values": one.values,
            }
            for one in rows
        ],
    }
    return json.dumps(said, separators=(",", ":"))


def _span_document(span: Span) -> dict[str, int]:
    return {
        "begin_ms": span.begin_ms,
        "step_ms": span.step_ms,
        "columns": span.columns,
        "resolution_s": span.resolution_s,
    }


def tile(gpu: Record) -> Mapping[str, Any]:
    """The cell of a GPU, of `PlaceNow.gpus`: its utilization, shade, and a title with its readings."""
    util = gpu["util_percent"]
    rules = gpu["rules"] or []
    says = ", ".join(
        (
            f"GPU {gpu['gpu']} {gpu['model'] or ''}".strip(),
            *(["not reporting"] if gpu["silent"] else []),
            f"utilization {percent(util)}",
            f"memory {gigabytes(gpu['memory_used_bytes'])}",
            power(gpu["power_watts"]),
            celsius(gpu["temperature_celsius"]),
            *rules,
        )
    )
    return {
        "gpu": gpu["gpu"],
        "gpu_uuid": gpu["gpu_uuid"],
        "shade": "" if util is None else f" u{round(util / 10)}",
        "rules": rules,
        "silent": gpu["silent"],
        "title": says,
        "shown": ABSENT if util is None else f"{util:.0f}",
    }
