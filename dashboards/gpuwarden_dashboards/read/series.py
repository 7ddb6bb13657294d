"""Reads time series, downsampled to the width of the chart: least, mean and greatest of each column.

The span decides the table: samples for hours, minutes for days, hours for longer. A column without a sample
is None, so that the chart shows a gap. A counter is shown as its rate.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpuwarden.clock import from_ms, to_ms
from gpuwarden.metrics import METRICS, Kind, Metric, Type
from gpuwarden.query import Querier, Result, query_all
from gpuwarden.rollups import ROLLUPS, Rollup, RollupPart
from gpuwarden_dashboards.http import ParameterError

COLUMNS_MAX = 4_000
METRICS_MAX = 40
GPUS_MAX = 256
LINES_MAX = 512
"""Most lines of one table."""
SAMPLES_UP_TO = timedelta(hours=3)
"""Longest span that is read from samples."""
MINUTES_UP_TO = timedelta(days=14)

_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Source:
    """A table of samples, with one line for each value of `by`."""

    table: str
    by: tuple[str, ...]
    part: str = "NULL"
    """SQL of a name for each of several lines of a GPU or node."""
    prefix: str = ""
    """What the names of its metrics begin with in requests."""

    @property
    def is_of_gpus(self) -> bool:
        return self.by[0] == "gpu_uuid"


SOURCES: Sequence[Source] = (
    Source("gpu_samples", ("gpu_uuid",), "mig_instance"),
    Source("gpu_detail_samples", ("gpu_uuid",), "mig_instance"),
    Source("gpu_health_samples", ("gpu_uuid",)),
    Source("link_samples", ("gpu_uuid", "link_type", "link"), "link_type || ' ' || link", "link."),
    Source("process_samples", ("gpu_uuid", "pid"), "concat_ws(' ', process_name, pid)", "process."),
    Source("host_samples", ("node",), prefix="host."),
    Source(
        "infiniband_samples", ("node", "device", "port"), "device || '/' || port", "infiniband."
    ),
)
DRAWABLE: Mapping[str, tuple[Source, Metric]] = {
    source.prefix + metric.name: (source, metric)
    for source in SOURCES
    for metric in METRICS[source.table]
    if metric.kind is not Kind.FLAGS  # which strips show
}
"""Source and metric by the name in requests."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a chart is about: a node with all its GPUs, one GPU, or the GPUs of a job."""

    node: str | None = None
    gpu_uuids: tuple[str, ...] = ()
    job: str | None = None
    """Restricts rows of processes to this Slurm job or pod."""

    @property
    def where(self) -> str:
        """SQL condition on rows of GPUs, and for a node on rows of hosts."""
        return (
            "node = $node" if self.node is not None else "gpu_uuid IN (SELECT unnest($gpu_uuids))"
        )

    @property
    def params(self) -> Mapping[str, Any]:
        """Parameters of `where`."""
        return {"gpu_uuids": list(self.gpu_uuids)} if self.node is None else {"node": self.node}

    @property
    def where_node(self) -> str:
        """SQL condition on rows of hosts."""
        if self.node is not None:
            return self.where
        return f"node IN (SELECT node FROM gpus WHERE {self.where})"

    def rows_of(self, source: Source) -> tuple[str, Mapping[str, Any]]:
        """SQL condition on rows of a table, and its parameters."""
        where = self.where if source.is_of_gpus else self.where_node
        if self.job is not None and source.table == "process_samples":
            return f"{where} AND job = $job", {**self.params, "job": self.job}
        return where, self.params


LAST_MS = 253_402_300_799_999
"""The last millisecond that a datetime can be."""


@dataclass(frozen=True, slots=True)
class Span:
    """A time range, cut into columns of the same length."""

    begin_ms: int
    step_ms: int
    columns: int
    resolution_s: int
    """Seconds between rows: 1 (samples), 60 or 3600."""

    @property
    def begin(self) -> datetime:
        return from_ms(self.begin_ms)

    @property
    def end(self) -> datetime:
        # Columns are rounded up, perhaps beyond the last possible time.
        return from_ms(min(self.begin_ms + self.step_ms * self.columns, LAST_MS))


