"""The HTTP server of the exporter: GET /metrics and GET /healthz, nothing else."""

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from gpuwarden.life import StartError
from gpuwarden_agent.exporter.exposition import CONTENT_TYPE

SHUTDOWN_TIMEOUT_S = 1.0


@asynccontextmanager
async def serving(host: str, port: int, page: Callable[[], str]) -> AsyncIterator[str]:
    """Serve until the block is left; gives the URL, with the true port where `port` is 0.

    `page` makes the text of /metrics at each request, on the event loop. Raises StartError when
    the address cannot be had.
    """
    runner = web.AppRunner(_application(page), access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise _cannot_listen(host, port, error) from error
        bound_host, bound_port = runner.addresses[0][:2]
        shown = f"[{bound_host}]" if ":" in bound_host else bound_host
        yield f"http://{shown}:{bound_port}"
    finally:
        await runner.cleanup()


def _application(page: Callable[[], str]) -> web.Application:
    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=page().encode(), headers={"Content-Type": CONTENT_TYPE})

    async def healthz(request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application(client_max_size=1024)
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", healthz)])
    return app


def _cannot_listen(host: str, port: int, error: OSError) -> StartError:
    where = f"exporter: {host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return StartError(
            f"{where} is in use by another process: stop it or choose another exporter_port"
        )
    if error.errno == errno.EACCES:
        return StartError(
            f"{where} is not allowed for this user: choose an exporter_port above 1023"
        )
    return StartError(
        f"{where} cannot be listened on: {error.strerror or error}: choose another exporter_host"
    )
