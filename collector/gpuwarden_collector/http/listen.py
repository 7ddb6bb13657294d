"""Serves HTTP with a limited number of connections (`auth/connections.py`)."""

import asyncio
import errno
import logging
import resource
import socket
import sys
from asyncio import sslproto
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from gpuwarden.lifecycle import StartError
from gpuwarden_collector.auth.access_control import AccessControl
from gpuwarden_collector.auth.connections import Connections
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.stats import Stats

log = logging.getLogger(__name__)

DRAIN_S = 10.0
"""Time for open requests when the collector stops."""
_LINGER_S = 2.0
IDLE_S = 75.0
"""How long a connection may be idle, and the head of a request may take to arrive; proxies close theirs earlier."""
UNREAD_S = 75.0
"""How long a client may read nothing of an answer (tcp(7), TCP_USER_TIMEOUT)."""
DESCRIPTORS_MAX = 65_536
"""File descriptors that the process asks for, if the system allows them."""
LINE_BYTES_MAX = 16_384
"""Longest request line: charts ask for 256 GPUs by their UUIDs."""
_TLS_BUFFER_BYTES = 64 * 1024
_BACKLOG = 1_024


class _Accepted(socket.socket):
    """Calls `ended` when it is closed."""

    __slots__ = ("ended",)
    ended: Callable[[], None]

    def close(self) -> None:
        super().close()
        self.ended()


class _Listener(socket.socket):
    """Closes connections above the limits at once, before the TLS handshake."""

    __slots__ = ("connections", "refused")
    connections: Connections
    refused: Callable[[str], None]

    def accept(self) -> tuple[socket.socket, Any]:
        plain, peer = super().accept()
        if not self.connections.take(peer, peer[0]):
            plain.close()
            self.refused(peer[0])
            raise ConnectionAbortedError  # asyncio waits for the next one
        accepted = _Accepted(plain.family, plain.type, plain.proto, fileno=plain.detach())
        accepted.ended = lambda: self.connections.end(peer)
        if sys.platform == "linux":
            unread_ms = round(UNREAD_S * 1_000)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)
        return accepted, peer


def raise_descriptors() -> int:
    """Raise the limit of file descriptors, up to DESCRIPTORS_MAX; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


async def listen(
    runner: web.AppRunner,
    host: str,
    port: int,
    ssl_context: Any,
    connections: Connections,
    refused: Callable[[str], None],
) -> None:
    """Listen until the runner is cleaned up. Calls `refused` with the address of each connection that was closed at once.
    Raises OSError."""
    if ssl_context is not None:
        # asyncio has a buffer of 256 KiB for each connection: 2.5 GB for 10,000 agents.
        sslproto.SSLProtocol.max_size = _TLS_BUFFER_BYTES
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    with ExitStack() as opened:
        listeners = []
        for family, kind, number, _, address in dict.fromkeys(found):
            try:
                listener = opened.enter_context(_Listener(family, kind, number))
            except OSError:
                continue  # a name may have addresses of a family that this machine does not support
            listener.connections, listener.refused = connections, refused
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
            listeners.append(listener)
        for listener in listeners:
            await web.SockSite(runner, listener, backlog=_BACKLOG, ssl_context=ssl_context).start()
        opened.pop_all()


async def serve(
    stack: AsyncExitStack,
    settings: CollectorSettings,
    app: web.Application,
    access: AccessControl,
    stats: Stats,
) -> str:
    """Serve the application until the stack unwinds; returns its URL. Raises StartError."""
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_http_log(stats),
        auto_decompress=False,
        handler_cancellation=True,  # ends the query of a client that has gone
        keepalive_timeout=IDLE_S,
        max_line_size=LINE_BYTES_MAX,
        lingering_time=_LINGER_S,
        shutdown_timeout=DRAIN_S,
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    try:
        await listen(
            runner,
            settings.host,
            settings.port,
            access.ssl_context,
            access.connections,
            access.refused_connection,
        )
    except OSError as error:
        raise _cannot_listen(settings, error) from error
    host, port = runner.addresses[0][:2]
    scheme = "http" if access.tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class _MalformedCounted(logging.Filter):
    """Counts requests that are not HTTP, instead of a log record for each: aiohttp logs a stack trace, so any client could
    fill the log."""

    def __init__(self, stats: Stats) -> None:
        super().__init__()
        self._stats = stats

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
            self._stats.malformed_requests += 1
            return False
        return record.levelno > logging.DEBUG


def _http_log(stats: Stats) -> logging.Logger:
    """A logger for one collector; several may run in a process."""
    # Not from `getLogger`, which would share it. aiohttp logs some malformed requests with level DEBUG.
    http_log = logging.Logger(f"{__name__}.http", logging.DEBUG)  # noqa: LOG001
    http_log.parent = log
    http_log.addFilter(_MalformedCounted(stats))
    return http_log


def _cannot_listen(settings: CollectorSettings, error: OSError) -> StartError:
    where = f"{settings.host}:{settings.port}"
    if error.errno == errno.EADDRINUSE:
        return StartError(f"{where} is in use by another process: stop it or choose another --port")
    if error.errno == errno.EACCES:
        return StartError(f"{where} is not allowed for this user: choose a --port above 1023")
    return StartError(f"cannot listen on {where}: {error.strerror or error}: choose another --host")
