"""Routes of the page, for the collector to serve."""

from collections.abc import Iterable

from aiohttp import web

from gpuwarden.clock import Clock
from gpuwarden.query import Querier, QueryError
from gpuwarden_dashboards.fleet import read_fleet
from gpuwarden_dashboards.page import SECURITY_POLICY, render


def routes(querier: Querier, clock: Clock) -> Iterable[web.AbstractRouteDef]:
    """`GET /`: fleet state and firing alerts."""

    async def page(_request: web.Request) -> web.Response:
        try:
            fleet = await read_fleet(querier, clock.now())
        except QueryError as error:
            return web.Response(status=503, text=f"the fleet cannot be read now: {error}\n")
        headers = {"Content-Security-Policy": SECURITY_POLICY, "Cache-Control": "no-store"}
        return web.Response(text=render(fleet), content_type="text/html", headers=headers)

    return [web.get("/", page)]
