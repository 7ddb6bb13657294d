"""Serves the tools as `POST /mcp` of the collector: streamable HTTP without sessions.

The library speaks ASGI and the collector is aiohttp; `McpEndpoint` bridges them. The first request loads the library,
so a collector without assistants does not have it in memory.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, MutableMapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from aiohttp import web

from gpuwarden.clock import Clock
from gpuwarden.judgement import Judgement, unjudged
from gpuwarden.query import Querier

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

PATH = "/mcp"
BODY_BYTES_MAX = 256 * 1024
MISSING = (
    "this collector cannot speak the Model Context Protocol: pip install 'gpuwarden[mcp]' where it"
    " runs, and start it again"
)
log = logging.getLogger(__name__)


class McpEndpoint:
    """The endpoint and the library's task; `run` must run while it serves."""

    def __init__(self, clock: Clock, judgement: Callable[[], Judgement] | None = None) -> None:
        self._clock = clock
        self._judgement = judgement
        self._querier: Querier | None = None
        self._wanted = asyncio.Event()
        self._manager: asyncio.Future[StreamableHTTPSessionManager | None] = asyncio.Future()

    def routes(self, querier: Querier) -> Iterable[web.AbstractRouteDef]:
        """The route of the tools over a querier. There is no GET, as the server sends answers only."""
        self._querier = querier
        return [web.post(PATH, self.answer)]

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`; the first request loads the library."""
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(self._serve(), name="mcp")
            await stop.wait()
            serving.cancel()

    async def _serve(self) -> None:
        await self._wanted.wait()
        assert self._querier is not None, "a request came, so there are routes"
        try:
            asked = self._querier, self._clock, self._judgement
            manager = await asyncio.to_thread(_manager_of, *asked)
        except ImportError as error:
            log.error("mcp cannot be loaded", extra={"why": str(error)})
            self._manager.set_result(None)
            return
        async with manager.run():
            self._manager.set_result(manager)
            await asyncio.Event().wait()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer `POST /mcp`."""
        if find_spec("mcp") is None:
            return _missing()
        self._wanted.set()
        body = await request.read()
        if len(body) > BODY_BYTES_MAX:
            raise web.HTTPRequestEntityTooLarge(max_size=BODY_BYTES_MAX, actual_size=len(body))
        if (manager := await asyncio.shield(self._manager)) is None:
            return _missing()
        exchange = _Exchange(request, body)
        await manager.handle_request(_scope_of(request), exchange.receive, exchange.send)
        return await exchange.ended()


def _missing() -> web.Response:
    return web.json_response({"error": MISSING, "status": 501}, status=501)


def _manager_of(
    querier: Querier, clock: Clock, judgement: Callable[[], Judgement] | None
) -> "StreamableHTTPSessionManager":
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from gpuwarden_cli.mcp.server import server_of
    from gpuwarden_cli.mcp.tools import FleetTools

    async def unjudged_now() -> str | None:
        return None if judgement is None else unjudged(judgement().document())

    # At INFO it logs each message with its content.
    logging.getLogger("mcp").setLevel(logging.WARNING)
    # The collector's access control has checked Host and Origin.
    return StreamableHTTPSessionManager(
        server_of(FleetTools(querier, clock, unjudged_now)),
        json_response=True,
        stateless=True,
        max_request_body_size=BODY_BYTES_MAX,
    )


class _Exchange:
    """One request and its answer, as ASGI channels."""

    def __init__(self, request: web.Request, body: bytes) -> None:
        self._request = request
        self._body: bytes | None = body
        self._answer: web.StreamResponse | None = None

    async def receive(self) -> MutableMapping[str, Any]:
        """Give the body once; a disconnect is noticed when the answer is sent."""
        if self._body is None:
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            headers = [(name.decode(), value.decode()) for name, value in message["headers"]]
            self._answer = web.StreamResponse(status=message["status"])
            self._answer.headers.extend(headers)
            await self._answer.prepare(self._request)
        elif message["type"] == "http.response.body" and self._answer is not None:
            await self._answer.write(message.get("body", b""))

    async def ended(self) -> web.StreamResponse:
        """Finish the answer."""
        if self._answer is None:
            raise web.HTTPInternalServerError
        await self._answer.write_eof()
        return self._answer


def _scope_of(request: web.Request) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.raw_path.encode(),
        "query_string": request.query_string.encode(),
        "root_path": "",
        # The library does not need the token.
        "headers": [
            (name.lower(), value)
            for name, value in request.raw_headers
            if name.lower() != b"authorization"
        ],
        "client": (request.remote, 0) if request.remote else None,
        "server": None,
    }
