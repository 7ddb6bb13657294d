"""Reads time series for charts, downsampled to the width of the chart: least, mean and greatest of each column.

What is read follows from the span: samples for hours, minutes for days, hours for longer. A column of a
chart without a sample is None, so that a gap is drawn as one. A counter is shown as its rate.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpuwarden.clock import from_ms, to_ms
from gpuwarden.metrics import METRICS, Kind, Metric, Type
from gpuwarden.query import Querier, Result, query_all
from gpuwarden.rollups import ROLLUPS, Rollup, RollupPart
from gpuwarden_dashboards.request import ParameterError

GPU_TABLES = ("gpu_samples", "gpu_detail_samples", "gpu_health_samples")
HOST_TABLE = "host_samples"
COLUMNS_MAX = 4_000
METRICS_MAX = 40
GPUS_MAX = 256
SAMPLES_UP_TO = timedelta(hours=3)
"""Longest span that is read from samples."""
MINUTES_UP_TO = timedelta(days=14)

_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Place:
    """What is looked at: a node with all its GPUs, or one GPU, or those of a job."""

    node: str | None = None
    gpu_uuids: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """A condition on rows of GPUs and, of a node, of hosts."""
        return (
            "node = $node" if self.node is not None else "gpu_uuid IN (SELECT unnest($gpu_uuids))"
        )

    @property
    def params(self) -> Mapping[str, Any]:
        """Of `where`."""
        return {"gpu_uuids": list(self.gpu_uuids)} if self.node is None else {"node": self.node}


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time, cut into columns of the same length."""

    begin_ms: int
    step_ms: int
    columns: int
    resolution_s: int
    """Of what is read: 1 (samples), 60 or 3600."""

    @property
    def begin(self) -> datetime:
        return from_ms(self.begin_ms)

    @property
    def end(self) -> datetime:
        return from_ms(self.begin_ms + self.step_ms * self.columns)


@dataclass(frozen=True, slots=True)
class DrawnSeries:
    """A metric of one thing; each list has a value for each column."""

    metric: str
    unit: str
    node: str | None
    """Of a GPU."""
    gpu: int | None
    gpu_uuid: str | None
    least: Sequence[float | None]
    mean: Sequence[float | None]
    greatest: Sequence[float | None]


def metrics_of(tables: Iterable[str]) -> dict[str, tuple[str, Metric]]:
    """Table and metric by column name, for what can be drawn."""
    return {
        metric.name: (table, metric)
        for table in tables
        for metric in METRICS[table]
        if metric.kind is not Kind.FLAGS and metric.type is not Type.BOOL
    }


GPU_METRICS = metrics_of(GPU_TABLES)
HOST_METRICS = metrics_of((HOST_TABLE,))


def span_of(begin: datetime, end: datetime, columns: int) -> Span:
    """What to read for a chart that is so many pixels wide. Raises ParameterError."""
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
    """The metrics of a GPU or, of a node, those of the host and of each GPU. Raises QueryError, ParameterError."""
    if not 1 <= len(metrics) <= METRICS_MAX:
        raise ParameterError(f"ask for 1 to {METRICS_MAX} metrics")
    asked: dict[str, list[Metric]] = {}
    for name in dict.fromkeys(metrics):
        table, metric = _found(name, place)
        asked.setdefault(table, []).append(metric)
    params = {**place.params, "begin": span.begin, "end": span.end}
    results = await query_all(
        querier,
        [(series_sql(place, table, wanted, span), params) for table, wanted in asked.items()],
    )
    lines = [
        line
        for (table, wanted), result in zip(asked.items(), results, strict=True)
        for line in _lines(result, table, wanted, span.columns)
    ]
    order = {name: number for number, name in enumerate(metrics)}
    return sorted(lines, key=lambda line: (order[line.metric], line.node or "", line.gpu or 0))


def _found(name: str, place: Place) -> tuple[str, Metric]:
    is_host = name.startswith("host.")
    known = HOST_METRICS if is_host else GPU_METRICS
    found = known.get(name.removeprefix("host."))
    if found is None:
        raise ParameterError(
            f"there is no metric {name}: see docs/metrics.md; a host's begin with host."
        )
    if is_host and place.node is None:
        raise ParameterError(f"{name} is of a node: give node")
    return found


