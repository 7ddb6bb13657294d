"""Reads what happened over a span: states and clock event reasons of GPUs, events, alerts, diagnoses, coverage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low
from typing import Any

from gpuwarden.metrics import THROTTLED_BY, reason_names
from gpuwarden.query import Querier, query_all
from gpuwarden.rollups import IDLE_BELOW_PERCENT, REASONS
from gpuwarden_dashboards.read.fleet import STATES
from gpuwarden_dashboards.read.series import GPUS_MAX, Place, Span

MARKS_MAX = 500
_QUIET_REASONS = 0x1 | 0x2
"""Idle and application clocks, which healthy GPUs have too."""


_MISSING = ("missed", "skipped", "late", "failed")


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """An event, alert or diagnosis from `begin_ms` to `end_ms`; None: ongoing."""

    kind: str
    """event, alert or diagnosis"""
    name: str
    severity: str
    text: str
    node: str | None
    gpu: int | None
    begin_ms: int
    end_ms: int | None


@dataclass(frozen=True, slots=True)
class Strip:
    """A condition, by column of the span."""

    node: str
    gpu: int | None
    name: str
    held: Sequence[int]
    """Numbers of the columns in which it held at any time."""


@dataclass(frozen=True, slots=True)
class GpuStates:
    """States of a GPU."""

    node: str
    gpu: int | None
    gpu_uuid: str
    part: str | None
    """Its MIG instance."""
    runs: Sequence[tuple[int, int, str]]
    """First column, number of columns, one of `STATES`; columns without samples are in no run."""


@dataclass(frozen=True, slots=True)
class PlaceTimeline:
    """Marks by time, strips and states."""

    marks: Sequence[TimelineMark]
    strips: Sequence[Strip]
    states: Sequence[GpuStates]


@dataclass(frozen=True, slots=True)
class TableCoverage:
    """Readings of one table over a span; `share` has a value for each column, None if none was due."""

    table: str
    since_ms: int
    """The first counted minute: coverage is kept for a shorter time than hours."""
    expected: int
    taken: int
    missed: int
    skipped: int
    late: int
    failed: int
    share: Sequence[float | None]


async def read_timeline(querier: Querier, place: Place, span: Span) -> PlaceTimeline:
    """What happened over the span. Raises QueryError."""
    params: Mapping[str, Any] = {**place.params, "begin": span.begin, "end": span.end}
    # Events of a node concern all its GPUs.
    where = f"({place.where} OR gpu_uuid IS NULL AND {place.where_node})"
    of_diagnoses = (
        f"kind = 'gpu' AND {place.where}"
        if place.node
        else place.where.replace("gpu_uuid ", "subject ")
    )
    queries = (
        f"""
        SELECT kind AS name, severity, message AS text, node, gpu, epoch_ms(ts) AS begin_ms,
            epoch_ms(ts) AS end_ms
        FROM events WHERE {where} AND ts >= $begin AND ts < $end ORDER BY ts DESC LIMIT {MARKS_MAX}
        """,
        f"""
        SELECT rule AS name, severity, summary AS text, node, gpu, epoch_ms(began_at) AS begin_ms,
            epoch_ms(resolved_at) AS end_ms
        FROM alerts WHERE {where} AND fired_at IS NOT NULL AND began_at < $end
            AND coalesce(resolved_at, $end) >= $begin
        ORDER BY began_at DESC LIMIT {MARKS_MAX}
        """,
        f"""
        SELECT bottleneck AS name, 'info' AS severity, summary AS text, node, gpu,
            epoch_ms(began_at) AS begin_ms, epoch_ms(ended_at) AS end_ms
        FROM diagnoses WHERE {of_diagnoses} AND began_at < $end
            AND coalesce(ended_at, $end) >= $begin
        ORDER BY began_at DESC LIMIT {MARKS_MAX}
        """,
        _states_sql(place.where, span),
    )
    found = await query_all(querier, [(sql, params) for sql in queries])
    *marking, states = (result.records() for result in found)
    marks = [
        TimelineMark(kind, **record)
        for kind, records in zip(("event", "alert", "diagnosis"), marking, strict=True)
        for record in records
    ]
    return PlaceTimeline(
        sorted(marks, key=lambda mark: mark.begin_ms),
        [strip for record in states for strip in _strips(record)],
        [
            GpuStates(
                r["node"], r["gpu"], r["gpu_uuid"], r["part"], _runs(r["places"], r["states"])
            )
            for r in states
        ],
    )


def _states_sql(where: str, span: Span) -> str:
    """SELECT of one row per GPU: columns with samples, and for each its clock event reasons and state."""
    if span.resolution_s == 1:
        table = "gpu_samples"
        bits = "bit_or(coalesce(clocks_event_reasons, 0))::BIGINT"
        busy = f"avg(util_percent) >= {IDLE_BELOW_PERCENT}"
    else:
        table = "gpu_1m" if span.resolution_s == 60 else "gpu_1h"
        bits = " | ".join(
            f"CASE WHEN max({column.name}) > 0 THEN {bit} ELSE 0 END"
            for bit, column in REASONS.items()
            if not bit & _QUIET_REASONS
        )
        # NULL if neither is known.
        busy = "sum(busy_seconds) >= nullif(sum(idle_seconds + busy_seconds), 0) / 2"
    return f"""
        WITH cut AS (
            SELECT gpu_uuid, (epoch_ms(ts) - {span.begin_ms}) // {span.step_ms} AS place,
                max(node) AS node, max(gpu) AS gpu, max(mig_instance) AS part, {bits} AS bits, {busy} AS is_busy
            FROM {table} WHERE {where} AND ts >= $begin AND ts < $end GROUP BY gpu_uuid, place
        )
        SELECT gpu_uuid, max(node) AS node, max(gpu) AS gpu, max(part) AS part,
            list(place ORDER BY place) AS places, list(bits & ~{_QUIET_REASONS} ORDER BY place) AS bits,
            list(CASE WHEN bits & {THROTTLED_BY} <> 0 THEN 2 WHEN is_busy THEN 1 WHEN NOT is_busy THEN 0 ELSE 3 END
                ORDER BY place) AS states
        FROM cut GROUP BY gpu_uuid ORDER BY node, gpu, part NULLS FIRST LIMIT {GPUS_MAX}
    """


def _strips(record: Mapping[str, Any]) -> list[Strip]:
    held: dict[str, list[int]] = {}
    for place, bits in zip(record["places"], record["bits"], strict=True):
        for name in reason_names(bits) if bits else ():
            held.setdefault(name, []).append(place)
    return [Strip(record["node"], record["gpu"], name, places) for name, places in held.items()]


def _runs(places: Sequence[int], states: Sequence[int]) -> list[tuple[int, int, str]]:
    """Joins columns of one state at the usual distance into runs."""
    usual = median_low([b - a for a, b in pairwise(places)]) if len(places) > 1 else 1
    runs: list[tuple[int, int, int]] = []
    for place, state in zip(places, states, strict=True):
        first, count, of = runs[-1] if runs else (place, 0, state)
        is_near = place - (first + count - 1) <= 2 * usual
        if runs and is_near:
            # Between two readings the state of the first one holds.
            runs[-1] = (first, place - first, of)
        if runs and is_near and of == state:
            runs[-1] = (first, place - first + 1, of)
        else:
            runs.append((place, 1, state))
    return [(first, count, STATES[state]) for first, count, state in runs]


async def read_coverage(querier: Querier, place: Place, span: Span) -> list[TableCoverage]:
    """Coverage by table; readings of a whole node count for its GPUs. Raises QueryError."""
    where = f"({place.where} OR gpu_uuid IS NULL AND {place.where_node})"
    sums = ", ".join(f"sum({name}) AS {name}" for name in ("expected", "taken", *_MISSING))
    step_ms = max(span.step_ms, 60_000)
    found = await querier.query(
        f"""
        WITH cut AS (
            SELECT table_name, (epoch_ms(ts) - 60000 - {span.begin_ms}) // {step_ms} AS place, {sums},
                min(ts) - INTERVAL 1 MINUTE AS since
            FROM coverage WHERE {where} AND ts > $begin AND ts <= $end GROUP BY table_name, place
        )
        SELECT table_name, {", ".join(f"sum({n})::BIGINT AS {n}" for n in ("expected", "taken", *_MISSING))},
            epoch_ms(min(since)) AS since_ms, list(place ORDER BY place) AS places,
            list(round(taken / nullif(expected, 0), 4) ORDER BY place) AS shares
        FROM cut GROUP BY table_name ORDER BY table_name
        """,
        {**place.params, "begin": span.begin, "end": span.end},
    )
    return [_covered(record, span, step_ms) for record in found.records()]


def _covered(record: dict[str, Any], span: Span, step_ms: int) -> TableCoverage:
    share: list[float | None] = [None] * span.columns
    for place, value in zip(record["places"], record["shares"], strict=True):
        # A minute counts for every column in it.
        first, end = place * step_ms // span.step_ms, -(-(place + 1) * step_ms // span.step_ms)
        for column in range(max(0, first), min(end, span.columns)):
            share[column] = value
    counts = {name: record[name] for name in ("expected", "taken", *_MISSING)}
    return TableCoverage(
        table=record["table_name"], since_ms=record["since_ms"], share=share, **counts
    )
