"""Defines the requests to a source of rows, and the answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

Row = Mapping[str, Any]
SPANS_S = (60, 300, 1800, 3600)
"""Spans of graphs."""
GPU_METRICS = ("util_percent", "memory_percent", "power_watts", "temperature_celsius", "sm_clock_mhz")  # fmt: skip
"""Readings of a GPU that have a history."""
HOST_METRICS = ("cpu_percent", "memory_percent", "disk_bytes_per_s", "network_bytes_per_s", "pressure_percent")  # fmt: skip
"""Readings of a host that have a history; pressure: the highest of CPU, I/O and memory, some tasks waiting."""


class TopView(StrEnum):
    """The views."""

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
"""Key column of each view."""


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """A page of rows of a view, and the totals of all."""

    view: TopView
    node: str | None = None
    job: str | None = None
    text: str = ""
    """Search text: rows that contain it in a name, in any case."""
    sort: str = ""
    """A column; "": the default order."""
    is_descending: bool = False
    offset: int = 0
    limit: int = 20
    is_tree: bool = False
    """Processes below their job or user, and what they consist of below them."""
    toggled: frozenset[str] = frozenset()
    """Keys of rows of the tree that are not as at first: closed jobs and users, open processes."""


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """One GPU: newest sample, history in `bins` steps, processes and alerts."""

    gpu_uuid: str
    bins: int
    span_s: int = 1800


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """One node: its GPUs and processes, the host's history, and that of one metric of each GPU."""

    node: str
    metric: str
    bins: int
    span_s: int = 1800


@dataclass(frozen=True, slots=True)
class WhyRequest:
    """The diagnosis of a GPU, node or job."""

    name: str


Request = RowsRequest | GpuRequest | NodeRequest | WhyRequest


@dataclass(frozen=True, slots=True)
class RowsAnswer:
    """Rows from `request.offset` on; `count` is the number of all."""

    totals: Row
    rows: Sequence[Row]
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class GpuAnswer:
    """A GPU and its history; `row` None: the GPU is unknown."""

    totals: Row
    row: Row | None
    series: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """Values by metric, oldest first; None: no reading."""
    processes: Sequence[Row] = ()
    alerts: Sequence[Row] = ()


@dataclass(frozen=True, slots=True, eq=False)
class NodeAnswer:
    """A node; without GPUs, processes and readings of the host it is unknown."""

    totals: Row
    gpus: Sequence[Row] = ()
    host: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """Values by metric of the host, oldest first; None: no reading."""
    series: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """Values of the metric by GPU."""
    processes: Sequence[Row] = ()


@dataclass(frozen=True, slots=True)
class WhyAnswer:
    """Lines of text that are not folded yet; indentation is kept."""

    lines: Sequence[str]


Answer = RowsAnswer | GpuAnswer | NodeAnswer | WhyAnswer


class SourceError(Exception):
    """The source cannot answer; the message is one line. `is_refusal`: a retry would not help."""

    def __init__(self, message: str, *, is_refusal: bool = False) -> None:
        super().__init__(message)
        self.is_refusal = is_refusal


class RowSource(Protocol):
    """A source of rows."""

    @property
    def name(self) -> str:
        """Its name, for the first line."""
        ...

    @property
    def node(self) -> str | None:
        """The node, if it is of one alone."""
        ...

    async def run(self) -> None:
        """Background work, until cancelled."""
        ...

    async def ask(self, request: Request) -> Answer:
        """Answer a request with the matching type. Raises SourceError."""
        ...
