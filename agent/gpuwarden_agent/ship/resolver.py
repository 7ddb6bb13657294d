"""Looks up the collector's address on a daemon thread, and caches it.

asyncio's own lookup runs in the default thread pool, and the interpreter waits for that pool at its
end: a name server that does not answer would delay the end of the agent until its timeout.
"""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuwarden.clock import Clock
from gpuwarden_agent.worker import Worker

KEPT_S = 60.0
LOOKUP_S = 5.0
"""Time limit for a name server; glibc itself waits for up to half a minute."""


@dataclass(frozen=True, slots=True)
class Found:
    """One way to reach a host."""

    family: int
    sockaddr: tuple[Any, ...]
    """Numeric, as socket.connect takes it."""


class DaemonResolver:
    """getaddrinfo(3) of one host, one call at a time."""

    def __init__(self, host: str, port: int, clock: Clock) -> None:
        self._host, self._port, self._clock = host, port, clock
        self._worker = Worker("resolve")
        self._numeric = _numeric(host, port)
        self._found: Sequence[Found] = ()
        self._found_at_s = 0.0
        self._lookup: asyncio.Future[list[Any]] | None = None

    async def resolve(self) -> Sequence[Found]:
        """Addresses in the system's order; the last known ones where the name service fails.

        Raises OSError when there are none.
        """
        if self._numeric is not None:
            return (self._numeric,)
        if self._found and self._clock.monotonic() - self._found_at_s < KEPT_S:
            return self._found
        try:
            self._found = await self._looked_up()
        except OSError:
            if not self._found:
                raise
        # A name service that failed is not asked again for a while, either.
        self._found_at_s = self._clock.monotonic()
        return self._found

    async def _looked_up(self) -> Sequence[Found]:
        if self._lookup is None or self._lookup.done():
            # Bytes: str would load the codec of international names, a MiB of tables.
            name = self._host.encode("ascii")
            self._lookup = self._worker.submit(
                socket.getaddrinfo, name, self._port, type=socket.SOCK_STREAM
            )
        try:
            async with asyncio.timeout(LOOKUP_S):
                # Shielded, because several callers wait for the same lookup.
                answers = await asyncio.shield(self._lookup)
        except TimeoutError:
            raise OSError(f"the name service has not answered for {LOOKUP_S:g} s") from None
        return list(dict.fromkeys(Found(family, sockaddr) for family, _, _, _, sockaddr in answers))

    def close(self) -> None:
        """Let the thread end; a lookup that hangs is left to it."""
        self._worker.close()


def _numeric(host: str, port: int) -> Found | None:
    """An IP address needs no name service."""
    for family, more in ((socket.AF_INET, ()), (socket.AF_INET6, (0, 0))):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return Found(family, (host, port, *more))
    return None
