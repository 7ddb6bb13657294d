"""Reads what the phases of a job are told from: its GPUs and processes in steps of ten seconds, minutes or hours.

Rows are bounded: the means are those of at most `GPUS_READ` of its GPUs, and the longer the time, the longer the steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpuwarden.job_phases import JobReading
from gpuwarden.metrics import THROTTLED_BY
from gpuwarden.query import Querier, Record, query_all, timestamp_sql

GPUS_READ = 32
SAMPLES_UP_TO = timedelta(hours=3)
"""Longest time that is read from samples."""
MINUTES_UP_TO = timedelta(days=3)
"""Longest time that is read from minutes; of a longer one only its ends are."""
ENDS = timedelta(hours=3)
"""How long each of those ends is; the rest is read by the hour."""
_HOUR = timedelta(hours=1)
_SAMPLES_S, _MINUTE_S, _HOUR_S = 10, 60, 3600
_SLOWED_SECONDS = ", ".join(
    f"reason_{name}_seconds"
    for name in (
        "hardware_slowdown",
        "software_thermal_slowdown",
        "hardware_thermal_slowdown",
        "hardware_power_brake",
    )
)


@dataclass(frozen=True, slots=True)
class JobReadings:
    """What was read of a job."""

    readings: Sequence[JobReading]
    gpus_read: int
    """Of its GPUs; the means are theirs."""
    step_s: int
    """The longest step."""


@dataclass(frozen=True, slots=True)
class ReadingPart:
    """A part of the time, and in which steps it is read."""

    begin: datetime
    end: datetime
    step_s: int


def parts_of(begin: datetime, end: datetime) -> Sequence[ReadingPart]:
    """How a job's time is read: the longer, the coarser, but both ends of a long one by the minute."""
    length = end - begin
    if length <= SAMPLES_UP_TO:
        return (ReadingPart(begin, end, _SAMPLES_S),)
    if length <= MINUTES_UP_TO:
        return (ReadingPart(begin, end, _MINUTE_S),)
    first = (begin + ENDS).replace(minute=0, second=0, microsecond=0) + _HOUR
    last = (end - ENDS).replace(minute=0, second=0, microsecond=0)
    return (
        ReadingPart(begin, first, _MINUTE_S),
        ReadingPart(first, last, _HOUR_S),
        ReadingPart(last, end, _MINUTE_S),
    )


