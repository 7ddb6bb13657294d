"""Translates selectors of PromQL to SQL of the sample tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from gpuwarden.alert import compiled_pattern
from gpuwarden.query import QueryError, text_sql, timestamp_sql
from gpuwarden_prometheus import tiers
from gpuwarden_prometheus.metrics import NamedMetric, named_metrics
from gpuwarden_prometheus.relations import (
    NAME,
    Grid,
    RangeVector,
    SqlBuilder,
    Vector,
    label_sql,
    labels_sql,
    no_series,
)
from gpuwarden_prometheus.tiers import RolledUntil

NOTHING_ROLLED = RolledUntil()
PART_COLUMNS = "n, ft, lt, fv, lv, sv, mn, mx, sd, fd, sc, fc, sr, fr"
METRICS_MAX = 100
"""Most metrics that one selector may match."""
_GAP_MS = 60_000
"""Counters that stopped for longer have no rate, as on the exporter."""
_COLUMNS = {
    "node": "node",
    "Hostname": "node",
    "hostname": "node",
    "gpu_uuid": "gpu_uuid",
    "UUID": "gpu_uuid",
}
"""Labels that are columns of the samples, so that a matcher can limit the rows that are read."""


@dataclass(frozen=True, slots=True)
class LabelMatcher:
    """A condition of a selector: `op` is =, !=, =~ or !~."""

    name: str
    op: str
    value: str

    def sql(self, value: str) -> str:
        """SQL of the condition for a label's value."""
        if self.op in ("=", "!="):
            return f"{value} {'=' if self.op == '=' else '<>'} {text_sql(self.value)}"
        negated = "NOT " if self.op == "!~" else ""
        return f"{negated}regexp_full_match({value}, {text_sql(self.value)}, 's')"


@dataclass(frozen=True, slots=True)
class Selection:
    """A selector without its range: the metrics that it may match, and alternatives of matchers for their labels."""

    metrics: Sequence[NamedMetric]
    matchers: Sequence[Sequence[LabelMatcher]]


def selection(name: str | None, alternatives: Sequence[Sequence[LabelMatcher]]) -> Selection:
    """The metrics that a selector matches. Raises QueryError if they are too many."""
    known = named_metrics()
    found: list[NamedMetric] = []
    for metric_name, metrics in known.items():
        if name is not None and metric_name != name:
            continue
        if any(
            all(_matches(m, metric_name) for m in group if m.name == NAME) for group in alternatives
        ):
            found += metrics
    if len(found) > METRICS_MAX:
        raise QueryError(
            f"a selector matches {len(found)} metrics; at most {METRICS_MAX} are read at once: name the metric"
        )
    return Selection(found, [[m for m in group if m.name != NAME] for group in alternatives])


def _matches(matcher: LabelMatcher, name: str) -> bool:
    if matcher.op in ("=", "!="):
        return (matcher.value == name) == (matcher.op == "=")
    try:
        pattern = compiled_pattern(matcher.value)
    except ValueError as error:
        raise QueryError(
            f"the regular expression {matcher.value!r} cannot be used: {error}"
        ) from error
    return (pattern.fullmatch(name) is not None) == (matcher.op == "=~")


