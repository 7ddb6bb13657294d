"""Bounds how many connections there are: the store must always have descriptors for its files.

Those of clients that were let in once are known. Of strangers, each of whom takes 6 KiB, or 90 KiB with TLS, there are
few at a time, and fewer from one address.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

RESERVED = 256
"""Descriptors of everything but HTTP's connections."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Most connections."""

    all: int
    strangers: int
    strangers_of_one: int
    """Of one address."""


def limits_of(descriptors: int, *, asks_tokens: bool) -> ConnectionLimits:
    """What a process with so many descriptors may have. Without tokens nobody can become known."""
    most = max(descriptors - RESERVED, descriptors // 2)
    if not asks_tokens:
        return ConnectionLimits(most, most, most)
    return ConnectionLimits(most, min(1_024, most // 2), min(256, most // 4))


class Connections:
    """Those that there are, by what tells them apart: address and port of the client."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._hosts: dict[Hashable, str | None] = {}
        """By connection the address of a stranger; None: it is known."""
        self._strangers: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._hosts)

    @property
    def strangers(self) -> int:
        """How many are not known."""
        return self._strangers.total()

    def take(self, peer: Hashable, host: str) -> bool:
        """There is one more, of a stranger; False: it must be closed."""
        limits = self._limits
        if (
            len(self._hosts) >= limits.all
            or self._strangers[host] >= limits.strangers_of_one
            or self.strangers >= limits.strangers
        ):
            return False
        self._hosts[peer] = host
        self._strangers[host] += 1
        return True

    def know(self, peer: Hashable) -> None:
        """Who is behind it was let in."""
        host = self._hosts.get(peer)
        if host is not None:
            self._hosts[peer] = None
            self._leave(host)

    def end(self, peer: Hashable) -> None:
        """It is over."""
        host = self._hosts.pop(peer, None)
        if host is not None:
            self._leave(host)

    def _leave(self, host: str) -> None:
        self._strangers[host] -= 1
        if not self._strangers[host]:
            del self._strangers[host]
