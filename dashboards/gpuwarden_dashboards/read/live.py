"""Reads the newest samples of a node, a GPU or the GPUs of a job, each row as it was taken, for charts that run live."""

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuwarden.metrics import Kind, Metric
from gpuwarden.query import Querier, Result, query_all
from gpuwarden_dashboards.http import ParameterError
from gpuwarden_dashboards.read.series import DRAWABLE, Place, Source, of_samples, rounded

LIVE_SECONDS_MAX = 330
"""The window of the charts, and what it is behind."""
LIVE_METRICS_MAX = 24
LIVE_VALUES_MAX = 250_000
"""Most values of an answer, some megabytes of JSON: 64 MIG devices with the charts of a node are half of it."""
_LINES_MAX = 128
_BEFORE = "INTERVAL 15 SECOND"
"""How far before the span the row is searched that the rate of a counter begins with."""
_LATER = timedelta(minutes=1)
"""How far clocks of hosts may be ahead."""


@dataclass(frozen=True, slots=True)
class LiveRows:
    """The rows of one GPU, host, link, port or process, the oldest first."""

    node: str | None
    gpu: int | None
    gpu_uuid: str | None
    part: str | None
    at_ms: Sequence[int]
    values: Mapping[str, Sequence[float | None]]
    """By the name of the metric, as many as `at_ms`."""


async def read_live(
    querier: Querier, place: Place, metrics: Sequence[str], begin: datetime, now: datetime
) -> list[LiveRows]:
    """All rows since `begin`, which is at most `LIVE_SECONDS_MAX` before `now`. Raises QueryError, ParameterError."""
    asked = live_sources(metrics)
    seconds = max(1, math.ceil((now - begin).total_seconds()))
    queries = []
    for source, wanted in asked.items():
        where, params = place.rows_of(source)
        times = {"begin": begin, "end": now + _LATER}
        lines = min(_LINES_MAX, _lines_max(wanted, seconds) + 1)
        queries.append((_live_sql(source, where, wanted, lines), {**params, **times}))
    results = await query_all(querier, queries)
    found = list(zip(asked.items(), results, strict=True))
    values = 0
    for (_, wanted), result in found:
        at = result.columns.index("at_ms")
        values += len(wanted) * sum(len(row[at]) for row in result.rows)
        if len(result.rows) > _lines_max(wanted, seconds) or values > LIVE_VALUES_MAX:
            raise ParameterError(
                f"these are more than {LIVE_VALUES_MAX} values: ask for fewer seconds, metrics or GPUs"
            )
    return await asyncio.to_thread(_all_rows, found)


def live_sources(metrics: Sequence[str]) -> Mapping[Source, list[Metric]]:
    """The metrics of these names, by the table that has them. Raises ParameterError."""
    if not 1 <= len(metrics) <= LIVE_METRICS_MAX:
        raise ParameterError(f"ask for 1 to {LIVE_METRICS_MAX} metrics")
    asked: dict[Source, list[Metric]] = {}
    for name in dict.fromkeys(metrics):
        if name not in DRAWABLE:
            raise ParameterError(f"there is no metric {name}: see docs/metrics.md")
        source, metric = DRAWABLE[name]
        asked.setdefault(source, []).append(metric)
    return asked


def _lines_max(metrics: Sequence[Metric], seconds: int) -> int:
    """How many lines with a row each second fit into an answer."""
    return LIVE_VALUES_MAX // (len(metrics) * seconds)


def _live_sql(source: Source, where: str, metrics: Sequence[Metric], lines: int) -> str:
    """SELECT of one row for each thing, with a list of times and one of values for each metric."""
    by = ", ".join(source.by)
    is_rate = any(metric.kind is Kind.COUNTER for metric in metrics)
    values = ", ".join(f"{of_samples(metric)[1]} AS v_{n}" for n, metric in enumerate(metrics))
    lists = ", ".join(f"list(v_{n} ORDER BY ts) AS v_{n}" for n in range(len(metrics)))
    window = f" WINDOW w AS (PARTITION BY {by} ORDER BY ts)" if is_rate else ""
    since = f"$begin - {_BEFORE}" if is_rate else "$begin"
    gpu, uuid = ("gpu", "gpu_uuid") if source.is_of_gpus else ("NULL", "NULL")
    return f"""
        WITH readings AS (
            SELECT ts, {by}, node AS of_node, {gpu} AS of_gpu, {uuid} AS of_uuid, {source.part} AS of_part, {values}
            FROM {source.table} WHERE {where} AND ts >= {since} AND ts < $end{window}
        )
        SELECT max(of_node) AS node, max(of_gpu) AS gpu, max(of_uuid) AS gpu_uuid, max(of_part) AS part,
            list(epoch_ms(ts) ORDER BY ts) AS at_ms, {lists}
        FROM readings WHERE ts >= $begin GROUP BY {by} ORDER BY node, gpu, {by} LIMIT {lines}
    """


def _all_rows(
    found: Iterable[tuple[tuple[Source, Sequence[Metric]], Result]],
) -> list[LiveRows]:
    return [rows for (source, wanted), result in found for rows in _rows(result, source, wanted)]


def _rows(result: Result, source: Source, metrics: Sequence[Metric]) -> Iterator[LiveRows]:
    for record in result.records():
        values = {
            source.prefix + metric.name: [
                None if value is None else rounded(value) for value in record[f"v_{n}"]
            ]
            for n, metric in enumerate(metrics)
        }
        yield LiveRows(
            record["node"],
            record["gpu"],
            record["gpu_uuid"],
            record["part"],
            record["at_ms"],
            values,
        )
