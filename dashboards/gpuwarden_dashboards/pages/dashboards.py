"""Serves the pages of people's own dashboards; their scripts read the documents from `/v1/dashboards`."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aiohttp import web

from gpuwarden.dashboard import GRID_COLUMNS, HEIGHT_MAX, KINDS, NAME, NAME_RULE
from gpuwarden_dashboards.http import NotKnownError, html
from gpuwarden_dashboards.pages.page import Page

_EXAMPLE = Path(__file__).parent.parent / "examples" / "fleet.json"


class DashboardPages(Page):
    """GET /dashboards and /dashboards/{name}."""

    def routes(self) -> Iterable[web.RouteDef]:
        """The pages."""
        return [
            web.get("/dashboards", self._list),
            web.get("/dashboards/{name}", self._show),
        ]

    async def _list(self, _request: web.Request) -> web.Response:
        return html(self._templates.render("dashboards.html", example=example(), at="/dashboards"))

    async def _show(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if not NAME.fullmatch(name):
            raise NotKnownError(f"there is no such dashboard: a name has {NAME_RULE}")
        return html(
            self._templates.render(
                "dashboard.html",
                dashboard=name,
                kinds=KINDS,
                columns=GRID_COLUMNS,
                rows=HEIGHT_MAX,
                at="/dashboards",
            )
        )


def example() -> dict[str, Any]:
    """The prepared dashboard that the list offers."""
    found: dict[str, Any] = json.loads(_EXAMPLE.read_text())
    return found
