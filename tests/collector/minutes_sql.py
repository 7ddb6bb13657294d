"""Writes the SQL that defines rollups of minutes, which `storage/minutes.py` is compared with.

Each part of a rollup is computed from its table of samples in three passes. `plain` computes aggregates
that need no order. `steps` adds up the gains of counters from reading to reading within a minute. `ends`
has the last readings of each minute, and of the minutes before, from which the first gain of a minute is
computed.
"""

from collections.abc import Iterator
from datetime import datetime

from gpuwarden.metrics import Type
from gpuwarden.query import timestamp_sql
from gpuwarden.rollups import (
    ACTIVITY,
    EXPECTED,
    IDLE_BELOW_PERCENT,
    LOOKBACK_MINUTES,
    REASONS,
    Rollup,
    RollupPart,
    Summary,
)
from gpuwarden_collector.storage.engine import hot_table
from gpuwarden_collector.storage.rollup_sql import between, fitting


def minutes_sql(rollup: Rollup, begin: datetime, end: datetime) -> str:
    """A SELECT of a rollup's rows from `hot_table` of its samples, with the table's column names."""
    by = ", ".join((*rollup.by, "ts"))
    names = [f"part_{number}" for number, _ in enumerate(rollup.parts)]
    ctes = [
        f"{n} AS ({_part_sql(p, rollup, begin, end)})"
        for n, p in zip(names, rollup.parts, strict=True)
    ]
    joined = names[0] + "".join(f" FULL JOIN {name} USING ({by})" for name in names[1:])
    for part in rollup.parts:
        if part.has_coverage:
            ctes += [f"{name} AS ({sql})" for name, sql in _coverage_sql(part, rollup, begin, end)]
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


def _part_sql(part: RollupPart, rollup: Rollup, begin: datetime, end: datetime) -> str:
    by = ", ".join(rollup.by)
    key = f"{by}, ts"
    counters = [s for s in part.summaries if s.how == "delta"]
    plain = (
        f"SELECT {by}, date_trunc('minute', ts) AS ts, {', '.join(_plain_columns(part))} "
        f"FROM {hot_table(part.table)} WHERE {between(begin, end)} GROUP BY ALL"
    )
    if not counters:
        return plain
    sources = [s.source for s in counters]
    befores = [f"lag({c} IGNORE NULLS) OVER w AS {c}_before" for c in sources]
    lagged = (
        f"SELECT {by}, minute AS ts, t, lag(t) OVER w AS t_before, {', '.join(sources)}, "
        f"{', '.join(befores)} FROM (SELECT {by}, date_trunc('minute', ts) AS minute, "
        f"epoch_ms(ts) AS t, {', '.join(sources)} FROM {hot_table(part.table)} "
        f"WHERE {between(begin, end)}) WINDOW w AS (PARTITION BY {by}, minute ORDER BY t)"
    )
    steps = ", ".join(
        f"sum({_step(f'{c}_before', c)}) AS {c}_steps, "
        f"max({c}) FILTER (WHERE {c}_before IS NULL) AS {c}_first"
        for c in sources
    )
    lasts = ", ".join(f"arg_max({c}, ts) AS {c}" for c in sources)
    earlier = f"{_with_lookback(begin, end)}"
    befores = [f"last_value({c} IGNORE NULLS) OVER w AS {c}_before" for c in sources]
    return (
        f"WITH plain AS ({plain}), lagged AS ({lagged}), "
        f"steps AS (SELECT {key}, min(t) AS t_first, min(t - t_before) AS spacing, {steps} "
        "FROM lagged GROUP BY ALL), "
        f"ends AS (SELECT {by}, date_trunc('minute', ts) AS minute, max(epoch_ms(ts)) AS t, {lasts} "
        f"FROM {hot_table(part.table)} WHERE {earlier} GROUP BY ALL), "
        f"before AS (SELECT {by}, minute AS ts, last_value(t) OVER w AS t_before, "
        f"{', '.join(befores)} FROM ends WINDOW w AS (PARTITION BY {by} ORDER BY minute "
        f"RANGE BETWEEN INTERVAL {LOOKBACK_MINUTES} MINUTE PRECEDING "
        "AND INTERVAL 1 MINUTE PRECEDING)) "
        f"SELECT {key}, {', '.join(_ordered_columns(part))} "
        f"FROM plain JOIN steps USING ({key}) JOIN before USING ({key})"
    )


def _with_lookback(begin: datetime, end: datetime) -> str:
    """A condition on `ts` as `between`, with the minutes that may hold the reading before the first window."""
    since = f"{timestamp_sql(begin)} - INTERVAL {LOOKBACK_MINUTES} MINUTE"
    return f"ts >= {since} AND ts < {timestamp_sql(end)}"


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
            yield f"sum((clocks_event_reasons & {bit} <> 0)::INTEGER) AS {column.name}"
    for summary in part.summaries:
        if summary.how != "delta":
            yield f"{_aggregate(summary)} AS {summary.column.name}"


def _aggregate(summary: Summary) -> str:
    source = summary.source
    match summary.how:
        case "avg":
            return fitting(f"avg({source})", Type.FLOAT32)
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
        gained = fitting(f"coalesce({steps} + {first}, {steps}, {first})", summary.column.type)
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


def _coverage_sql(
    part: RollupPart, rollup: Rollup, begin: datetime, end: datetime
) -> Iterator[tuple[str, str]]:
    """Names and queries of expected samples. A row of `coverage` counts the minute that ends at its instant; a row
    without a GPU is of a probe that reads the whole node."""
    inner = (
        "SELECT *, date_trunc('minute', ts - INTERVAL 1 MILLISECOND) AS minute "
        f"FROM {hot_table('coverage')} "
        f"WHERE ts > {timestamp_sql(begin)} AND ts <= {timestamp_sql(end)}"
    )
    due = f"minute AS ts, try_cast(sum(expected) AS INTEGER) AS {EXPECTED.name}"
    rows = f"FROM ({inner}) WHERE table_name = '{part.table}'"
    yield "covered", f"SELECT {', '.join(rollup.by)}, {due} {rows} GROUP BY ALL"
    if "gpu_uuid" in rollup.by:
        yield "covered_node", f"SELECT node, {due} {rows} AND gpu_uuid IS NULL GROUP BY ALL"
