"""Calls functions between the collector's own processes over a socket; both sides trust each other.

A call has a name and arguments; its answer is a value or one of the store's errors. Calls run
concurrently, and a number matches each answer to its call. Query processes are not trusted and do not
use this: their messages are data (`processes/channel.py`).
"""

import asyncio
import itertools
import logging
import logging.handlers
import pickle
import queue
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from gpuwarden.lifecycle import StartError
from gpuwarden_collector.processes.channel import Channel, ChannelError, packed
from gpuwarden_collector.storage.errors import RowsRefusedError, StoreUnavailableError

log = logging.getLogger(__name__)

Handler = Callable[..., Awaitable[Any]]

_ERRORS: Mapping[str, type[Exception]] = {
    error.__name__: error for error in (StoreUnavailableError, RowsRefusedError, StartError)
}
"""Errors that a call raises as they are; any other becomes a RemoteError."""


class RemoteError(Exception):
    """The other side failed unexpectedly; its log says how."""


class Peer:
    """One side of the connection. Calls are sent and answered while `run` runs."""

    def __init__(self, channel: Channel, handlers: Mapping[str, Handler]) -> None:
        """`handlers`: functions that the other side may call, by name."""
        self._channel = channel
        self._handlers = handlers
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._is_ended = False

    async def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the other side. Raises its error, or ChannelError when it has ended."""
        if self._is_ended:
            raise ChannelError("the other process has ended")
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            self._send({"call": name, "number": number}, arguments)
            return await answer
        finally:
            self._waiting.pop(number, None)

    def notify(self, name: str, *arguments: Any) -> None:
        """Call without waiting for an answer; does nothing when the other side has ended."""
        self._send({"call": name, "number": 0}, arguments)

    async def run(self) -> None:
        """Handle calls and answers until the other side ends or `close` is called, then cancel the calls
        that still run."""
        running: set[asyncio.Task[None]] = set()
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    try:
                        header, body = await self._channel.receive()
                    except ChannelError:
                        break
                    if "call" in header:
                        task = group.create_task(self._handle(header, body))
                        running.add(task)
                        task.add_done_callback(running.discard)
                    else:
                        self._settle(header, body)
                self._end()
                for task in running:
                    task.cancel()
        finally:
            self._end()

    def close(self) -> None:
        """End the connection."""
        if self._channel.transport is not None:
            self._channel.transport.abort()

    async def _handle(self, header: Mapping[str, Any], body: bytes | bytearray) -> None:
        number = header["number"]
        try:
            handler = self._handlers[header["call"]]
            value = await handler(*pickle.loads(body))
        except Exception as error:
            if type(error).__name__ not in _ERRORS:
                log.exception("a call failed", extra={"call": header["call"]})
            self._send({"error": type(error).__name__, "number": number}, str(error))
        else:
            self._send({"number": number}, value)

    def _settle(self, header: Mapping[str, Any], body: bytes | bytearray) -> None:
        answer = self._waiting.get(header["number"])
        if answer is None or answer.done():
            return
        value = pickle.loads(body)
        if name := header.get("error"):
            answer.set_exception(_ERRORS.get(name, RemoteError)(value))
        else:
            answer.set_result(value)

    def _send(self, header: dict[str, Any], value: Any) -> None:
        if self._channel.transport is not None and not self._is_ended:
            self._channel.transport.write(packed(header, pickle.dumps(value)))

    def _end(self) -> None:
        self._is_ended = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ChannelError("the other process has ended"))


class LogSender(logging.handlers.QueueHandler):
    """Sends log records to the process that writes the log."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(queue.SimpleQueue())  # not used: see `enqueue`
        self._peer = peer
        self._loop = asyncio.get_running_loop()

    def enqueue(self, record: logging.LogRecord) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._send, record)

    def _send(self, record: logging.LogRecord) -> None:
        try:
            pickle.dumps(record.__dict__)
        except Exception:  # noqa: BLE001  send at least the text of the record
            record.__dict__ = {k: v for k, v in record.__dict__.items() if isinstance(v, str | int)}
        self._peer.notify("log", record.__dict__)
