"""Reads what happened to a GPU or a node over a span: slow clocks and bottlenecks as strips, events and alerts as marks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuwarden.metrics import reason_names
from gpuwarden.query import Querier, query_all
from gpuwarden.rollups import REASONS
from gpuwarden_dashboards.read.series import Place, Span

MARKS_MAX = 500
_QUIET_REASONS = 0x1 | 0x2
"""Idle and application clocks: set on any healthy GPU."""


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """Something that happened, or that held from `begin_ms` to `end_ms`; None: it still holds."""

    kind: str
    """event, alert or diagnosis"""
    name: str
    severity: str
    text: str
    gpu: int | None
    begin_ms: int
    end_ms: int | None


@dataclass(frozen=True, slots=True)
class Strip:
    """A condition by column of the span: whether it held at any time in it."""

    gpu: int | None
    name: str
    held: Sequence[int]
    """Numbers of columns."""


@dataclass(frozen=True, slots=True)
class PlaceTimeline:
    """Marks in their order, and strips."""

    marks: Sequence[TimelineMark]
    strips: Sequence[Strip]


async def read_timeline(querier: Querier, place: Place, span: Span) -> PlaceTimeline:
    """What happened over the span. Raises QueryError."""
    where = place.where
    params: Mapping[str, Any] = {**place.params, "begin": span.begin, "end": span.end}
    of_diagnoses = (
        f"kind = 'gpu' AND {where}" if place.node else where.replace("gpu_uuid ", "subject ")
    )
    queries = (
        f"""
        SELECT kind AS name, severity, message AS text, gpu, epoch_ms(ts) AS begin_ms,
            epoch_ms(ts) AS end_ms
        FROM events WHERE {where} AND ts >= $begin AND ts < $end ORDER BY ts DESC LIMIT {MARKS_MAX}
        """,
        f"""
        SELECT rule AS name, severity, summary AS text, gpu, epoch_ms(began_at) AS begin_ms,
            epoch_ms(resolved_at) AS end_ms
        FROM alerts WHERE {where} AND fired_at IS NOT NULL AND began_at < $end
            AND coalesce(resolved_at, $end) >= $begin
        ORDER BY began_at DESC LIMIT {MARKS_MAX}
        """,
        f"""
        SELECT bottleneck AS name, 'info' AS severity, summary AS text, gpu,
            epoch_ms(began_at) AS begin_ms, epoch_ms(ended_at) AS end_ms
        FROM diagnoses WHERE {of_diagnoses} AND began_at < $end
            AND coalesce(ended_at, $end) >= $begin
        ORDER BY began_at DESC LIMIT {MARKS_MAX}
        """,
        _reasons_sql(where, span),
    )
    found = await query_all(querier, [(sql, params) for sql in queries])
    *marking, reasons = (result.records() for result in found)
    marks = [
        TimelineMark(kind, **record)
        for kind, records in zip(("event", "alert", "diagnosis"), marking, strict=True)
        for record in records
    ]
    return PlaceTimeline(
        sorted(marks, key=lambda mark: mark.begin_ms), list(_strips(reasons, span.columns))
    )


def _reasons_sql(where: str, span: Span) -> str:
    place = f"(epoch_ms(ts) - {span.begin_ms}) // {span.step_ms}"
    if span.resolution_s == 1:
        return f"""
            SELECT gpu, {place} AS place, bit_or(clocks_event_reasons) AS bits FROM gpu_samples
            WHERE {where} AND ts >= $begin AND ts < $end AND clocks_event_reasons IS NOT NULL
            GROUP BY gpu, place HAVING bits & ~{_QUIET_REASONS} <> 0 ORDER BY gpu, place
        """
    bits = " | ".join(
        f"CASE WHEN max({column.name}) > 0 THEN {bit} ELSE 0 END"
        for bit, column in REASONS.items()
        if bit is not None and not bit & _QUIET_REASONS
    )
    table = "gpu_1m" if span.resolution_s == 60 else "gpu_1h"
    return f"""
        SELECT gpu, {place} AS place, {bits} AS bits FROM {table}
        WHERE {where} AND ts >= $begin AND ts < $end
        GROUP BY gpu, place HAVING bits <> 0 ORDER BY gpu, place
    """


def _strips(records: Sequence[Mapping[str, Any]], columns: int) -> list[Strip]:
    held: dict[tuple[int | None, str], list[int]] = {}
    for record in records:
        if 0 <= record["place"] < columns:
            for name in reason_names(record["bits"] & ~_QUIET_REASONS):
                held.setdefault((record["gpu"], name), []).append(record["place"])
    return [Strip(gpu, name, places) for (gpu, name), places in held.items()]
