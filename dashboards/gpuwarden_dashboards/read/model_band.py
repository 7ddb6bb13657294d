"""Reads how other GPUs of a GPU's model did over a span: the 10th to 90th percentile of their means by column.

It reads rollups alone: minutes up to `MINUTES_UP_TO`, then hours, and nothing beyond `HOURS_UP_TO`; of many GPUs
`GPUS_READ`. A column in which fewer than `GPUS_MIN` reported has no value.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from gpuwarden.metrics import Metric
from gpuwarden.query import Querier, Record
from gpuwarden.rollups import ROLLUPS
from gpuwarden_dashboards.http import ParameterError
from gpuwarden_dashboards.read.series import (
    DRAWABLE,
    METRICS_MAX,
    Source,
    Span,
    rollup_columns,
    rounded_columns,
    unit_of,
)

GPUS_MIN = 4
GPUS_READ = 512
MINUTES_UP_TO = timedelta(hours=6)
HOURS_UP_TO = timedelta(days=90)
COLUMNS_MAX = 120
LOW, MIDDLE, HIGH = 0.1, 0.5, 0.9


@dataclass(frozen=True, slots=True)
class BandLine:
    """A metric of the other GPUs: three values by column."""

    metric: str
    unit: str
    least: Sequence[float | None]
    """10th percentile."""
    mean: Sequence[float | None]
    """Median."""
    greatest: Sequence[float | None]
    """90th percentile."""


@dataclass(frozen=True, slots=True)
class ModelBand:
    """Bands of a model."""

    model: str | None
    gpus: int
    """Most GPUs of a column, the one that is compared left out."""
    reason: str
    """Why there are no lines; empty: there are."""
    lines: Sequence[BandLine]


def band_span(span: Span) -> Span:
    """The span with columns of whole minutes or hours, at most `COLUMNS_MAX`."""
    length = span.end - span.begin
    resolution_s = 60 if length <= MINUTES_UP_TO else 3600
    base_ms = 1000 * resolution_s
    begin_ms = span.begin_ms // base_ms * base_ms
    length_ms = span.begin_ms + span.step_ms * span.columns - begin_ms
    step_ms = -(-length_ms // (base_ms * COLUMNS_MAX)) * base_ms
    return replace(
        span, begin_ms=begin_ms, step_ms=step_ms, columns=-(-length_ms // step_ms), resolution_s=resolution_s
    )  # fmt: skip


async def read_model_band(
    querier: Querier, gpu_uuid: str, metrics: Sequence[str], span: Span
) -> ModelBand:
    """Bands of the metrics that rollups of GPUs have, over a span of `band_span`. Raises QueryError, ParameterError."""
    if not 1 <= len(metrics) <= METRICS_MAX:
        raise ParameterError(f"ask for 1 to {METRICS_MAX} metrics")
    if span.end - span.begin > HOURS_UP_TO + timedelta(hours=1):
        return ModelBand(None, 0, f"no band beyond {HOURS_UP_TO.days} days", ())
    table = "gpu_1m" if span.resolution_s == 60 else "gpu_1h"
    wanted = [(name, *DRAWABLE[name], sql) for name in metrics if (sql := _mean_sql(name, table))]
    if not wanted:
        return ModelBand(None, 0, "no rollup has these metrics", ())
    found = await querier.query(
        _band_sql(table, [sql for *_, sql in wanted], span),
        {"gpu": gpu_uuid, "begin": span.begin, "end": span.end},
    )
    rows = found.records()
    gpus = max((row["gpus"] for row in rows), default=0)
    model = rows[0]["model"] if rows else None
    if gpus < GPUS_MIN:
        return ModelBand(model, gpus, f"fewer than {GPUS_MIN} others of its model report", ())
    lines = [_line(name, metric, number, rows, span.columns) for number, (name, _, metric, _) in enumerate(wanted)]  # fmt: skip
    return ModelBand(model, gpus, "", lines)


def _mean_sql(name: str, table: str) -> str | None:
    """SQL of a metric's mean in rows of a rollup of GPUs; None: it has none."""
    if name not in DRAWABLE:
        raise ParameterError(f"there is no metric {name}: see docs/metrics.md")
    source: Source
    metric: Metric
    source, metric = DRAWABLE[name]
    part = next((part for part in ROLLUPS[table].parts if part.table == source.table), None)
    if part is None or all(one.source != metric.name for one in part.summaries):
        return None
    return rollup_columns(metric, part, ROLLUPS[table].window_s)[1]


def _band_sql(table: str, means: Sequence[str], span: Span) -> str:
    of_gpus = ", ".join(f"avg({sql}) AS m_{number}" for number, sql in enumerate(means))
    bands = ", ".join(
        f"quantile_cont(m_{number}, [{LOW}, {MIDDLE}, {HIGH}]) AS band_{number}, count(m_{number}) AS count_{number}"
        for number in range(len(means))
    )
    return f"""
        WITH peers AS (
            SELECT gpu_uuid, model FROM gpus
            WHERE model = (SELECT any_value(model) FROM gpus WHERE gpu_uuid = $gpu) AND gpu_uuid <> $gpu
                AND mig_instance IS NULL AND replaced_by IS NULL
            ORDER BY hash(gpu_uuid) LIMIT {GPUS_READ}
        ), cut AS (
            SELECT gpu_uuid, (epoch_ms(ts) - {span.begin_ms}) // {span.step_ms} AS place, {of_gpus}
            FROM {table} WHERE ts >= $begin AND ts < $end AND gpu_uuid IN (SELECT gpu_uuid FROM peers)
            GROUP BY gpu_uuid, place
        )
        SELECT place, count(*) AS gpus, (SELECT any_value(model) FROM peers) AS model, {bands}
        FROM cut GROUP BY place ORDER BY place
    """


def _line(name: str, metric: Metric, number: int, rows: Sequence[Record], columns: int) -> BandLine:
    known = [row for row in rows if row[f"count_{number}"] >= GPUS_MIN]
    places = [row["place"] for row in known]
    low, middle, high = (
        rounded_columns(places, [row[f"band_{number}"][at] for row in known], columns) for at in range(3)
    )  # fmt: skip
    return BandLine(name, unit_of(metric), low, middle, high)