def _lines(
    result: Result, table: str, metrics: Sequence[Metric], columns: int
) -> Iterator[DrawnSeries]:
    prefix = "host." if table == HOST_TABLE else ""
    for record in result.records():
        for number, metric in enumerate(metrics):
            spread = [
                _spread(record["columns"], record[f"{how}_{number}"], columns)
                for how in ("least", "mean", "greatest")
            ]
            yield DrawnSeries(
                prefix + metric.name,
                _unit(metric),
                record.get("node"),
                record.get("gpu"),
                record.get("gpu_uuid"),
                *spread,
            )


def _unit(metric: Metric) -> str:
    return f"{metric.unit}/s" if metric.kind is Kind.COUNTER else metric.unit


def _spread(
    columns: Sequence[int], values: Sequence[float | None], count: int
) -> list[float | None]:
    spread: list[float | None] = [None] * count
    for column, value in zip(columns, values, strict=True):
        if 0 <= column < count and value is not None:
            spread[column] = float(f"{value:.{_DIGITS}g}")
    return spread


def series_sql(place: Place, table: str, metrics: Sequence[Metric], span: Span) -> str:
    """A row for each GPU, or one for the host: `columns` that have samples, and three lists a metric."""
    is_host = table == HOST_TABLE
    rollup = None if span.resolution_s == 1 else _rollup(table, span.resolution_s)
    if rollup is None:
        source, values = table, [_of_samples(metric) for metric in metrics]
    else:
        part = next(part for part in rollup.parts if part.table == table)
        source = rollup.table.name
        values = [_of_rollup(metric, part, rollup.window_s) for metric in metrics]
    by = [] if is_host else ["gpu_uuid"]
    index = "" if is_host else ", max(gpu) AS gpu, max(node) AS node"
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
        " WINDOW w AS (PARTITION BY " + ("node" if is_host else "gpu_uuid") + " ORDER BY ts)"
        if rollup is None and any(metric.kind is Kind.COUNTER for metric in metrics)
        else ""
    )
    return f"""
        WITH readings AS (
            SELECT {", ".join(["ts", *by])}{"" if is_host else ", gpu, node"}, {read} FROM {source}
            WHERE {place.where} AND ts >= $begin AND ts < $end{window}
        ), cut AS (
            SELECT {"".join(name + ", " for name in by)}
                (epoch_ms(ts) - {span.begin_ms}) // {span.step_ms} AS place, {columns}{index}
            FROM readings GROUP BY {", ".join([*by, "place"])}
        )
        SELECT {"".join(name + ", " for name in by)}list(place ORDER BY place) AS columns, {lists}{index}
        FROM cut {"GROUP BY " + ", ".join(by) + " ORDER BY gpu" if by else "HAVING count(*) > 0"}
    """


def _rollup(table: str, resolution_s: int) -> Rollup | None:
    """The coarsest rollup of a table that is fine enough."""
    fitting = [
        rollup
        for rollup in ROLLUPS.values()
        if rollup.window_s <= resolution_s
        and any(part.table == table for part in rollup.parts)
        and "pid" not in rollup.by
    ]
    return max(fitting, key=lambda rollup: rollup.window_s, default=None)


def _of_samples(metric: Metric) -> tuple[str, str, str]:
    if metric.kind is not Kind.COUNTER:
        return metric.name, metric.name, metric.name
    gained = f"{metric.name} - lag({metric.name}) OVER w"
    seconds = "(epoch_ms(ts) - lag(epoch_ms(ts)) OVER w) / 1000"
    # A counter that fell was reset: what it gained since is not known.
    rate = f"CASE WHEN {gained} >= 0 THEN ({gained}) / ({seconds}) END"
    return rate, rate, rate


def _of_rollup(metric: Metric, part: RollupPart, window_s: int) -> tuple[str, str, str]:
    made = {s.how: s.column.name for s in part.summaries if s.source == metric.name}
    if "delta" in made:
        rate = f"{made['delta']} / {window_s}"
        return rate, rate, rate
    mean = made.get("avg") or made.get("last") or next(iter(made.values()), "NULL")
    return made.get("min", mean), mean, made.get("max", mean)


def described(tables: Iterable[str]) -> Iterator[dict[str, str]]:
    """What can be drawn, for a picker: name, unit and meaning."""
    for table in tables:
        prefix = "host." if table == HOST_TABLE else ""
        for name, (_, metric) in metrics_of((table,)).items():
            yield {"name": prefix + name, "unit": _unit(metric), "meaning": metric.meaning}
