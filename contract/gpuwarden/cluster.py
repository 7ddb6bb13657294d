"""Defines what the collectors of a lake tell each other: who hears which node, and what must continue when a node moves."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gpuwarden.alert import SilenceBoard


class NodeClaim(NamedTuple):
    """Which collector a node sends to."""

    node: str
    is_own: bool
    claimed_ms: int
    """When that collector first heard it, by PostgreSQL's clock."""


class MovingState(NamedTuple):
    """An alert, or what a receiver was sent about an incident."""

    kind: str
    """`alert` or `notice`."""
    id: str
    node: str
    """Of an alert; else empty."""
    body: str
    """JSON."""


class ClusterAsk(NamedTuple):
    """What a collector tells the others, and asks."""

    heard: Sequence[str] = ()
    """Nodes that send to this one from now on."""
    put: Sequence[MovingState] = ()
    gone: Sequence[tuple[str, str]] = ()
    """Kind and id of what is over."""
    since_ms: int = 0
    """Nodes that were claimed since then are answered."""
    take: Sequence[str] = ()
    """Nodes whose alerts at other collectors are answered, with all notices of these."""


class ClusterAnswer(NamedTuple):
    """The answer."""

    owners: Sequence[NodeClaim]
    taken: Sequence[MovingState]


class Cluster(SilenceBoard, Protocol):
    """What the collectors of a lake agree on."""

    async def claim(self, name: str) -> bool:
        """Claim what only one of them may do; whether it is this one's. Raises QueryError."""
        ...

    async def exchange(self, asked: ClusterAsk) -> ClusterAnswer:
        """Tell the others, and ask. Raises QueryError."""
        ...
