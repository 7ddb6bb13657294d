"""Rollups computed row by row, as their documentation says it: what the SQL is compared with."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from gpuwarden.metrics import Type
from gpuwarden.rollups import (
    IDLE_BELOW_PERCENT,
    LOOKBACK_MINUTES,
    REASONS,
    Rollup,
    RollupPart,
)

Row = dict[str, Any]
MINUTE = timedelta(minutes=1)


def minute_of(ts: datetime) -> datetime:
    return ts.replace(second=0, microsecond=0)


def rolled_up(rollup: Rollup, samples: Mapping[str, Iterable[Row]]) -> dict[tuple[Any, ...], Row]:
    """Rows of a rollup of minutes by key, from all samples by table."""
    out: dict[tuple[Any, ...], Row] = {}
    for part in rollup.parts:
        series: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        for row in samples.get(part.table, ()):
            series[tuple(row[name] for name in rollup.by)].append(row)
        for key, rows in series.items():
            rows.sort(key=lambda r: r["ts"])
            for start in sorted({minute_of(r["ts"]) for r in rows}):
                made = out.setdefault((*key, start), dict.fromkeys(rollup.table.names))
                made.update(zip((*rollup.by, "ts"), (*key, start), strict=True))
                _add(made, part, rows, start)
    for made in out.values():
        for part in rollup.parts:
            made[part.count.name] = made[part.count.name] or 0
    _add_expected(out, rollup, samples.get("coverage", ()))
    return out


def _add(made: Row, part: RollupPart, series: list[Row], start: datetime) -> None:
    inside = [r for r in series if minute_of(r["ts"]) == start]
    before = [r for r in series if start - LOOKBACK_MINUTES * MINUTE <= r["ts"] < start]
    made[part.count.name] = len(inside)
    if made["simulated"] is None:
        made["simulated"] = any(r["simulated"] for r in inside)
    for name in part.carried:
        if made[name] is None:
            made[name] = _last(inside, name)
    for summary in part.summaries:
        values = [r[summary.source] for r in inside if r.get(summary.source) is not None]
        earlier = [r[summary.source] for r in before if r.get(summary.source) is not None]
        made[summary.column.name] = _summarised(summary.how, values, earlier[-1:])
    if part.has_activity:
        _add_activity(made, inside, before)


def _summarised(how: str, values: list[Any], before: list[Any]) -> Any:
    if how == "delta":
        readings = [*before, *values] if values else []
        gains = [_gain(a, b) for a, b in pairwise(readings)]
        return sum(gains) if gains else None
    if not values:
        return None
    match how:
        case "avg":
            return sum(values) / len(values)
        case "p95":
            return sorted(values)[max(0, math.ceil(0.95 * len(values)) - 1)]
        case "last":
            return values[-1]
        case "min":
            return min(values)
        case _:
            return max(values)


def _gain(before: Any, now: Any) -> Any:
    if now >= before:
        return now - before
    return now if now < before / 2 else 0


def _add_activity(made: Row, inside: list[Row], before: list[Row]) -> None:
    times = [r["ts"] for r in [*before[-1:], *inside]]
    gaps = [(b - a).total_seconds() for a, b in pairwise(times)]
    each = min(60.0, min(gaps, default=1.0) or 1.0)
    known = [r["util_percent"] for r in inside if r.get("util_percent") is not None]
    idle = sum(util < IDLE_BELOW_PERCENT for util in known)
    made["idle_seconds"] = idle * each if known else None
    made["busy_seconds"] = (len(known) - idle) * each if known else None
    made["unknown_seconds"] = (len(inside) - len(known)) * each
    reasons = [
        r["clocks_event_reasons"] for r in inside if r.get("clocks_event_reasons") is not None
    ]
    for bit, column in REASONS.items():
        count = sum(bool(bits & bit) for bits in reasons)
        made[column.name] = count * each if reasons else None


def _add_expected(
    out: Mapping[tuple[Any, ...], Row], rollup: Rollup, coverage: Iterable[Row]
) -> None:
    table = next((p.table for p in rollup.parts if p.has_coverage), None)
    due: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in coverage:
        if row["table_name"] == table:
            start = minute_of(row["ts"] - timedelta(milliseconds=1))
            due[(*(row.get(name) for name in rollup.by), start)] += row["expected"]
    for key, made in out.items():
        of_node = (made["node"], *(None for _ in rollup.by[1:]), made["ts"])
        if table is not None:
            made["expected"] = due.get(key, due.get(of_node))


def _last(rows: list[Row], name: str) -> Any:
    values = [r[name] for r in rows if r.get(name) is not None]
    return values[-1] if values else None


def hours_of(rollup: Rollup, minutes: Iterable[Row]) -> dict[tuple[Any, ...], Row]:
    """Rows of a rollup of hours by key, from rows of its minutes."""
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in minutes:
        key = (*(row[name] for name in rollup.by), row["ts"].replace(minute=0))
        groups[key].append(row)
    return {key: _hour(rollup, key, rows) for key, rows in groups.items()}


def _hour(rollup: Rollup, key: tuple[Any, ...], rows: list[Row]) -> Row:
    rows.sort(key=lambda r: r["ts"])
    hows = {s.column.name: (s.how, p.count.name) for p in rollup.parts for s in p.summaries}
    made: Row = dict(zip((*rollup.by, "ts"), key, strict=True))
    for column in rollup.table.columns:
        name = column.name
        if name in made:
            continue
        how, count = hows.get(name, ("", ""))
        told = [r for r in rows if r[name] is not None]
        values = [r[name] for r in told]
        if not values:
            made[name] = None
        elif how == "avg":
            made[name] = sum(r[name] * r[count] for r in told) / sum(r[count] for r in told)
        elif how in ("min", "max", "p95"):
            made[name] = _summarised(how, values, [])
        elif name == "simulated":
            made[name] = any(values)
        elif how == "last" or name == "gpu" or column.type in (Type.STRING, Type.TIMESTAMP):
            made[name] = values[-1]
        else:
            made[name] = sum(values)
    return made