@dataclass(frozen=True, slots=True)
class DrawnSeries:
    """A line: a metric of one thing, with three values for each column."""

    metric: str
    unit: str
    node: str | None
    gpu: int | None
    gpu_uuid: str | None
    part: str | None
    """A MIG instance, link, port or process."""
    least: Sequence[float | None]
    mean: Sequence[float | None]
    greatest: Sequence[float | None]


def span_of(begin: datetime, end: datetime, columns: int) -> Span:
    """The span of a chart with that many columns at most. Raises ParameterError."""
    if end <= begin:
        raise ParameterError("the end must be after the begin")
    if not 1 <= columns <= COLUMNS_MAX:
        raise ParameterError(f"columns must be 1 to {COLUMNS_MAX}")
    length = end - begin
    resolution_s = 1 if length <= SAMPLES_UP_TO else 60 if length <= MINUTES_UP_TO else 3600
    base_ms = 1000 * resolution_s
    begin_ms = to_ms(begin) // base_ms * base_ms
    length_ms = -(-(to_ms(end) - begin_ms) // base_ms) * base_ms
    step_ms = -(-length_ms // columns // base_ms) * base_ms
    return Span(begin_ms, step_ms, -(-length_ms // step_ms), resolution_s)


async def read_series(
    querier: Querier, place: Place, metrics: Sequence[str], span: Span
) -> list[DrawnSeries]:
    """A line for each metric and GPU, host, link, port or process. Raises QueryError, ParameterError."""
    if not 1 <= len(metrics) <= METRICS_MAX:
        raise ParameterError(f"ask for 1 to {METRICS_MAX} metrics")
    asked: dict[tuple[Source, str], tuple[list[Metric], Rollup | None]] = {}
    for name in dict.fromkeys(metrics):
        if name not in DRAWABLE:
            raise ParameterError(
                f"there is no metric {name}: see docs/metrics.md; metrics of hosts begin with host."
            )
        source, metric = DRAWABLE[name]
        rollup = _rollup(source.table, metric, span.resolution_s)
        read = rollup.table.name if rollup else source.table
        asked.setdefault((source, read), ([], rollup))[0].append(metric)
    times = {"begin": span.begin, "end": span.end}
    queries = []
    for (source, _), (wanted, rollup) in asked.items():
        where, params = place.rows_of(source)
        queries.append((series_sql(source, where, wanted, span, rollup), {**params, **times}))
    results = await query_all(querier, queries)
    lines = [
        line
        for ((source, _), (wanted, _)), result in zip(asked.items(), results, strict=True)
        for line in _lines(result, source, wanted, span.columns)
    ]
    order = {name: number for number, name in enumerate(metrics)}
    return sorted(lines, key=lambda line: (order[line.metric], line.node or "", line.gpu or 0))


def _lines(
    result: Result, source: Source, metrics: Sequence[Metric], columns: int
) -> Iterator[DrawnSeries]:
    for record in result.records():
        for number, metric in enumerate(metrics):
            spread = [
                rounded_columns(record["columns"], record[f"{how}_{number}"], columns)
                for how in ("least", "mean", "greatest")
            ]
            yield DrawnSeries(
                source.prefix + metric.name,
                unit_of(metric),
                record["of_node"],
                record["of_gpu"],
                record["of_uuid"],
                record["of_part"],
                *spread,
            )


def unit_of(metric: Metric) -> str:
    """The unit in which a metric is drawn: a counter as its rate."""
    return f"{metric.unit}/s" if metric.kind is Kind.COUNTER else metric.unit


def rounded_columns(
    columns: Sequence[int], values: Sequence[float | None], count: int
) -> list[float | None]:
    """A list with a value for each column, None where there is none."""
    spread: list[float | None] = [None] * count
    for column, value in zip(columns, values, strict=True):
        if 0 <= column < count and value is not None:
            spread[column] = rounded(value)
    return spread


def rounded(value: float) -> float:
    """With as many digits as a chart needs."""
    return float(f"{value:.{_DIGITS}g}")


def series_sql(
    source: Source, where: str, metrics: Sequence[Metric], span: Span, rollup: Rollup | None
) -> str:
    """SELECT of one row per line: `columns` with samples, and three lists for each metric."""
    by = ", ".join(source.by)
    if rollup is None:
        table, values = source.table, [of_samples(metric) for metric in metrics]
    else:
        part = next(part for part in rollup.parts if part.table == source.table)
        table = rollup.table.name
        values = [rollup_columns(metric, part, rollup.window_s) for metric in metrics]
    of = {
        "node": "node",
        "gpu": "gpu" if source.is_of_gpus else "NULL",
        "uuid": "gpu_uuid" if source.is_of_gpus else "NULL",
        "part": source.part,
    }
    said = ", ".join(f"{sql} AS of_{name}" for name, sql in of.items())
    kept = ", ".join(f"max(of_{name}) AS of_{name}" for name in of)
    read = ", ".join(
        f"{least} AS l_{n}, {mean} AS m_{n}, {greatest} AS g_{n}"
        for n, (least, mean, greatest) in enumerate(values)
    )
    columns = ", ".join(
        f"min(l_{n}) AS l_{n}, avg(m_{n}) AS m_{n}, max(g_{n}) AS g_{n}" for n in range(len(values))
    )
    lists = ", ".join(
        f"list({short}_{n} ORDER BY place) AS {name}_{n}"
        for n in range(len(values))
        for short, name in (("l", "least"), ("m", "mean"), ("g", "greatest"))
    )
    window = (
        f" WINDOW w AS (PARTITION BY {by} ORDER BY ts)"
        if rollup is None and any(metric.kind is Kind.COUNTER for metric in metrics)
        else ""
    )
    return f"""
        WITH readings AS (
            SELECT ts, {by}, {said}, {read} FROM {table}
            WHERE {where} AND ts >= $begin AND ts < $end{window}
        ), cut AS (
            SELECT {by}, (epoch_ms(ts) - {span.begin_ms}) // {span.step_ms} AS place, {columns}, {kept}
            FROM readings GROUP BY {by}, place
        )
        SELECT list(place ORDER BY place) AS columns, {lists}, {kept}
        FROM cut GROUP BY {by} ORDER BY of_node, of_gpu, {by} LIMIT {LINES_MAX}
    """


def _rollup(table: str, metric: Metric, resolution_s: int) -> Rollup | None:
    """The coarsest rollup of a metric that is fine enough; None: only samples."""
    fitting = [
        rollup
        for rollup in ROLLUPS.values()
        if rollup.window_s <= resolution_s
        for part in rollup.parts
        if part.table == table and any(s.source == metric.name for s in part.summaries)
    ]
    return max(fitting, key=lambda rollup: rollup.window_s, default=None)


def of_samples(metric: Metric) -> tuple[str, str, str]:
    """SQL of the least, mean and greatest value of a row; of a counter its rate, over a window `w`."""
    if metric.kind is not Kind.COUNTER:
        value = f"{metric.name}::TINYINT" if metric.type is Type.BOOL else metric.name
        return value, value, value
    gained = f"{metric.name} - lag({metric.name}) OVER w"
    seconds = "(epoch_ms(ts) - lag(epoch_ms(ts)) OVER w) / 1000"
    # A counter that fell was reset: its gain is unknown.
    rate = f"CASE WHEN {gained} >= 0 THEN ({gained}) / ({seconds}) END"
    return rate, rate, rate


def rollup_columns(metric: Metric, part: RollupPart, window_s: int) -> tuple[str, str, str]:
    """SQL of least, mean and greatest of a metric in rows of a rollup."""
    made = {s.how: s.column.name for s in part.summaries if s.source == metric.name}
    if "delta" in made:
        rate = f"{made['delta']} / {window_s}"
        return rate, rate, rate
    mean = made.get("avg") or made.get("last") or next(iter(made.values()), "NULL")
    return made.get("min", mean), mean, made.get("max", mean)


def described() -> Iterator[dict[str, str]]:
    """Name, unit and meaning of all metrics, for the picker."""
    for name, (_, metric) in DRAWABLE.items():
        yield {"name": name, "unit": unit_of(metric), "meaning": metric.meaning}
