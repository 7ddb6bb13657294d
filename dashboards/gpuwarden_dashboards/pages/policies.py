"""Serves the page of policies: what they did and will do, and the button that stops them; the script fetches all."""

from collections.abc import Iterable

from aiohttp import web

from gpuwarden_dashboards.http import html
from gpuwarden_dashboards.pages.page import Page


class PoliciesPage(Page):
    """GET /policies."""

    def routes(self) -> Iterable[web.RouteDef]:
        """The page."""
        return [web.get("/policies", self._show)]

    async def _show(self, _request: web.Request) -> web.Response:
        return html(self._templates.render("policies.html", at="/rules"))
