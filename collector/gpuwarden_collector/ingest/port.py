"""Defines what the collector offers a protocol whose senders are not agents, and what it expects of it.

Such a sender has series, and a row of ours is many of them, in any number of requests. The protocol maps a request to
parts of rows; the collector keeps them on disk, joins the parts of a row, and has the protocol make the row.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from gpuwarden.clock import Clock
from gpuwarden_collector.query.port import BodyAccess, Refusal

Value = float | str | None
Cells = Mapping[str, float]
"""Readings of a row by name; the names are the protocol's own."""


class RowPart(msgspec.Struct, frozen=True, array_like=True):
    """The readings that a request has for one row."""

    table: str
    source: str
    """The node, or what names it until the row is made."""
    key: str
    """Identifies the row's device in table and source; "": the source itself."""
    ts_ms: int
    cells: dict[str, float]
    facts: dict[str, str]
    """Texts about the device, such as its model."""


@dataclass(frozen=True, slots=True)
class MappedRequest:
    """A request as parts of rows."""

    digest: bytes
    """Of its content: an equal request is the same one, sent again."""
    parts: Sequence[RowPart]
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Samples that are not stored, by reason and name of the metric."""


class Before(NamedTuple):
    """What was kept of the row before of a device."""

    ts_ms: int
    cells: Cells


class JoinedRow(NamedTuple):
    """All readings of one row."""

    table: str
    source: str
    ts_ms: int
    cells: Cells
    facts: Mapping[str, str]


class RowMaker(Protocol):
    """Makes rows; pure."""

    def made(
        self, joined: JoinedRow, before: Before | None
    ) -> Iterable[tuple[str, Mapping[str, Value]]]:
        """Rows of our tables, by table: the sample, and the facts about GPU, node and owner."""
        ...

    def carried(self, joined: JoinedRow) -> Cells:
        """The readings that the device's next row needs as `before`; empty: none."""
        ...


class RequestSender(NamedTuple):
    """Who sent a request."""

    sender: str
    """Its authenticated name (`auth/senders.py`)."""
    node: str | None
    """The only node whose rows it may send; None: any."""


class SampleSink(Protocol):
    """Keeps requests, and makes rows of them."""

    async def store(self, request: MappedRequest, sender: RequestSender) -> Refusal | None:
        """Put a request on disk; None: it is there, or was before."""
        ...

    def report(self) -> Mapping[str, Any]:
        """Counts of samples, and the names of metrics that were not stored, as a JSON object."""
        ...


@dataclass(frozen=True, slots=True)
class SampleContext:
    """What the collector gives a protocol of samples."""

    sink: SampleSink
    clock: Clock
    bodies: BodyAccess
    sender_of: Callable[[Any], RequestSender]
    past_max_s: float
    future_max_s: float
    """How old a sample may be, and how far ahead of the clock."""


@dataclass(frozen=True, slots=True)
class SampleFront:
    """Protocols in which others than agents send samples."""

    maker: RowMaker
    routes: Callable[[SampleContext], Iterable[Any]]
    """aiohttp's routes; their scopes are in `auth/scopes.py`."""