def spread_over(gpu_uuids: Sequence[str]) -> Sequence[str]:
    """At most `GPUS_READ` of them, evenly spaced, the first one among them."""
    count = len(gpu_uuids)
    if count <= GPUS_READ:
        return list(gpu_uuids)
    return [gpu_uuids[number * count // GPUS_READ] for number in range(GPUS_READ)]


async def read_job_readings(
    querier: Querier, job: str, gpu_uuids: Sequence[str], begin: datetime, end: datetime
) -> JobReadings:
    """The readings of a job on these GPUs. Raises QueryError."""
    chosen = spread_over(gpu_uuids)
    if not chosen or begin >= end:
        return JobReadings((), 0, _SAMPLES_S)
    parts = parts_of(begin, end)
    readings = await _read(querier, job, chosen, parts)
    if not readings and parts[0].step_s == _SAMPLES_S:  # samples are kept for a shorter time
        parts = (ReadingPart(begin, end, _MINUTE_S),)
        readings = await _read(querier, job, chosen, parts)
    return JobReadings(readings, len(chosen), max(part.step_s for part in parts))


async def _read(
    querier: Querier, job: str, chosen: Sequence[str], parts: Sequence[ReadingPart]
) -> Sequence[JobReading]:
    queries = [(sql, {n: v for n, v in {"job": job, "gpus": list(chosen)}.items() if f"${n}" in sql})
               for part in parts for sql in _queries(job, part)]  # fmt: skip
    found = [result.records() for result in await query_all(querier, queries)]
    made: list[JobReading] = []
    for part in parts:
        count = len(_queries(job, part))
        made += _merged(part, found[:count])
        found = found[count:]
    return made


def _merged(part: ReadingPart, tables: Sequence[Sequence[Record]]) -> Iterator[JobReading]:
    """Rows of the tables with one time as one reading."""
    by_time: dict[datetime, dict[str, Any]] = {}
    for rows in tables:
        for row in rows:
            by_time.setdefault(row["begin"], {}).update(row)
    for begin, values in sorted(by_time.items()):
        yield JobReading(**{**values, "begin": begin, "seconds": float(part.step_s)})


def _queries(job: str, part: ReadingPart) -> Sequence[str]:
    """SELECTs of rows by `begin`; their other columns are fields of `JobReading`."""
    begin = part.begin
    if (
        part.step_s >= _MINUTE_S
    ):  # a row of minutes or hours that began before has the rest of its time
        begin = begin.replace(second=0, microsecond=0)
    if part.step_s >= _HOUR_S:
        begin = begin.replace(minute=0)
    when = f"ts >= {timestamp_sql(begin)} AND ts < {timestamp_sql(part.end)} AND gpu_uuid IN (SELECT unnest($gpus))"
    mine = f"{when} AND job = $job"
    if part.step_s == _SAMPLES_S:
        return (_GPU_SAMPLES.format(when=when), _DETAILS.format(when=when), _PROCESS_SAMPLES.format(mine=mine))  # fmt: skip
    table = "gpu_1m" if part.step_s == _MINUTE_S else "gpu_1h"
    gpus = _GPU_WINDOWS.format(table=table, seconds=part.step_s, when=when, slowed=_SLOWED_SECONDS)
    if table == "gpu_1h":  # no rollup of processes is as coarse
        return (gpus,)
    return (gpus, _PROCESS_MINUTES.format(mine=mine))


_STEP = f"make_timestamp((epoch_us(ts) - 1) // {_SAMPLES_S * 1_000_000} * {_SAMPLES_S * 1_000_000})"
"""A sample reports the time before it."""
_GPU_SAMPLES = f"""
SELECT begin, avg(util) AS util_percent, avg(least) AS util_min_percent, avg(memory) AS memory_bytes,
    avg(power) AS power_watts, avg(slowed) AS throttled_share
FROM (
    SELECT {_STEP} AS begin, avg(util_percent) AS util, min(util_percent) AS least, avg(memory_used_bytes) AS memory,
        avg(power_watts) AS power, avg((clocks_event_reasons & {THROTTLED_BY} <> 0)::TINYINT) AS slowed
    FROM gpu_samples WHERE {{when}} GROUP BY gpu_uuid, begin
) GROUP BY begin
"""
_DETAILS = f"""
SELECT {_STEP} AS begin, avg(sm_active_percent) AS sm_active_percent,
    avg(nvlink_rx_bytes_per_second) AS link_bytes_per_second
FROM gpu_detail_samples WHERE {{when}} GROUP BY begin
"""


def _rate_sql(counter: str) -> str:
    """Its rate since the sample before; NULL where a process has no such counter, or it fell."""
    return f"CASE WHEN {counter} >= lag({counter}) OVER w THEN ({counter} - lag({counter}) OVER w) / seconds END"


_PROCESS_SAMPLES = f"""
SELECT begin, avg(main) AS main_cpu_percent, avg(cpu) AS cpu_percent, avg(workers) AS loader_workers,
    sum(read) AS read_bytes_per_second, sum(written) AS write_bytes_per_second
FROM (
    SELECT begin, node, pid, avg(main_cpu_percent) AS main, avg(cpu_percent) AS cpu, avg(loader_workers) AS workers,
        max(read) AS read, max(written) AS written
    FROM (
        SELECT {_STEP} AS begin, node, pid, main_cpu_percent, cpu_percent, loader_workers,
            {_rate_sql("read_chars_total")} AS read, {_rate_sql("write_bytes_total")} AS written
        FROM (
            SELECT *, (epoch_ms(ts) - lag(epoch_ms(ts)) OVER (PARTITION BY node, gpu_uuid, pid ORDER BY ts)) / 1000 AS seconds
            FROM process_samples WHERE {{mine}}
        ) WINDOW w AS (PARTITION BY node, gpu_uuid, pid ORDER BY ts)
    ) GROUP BY begin, node, pid
) GROUP BY begin
"""
_GPU_WINDOWS = """
SELECT ts AS begin, avg(util_percent_avg) AS util_percent, avg(util_percent_min) AS util_min_percent,
    avg(memory_used_bytes_avg) AS memory_bytes, avg(power_watts_avg) AS power_watts,
    avg(sm_active_percent_avg) AS sm_active_percent,
    avg(coalesce(nvlink_rx_bytes_per_second_avg, nvlink_rx_bytes_delta / {seconds})) AS link_bytes_per_second,
    avg(greatest({slowed}) / nullif(idle_seconds + busy_seconds + unknown_seconds, 0)) AS throttled_share
FROM {table} WHERE {when} GROUP BY ts
"""
_PROCESS_MINUTES = """
SELECT begin, avg(main) AS main_cpu_percent, avg(cpu) AS cpu_percent, avg(workers) AS loader_workers,
    sum(read) AS read_bytes_per_second, sum(written) AS write_bytes_per_second
FROM (
    SELECT ts AS begin, node, pid, avg(main_cpu_percent_avg) AS main, avg(cpu_percent_avg) AS cpu,
        avg(loader_workers_avg) AS workers, max(read_chars_delta) / 60 AS read, max(write_bytes_delta) / 60 AS written
    FROM process_1m WHERE {mine} GROUP BY ts, node, pid
) GROUP BY begin
"""
