"""Calls between the collector's own processes over a socket; both sides trust each other.

A call is a name and arguments, its answer a value or one of the store's errors. Calls of one side run
beside each other; an answer finds its call by number. (A query process is not trusted: what it says
goes through `processes/channel.py` alone.)
"""

import asyncio
import itertools
import logging
import pickle
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gpuwarden.lifecycle import StartError
from gpuwarden_collector.processes.channel import Channel, ChannelError, packed
from gpuwarden_collector.storage.errors import RowsRefusedError, StoreUnavailableError

log = logging.getLogger(__name__)

Handler = Callable[..., Awaitable[Any]]

_ERRORS: Mapping[str, type[Exception]] = {
    error.__name__: error for error in (StoreUnavailableError, RowsRefusedError, StartError)
}
"""What an answer may raise as itself; all else is a RemoteError."""


class RemoteError(Exception):
    """The other side failed in a way that nobody expected; see its log."""


class Peer:
    """One side. `run` must run for as long as calls are made or taken."""

    def __init__(self, channel: Channel, handlers: Mapping[str, Handler]) -> None:
        """`handlers`: what the other side may call, by name."""
        self._channel = channel
        self._handlers = handlers
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._is_ended = False

    async def call(self, name: str, *arguments: Any) -> Any:
        """What the other side answers. Raises its error, or ChannelError when it has ended."""
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

    def tell(self, name: str, *arguments: Any) -> None:
        """Call without waiting for an answer; nothing where the other side has ended."""
        self._send({"call": name, "number": 0}, arguments)

    async def run(self) -> None:
        """Take calls and answers until the other side ends or `close` is called. Calls that are being
        answered then are cancelled: nobody waits for them."""
        taken: set[asyncio.Task[None]] = set()
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    try:
                        header, body = await self._channel.receive()
                    except ChannelError:
                        break
                    if "call" in header:
                        task = group.create_task(self._take(header, body))
                        taken.add(task)
                        task.add_done_callback(taken.discard)
                    else:
                        self._settle(header, body)
                self._end()
                for task in taken:
                    task.cancel()
        finally:
            self._end()

    def close(self) -> None:
        """End the connection."""
        if self._channel.transport is not None:
            self._channel.transport.abort()

    async def _take(self, header: Mapping[str, Any], body: bytes | bytearray) -> None:
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
