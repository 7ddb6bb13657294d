"""Serves GET /metrics and GET /healthz of an agent over HTTP."""

import errno
import gzip
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from aiohttp import web

from gpuwarden.access import is_local_name
from gpuwarden.lifecycle import StartError
from gpuwarden.prometheus_names import check_name_sets
from gpuwarden_agent.collect.processes.owner import is_loopback
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.exporter.exposition import CONTENT_TYPE
from gpuwarden_agent.exporter.latest import Latest
from gpuwarden_agent.exporter.page import metrics_page
from gpuwarden_agent.probe import Probe
from gpuwarden_agent.settings import AgentSettings

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SHUTDOWN_TIMEOUT_S = 1.0
COMPRESSION = 1
"""The cheapest level already reduces a page to a tenth."""

_REFUSED = re.compile(r"q\s*=\s*0(\.0*)?\s*$")


@asynccontextmanager
async def exporting(
    settings: AgentSettings, latest: Latest, counters: Counters, probes: Sequence[Probe]
) -> AsyncIterator[None]:
    """Serve the page of an agent until the block is left. `probes`: more may come. Raises StartError."""
    names = settings.exporter_names
    check_name_sets(names)

    def page() -> str:
        return metrics_page(
            settings.node_name, latest, counters, names, xid_probes=_xid_probes(probes)
        )

    host, port = listen_address(settings.exporter_listen or "")
    async with serving(host, port, page) as url:
        log.info("exporter listens", extra={"url": url})
        yield


def listen_address(text: str) -> tuple[str, int]:
    """Host and port of `exporter_listen`. Raises StartError."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None or parts.netloc != text:
        raise StartError(f"exporter_listen = {text} must be HOST:PORT, such as 127.0.0.1:9750")
    return host, port


def _xid_probes(probes: Sequence[Probe]) -> list[str]:
    """Probes that report Xids: those of a node's events; a simulator reports those of its GPUs."""
    return [p.name for p in probes if p.simulated or (p.gpu_uuid is None and "events" in p.tables)]


@asynccontextmanager
async def serving(host: str, port: int, page: Callable[[], str]) -> AsyncIterator[str]:
    """Serve until the block is left; yields the URL, with the real port if `port` is 0.

    `page` renders /metrics at each request, on the event loop. Raises StartError when the address
    cannot be used.
    """
    app = _application(page, only_local=is_loopback(host))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
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


def _application(page: Callable[[], str], *, only_local: bool) -> web.Application:
    """`only_local`: refuse foreign host names, which protects against DNS rebinding."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if only_local and not is_local_name(request.headers.get("Host", "")):
            return web.Response(status=421, text="this page is for localhost and addresses only\n")
        return await handler(request)

    async def metrics(request: web.Request) -> web.Response:
        body, headers = page().encode(), {"Content-Type": CONTENT_TYPE, "Vary": "Accept-Encoding"}
        if takes_gzip(request.headers.get("Accept-Encoding", "")):
            body = gzip.compress(body, COMPRESSION)
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, headers=headers)

    async def healthz(request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application(client_max_size=1024, middlewares=[guard])
    app.add_routes([web.get("/metrics", metrics), web.get("/healthz", healthz)])
    return app


def takes_gzip(accepted: str) -> bool:
    """Whether a client with this Accept-Encoding accepts gzip; without the header it does not."""
    for part in accepted.lower().split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() == "gzip":
            return not _REFUSED.search(weight)
    return False


def _cannot_listen(host: str, port: int, error: OSError) -> StartError:
    where = f"exporter: {host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return StartError(
            f"{where} is in use by another process: stop it or choose another port in exporter_listen"
        )
    if error.errno == errno.EACCES:
        return StartError(
            f"{where} is not allowed for this user: choose a port above 1023 in exporter_listen"
        )
    return StartError(
        f"{where} cannot be listened on: {error.strerror or error}: choose another host in exporter_listen"
    )
