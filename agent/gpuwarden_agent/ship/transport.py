"""Makes requests to one address over a few open connections.

Small on purpose: a general HTTP client costs the host 14 MiB more. It follows no redirects, keeps no
cookies and uses no proxy. `http1.py` has the limits of an answer.
"""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from gpuwarden import __version__
from gpuwarden.clock import Clock
from gpuwarden.lifecycle import StartError
from gpuwarden_agent.ship.credentials import Access, Credentials, why_refused
from gpuwarden_agent.ship.http1 import (
    Http1Codec,
    HttpAddress,
    HttpResponse,
    NoAnswerError,
    NoConnectionError,
    may_ask_again,
)
from gpuwarden_agent.ship.resolver import DaemonResolver, Found

IDLE_S = 15.0
"""How long an idle connection is kept; routers and proxies may drop it after a longer time."""
CONNECT_S = 3.0
"""Time limit to connect to one of several addresses."""
AGENT = f"gpuwarden-agent/{__version__}"
_NO_ACCESS = Access()


class Transport:
    """A pool of connections to one address. Requests that wait for one are served in order."""

    def __init__(
        self,
        address: HttpAddress,
        clock: Clock,
        *,
        connections: int = 8,
        access: Access = _NO_ACCESS,
    ) -> None:
        """`connections`: how many there may be at once. Raises StartError for files that cannot be used."""
        self.address = address
        self._credentials = Credentials(access)
        self._tls = self._credentials.tls_context() if address.is_tls else None
        self._resolver = DaemonResolver(address.host, address.port, clock)
        self._turn = asyncio.Semaphore(connections)
        self._open: set[_Connection] = set()
        self._idle: list[_Connection] = []
        self._good: Found | None = None

    async def post(
        self,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        timeout_s: float,
        again: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """Send a body and wait for the answer. `again`: headers to add when it is sent a second time,
        because the server had closed a kept connection.

        Raises NoAnswerError, of which NoConnectionError says that nothing was sent, or TimeoutError after
        `timeout_s`. Cancelling closes the connection.
        """
        if (authorization := self._credentials.authorization) is not None:
            headers = {**headers, "Authorization": authorization}
        async with asyncio.timeout(timeout_s), self._turn:
            answer = await self._asked(path, headers, body, timeout_s, again or {})
        if answer.status in (401, 403):
            self._credentials.reread()
        return answer

    async def _asked(
        self,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        timeout_s: float,
        again: Mapping[str, str],
    ) -> HttpResponse:
        kept = self._kept()
        connection = kept or await self._connected(timeout_s)
        try:
            return await connection.ask(path, headers, body)
        except NoAnswerError:
            has_begun = connection.codec.has_answer_begun
            if not may_ask_again(was_kept=kept is not None, has_answer_begun=has_begun):
                raise
        try:
            connection = await self._connected(timeout_s)
        except NoConnectionError as error:
            # It may have arrived over the kept connection.
            raise NoAnswerError(str(error)) from error
        return await connection.ask(path, {**headers, **again}, body)

    def _kept(self) -> "_Connection | None":
        """The connection used last, so that the others can expire."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _connected(self, timeout_s: float) -> "_Connection":
        try:
            found = await self._resolver.resolve()
        except OSError as error:
            raise NoConnectionError(f"{self.address.host}: {_why(error)}") from error
        limit_s = min(CONNECT_S, timeout_s / len(found)) if len(found) > 1 else timeout_s
        reasons = []
        for where in sorted(found, key=lambda where: where != self._good):
            try:
                async with asyncio.timeout(limit_s):
                    connection = await self._connected_to(where)
            except OSError as error:
                reasons.append(_why(error))
                self._distrust(error)
                continue
            self._good = where
            return connection
        raise NoConnectionError("; ".join(dict.fromkeys(reasons)))

    async def _connected_to(self, where: Found) -> "_Connection":
        loop = asyncio.get_running_loop()
        sock = socket.socket(where.family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, where.sockaddr)
        except BaseException:
            sock.close()
            raise
        _, connection = await loop.create_connection(
            lambda: _Connection(self),
            sock=sock,
            ssl=self._tls,
            server_hostname=self.address.host if self._tls else None,
        )
        return connection

    def _distrust(self, error: OSError) -> None:
        """Load the authorities again: a certificate that is not trusted may have a new authority."""
        if getattr(error, "verify_code", None) is None:
            return
        with contextlib.suppress(StartError):
            self._tls = self._credentials.tls_context()

    def opened(self, connection: "_Connection") -> None:
        """Called when a connection is open."""
        self._open.add(connection)

    def rested(self, connection: "_Connection") -> None:
        """Called when a connection may be used again."""
        self._idle.append(connection)

    def closed(self, connection: "_Connection") -> None:
        """Called when a connection is closed."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    async def close(self) -> None:
        """Close all connections, those in use as well."""
        self._resolver.close()
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)  # lets the loop close the sockets


