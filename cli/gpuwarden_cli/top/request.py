"""Defines what the screen asks a source for, and what it gets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

Row = Mapping[str, Any]
HISTORY_S = 1800
"""How far back the lines of a GPU go."""


class TopView(StrEnum):
    """What the rows are."""

    NODES = "nodes"
    GPUS = "gpus"
    PROCESSES = "processes"
    JOBS = "jobs"
    ALERTS = "alerts"


KEY: Mapping[TopView, str] = {
    TopView.NODES: "node",
    TopView.GPUS: "gpu_uuid",
    TopView.PROCESSES: "process",
    TopView.JOBS: "job",
    TopView.ALERTS: "alert",
}
"""Column that identifies a row."""


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """Some rows of a view, and the totals of all."""

    view: TopView
    node: str | None = None
    job: str | None = None
    text: str = ""
    """Rows have it in one of their names, whatever the case."""
    sort: str = ""
    """A column; "": the view's own order."""
    is_descending: bool = False
    offset: int = 0
    limit: int = 20


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """One GPU: its newest sample, its history in so many steps, processes and alerts."""

    gpu_uuid: str
    bins: int


@dataclass(frozen=True, slots=True)
class WhyRequest:
    """What holds a GPU, node or job up."""

    name: str


Request = RowsRequest | GpuRequest | WhyRequest


@dataclass(frozen=True, slots=True)
class RowsAnswer:
    """Rows from `request.offset` on, of `count` that there are."""

    totals: Row
    rows: Sequence[Row]
    count: int


@dataclass(frozen=True, slots=True)
class GpuAnswer:
    """A GPU now, and what it was; `row` None: no GPU has that identity."""

    totals: Row
    row: Row | None
    series: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """By metric, the oldest first; None: not read."""
    processes: Sequence[Row] = ()
    alerts: Sequence[Row] = ()


@dataclass(frozen=True, slots=True)
class WhyAnswer:
    """Lines for people, not folded yet; one that begins with spaces stays so."""

    lines: Sequence[str]


Answer = RowsAnswer | GpuAnswer | WhyAnswer


class SourceError(Exception):
    """There is no answer; the message is one line. `is_refusal`: to ask again would not help."""

    def __init__(self, message: str, *, is_refusal: bool = False) -> None:
        super().__init__(message)
        self.is_refusal = is_refusal


class RowSource(Protocol):
    """Where rows come from."""

    @property
    def name(self) -> str:
        """What it is, for the first line."""
        ...

    async def run(self) -> None:
        """What it does beside, until it is cancelled."""
        ...

    async def ask(self, request: Request) -> Answer:
        """The answer, of the kind that belongs to the request. Raises SourceError."""
        ...
