"""Writes the SQL that computes rollups: minutes from samples, hours from minutes.

Each part of a rollup is computed from its table of samples in three passes. `plain` computes aggregates
that need no order. `steps` adds up the gains of counters from reading to reading within a minute. `ends`
has the last readings of each minute, and of the minutes before, from which the first gain of a minute is
computed. No pass keeps more than one window's samples of its columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from gpuwarden.metrics import Type
from gpuwarden.query import timestamp_sql
from gpuwarden.rollups import (
    ACTIVITY,
    EXPECTED,
    IDLE_BELOW_PERCENT,
    KNOWN_REASONS,
    LOOKBACK_MINUTES,
    REASONS,
    Rollup,
    RollupPart,
    Summary,
)
from gpuwarden.waste import WASTE_1H, WasteScope, waste_sql
from gpuwarden_collector.storage.engine import hot_table


@dataclass(frozen=True, slots=True)
class WindowSpan:
    """The windows to roll up: they start from `begin` to before `end`."""

    begin: datetime
    end: datetime
    share: tuple[int, int] = (0, 1)
    """Index and number of shares of the nodes."""
    units: str | None = None
    """A table of `node` and `ts`: roll up only these windows of these nodes."""
    is_hot: bool = False
    """Whether all its rows are behind the lake, so that the lake is not read."""

    @property
    def nodes(self) -> str:
        """A condition for the nodes of the span."""
        if self.units is not None:
            return f"node IN (SELECT node FROM {self.units})"
        index, count = self.share
        return f"hash(node) % {count} = {index}" if count > 1 else "true"

    def table(self, name: str) -> str:
        """The name under which the rows of a table are read."""
        return hot_table(name) if self.is_hot else f"main.{name}"

    def rows(self, unit: str) -> str:
        """A condition for the samples (`unit`: minute) or minutes (hour) of the span."""
        condition = f"{between(self.begin, self.end)} AND {self.nodes}"
        if self.units is not None:
            window = f"date_trunc('{unit}', ts)"
            condition += f" AND (node, {window}) IN (SELECT (node, ts) FROM {self.units})"
        return condition


def between(begin: datetime, end: datetime) -> str:
    """A condition on `ts` by which DuckDB can skip files and row groups."""
    return f"ts >= {timestamp_sql(begin)} AND ts < {timestamp_sql(end)}"


def rollup_sql(rollup: Rollup, span: WindowSpan) -> str:
    """A SELECT of a rollup's rows, with the table's column names."""
    if rollup is WASTE_1H:
        chosen = f"(node, ts) IN (SELECT (node, ts) FROM {span.units})" if span.units else "true"
        return waste_sql(WasteScope(span.begin, span.end, span.nodes, chosen, span.table))
    if rollup.made_of is not None:
        return _of_minutes_sql(rollup, span)
    by = ", ".join((*rollup.by, "ts"))
    names = [f"part_{number}" for number, _ in enumerate(rollup.parts)]
    ctes = [
        f"{n} AS ({_part_sql(p, rollup, span)})" for n, p in zip(names, rollup.parts, strict=True)
    ]
    joined = names[0] + "".join(f" FULL JOIN {name} USING ({by})" for name in names[1:])
    for part in rollup.parts:
        if part.has_coverage:
            ctes += [f"{name} AS ({sql})" for name, sql in _coverage_sql(part, rollup, span)]
            joined += f" LEFT JOIN covered USING ({by})"
            joined += " LEFT JOIN covered_node USING (node, ts)" * ("gpu_uuid" in rollup.by)
    columns = ", ".join(_joined_columns(rollup, names))
    return f"WITH {', '.join(ctes)} SELECT {columns} FROM {joined}"


def _joined_columns(rollup: Rollup, names: list[str]) -> Iterator[str]:
    counts = {part.count.name for part in rollup.parts}
    places: dict[str, list[str]] = {}
    for name, part in zip(names, rollup.parts, strict=True):
        for column_name in (*part.carried, "simulated"):
            places.setdefault(column_name, []).append(f"{name}.{column_name}")
    for column in rollup.table.columns:
        if column.name in places:
            yield f"coalesce({', '.join(places[column.name])}) AS {column.name}"
        elif column.name in counts:
            yield f"coalesce({column.name}, 0) AS {column.name}"
        elif column is EXPECTED and "gpu_uuid" in rollup.by:
            yield "coalesce(covered.expected, covered_node.expected) AS expected"
        else:
            yield column.name


def _part_sql(part: RollupPart, rollup: Rollup, span: WindowSpan) -> str:
    by = ", ".join(rollup.by)
    key = f"{by}, ts"
    counters = [s for s in part.summaries if s.how == "delta"]
    plain = (
        f"SELECT {by}, date_trunc('minute', ts) AS ts, {', '.join(_plain_columns(part))} "
        f"FROM {span.table(part.table)} WHERE {span.rows('minute')} GROUP BY ALL"
    )
    if not counters:
        return plain
    sources = [s.source for s in counters]
    befores = [f"lag({c} IGNORE NULLS) OVER w AS {c}_before" for c in sources]
    lagged = (
        f"SELECT {by}, minute AS ts, t, lag(t) OVER w AS t_before, {', '.join(sources)}, "
        f"{', '.join(befores)} FROM (SELECT {by}, date_trunc('minute', ts) AS minute, "
        f"epoch_ms(ts) AS t, {', '.join(sources)} FROM {span.table(part.table)} "
        f"WHERE {span.rows('minute')}) WINDOW w AS (PARTITION BY {by}, minute ORDER BY t)"
    )
    steps = ", ".join(
        f"sum({_step(f'{c}_before', c)}) AS {c}_steps, "
        f"max({c}) FILTER (WHERE {c}_before IS NULL) AS {c}_first"
        for c in sources
    )
    lasts = ", ".join(f"arg_max({c}, ts) AS {c}" for c in sources)
    earlier = f"{_with_lookback(span)} AND {span.nodes}"
    befores = [f"last_value({c} IGNORE NULLS) OVER w AS {c}_before" for c in sources]
    return (
        f"WITH plain AS ({plain}), lagged AS ({lagged}), "
        f"steps AS (SELECT {key}, min(t) AS t_first, min(t - t_before) AS spacing, {steps} "
        "FROM lagged GROUP BY ALL), "
        f"ends AS (SELECT {by}, date_trunc('minute', ts) AS minute, max(epoch_ms(ts)) AS t, {lasts} "
        f"FROM {span.table(part.table)} WHERE {earlier} GROUP BY ALL), "
        f"before AS (SELECT {by}, minute AS ts, last_value(t) OVER w AS t_before, "
        f"{', '.join(befores)} FROM ends WINDOW w AS (PARTITION BY {by} ORDER BY minute "
        f"RANGE BETWEEN INTERVAL {LOOKBACK_MINUTES} MINUTE PRECEDING "
        "AND INTERVAL 1 MINUTE PRECEDING)) "
        f"SELECT {key}, {', '.join(_ordered_columns(part))} "
        f"FROM plain JOIN steps USING ({key}) JOIN before USING ({key})"
    )


def _with_lookback(span: WindowSpan) -> str:
    """A condition on `ts` as `between`, with the minutes that may hold the reading before the first window."""
    begin = timestamp_sql(span.begin)
    return f"ts >= {begin} - INTERVAL {LOOKBACK_MINUTES} MINUTE AND ts < {timestamp_sql(span.end)}"


def _plain_columns(part: RollupPart) -> Iterator[str]:
    yield f"count(*)::INTEGER AS {part.count.name}"
    yield "bool_or(simulated) AS simulated"
    for name in part.carried:
        yield f"arg_max({name}, ts) AS {name}"
    if part.has_activity:
        idle, busy, unknown = (column.name for column in ACTIVITY)
        # Counts of samples; `_ordered_columns` makes them seconds.
        yield f"sum((util_percent < {IDLE_BELOW_PERCENT})::INTEGER) AS {idle}"
        yield f"sum((util_percent >= {IDLE_BELOW_PERCENT})::INTEGER) AS {busy}"
        yield f"count(*) - count(util_percent) AS {unknown}"
        for bit, column in REASONS.items():
            mask = ~KNOWN_REASONS if bit is None else bit
            yield f"sum((clocks_event_reasons & ({mask}) <> 0)::INTEGER) AS {column.name}"
    for summary in part.summaries:
        if summary.how != "delta":
            yield f"{_aggregate(summary)} AS {summary.column.name}"


def _aggregate(summary: Summary) -> str:
    source = summary.source
    match summary.how:
        case "avg":
            return _fitting(f"avg({source})", Type.FLOAT32)
        case "p95":
            return f"quantile_disc({source}, 0.95)"
        case "last":
            return f"arg_max({source}, ts)"
        case how:
            return f"{how}({source})"


def _ordered_columns(part: RollupPart) -> Iterator[str]:
    activity = {c.name for c in (*ACTIVITY, *REASONS.values())} if part.has_activity else set()
    yield from (f"plain.{name}" for name in (part.count.name, "simulated", *part.carried))
    for name in sorted(activity):
        yield f"({name} * {_SECONDS_EACH})::FLOAT AS {name}"
    for summary in part.summaries:
        if summary.how != "delta":
            yield summary.column.name
            continue
        steps, first = (
            f"{summary.source}_steps",
            _step(f"before.{summary.source}_before", f"{summary.source}_first"),
        )
        gained = _fitting(f"coalesce({steps} + {first}, {steps}, {first})", summary.column.type)
        yield f"{gained} AS {summary.column.name}"


_SECONDS_EACH = (
    "least(60.0, coalesce(nullif(least(spacing, t_first - before.t_before), 0), 1000) / 1000.0)"
)
"""Seconds that a sample represents: the least time between two samples."""


def _step(before: str, now: str) -> str:
    """The gain of a counter between two readings; NULL if one is missing.

    A counter that fell below half of its value was reset, and its new value is the gain. A smaller fall means
    that a part of the sum is gone, such as a removed interface, and the gain is 0.
    """
    return (
        f"CASE WHEN {now} >= {before} THEN {now} - {before} "
        f"WHEN {now} < {before} / 2 THEN {now} WHEN {now} < {before} THEN 0 END"
    )


def _coverage_sql(part: RollupPart, rollup: Rollup, span: WindowSpan) -> Iterator[tuple[str, str]]:
    """Names and queries of expected samples. A row of `coverage` counts the minute that ends at its instant; a row
    without a GPU is of a probe that reads the whole node."""
    inner = (
        "SELECT *, date_trunc('minute', ts - INTERVAL 1 MILLISECOND) AS minute "
        f"FROM {span.table('coverage')} "
        f"WHERE ts > {timestamp_sql(span.begin)} AND ts <= {timestamp_sql(span.end)}"
    )
    due = f"minute AS ts, try_cast(sum(expected) AS INTEGER) AS {EXPECTED.name}"
    rows = f"FROM ({inner}) WHERE table_name = '{part.table}' AND {span.nodes}"
    yield "covered", f"SELECT {', '.join(rollup.by)}, {due} {rows} GROUP BY ALL"
    if "gpu_uuid" in rollup.by:
        yield "covered_node", f"SELECT node, {due} {rows} AND gpu_uuid IS NULL GROUP BY ALL"


def _of_minutes_sql(rollup: Rollup, span: WindowSpan) -> str:
    assert rollup.made_of is not None
    by = ", ".join(rollup.by)
    columns = ", ".join(_of_minutes_columns(rollup))
    return (
        f"SELECT {by}, date_trunc('hour', ts) AS ts, {columns} FROM {span.table(rollup.made_of)} "
        f"WHERE {span.rows('hour')} GROUP BY ALL"
    )


def _of_minutes_columns(rollup: Rollup) -> Iterator[str]:
    hows = {s.column.name: (s.how, p.count.name) for p in rollup.parts for s in p.summaries}
    for column in rollup.table.columns:
        name = column.name
        if name in (*rollup.by, "ts"):
            continue
        how, count = hows.get(name, ("", ""))
        if how == "avg":
            known = f"sum({count}) FILTER (WHERE {name} IS NOT NULL)"
            made = _fitting(f"sum({name}::DOUBLE * {count}) / {known}", column.type)
        elif how in ("min", "max"):
            made = f"{how}({name})"
        elif how == "p95":
            made = f"quantile_disc({name}, 0.95)"
        elif name == "simulated":
            made = f"bool_or({name})"
        elif how == "last" or column.type in (Type.STRING, Type.TIMESTAMP) or name == "gpu":
            made = f"arg_max({name}, ts)"
        else:
            made = _fitting(f"sum({name})", column.type)
        yield f"{made} AS {name}"


def _fitting(expression: str, kind: Type) -> str:
    """The value in a column's type; NULL if it does not fit, so that one absurd reading does not fail the rollup."""
    if kind in (Type.FLOAT32, Type.FLOAT64):
        name = "FLOAT" if kind is Type.FLOAT32 else "DOUBLE"
        return f"nullif(try_cast({expression} AS {name}), 'inf')"
    return f"try_cast({expression} AS {'INTEGER' if kind is Type.INT32 else 'BIGINT'})"
