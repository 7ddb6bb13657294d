"""Defines the interface of a protocol that committed rows are forwarded by, such as Prometheus' remote write.

The collector imports no protocol: the composition passes a `Forwarding` in, and the forwarding process imports its
`work` by name. Rows come in the order of their commits, behind a position that is on disk, each at least once.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from gpuwarden.clock import Clock


class CommitPosition(NamedTuple):
    """The end of a frame in the order of commits: all before it was received."""

    segment: int
    offset: int
    salt: int
    """Of the segment's header: a number is used again if its segment had no frame."""


@dataclass(frozen=True, slots=True)
class CommittedRows:
    """Rows of some commits."""

    tables: Mapping[str, Any]
    """Arrow tables by name; rows are in the order of the commits."""
    until: CommitPosition
    is_repeated: bool
    """Whether the receiver may have them already, because an earlier run was killed."""
    has_more: bool
    """Whether more commits are waiting."""


class Feed(Protocol):
    """The committed rows for one receiver. Calls block; one thread at a time."""

    def earlier(self) -> Iterator[Mapping[str, Any]]:
        """Rows shortly before the position, for what follows from earlier rows; they need not be sent."""
        ...

    def read(self) -> CommittedRows | None:
        """The next rows; None: all were read. Raises OSError, SegmentError."""
        ...

    def note_sending(self, rows: CommittedRows) -> None:
        """Note on disk that these rows are about to be sent, so that a later run repeats exactly these. Raises
        OSError."""
        ...

    def confirm(self, rows: CommittedRows) -> None:
        """Note on disk that the receiver has all rows up to these. Raises OSError."""
        ...


@dataclass(slots=True)
class ReceiverState:
    """Counters and state of one receiver, for /metrics and the doctor."""

    sent: int = 0
    """Samples that the receiver has accepted."""
    refused: Counter[str] = field(default_factory=Counter)
    """Samples that it refused permanently, by reason."""
    failures: int = 0
    """Requests that failed and are repeated."""
    lost_rows: int = 0
    """Rows that were never sent, because too many waited or their file was damaged."""
    waiting_s: float = 0.0
    """Age of the oldest commit that was not sent; 0: none waits."""
    waiting_bytes: int = 0
    """Size of the sealed segments that are kept for receivers."""
    failing_s: float = 0.0
    """Time since the first of the failures in a row; 0: the last request did not fail."""
    problem: str | None = None
    """Why the last request failed, in a sentence; None: it did not."""

    def add(self, before: "ReceiverState", now: "ReceiverState") -> None:
        """Add what a process has counted since `before`, and take its state of now."""
        self.sent += now.sent - before.sent
        self.refused.update(now.refused - before.refused)
        self.failures += now.failures - before.failures
        self.lost_rows += now.lost_rows - before.lost_rows
        self.waiting_s, self.waiting_bytes = now.waiting_s, now.waiting_bytes
        self.failing_s, self.problem = now.failing_s, now.problem


class ForwardingContext(Protocol):
    """What the forwarding process gives a protocol."""

    settings: Any
    """As `Forwarding.load` returned them."""
    clock: Clock
    states: Mapping[str, ReceiverState]
    """By receiver; the protocol changes them."""

    def feed(self, name: str, tables: frozenset[str]) -> Feed:
        """The rows of these tables for a receiver."""
        ...

    def inventory(self, name: str) -> Sequence[Mapping[str, Any]]:
        """All rows of `nodes` or `gpus`. Blocks. Raises StoreUnavailableError."""
        ...


@dataclass(frozen=True, slots=True)
class ForwardingPlan:
    """The receivers of a settings file."""

    names: tuple[str, ...]
    keep_bytes_max: int
    """Most bytes of sealed segments that are kept for receivers."""
    settings: Any
    """For the protocol; it is pickled."""


@dataclass(frozen=True, slots=True)
class Forwarding:
    """A protocol that forwards rows."""

    load: Callable[[Path], ForwardingPlan]
    """Reads the settings file. Raises StartError."""
    work: str
    """The `module:function` that the forwarding process imports; it is async and takes a ForwardingContext."""
