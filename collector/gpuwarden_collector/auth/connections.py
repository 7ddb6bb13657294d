"""Limits the number of connections, so that the store always has file descriptors.

A connection is authenticated after its first request that was admitted. Other connections, each of which takes 6 KiB, or
90 KiB with TLS, have lower limits, in all and for one address.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

RESERVED = 256
"""File descriptors that are kept for everything but HTTP."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of connections."""

    all: int
    anonymous: int
    anonymous_of_one: int
    """From one address."""


def limits_of(descriptors: int, *, asks_tokens: bool) -> ConnectionLimits:
    """The limits of a process with this many descriptors. Without tokens no connection is ever authenticated."""
    most = max(descriptors - RESERVED, descriptors // 2)
    if not asks_tokens:
        return ConnectionLimits(most, most, most)
    return ConnectionLimits(most, min(1_024, most // 2), min(256, most // 4))


class Connections:
    """The open connections, by address and port of the client."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._hosts: dict[Hashable, str | None] = {}
        """By connection: the client's address while it is anonymous; None: it is authenticated."""
        self._anonymous: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._hosts)

    @property
    def anonymous(self) -> int:
        """Number of connections that are not authenticated."""
        return self._anonymous.total()

    def take(self, peer: Hashable, host: str) -> bool:
        """Add a connection; False: it must be closed."""
        limits = self._limits
        if (
            len(self._hosts) >= limits.all
            or self._anonymous[host] >= limits.anonymous_of_one
            or self.anonymous >= limits.anonymous
        ):
            return False
        self._hosts[peer] = host
        self._anonymous[host] += 1
        return True

    def authenticate(self, peer: Hashable) -> None:
        """Note that a request of the connection was admitted."""
        host = self._hosts.get(peer)
        if host is not None:
            self._hosts[peer] = None
            self._leave(host)

    def end(self, peer: Hashable) -> None:
        """Remove a closed connection."""
        host = self._hosts.pop(peer, None)
        if host is not None:
            self._leave(host)

    def _leave(self, host: str) -> None:
        self._anonymous[host] -= 1
        if not self._anonymous[host]:
            del self._anonymous[host]