class _Connection(asyncio.Protocol):
    """One connection. It reads by callbacks: an answer that came before the server closed the
    connection counts, where a stream would report the close alone."""

    def __init__(self, pool: Transport) -> None:
        self._pool = pool
        self.codec = Http1Codec(pool.address, AGENT)
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[HttpResponse] | None = None
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, path: str, headers: Mapping[str, str], body: bytes) -> HttpResponse:
        assert self._transport is not None and self._answer is None
        loop = asyncio.get_running_loop()
        if self._expiry is not None:
            self._expiry.cancel()
        answer: asyncio.Future[HttpResponse] = loop.create_future()
        self._answer = answer
        is_reusable = False
        try:
            head = self.codec.request(path, headers, body)
            if not self.is_open:
                raise NoAnswerError("the server closed the connection")
            # Does not wait until all is sent: the answer may come before.
            self._transport.writelines((head, body))
            done = await answer
            is_unsent = self._transport.get_write_buffer_size() > 0
            is_reusable = self.codec.is_reusable and not is_unsent and self.is_open
            return done
        finally:
            self._answer = None
            if is_reusable:
                self._expiry = loop.call_later(IDLE_S, self.abort)
                self._pool.rested(self)
            else:
                self.abort()

    def abort(self) -> None:
        """Close at once, without sending the rest."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._pool.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.abort()  # bytes without a request: the server is out of step, or about to close
        else:
            self._take(data)

    def eof_received(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._take(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._pool.closed(self)
        if self._answer is not None and not self._answer.done():
            why = exc if isinstance(exc, OSError) else ConnectionResetError()
            self._answer.set_exception(NoAnswerError(_why(why)))

    def _take(self, data: bytes) -> None:
        assert self._answer is not None
        try:
            answer = self.codec.receive(data)
        except NoAnswerError as error:
            self._answer.set_exception(error)
            return
        if answer is not None:
            self._answer.set_result(answer)


@asynccontextmanager
async def open_transport(
    url: str, clock: Clock, *, connections: int = 8, access: Access = _NO_ACCESS
) -> AsyncIterator[Transport]:
    """Open a transport to a collector until the block is left. Raises StartError for a wrong address, and
    for files of `access` that cannot be used."""
    try:
        address = HttpAddress.parse(url)
    except ValueError as error:
        _, at, shown = url.rpartition("@")  # before it are a user and a password
        raise StartError(
            f"collector_url = {'…@' if at else ''}{shown} is not an address of a collector; one looks like"
            " http://collector.example:8750"
        ) from error
    if address.authorization is not None and access.token_file is not None:
        raise StartError(
            "collector_url has a password in it, and there is a token_file: use one of them"
        )
    transport = Transport(address, clock, connections=connections, access=access)
    try:
        yield transport
    finally:
        await transport.close()


def _why(error: OSError) -> str:
    """The reason, without the address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return why_refused(error)
    if (reason := getattr(error, "reason", None)) == "WRONG_VERSION_NUMBER":
        return "it does not speak TLS; if it speaks HTTP, its address begins with http://"
    if reason is not None:
        return f"TLS failed: {reason}"
    if error.errno and error.errno > 0:
        return os.strerror(error.errno)
    if isinstance(error, TimeoutError):
        return "no connection in time"
    return error.strerror or str(error) or "the server closed the connection"
