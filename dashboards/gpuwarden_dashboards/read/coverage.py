"""Reads how much of what was due became samples, by table and over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuwarden.query import Querier
from gpuwarden_dashboards.read.series import Place, Span

_MISSING = ("missed", "skipped", "late", "failed")


@dataclass(frozen=True, slots=True)
class TableCoverage:
    """Readings of one table over a span; `share` is by column, None where none was due."""

    table: str
    since_ms: int
    """The first minute that is counted: coverage is not kept as long as hours."""
    expected: int
    taken: int
    missed: int
    skipped: int
    late: int
    failed: int
    share: Sequence[float | None]


async def read_coverage(querier: Querier, place: Place, span: Span) -> list[TableCoverage]:
    """By table; what a whole node reads is part of what its GPUs have. Raises QueryError."""
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
        # What was counted by the minute is shown in every column of it.
        first, end = place * step_ms // span.step_ms, -(-(place + 1) * step_ms // span.step_ms)
        for column in range(max(0, first), min(end, span.columns)):
            share[column] = value
    counts = {name: record[name] for name in ("expected", "taken", *_MISSING)}
    return TableCoverage(
        table=record["table_name"], since_ms=record["since_ms"], share=share, **counts
    )
