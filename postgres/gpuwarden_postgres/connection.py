"""Implements a client's connection on the event loop: reads messages, writes bytes, and starts TLS, within limits.

No more is read while messages wait, and no unencrypted bytes are accepted after a request for TLS. Writing
waits until the client takes the bytes.
"""

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress

from gpuwarden_postgres import messages
from gpuwarden_postgres.messages import Message, MessageReader

_READ_BYTES_MAX = 64 * 1024
_WRITTEN_BYTES_MAX = 256 * 1024


class ConnectionEnded(Exception):  # noqa: N818  an outcome that the caller expects
    """The client has disconnected."""


class Connection(asyncio.Protocol):
    """One client. `gone` is called once, when it is lost."""

    def __init__(self, connected: Callable[["Connection"], None]) -> None:
        self._connected = connected
        self.gone: Callable[[], None] = lambda: None
        self.reader = MessageReader()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._is_paused = False
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        is_first = self._transport is None
        self._transport = transport
        transport.set_write_buffer_limits(_WRITTEN_BYTES_MAX)
        if is_first:
            self._connected(self)

    def data_received(self, data: bytes) -> None:
        self.reader.feed(data)
        if self.reader.buffered_bytes > _READ_BYTES_MAX:
            self._pause()
        self._wake(self._waiter)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._wake(self._waiter)
        self._wake(self._drained)
        self.gone()

    def pause_writing(self) -> None:
        self._drained = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        self._wake(self._drained)
        self._drained = None

    @property
    def client(self) -> str:
        """Its address."""
        found = self._transport and self._transport.get_extra_info("peername")
        return str(found[0]) if found else "?"

    @property
    def has_tls(self) -> bool:
        """Whether TLS has begun."""
        return (
            self._transport is not None and self._transport.get_extra_info("ssl_object") is not None
        )

    async def next(self) -> Message:
        """The next message. Raises ConnectionEnded, ProtocolError."""
        while True:
            message = self.reader.next()
            if isinstance(message, messages.EncryptionRequest):
                self._pause()  # at once: the next bytes are TLS
            if message is not None:
                return message
            if self._is_lost:
                raise ConnectionEnded
            self._resume()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def start_tls(self, context: ssl.SSLContext, timeout_s: float) -> None:
        """Start TLS. Raises ConnectionEnded, ProtocolError."""
        if self.reader.buffered_bytes:
            raise messages.ProtocolError("bytes before TLS has begun")
        transport = self._transport
        if transport is None or self._is_lost:
            raise ConnectionEnded
        transport.write(messages.TLS)
        try:
            made = await asyncio.get_running_loop().start_tls(
                transport, self, context, server_side=True, ssl_handshake_timeout=timeout_s
            )
        except (OSError, ssl.SSLError) as error:
            raise ConnectionEnded from error
        if made is None:
            raise ConnectionEnded
        self._is_paused = False
        self.connection_made(made)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes without waiting."""
        if self._transport is not None and not self._is_lost:
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait until the client has taken most bytes. Raises ConnectionEnded."""
        while self._drained is not None and not self._is_lost:
            await asyncio.shield(self._drained)
        if self._is_lost:
            raise ConnectionEnded

    def abort(self) -> None:
        """Close at once, and discard unsent bytes."""
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()

    async def close(self, within_s: float) -> None:
        """Close after sending written bytes, within a time limit."""
        if self._transport is None:
            return
        with suppress(TimeoutError, ConnectionEnded):
            async with asyncio.timeout(within_s):
                await self.drain()
        self._transport.close()
        asyncio.get_running_loop().call_later(within_s, self._transport.abort)

    def _pause(self) -> None:
        if not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    @staticmethod
    def _wake(waiter: "asyncio.Future[None] | None") -> None:
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
