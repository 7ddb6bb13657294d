"""Makes requests to one address over a few kept connections of `http.client`, each on a thread.

A general client costs the host 10 MiB more: docs/decisions/056-the-agents-http-client-is-pythons.md.
No redirect is followed, no cookie kept, no proxy used.
"""

import asyncio
import contextlib
import http.client
import os
import select
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gpuwarden import __version__
from gpuwarden.lifecycle import StartError
from gpuwarden_agent.ship.address import HttpAddress
from gpuwarden_agent.ship.credentials import Access, Credentials, why_refused
from gpuwarden_agent.worker import Worker

IDLE_S = 15.0
"""How long an idle connection is kept; routers and proxies may drop it after a longer time."""
CONNECT_S = 3.0
"""Time limit to connect to one of several addresses."""
ANSWER_BYTES_MAX = 4096
"""Kept bytes of an answer's body; a connection with a longer answer is closed."""
AGENT = f"gpuwarden-agent/{__version__}"
_NO_ACCESS = Access()


class NoAnswerError(Exception):
    """No complete answer came. The message is one line for people, without the address."""


class NoConnectionError(NoAnswerError):
    """No connection was made, so nothing was sent."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The answer of a server."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    """Its first ANSWER_BYTES_MAX bytes."""


class Transport:
    """A pool of connections to one address. Requests that wait for one are served in order."""

    def __init__(
        self, address: HttpAddress, *, connections: int = 8, access: Access = _NO_ACCESS
    ) -> None:
        """`connections`: how many there may be at once. Raises StartError for unusable files."""
        self.address = address
        self.tls: ssl.SSLContext | None = None
        self.good: tuple[int, tuple[Any, ...]] | None = None
        """Where the last connection led: tried first, and alone where the name service fails."""
        self._credentials = Credentials(access)
        if address.is_tls:
            self.tls = self._credentials.tls_context()
        self._turn = asyncio.Semaphore(connections)
        self._idle: list[_Lane] = []
        self._busy: set[_Lane] = set()

    async def post(
        self,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        timeout_s: float,
        again: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """Send a body and wait for the answer. `again`: headers to add when it is sent a second
        time, because the server had closed a kept connection.

        Raises NoAnswerError, of which NoConnectionError says that nothing was sent, or TimeoutError
        after `timeout_s`. Cancelling closes the connection.
        """
        headers = {"Host": self.address.authority, "User-Agent": AGENT, **headers}
        if (
            authorization := self._credentials.authorization or self.address.authorization
        ) is not None:
            headers["Authorization"] = authorization
        async with asyncio.timeout(timeout_s), self._turn:
            # The one used last, so that the others can expire.
            lane = self._idle.pop() if self._idle else _Lane(self)
            self._busy.add(lane)
            try:
                answer = await lane.post(path, headers, body, timeout_s, again or {})
            finally:
                self._busy.discard(lane)
                if lane.rest():
                    self._idle.append(lane)
        if answer.status in (401, 403):
            self._credentials.reread()
        return answer

    def distrust(self, error: OSError) -> None:
        """Load the authorities again: a certificate that is refused may have a new one."""
        if isinstance(error, ssl.SSLCertVerificationError):
            with contextlib.suppress(StartError):
                self.tls = self._credentials.tls_context()

    def close(self) -> None:
        """Close all connections, those in use as well."""
        for lane in [*self._idle, *self._busy]:
            lane.end()
        self._idle.clear()


class _Lane:
    """A thread with one connection, which is kept from request to request."""

    def __init__(self, transport: Transport) -> None:
        self._http = _Connection(transport)
        self._worker = Worker("collector")
        self._call: asyncio.Future[HttpResponse] | None = None
        self._expiry: asyncio.TimerHandle | None = None

    async def post(
        self,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        timeout_s: float,
        again: Mapping[str, str],
    ) -> HttpResponse:
        self._wake()
        self._http.timeout = timeout_s
        self._call = self._worker.submit(self._http.ask, path, headers, body, again)
        return await self._call

    def rest(self) -> bool:
        """Wait for the next request; false, and the end, where the thread is still in the last."""
        assert self._call is not None
        if self._call.cancelled() or self._http.is_aborted:
            self.end()
            return False
        if self._http.sock is not None:
            loop = asyncio.get_running_loop()
            # Bytes without a request: the server is out of step, or closes.
            loop.add_reader(self._http.sock, self._drop)
            self._expiry = loop.call_later(IDLE_S, self._drop)
        return True

    def _wake(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
            asyncio.get_running_loop().remove_reader(self._http.sock)

    def _drop(self) -> None:
        self._wake()
        self._http.close()

    def end(self) -> None:
        """Close the connection, also in the middle of a request, and let the thread end."""
        self._worker.close()
        if self._expiry is not None:
            self._drop()
        self._http.abort()


class _Connection(http.client.HTTPConnection):
    """Used by one thread at a time, except for `abort`."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport.address.host, transport.address.port)
        self._transport = transport
        self.is_aborted = False

    def ask(
        self, path: str, headers: Mapping[str, str], body: bytes, again: Mapping[str, str]
    ) -> HttpResponse:
        """Send a request and read its answer; once more where a kept connection ends without one.

        The server may then get it twice, which is harmless: a batch has an identity. Raises
        NoAnswerError, or TimeoutError.
        """
        target = self._transport.address.path + path
        if self.sock is None:
            self.connect()
            return self._ask(target, headers, body)
        try:
            return self._ask(target, headers, body)
        except _ClosedError:
            pass
        try:
            self.connect()
        except NoConnectionError as error:
            # It may have arrived over the kept connection.
            raise NoAnswerError(str(error)) from error
        return self._ask(target, {**headers, **again}, body)

    def _ask(self, target: str, headers: Mapping[str, str], body: bytes) -> HttpResponse:
        response, is_sent, is_reusable = None, False, False
        try:
            self.sock.settimeout(self.timeout)
            # An answer may come before all is sent: a proxy's 413, which cuts the rest off.
            with contextlib.suppress(OSError, _EarlyAnswerError):
                self.request("POST", target, body, headers)
                is_sent = True
            response = self.getresponse()
            content = response.read(ANSWER_BYTES_MAX + 1)
            if response.length and len(content) <= ANSWER_BYTES_MAX:
                raise http.client.IncompleteRead(content, response.length)
            is_reusable = is_sent and response.isclosed()
        except TimeoutError:
            raise
        except OSError as error:
            raise (_ClosedError if response is None else NoAnswerError)(_why(error)) from error
        except http.client.IncompleteRead as error:
            why = "the server closed the connection in the middle of its answer"
            raise NoAnswerError(why) from error
        except http.client.HTTPException as error:
            raise NoAnswerError(f"what it answers is not HTTP: {error}"[:200]) from error
        finally:
            if not is_reusable:
                self.close()
        fields = {name.lower(): value for name, value in response.getheaders()}
        return HttpResponse(response.status, fields, content[:ANSWER_BYTES_MAX])

    def send(self, data: Any) -> None:
        """Send bytes. Raises OSError, or _EarlyAnswerError once an answer comes (not over TLS,
        where bytes of the protocol may come at any time).
        """
        left = memoryview(data)
        while left:
            if not isinstance(self.sock, ssl.SSLSocket):
                poll = select.poll()
                poll.register(self.sock, select.POLLIN | select.POLLOUT)
                if any(event & select.POLLIN for _, event in poll.poll(1000 * (self.timeout or 0))):
                    raise _EarlyAnswerError
            left = left[self.sock.send(left) :]

    def connect(self) -> None:
        """Connect to the first of the host's addresses that takes it. Raises NoConnectionError."""
        address, timeout_s = self._transport.address, self.timeout or 0.0
        places: list[tuple[int, tuple[Any, ...]]]
        try:
            # Bytes: str would load the codec of international names, a MiB of tables.
            name = address.host.encode("ascii")
            found = socket.getaddrinfo(name, address.port, type=socket.SOCK_STREAM)
            places = list(dict.fromkeys((family, place) for family, _, _, _, place in found))
        except OSError as error:
            if self._transport.good is None:
                raise NoConnectionError(f"{address.host}: {_why(error)}") from error
            places = [self._transport.good]
        places.sort(key=lambda where: where != self._transport.good)
        limit_s = min(CONNECT_S, timeout_s / len(places)) if len(places) > 1 else timeout_s
        reasons = []
        for family, place in places:
            try:
                self._connect_to(family, place, limit_s)
            except OSError as error:
                self.close()
                reasons.append(_why(error))
                self._transport.distrust(error)
                continue
            self._transport.good = family, place
            return
        raise NoConnectionError("; ".join(dict.fromkeys(reasons)))

    def _connect_to(self, family: int, place: tuple[Any, ...], limit_s: float) -> None:
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        self.sock.settimeout(limit_s)
        if not self.is_aborted:
            self.sock.connect(place)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._transport.tls is not None:
                self.sock = self._transport.tls.wrap_socket(
                    self.sock, server_hostname=self.host, do_handshake_on_connect=False
                )
                self.sock.do_handshake()
        if self.is_aborted:
            raise ConnectionAbortedError("given up")

    def abort(self) -> None:
        """End what the thread does, which then closes the socket. Called from another thread."""
        self.is_aborted = True
        if (sock := self.sock) is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)


class _ClosedError(NoAnswerError):
    """The connection ended before an answer began."""


class _EarlyAnswerError(Exception):
    """The server answers before it has all of the request."""


@asynccontextmanager
async def open_transport(
    url: str, *, connections: int = 8, access: Access = _NO_ACCESS
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
    transport = Transport(address, connections=connections, access=access)
    try:
        yield transport
    finally:
        transport.close()


def _why(error: OSError) -> str:
    """The reason, without the address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return why_refused(error)
    if (reason := getattr(error, "reason", None)) == "WRONG_VERSION_NUMBER":
        return "it does not speak TLS; if it speaks HTTP, its address begins with http://"
    if reason is not None:
        return f"TLS failed: {reason}"
    if isinstance(error, http.client.RemoteDisconnected):
        return "the server closed the connection without an answer"
    if error.errno and error.errno > 0:
        return os.strerror(error.errno)
    if isinstance(error, TimeoutError):
        return "no connection in time"
    return error.strerror or str(error) or "the server closed the connection"
