"""Defines the interface of a protocol that committed rows are forwarded by, such as Prometheus' remote write.

The collector imports no protocol: the composition passes a `Forwarding` in, and the forwarding process imports its
`work` by name. Rows come in the order of their commits, behind a position that is on disk, each at least once. What
follows from rows is queried minute by minute, behind a position in time.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
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


class MinutePosition(Protocol):
    """The minute up to which a receiver has what is queried. Calls block."""

    position_ms: int
    """The last minute that was confirmed."""
    sending_ms: int | None
    """The last minute of those that were about to be sent; None: none were."""

    def note_sending(self, until_ms: int) -> None:
        """Note on disk that the minutes up to this one are about to be sent. Raises OSError."""
        ...

    def confirm(self, until_ms: int) -> None:
        """Note on disk that the receiver has all minutes up to this one. Raises OSError."""
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
    skipped_minutes: int = 0
    """Minutes of queried sources that were never sent, because too many waited."""
    waiting_s: float = 0.0
    """Age of the oldest commit that was not sent; 0: none waits."""
    waiting_bytes: int = 0
    """Size of the sealed segments that are kept for receivers."""
    failing_s: float = 0.0
    """Time since the first of the failures in a row; 0: the last request did not fail."""
    problem: str | None = None
    """Why the last request failed, in a sentence; None: it did not."""
    minutes_waiting_s: float = 0.0
    """Time from the last minute that was sent to the last one that could be, of the source that is most behind."""
    query_problem: str | None = None
    """Why a source could not be queried last, in a sentence; None: all could."""

    def add(self, before: "ReceiverState", now: "ReceiverState") -> None:
        """Add what a process has counted since `before`, and take its state of now."""
        self.sent += now.sent - before.sent
        self.refused.update(now.refused - before.refused)
        self.failures += now.failures - before.failures
        self.lost_rows += now.lost_rows - before.lost_rows
        self.skipped_minutes += now.skipped_minutes - before.skipped_minutes
        self.waiting_s, self.waiting_bytes = now.waiting_s, now.waiting_bytes
        self.failing_s, self.problem = now.failing_s, now.problem
        self.minutes_waiting_s, self.query_problem = now.minutes_waiting_s, now.query_problem


class ForwardingContext(Protocol):
    """What the forwarding process gives a protocol."""

    settings: Any
    """As `Forwarding.load` returned them."""
    clock: Clock
    states: Mapping[str, ReceiverState]
    """By receiver; the protocol changes them."""
    started_at: datetime
    """When the collector started: earlier rows may come after it."""

    def feed(self, name: str, tables: frozenset[str]) -> Feed:
        """The rows of these tables for a receiver."""
        ...

    def inventory(self, name: str) -> Sequence[Mapping[str, Any]]:
        """All rows of `nodes` or `gpus`. Blocks. Raises StoreUnavailableError."""
        ...

    def minutes(self, name: str, source: str) -> MinutePosition:
        """The position of a receiver in the minutes of a source; of a new one, the last whole minute. Raises OSError,
        ValueError for a damaged file."""
        ...

    async def query(self, sql: str) -> Any:
        """Rows of a SELECT over the public tables, as an Arrow table; other queries come first. Raises QueryError."""
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
