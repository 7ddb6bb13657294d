"""Serves the page of a rack."""

from collections.abc import Iterable

from aiohttp import web

from gpuwarden_dashboards.http import NotKnownError, html
from gpuwarden_dashboards.pages.page import Page
from gpuwarden_dashboards.pages.place import tile
from gpuwarden_dashboards.read.rack import RackNow, read_rack


class RackPage(Page):
    """GET /racks/{rack}: the label `rack` of its nodes, or the serial number of its chassis."""

    def routes(self) -> Iterable[web.RouteDef]:
        """The page."""
        return [web.get("/racks/{rack:.+}", self._rack)]

    def render(self, rack: RackNow) -> str:
        """Its HTML."""
        return self._templates.render(
            "rack.html",
            rack=rack,
            tiles={tray.node: [tile(gpu) for gpu in tray.gpus] for tray in rack.trays},
            unjudged=self._unjudged,
        )

    async def _rack(self, request: web.Request) -> web.Response:
        name = request.match_info["rack"]
        found = await read_rack(self._querier, name, self._clock.now())
        if found is None:
            raise NotKnownError(
                f"there is no rack {name}: no node has it as its label rack, and no GPU as its chassis"
            )
        return html(self.render(found))
