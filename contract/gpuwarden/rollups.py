"""Defines rollups: tables that summarise samples by minute and hour, made from the catalogue.

The name of a column is the metric and its summary: `power_watts_max`. A counter's `_total` becomes `_delta`,
its increase. `Metric.rollup` chooses the summaries; the collector computes them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpuwarden.metrics import CLOCKS_EVENT_REASONS, METRICS, Metric, Type
from gpuwarden.table import GPU, GPU_UUID, MIG, NODE, SIMULATED, Column, Table

IDLE_BELOW_PERCENT = 5.0
"""A GPU with a lower `util_percent` is idle, also for the rules."""
LOOKBACK_MINUTES = 3
"""A counter's increase between two readings counts in the minute of the second one, if the first is in that
minute or in one of this many before it."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A column of a rollup: `how` (`avg`, `min`, `max`, `p95`, `last` or `delta`) it summarises the column
    `source` of the samples."""

    column: Column
    source: str
    how: str


@dataclass(frozen=True, slots=True)
class RollupPart:
    """The part of a rollup from one table of samples."""

    table: str
    count: Column
    """Column with the number of samples."""
    summaries: tuple[Summary, ...]
    carried: tuple[str, ...]
    """Columns of the samples whose last value is kept, under the same name."""
    has_coverage: bool = False
    """Whether it has `expected`, the number of samples that were due."""
    has_activity: bool = False
    """Whether it has the time idle, busy, and with each clock event reason."""


@dataclass(frozen=True, slots=True)
class Rollup:
    """A rollup table: one row per `by` and window."""

    table: Table
    by: tuple[str, ...]
    window_s: int
    parts: tuple[RollupPart, ...]
    made_of: str | None = None
    """The rollup with shorter windows that it is made from; None: samples."""


EXPECTED = Column(
    "expected", Type.INT32, "Samples that were due, as the agent counted them; NULL: unknown."
)
ACTIVITY = (
    Column("idle_seconds", Type.FLOAT32, f"Time with util_percent below {IDLE_BELOW_PERCENT:g}."),
    Column("busy_seconds", Type.FLOAT32, "Time with util_percent at or above that."),
    Column("unknown_seconds", Type.FLOAT32, "Time with samples that lack util_percent."),
)
REASONS: dict[int, Column] = {
    bit: Column(
        f"reason_{name.replace(' ', '_')}_seconds",
        Type.FLOAT32,
        f"Time with the bit {bit:#x} of clocks_event_reasons: {name}.",
    )
    for bit, name in CLOCKS_EVENT_REASONS.items()
    if name != "idle"
}
"""Columns by bit of `clocks_event_reasons`; `idle_seconds` says more than its bit of an idle GPU."""

_SAID = {
    "avg": "Average of {0}.",
    "min": "Least {0}.",
    "max": "Greatest {0}.",
    "p95": "{0} that 95 % of the samples did not exceed.",
    "last": "Last {0}.",
    "delta": "Increase of {0}, without resets.",
}


def _summary(metric: Metric, how: str) -> Summary:
    stem = metric.name.removesuffix("_total") if how == "delta" else metric.name
    kind = Type.FLOAT32 if how == "avg" else metric.type
    meaning = _SAID[how].format(metric.name)
    return Summary(Column(f"{stem}_{how}", kind, meaning), metric.name, how)


def _part(table: str, count: Column, *carried: str, **options: bool) -> RollupPart:
    summaries = tuple(_summary(metric, how) for metric in METRICS[table] for how in metric.rollup)
    return RollupPart(table, count, summaries, carried, **options)


def _count(name: str, table: str) -> Column:
    return Column(name, Type.INT32, f"Rows of {table}.", required=True)


def _columns(part: RollupPart) -> Iterator[Column]:
    yield part.count
    if part.has_coverage:
        yield EXPECTED
    if part.has_activity:
        yield from ACTIVITY
        yield from REASONS.values()
    for summary in part.summaries:
        yield summary.column


def _rollup(
    name: str, row: str, by: tuple[Column, ...], more: tuple[Column, ...], *parts: RollupPart
) -> Rollup:
    """`by`: the key, without the window; `more`: other columns that describe the row."""
    columns = (
        Column("ts", Type.TIMESTAMP, "Start of the minute, UTC.", required=True),
        *by,
        *more,
        SIMULATED,
        *(column for part in parts for column in _columns(part)),
    )
    names = tuple(column.name for column in by)
    table = Table(name, row, (*names, "ts"), columns)
    return Rollup(table, names, 60, parts)


def _of_hours(minutes: Rollup, name: str, row: str) -> Rollup:
    """A rollup with the same columns by hour."""
    start, *rest = minutes.table.columns
    columns = (
        replace(start, meaning="Start of the hour, UTC."),
        *(replace(c, meaning=_said_of_hours(c)) for c in rest),
    )
    table = replace(minutes.table, name=name, row=row, columns=columns)
    return replace(minutes, table=table, window_s=3600, made_of=minutes.table.name)


def _said_of_hours(column: Column) -> str:
    name, _, how = column.name.rpartition("_")
    return (
        f"{name} that 95 % of the minutes' p95 did not exceed." if how == "p95" else column.meaning
    )


_PID = Column("pid", Type.INT64, "Process id on the node.", required=True)
_OWNER = (
    Column("process_name", Type.STRING, "Name of the executable, without arguments."),
    Column("username", Type.STRING, "Owner of the process."),
    Column("job", Type.STRING, "Slurm job's id, else Kubernetes namespace/pod."),
    Column("container_id", Type.STRING, "Container that the process runs in."),
    Column("pod", Type.STRING, "Kubernetes namespace/pod that the process runs in."),
    Column("started_at", Type.TIMESTAMP, "Start of the process."),
    Column("command", Type.STRING, "Program and script, as in process_samples."),
    Column("process_type", Type.STRING, "compute, graphics or mps (a client of MPS)."),
)

GPU_1M = _rollup(
    "gpu_1m",
    "GPU and minute",
    (NODE, GPU_UUID),
    (GPU, MIG),
    _part(
        "gpu_samples",
        _count("samples", "gpu_samples"),
        "gpu",
        "mig_instance",
        has_coverage=True,
        has_activity=True,
    ),
    _part(
        "gpu_detail_samples",
        _count("detail_samples", "gpu_detail_samples"),
        "gpu",
        "mig_instance",
    ),
    _part(
        "gpu_health_samples",
        _count("health_samples", "gpu_health_samples"),
        "gpu",
    ),
)
GPU_1H = _of_hours(GPU_1M, "gpu_1h", "GPU and hour")
HOST_1M = _rollup(
    "host_1m",
    "node and minute",
    (NODE,),
    (),
    _part("host_samples", _count("samples", "host_samples"), has_coverage=True),
)
PROCESS_1M = _rollup(
    "process_1m",
    "GPU process and minute",
    (NODE, GPU_UUID, _PID),
    (GPU, MIG, *_OWNER),
    _part(
        "process_samples",
        _count("samples", "process_samples"),
        "gpu",
        "mig_instance",
        *(column.name for column in _OWNER),
    ),
)

ROLLUPS: dict[str, Rollup] = {r.table.name: r for r in (GPU_1M, GPU_1H, HOST_1M, PROCESS_1M)}
