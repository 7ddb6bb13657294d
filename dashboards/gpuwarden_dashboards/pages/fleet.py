"""Serves the page of the whole fleet, and its data."""

import json
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any

from aiohttp import web

from gpuwarden.clock import Clock, to_ms
from gpuwarden.query import Querier
from gpuwarden_dashboards.http import ParameterError, SharedAnswers, choice, data, html
from gpuwarden_dashboards.pages.page import JudgementOf, Page, judged
from gpuwarden_dashboards.read.fleet import (
    COLOURS,
    LEVELS,
    NODES_MAX,
    STATES,
    read_fleet,
    read_map,
    read_matches,
    read_names,
    read_nodes,
)
from gpuwarden_dashboards.read.fleet_past import LARGE_GPUS, read_past, read_week
from gpuwarden_dashboards.read.fleet_verdict import fleet_verdict
from gpuwarden_dashboards.templates import Templates

LIVE_S = 0.9
"""Greatest age of what pages show as now; they ask every two seconds."""
NAMES_S = 9.0
PAST_S = 60.0
_LABEL = re.compile(r'[^"\\\x00-\x1f]{0,100}')


class FleetPage(Page):
    """GET / and the data of its map, lists and lines."""

    def __init__(
        self, templates: Templates, querier: Querier, clock: Clock, judgement: JudgementOf = judged
    ) -> None:
        super().__init__(templates, querier, clock, judgement)
        self._shared = SharedAnswers(clock)

    def routes(self) -> Iterable[web.RouteDef]:
        """The page and its data."""
        return [
            web.get("/", self._show),
            web.get("/v1/fleet", self._fleet),
            web.get("/v1/fleet/week", self._week),
            web.get("/v1/fleet/past", self._past),
            web.get("/v1/map", self._map),
            web.get("/v1/map/names", self._names),
            web.get("/v1/map/nodes", self._nodes),
            web.get("/v1/search", self._search),
        ]

    def render(self) -> str:
        """Its HTML, without data."""
        terms = {
            "colours": {name: (one.unit, one.scale) for name, one in COLOURS.items()},
            "states": STATES,
            "levels": LEVELS,
        }
        return self._templates.render("fleet.html", colours=COLOURS, terms=terms, at="/")

    async def _show(self, _request: web.Request) -> web.Response:
        return html(self.render())

    async def _answer(
        self, request: web.Request, key: str, age_s: float, make: Callable[[], Awaitable[Any]]
    ) -> web.Response:
        async def made() -> str:
            return json.dumps(await make(), separators=(",", ":"), default=_json)

        return await self._shared.answer(request, key, age_s, made)

    async def _fleet(self, request: web.Request) -> web.Response:
        async def make() -> dict[str, Any]:
            trouble, totals = await read_fleet(self._querier, self._clock.now())
            verdict = fleet_verdict(trouble, totals, self._unjudged)
            return {
                **asdict(trouble),
                "totals": totals,
                "verdict": asdict(verdict),
                "unjudged": self._unjudged,
                "page": self._templates.version,
            }

        return await self._answer(request, "fleet", LIVE_S, make)

    async def _week(self, request: web.Request) -> web.Response:
        async def make() -> dict[str, Any]:
            return await read_week(self._querier, self._clock.now())

        return await self._answer(request, "week", PAST_S, make)

    async def _past(self, request: web.Request) -> web.Response:
        by = request.query.get("by", "")
        if not _LABEL.fullmatch(by):
            raise ParameterError("by must be model or a label of nodes, at most 100 characters")

        async def make() -> dict[str, Any]:
            large = await self._is_large()
            return asdict(await read_past(self._querier, by, self._clock.now(), is_large=large))

        return await self._answer(request, f"past {by}", PAST_S, make)

    async def _map(self, request: web.Request) -> web.Response:
        colour = choice(request, "colour", "util_percent", COLOURS)

        async def make() -> str:
            return await read_map(self._querier, colour)

        return await self._shared.answer(request, f"map {colour}", LIVE_S, make)

    async def _names(self, request: web.Request) -> web.Response:
        async def make() -> str:
            return await read_names(self._querier)

        return await self._shared.answer(request, "names", NAMES_S, make)

    async def _nodes(self, request: web.Request) -> web.Response:
        nodes = request.query.getall("node", [])
        if not 0 < len(nodes) <= NODES_MAX:
            raise ParameterError(f"give node 1 to {NODES_MAX} times")
        records = await read_nodes(self._querier, nodes)
        return data({"nodes": records})

    async def _search(self, request: web.Request) -> web.Response:
        return data({"found": await read_matches(self._querier, request.query.get("q", "")[:200])})

    async def _is_large(self) -> bool:
        found = await self._querier.query("SELECT count(*) FROM gpus WHERE replaced_by IS NULL")
        return bool(found.rows[0][0] > LARGE_GPUS)


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_ms(value)
    raise TypeError(type(value))
