"""Reads request bodies within bounds: the size of each, the memory of all, the time of each."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import StreamReader, web

from gpuwarden_collector.ingest.decode import RefusedBody

IN_FLIGHT_BYTES_MAX = 256 * 1024 * 1024
"""Most bytes of bodies in memory at once; above it 429."""
BODY_S = 30.0
"""Most time for a body to arrive."""


@dataclass(frozen=True, slots=True)
class Busy:
    """The collector has no room now; the client should try again."""

    reason: str
    retry_after_s: int = 1
    status: int = 429


class LateBodyError(TimeoutError):
    """A body did not arrive in time. A TimeoutError, which aiohttp catches when it reads the rest of a body."""


@contextmanager
def within_time(request: web.Request, seconds: float) -> Iterator[None]:
    """Have reads of the request's body in the block raise LateBodyError if the body is late."""

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
    """Reads bodies. Call `release` for each one when its request is answered."""

    def __init__(
        self, in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX, timeout_s: float = BODY_S
    ) -> None:
        self._in_flight_bytes_max = in_flight_bytes_max
        self._timeout_s = timeout_s
        self.in_flight_bytes = 0

    def release(self, size_bytes: int) -> None:
        """Free the room of a body that `read` returned."""
        self.in_flight_bytes -= size_bytes

    async def read(self, request: web.Request, bytes_max: int) -> bytes | RefusedBody | Busy:
        """Read the body; the caller must release its room. A refused body is not read to its end."""
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
            # Not 408: after a 4xx the agent would take the batch itself as wrong.
            return Busy(f"the body did not arrive within {self._timeout_s:g} s", 5, 503)
        except (web.RequestPayloadError, ConnectionError) as error:
            return _damaged(error)
        finally:
            if not is_kept:
                self.in_flight_bytes -= taken

    def _arrived(self, content: StreamReader, bytes_max: int) -> bytes | RefusedBody | Busy:
        """Read a body that arrived together with the request's head, as most do, without waiting."""
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
        # If no other body is in memory, any body of allowed size passes, even if the room is smaller.
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