def instant_vector(
    statement: SqlBuilder,
    selected: Selection,
    grid: Grid,
    lookback_ms: int,
    known: RolledUntil = NOTHING_ROLLED,
) -> Vector:
    """The newest reading at each step; `points` has its time `t` in milliseconds too."""
    found = []
    before: list[tuple[str, str]] = []
    for metric in selected.metrics:
        rolled = tiers.of_instants(metric.rolled, grid.step_ms, grid.steps)
        keep_ms = metric.keep_ms if metric.is_kept_longer else min(lookback_ms, metric.keep_ms)
        if rolled is not None:
            keep_ms = max(keep_ms, rolled.window_ms)
        behind = -(-keep_ms // grid.step_ms)
        base_ms = grid.start_ms - behind * grid.step_ms
        step = f"greatest(0, (epoch_ms(ts) - {base_ms + 1 - grid.step_ms}) // {grid.step_ms} - {behind})"
        key = ", ".join(metric.source.key)
        read = tiers.pieces(rolled, metric.rolled, grid.start_ms - keep_ms, grid.end_ms, known)
        rows = " UNION ALL ".join(_rows(metric, selected, piece) for piece in read)
        readings = statement.add(
            "b",
            f"SELECT {key}, {step} AS i, arg_max({metric.value}, ts) AS v, epoch_ms(max(ts)) AS t "
            f"FROM ({rows}) GROUP BY {key}, i",
            materialized=True,
        )
        series = _series(statement, metric, selected, readings, read, before)
        before.append((metric.name, series))
        joined = f"SELECT s.sid, b.i, b.v, b.t FROM {readings} b JOIN {series} s USING ({key})"
        found.append((series, statement.add("p", _held(joined, grid, keep_ms))))
    return _union(statement, found, "i, v, t", "0::BIGINT AS i, 0::DOUBLE AS v, 0::BIGINT AS t")


def _held(points: str, grid: Grid, keep_ms: int) -> str:
    """Hold each reading until the next one, for at most `keep_ms`."""
    last = f"(t + {keep_ms - 1 - grid.start_ms}) // {grid.step_ms}"
    if grid.steps == 1 or keep_ms <= grid.step_ms:
        return f"SELECT sid, i, v, t FROM ({points}) WHERE i <= {last}"
    following = f"coalesce(lead(i) OVER (PARTITION BY sid ORDER BY i), {grid.steps})"
    until = f"least({following}, {last} + 1)"
    return f"SELECT sid, unnest(range(i, until)) AS i, v, t FROM (SELECT *, {until} AS until FROM ({points}))"


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows that end at the steps of a grid, and the function that is applied to them ("": another)."""

    grid: Grid
    window_ms: int
    function: str = ""
    expand_to: int = 0
    """See `RangeVector.expand_to`."""


def range_vector(
    statement: SqlBuilder,
    selected: Selection,
    windows: Windows,
    known: RolledUntil = NOTHING_ROLLED,
) -> RangeVector:
    """All readings of windows; of rollups their parts, if the function can be answered from them."""
    grid, since_ms = windows.grid, windows.grid.start_ms - windows.window_ms
    tier_of = {
        metric.name: tiers.of_windows(
            metric.rolled, windows.function, windows.window_ms, grid.step_ms, grid.steps
        )
        for metric in selected.metrics
    }
    has_parts = known.minutes_ms > since_ms and any(tier_of.values())
    found = []
    before: list[tuple[str, str]] = []
    for metric in selected.metrics:
        key = ", ".join(metric.source.key)
        read = tiers.pieces(tier_of[metric.name], metric.rolled, since_ms, grid.end_ms, known)
        rows = (
            _parts(metric, selected, read, windows.function)
            if has_parts
            else f"SELECT {key}, epoch_ms(ts) AS t, {metric.value} AS v FROM ({_rows(metric, selected, read[0])})"
        )
        readings = statement.add("b", rows, materialized=True)
        series = _series(statement, metric, selected, readings, read, before)
        before.append((metric.name, series))
        columns = PART_COLUMNS if has_parts else "t, v"
        samples = f"SELECT s.sid, {columns} FROM {readings} b JOIN {series} s USING ({key})"
        found.append((series, statement.add("r", samples)))
    columns = PART_COLUMNS if has_parts else "t, v"
    vector = _union(statement, found, columns, "0::BIGINT AS t, 0::DOUBLE AS v")
    return RangeVector(
        vector.series,
        vector.points,
        windows.window_ms,
        grid,
        vector.has_names,
        vector.may_repeat,
        has_parts,
        windows.expand_to,
    )


def _parts(
    metric: NamedMetric, selected: Selection, read: Sequence[tiers.Piece], function: str
) -> str:
    """Rows (key, parts of a window), see `functions.OVER_TIME`: a rollup's row is a part at the end of its window."""
    key = ", ".join(metric.source.key)
    none = ", ".join(f"0 AS {name}" for name in ("sd", "fd", "sc", "fc", "sr", "fr"))
    if function in ("rate", "increase"):
        grown = " UNION ALL ".join(_growth(metric, selected, piece) for piece in read)
        # Any start will do, if it is not so near to zero that a rate would be extrapolated to zero.
        total = f"sum(d) OVER (PARTITION BY {key} ORDER BY t) + sum(d) OVER (PARTITION BY {key})"
        counted = f"SELECT {key}, t, {metric.scaled(f'({total})')} AS v FROM ({grown})"
        return (
            f"SELECT {key}, 1 AS n, t AS ft, t AS lt, v AS fv, v AS lv, v AS sv, v AS mn, v AS mx, {none} "
            f"FROM ({counted})"
        )
    found = []
    for piece in read:
        if piece.rolled is None:
            found.append(
                f"SELECT {key}, 1 AS n, t AS ft, t AS lt, v AS fv, v AS lv, v AS sv, v AS mn, v AS mx, {none} FROM "
                f"(SELECT {key}, epoch_ms(ts) AS t, {metric.value} AS v FROM ({_rows(metric, selected, piece)}))"
            )
            continue
        rolled = piece.rolled
        last = metric.scaled(_double(rolled.one("last", "avg", "max")))
        mean, least, most = (
            metric.scaled(_double(rolled.one(how, "last", "avg", "max")))
            for how in ("avg", "min", "max")
        )
        t = f"(epoch_ms(ts) + {rolled.window_ms})"
        found.append(
            f"SELECT {key}, {rolled.count} AS n, {t} AS ft, {t} AS lt, {last} AS fv, {last} AS lv, "
            f"{mean} * {rolled.count} AS sv, {least} AS mn, {most} AS mx, {none} FROM {rolled.table} "
            f"WHERE {_where(metric, selected, piece)} AND {rolled.one('last', 'avg', 'max')} IS NOT NULL"
        )
    return " UNION ALL ".join(found)


def _growth(metric: NamedMetric, selected: Selection, piece: tiers.Piece) -> str:
    """Rows (key, t, d) of a counter's growth."""
    key = ", ".join(metric.source.key)
    if piece.rolled is not None:
        delta = piece.rolled.one("delta")
        return (
            f"SELECT {key}, epoch_ms(ts) + {piece.rolled.window_ms} AS t, {_double(delta)} AS d "
            f"FROM {piece.rolled.table} WHERE {_where(metric, selected, piece)} AND {delta} IS NOT NULL"
        )
    rows = _rows(metric, selected, replace(piece, after_ms=piece.after_ms - _GAP_MS))
    # As long as the others, because extrapolation looks at the average interval.
    minute = f"(epoch_ms(ts) - 1) // {tiers.MINUTE_MS}"
    return (
        f"SELECT {key}, least((minute + 1) * {tiers.MINUTE_MS}, {piece.until_ms}) AS t, sum(d) AS d FROM ("
        f"SELECT {key}, {minute} AS minute, CASE WHEN x < px THEN x ELSE coalesce(x - px, 0) END AS d FROM "
        f"(SELECT *, lag(x) OVER (PARTITION BY {key} ORDER BY ts) AS px FROM ({rows})) "
        f"WHERE {between(piece.after_ms, piece.until_ms)}) GROUP BY {key}, minute"
    )


def _double(column: str) -> str:
    return f"CAST({column} AS DOUBLE)"


def _union(
    statement: SqlBuilder, found: Sequence[tuple[str, str]], columns: str, nothing: str
) -> Vector:
    if not found:
        none = statement.add("p", f"SELECT 0::BIGINT AS sid, {nothing} WHERE false")
        return Vector(no_series(statement), none, has_names=True)
    if len(found) == 1:
        return Vector(*found[0], has_names=True)
    many = len(found)
    series = " UNION ALL ".join(
        f"SELECT sid * {many} + {n} AS sid, l FROM {s}" for n, (s, _) in enumerate(found)
    )
    points = " UNION ALL ".join(
        f"SELECT sid * {many} + {n} AS sid, {columns} FROM {p}" for n, (_, p) in enumerate(found)
    )
    return Vector(
        statement.add("s", series), statement.add("p", points), has_names=True, may_repeat=True
    )


def _where(metric: NamedMetric, selected: Selection, piece: tiers.Piece) -> str:
    """Conditions for the rows of a piece of a time span."""
    shift_ms = 0 if piece.rolled is None else piece.rolled.window_ms
    span = between(piece.after_ms - shift_ms, piece.until_ms - shift_ms)
    return " AND ".join([span, *_limits(metric, selected.matchers)])


def _rows(metric: NamedMetric, selected: Selection, piece: tiers.Piece) -> str:
    """Rows (key, ts, x) of a metric's readings."""
    key = ", ".join(metric.source.key)
    where = _where(metric, selected, piece)
    if piece.rolled is not None:
        columns = piece.rolled.columns.get("delta" if metric.is_rate else "last")
        columns = columns or piece.rolled.columns["avg"]
        value = " + ".join(_double(column) for column in columns)
        over = f" / {piece.rolled.window_ms // 1000}" if metric.is_rate else ""
        return (
            f"SELECT {key}, ts + INTERVAL {piece.rolled.window_ms // 1000} SECOND AS ts, ({value}){over} AS x "
            f"FROM {piece.rolled.table} WHERE {where} AND {columns[0]} IS NOT NULL"
        )
    relation = _relation(metric, piece)
    if not metric.is_rate:
        column = metric.columns[0]
        return f"SELECT {key}, ts, {_double(column)} AS x FROM {relation} WHERE {where} AND {column} IS NOT NULL"
    grown_since = replace(piece, after_ms=piece.after_ms - _GAP_MS)
    growth = [f"{column} - lag({column}) OVER w" for column in metric.columns]
    seconds = "((epoch_ms(ts) - epoch_ms(lag(ts) OVER w)) / 1000.0)"
    grown = " AND ".join(f"{column} >= lag({column}) OVER w" for column in metric.columns)
    rate = (
        f"SELECT {key}, ts, CASE WHEN {grown} AND {seconds} <= {_GAP_MS // 1000} THEN ({' + '.join(growth)}) / {seconds} "
        f"END AS x FROM {relation} WHERE {_where(metric, selected, grown_since)} AND {metric.columns[0]} IS NOT NULL "
        f"WINDOW w AS (PARTITION BY {key} ORDER BY ts)"
    )
    return f"FROM ({rate}) WHERE x IS NOT NULL AND {between(piece.after_ms, piece.until_ms)}"


def _relation(metric: NamedMetric, piece: tiers.Piece) -> str:
    if piece.rolled is not None:
        return piece.rolled.table
    return metric.source.rows(instant_sql(piece.after_ms), instant_sql(piece.until_ms))


def _series(
    statement: SqlBuilder,
    metric: NamedMetric,
    selected: Selection,
    readings: str,
    read: Sequence[tiers.Piece],
    before: Iterable[tuple[str, str]] = (),
) -> str:
    """Number the series that have readings, and give them their labels: (sid, l, key).

    `read`: where the readings are; `before`: names of metrics and series that come before; of a name that two tables have, the first has the series.
    """
    source = metric.source
    key = ", ".join(source.key)
    described = "".join(f", any_value({column}) AS {column}" for column in source.described)
    keys = " UNION ALL ".join(
        f"SELECT {key}{described} FROM {_relation(metric, piece)} WHERE {_where(metric, selected, piece)} GROUP BY {key}"
        for piece in read
    )
    if len(read) > 1:
        keys = f"SELECT {key}{described} FROM ({keys}) GROUP BY {key}"
    if source.computed is not None:
        keys = f"SELECT DISTINCT {key} FROM {readings}"
    labels = labels_sql([(NAME, text_sql(metric.name)), *metric.labels])
    joins = "LEFT JOIN nodes n USING (node)" if source.computed is None else ""
    if source.has_gpu:
        joins += " LEFT JOIN gpus g USING (gpu_uuid)"
    vendor = " WHERE g.vendor IS NULL OR g.vendor = 'nvidia'" if metric.only_nvidia else ""
    named = (
        f"SELECT {', '.join(f'k.{column}' for column in source.key)}, {labels} AS l FROM "
        f"(SELECT DISTINCT {key} FROM {readings}) d JOIN ({keys}) k USING ({key}) {joins}{vendor}"
    )
    for name, series in before:
        if name == metric.name:
            named = f"SELECT n.* FROM ({named}) n ANTI JOIN {series} USING ({key})"
    return statement.add(
        "s",
        f"SELECT row_number() OVER () AS sid, * FROM ({named}) WHERE {matched(selected.matchers)}",
        materialized=True,
    )


def series_in(
    statement: SqlBuilder,
    metric: NamedMetric,
    alternatives: Sequence[Sequence[LabelMatcher]],
    start_ms: int,
    end_ms: int,
    *,
    is_of_table: bool = False,
) -> str:
    """Series with readings in a time span: (sid, l, key). `is_of_table`: readings of any metric of the table."""
    selected = Selection([metric], alternatives)
    piece = tiers.Piece(start_ms - 1, end_ms, None)
    rows = _rows(metric, selected, piece)
    if is_of_table:
        rows = f"FROM {_relation(metric, piece)} WHERE {_where(metric, selected, piece)}"
    keys = f"SELECT DISTINCT {', '.join(metric.source.key)} FROM ({rows})"
    readings = statement.add("b", keys, materialized=True)
    return _series(statement, metric, selected, readings, [piece])


def matched(alternatives: Sequence[Sequence[LabelMatcher]]) -> str:
    """SQL of the condition for labels `l`."""
    groups = [
        " AND ".join(matcher.sql(label_sql(matcher.name)) for matcher in group)
        for group in alternatives
    ]
    return "true" if not all(groups) else "(" + " OR ".join(f"({group})" for group in groups) + ")"


def _limits(metric: NamedMetric, alternatives: Sequence[Sequence[LabelMatcher]]) -> Iterable[str]:
    """Conditions for columns of the samples, which limit the rows that are read."""
    if len(alternatives) != 1:
        return
    for matcher in alternatives[0]:
        column = _COLUMNS.get(matcher.name)
        if column in metric.source.key and matcher.name in dict(metric.labels):
            yield matcher.sql(str(column))


def between(after_ms: int, until_ms: int) -> str:
    """SQL of the condition for a time span, its start excluded."""
    return f"ts > {instant_sql(after_ms)} AND ts <= {instant_sql(until_ms)}"


def instant_sql(ms: int) -> str:
    """SQL of an instant. Raises QueryError."""
    try:
        return timestamp_sql(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms))
    except OverflowError as error:
        raise QueryError("the query reaches beyond the times that can be stored") from error
