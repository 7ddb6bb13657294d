"""A real HTTP server that keeps what it is sent, and misbehaves as told."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Got:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int


@dataclass
class Hook:
    """The server: where it is, what came, and what it answers."""

    url: str = ""
    got: list[Got] = field(default_factory=list)
    answer: Callable[[web.Request], Any] = lambda request: web.Response(status=204)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        answer = self.answer(request)
        if not isinstance(answer, web.StreamResponse):
            answer = await answer
        self.got.append(Got(request.path_qs, dict(request.headers), body, answer.status))
        return answer


@asynccontextmanager
async def hook_server() -> AsyncIterator[Hook]:
    """A server on a free port of loopback."""
    hook = Hook()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", hook.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        hook.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield hook
    finally:
        await runner.cleanup()
