"""Sends messages between two processes over a socket: a JSON header, followed by bytes.

A message of a query process is data and never code: its header is JSON, its body bytes.
"""

import asyncio
import json
import socket
import struct
from collections import deque
from typing import Any

_PREFIX = struct.Struct("<II")
HEADER_BYTES_MAX = 1024 * 1024
BODY_BYTES_MAX = 160 * 1024 * 1024
QUEUED_BYTES_MAX = 1024 * 1024
"""Size of waiting messages from which no more is read, so that the other side waits."""


class ChannelError(Exception):
    """The other side has ended, or sent an invalid message."""


def packed(header: dict[str, Any], body: bytes = b"") -> bytes:
    """A message as bytes."""
    head = json.dumps(header).encode()
    return _PREFIX.pack(len(head), len(body)) + head + body


def send(
    sock: socket.socket, header: dict[str, Any], body: bytes | bytearray | memoryview = b""
) -> None:
    """Send a message. Raises OSError."""
    head = json.dumps(header).encode()
    sock.sendall(_PREFIX.pack(len(head), len(body)) + head)
    if body:
        sock.sendall(body)


def receive(sock: socket.socket) -> tuple[dict[str, Any], bytes]:
    """The next message. Raises ChannelError, OSError."""
    sizes = _sizes(_exactly(sock, _PREFIX.size))
    header = json.loads(_exactly(sock, sizes[0]))
    return header, _exactly(sock, sizes[1])


class Channel(asyncio.BufferedProtocol):
    """Receives messages of another process on the event loop, in order.

    A body is received without copying, as it may be large. A task that waits for a message may be cancelled; the
    next one then gets the message. While messages wait, no more is read.
    """

    def __init__(self) -> None:
        self._part = bytearray(_PREFIX.size)
        self._filled = 0
        self._body_size = 0
        self._header: dict[str, Any] | None = None
        self._is_prefix = True
        self._messages: deque[tuple[dict[str, Any], bytes | bytearray]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._failure: ChannelError | None = None
        self._queued_bytes = 0
        self._is_paused = False
        self.transport: asyncio.Transport | None = None

    @property
    def is_closed(self) -> bool:
        """Whether no more messages will come."""
        return self._failure is not None

    async def receive(self) -> tuple[dict[str, Any], bytes | bytearray]:
        """The next message. Raises ChannelError."""
        while not self._messages:
            if self._failure is not None:
                raise self._failure
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        header, body = self._messages.popleft()
        self._queued_bytes -= len(body)
        if self._is_paused and self._queued_bytes < QUEUED_BYTES_MAX:
            self._is_paused = False
            if self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()
        return header, body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._part)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        try:
            # An empty part is complete at once.
            while self._filled == len(self._part) and not self.is_closed:
                self._take_part()
        except (ChannelError, ValueError, RecursionError) as error:
            self._fail(ChannelError(str(error)))
            if self.transport is not None:
                self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ChannelError(f"the other side has ended: {exc or 'closed'}"))

    def _take_part(self) -> None:
        part, self._filled = self._part, 0
        if self._is_prefix:
            size, self._body_size = _sizes(part)
            self._is_prefix, self._part = False, bytearray(size)
        elif self._header is None:
            self._header = json.loads(part)
            if not isinstance(self._header, dict):
                raise ChannelError("a header that is not an object")
            self._part = bytearray(self._body_size)
        else:
            self._messages.append((self._header, part))
            self._queued_bytes += len(part)
            if self._queued_bytes >= QUEUED_BYTES_MAX and not self._is_paused:
                self._is_paused = True
                if self.transport is not None:
                    self.transport.pause_reading()
            self._header, self._is_prefix, self._part = None, True, bytearray(_PREFIX.size)
            self._wake()

    def _fail(self, failure: ChannelError) -> None:
        self._failure = self._failure or failure
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _sizes(prefix: bytes | bytearray) -> tuple[int, int]:
    header, body = _PREFIX.unpack(prefix)
    if header > HEADER_BYTES_MAX or body > BODY_BYTES_MAX:
        raise ChannelError(f"a message of {header} and {body} bytes")
    return header, body


def _exactly(sock: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise ChannelError("the other side has ended")
        parts += part
    return bytes(parts)
