"""Serves the waste report, for printing and sharing."""

from collections.abc import Iterable, Mapping
from datetime import datetime

from aiohttp import web

from gpuwarden.waste import LABELS, TITLES
from gpuwarden.waste_report import BY, NOBODY
from gpuwarden_dashboards.http import choice, html
from gpuwarden_dashboards.pages.page import Page
from gpuwarden_dashboards.read.usage import SINCE
from gpuwarden_dashboards.read.waste import WasteReport, read_waste

ADVICE: Mapping[str, str] = {
    "starved": "The input is too slow: more loader workers, larger reads, data nearer to the GPU. The page of "
    "the job has the measurements.",
    "throttled": "Heat or the power supply holds the clocks down: look at fans, dust, inlet temperature and "
    "power brakes of the nodes.",
    "idle_held": "Processes hold GPUs on which nothing runs: end forgotten notebooks and jobs, and give an idle "
    "limit to interactive sessions.",
    "allocated_idle": "Jobs hold GPUs that they never used: request fewer, or end the job.",
    "free": "Nobody held these GPUs: run queued work on them, lend them, or return nodes.",
    "hung": "Jobs stood still while they held GPUs: end them, and set time limits for collectives and steps.",
    "lost": "GPUs, drivers or nodes were lost: repair or replace them, and see their events.",
}
"""Advice by label of waste."""
_PATHS = {"user": "/users/", "job": "/jobs/", "node": "/nodes/"}


class WastePage(Page):
    """GET /waste."""

    def routes(self) -> Iterable[web.RouteDef]:
        """The page."""
        return [web.get("/waste", self._show)]

    def render(
        self, report: WasteReport, by: str, since: str, begin: datetime, now: datetime
    ) -> str:
        """Its HTML."""
        return self._templates.render(
            "waste.html", report=report, by=by, since=since, begin=begin, now=now, groups=tuple(BY),
            sinces=SINCE, nobody=NOBODY, titles={**{n: n for n in LABELS}, **TITLES}, meanings=LABELS,
            advice=ADVICE, link=_PATHS.get(by, ""), at="/waste",
        )  # fmt: skip

    async def _show(self, request: web.Request) -> web.Response:
        by, since = choice(request, "by", "user", BY), choice(request, "since", "7d", SINCE)
        now = self._clock.now()
        begin = (now - SINCE[since]).replace(minute=0, second=0, microsecond=0)
        report = await read_waste(self._querier, by, begin)
        return html(self.render(report, by, since, begin, now))
