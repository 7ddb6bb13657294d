"""Reads request bodies within bounds: size of one, memory of all, time of each."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import StreamReader, web

from gpuwarden_collector.ingest.decode import RefusedBody


@dataclass(frozen=True, slots=True)
class Busy:
    """There is no room now; the client should come back."""

    reason: str
    retry_after_s: int = 1
    status: int = 429


class LateBodyError(TimeoutError):
    """A body did not come in time. aiohttp, which reads what is left of one, takes a TimeoutError."""


@contextmanager
def within_time(request: web.Request, seconds: float) -> Iterator[None]:
    """Whoever reads the body of the request in it, and nobody else, has LateBodyError where it is late."""

    def end() -> None:
        if not request.content.is_eof():
            late = LateBodyError(f"the body did not arrive within {seconds:g} s")
            request.content.set_exception(late)

    if request.content.is_eof():
        yield
        return
    timer = asyncio.get_running_loop().call_later(seconds, end)
    try:
        yield
    finally:
        timer.cancel()


class BodyReader:
    """Reads bodies; `release` gives the room of one back once its request is answered."""

    def __init__(self, in_flight_bytes_max: int, timeout_s: float) -> None:
        self._in_flight_bytes_max = in_flight_bytes_max
        self._timeout_s = timeout_s
        self.in_flight_bytes = 0

    def release(self, size_bytes: int) -> None:
        """Give back the room of a body that `read` returned."""
        self.in_flight_bytes -= size_bytes

    async def read(self, request: web.Request, bytes_max: int) -> bytes | RefusedBody | Busy:
        """The body, whose room the caller must release. Reads no further once it is refused."""
        declared = request.content_length
        if declared is not None and declared > bytes_max:
            return RefusedBody(413, f"the body has {declared} bytes; most is {bytes_max}")
        if declared and not self._has_room(declared):
            return self._busy()
        if request.content.is_eof():
            return self._arrived(request.content, bytes_max)
        taken = 0
        pieces: list[bytes] = []
        is_kept = False
        try:
            async with asyncio.timeout(self._timeout_s):
                async for piece in request.content.iter_any():
                    if taken + len(piece) > bytes_max:
                        return _too_large(bytes_max)
                    if not self._has_room(len(piece)):
                        return self._busy()
                    self.in_flight_bytes += len(piece)
                    taken += len(piece)
                    pieces.append(piece)
            is_kept = True
            return b"".join(pieces)
        except TimeoutError:
            # Not 408: a 4xx would tell the agent that the batch itself is wrong.
            return Busy(f"the body did not arrive within {self._timeout_s:g} s", 5, 503)
        except (web.RequestPayloadError, ConnectionError) as error:
            return _damaged(error)
        finally:
            if not is_kept:
                self.in_flight_bytes -= taken

    def _arrived(self, content: StreamReader, bytes_max: int) -> bytes | RefusedBody | Busy:
        """A body that came with its head, as most do: nothing has to be waited for."""
        try:
            body = content.read_nowait()
        except (web.RequestPayloadError, ConnectionError) as error:
            return _damaged(error)
        if len(body) > bytes_max:
            return _too_large(bytes_max)
        if not self._has_room(len(body)):
            return self._busy()
        self.in_flight_bytes += len(body)
        return body

    def _has_room(self, size_bytes: int) -> bool:
        # With nothing in flight any allowed body passes, however small the room is set.
        return (
            not self.in_flight_bytes
            or self.in_flight_bytes + size_bytes <= self._in_flight_bytes_max
        )

    def _busy(self) -> Busy:
        return Busy(f"{self.in_flight_bytes} bytes of request bodies are in memory already")


def _too_large(bytes_max: int) -> RefusedBody:
    return RefusedBody(413, f"the body has more than {bytes_max} bytes")


def _damaged(error: Exception) -> RefusedBody:
    return RefusedBody(400, f"the body is cut off or damaged: {error}")
