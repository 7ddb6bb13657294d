"""Serves the page of the collectors and the agents."""

from collections.abc import Iterable

from aiohttp import web

from gpuwarden_dashboards.http import choice, html
from gpuwarden_dashboards.pages.page import Page
from gpuwarden_dashboards.read.collector import STATES, CollectorState, read_collector


class CollectorPage(Page):
    """GET /collector."""

    def routes(self) -> Iterable[web.RouteDef]:
        """The page."""
        return [web.get("/collector", self._show)]

    def render(self, found: CollectorState, state: str, filter_text: str) -> str:
        """Its HTML."""
        return self._templates.render(
            "collector.html", found=found, state=state, filter=filter_text, states=STATES,
            at="/collector",
        )  # fmt: skip

    async def _show(self, request: web.Request) -> web.Response:
        state = choice(request, "state", "all", STATES)
        asked = request.query.get("filter", "")[:200]
        words = asked.lower().split()
        found = await read_collector(self._querier, self._clock.now(), state, words)
        return html(self.render(found, state, asked))
