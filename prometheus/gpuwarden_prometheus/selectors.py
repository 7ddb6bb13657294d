"""Translates selectors of PromQL to SQL of the sample tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gpuwarden.alert import compiled_pattern
from gpuwarden.query import QueryError, text_sql, timestamp_sql
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
    statement: SqlBuilder, selected: Selection, grid: Grid, lookback_ms: int
) -> Vector:
    """The newest reading at each step; `points` has its time `t` in milliseconds too."""
    found = []
    before: list[tuple[str, str]] = []
    for metric in selected.metrics:
        keep_ms = metric.keep_ms if metric.is_kept_longer else min(lookback_ms, metric.keep_ms)
        behind = -(-keep_ms // grid.step_ms)
        base_ms = grid.start_ms - behind * grid.step_ms
        step = f"greatest(0, (epoch_ms(ts) - {base_ms + 1 - grid.step_ms}) // {grid.step_ms} - {behind})"
        key = ", ".join(metric.source.key)
        rows = _rows(metric, selected, grid.start_ms - keep_ms, grid.end_ms)
        readings = statement.add(
            "b",
            f"SELECT {key}, {step} AS i, arg_max({metric.value}, ts) AS v, epoch_ms(max(ts)) AS t "
            f"FROM ({rows}) GROUP BY {key}, i",
            materialized=True,
        )
        span = grid.start_ms - keep_ms, grid.end_ms
        series = _series(statement, metric, selected, readings, *span, before)
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


def range_vector(
    statement: SqlBuilder, selected: Selection, grid: Grid, window_ms: int, expand_to: int
) -> RangeVector:
    """All readings of windows that end at the steps."""
    since_ms = grid.start_ms - window_ms
    found = []
    before: list[tuple[str, str]] = []
    for metric in selected.metrics:
        key = ", ".join(metric.source.key)
        rows = _rows(metric, selected, since_ms, grid.end_ms)
        readings = statement.add(
            "b",
            f"SELECT {key}, epoch_ms(ts) AS t, {metric.value} AS v FROM ({rows})",
            materialized=True,
        )
        series = _series(statement, metric, selected, readings, since_ms, grid.end_ms, before)
        before.append((metric.name, series))
        samples = f"SELECT s.sid, b.t, b.v FROM {readings} b JOIN {series} s USING ({key})"
        found.append((series, statement.add("r", samples)))
    vector = _union(statement, found, "t, v", "0::BIGINT AS t, 0::DOUBLE AS v")
    return RangeVector(
        vector.series,
        vector.points,
        window_ms,
        grid,
        vector.has_names,
        vector.may_repeat,
        expand_to,
    )


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


def _rows(metric: NamedMetric, selected: Selection, after_ms: int, until_ms: int) -> str:
    """Rows (key, ts, x) of a metric's readings."""
    key = ", ".join(metric.source.key)
    where = " AND ".join([between(after_ms, until_ms), *_limits(metric, selected.matchers)])
    if not metric.is_rate:
        column = metric.columns[0]
        return (
            f"SELECT {key}, ts, CAST({column} AS DOUBLE) AS x FROM {_relation(metric, after_ms, until_ms)} "
            f"WHERE {where} AND {column} IS NOT NULL"
        )
    where = " AND ".join(
        [between(after_ms - _GAP_MS, until_ms), *_limits(metric, selected.matchers)]
    )
    growth = [f"{column} - lag({column}) OVER w" for column in metric.columns]
    seconds = "((epoch_ms(ts) - epoch_ms(lag(ts) OVER w)) / 1000.0)"
    grown = " AND ".join(f"{column} >= lag({column}) OVER w" for column in metric.columns)
    rate = (
        f"SELECT {key}, ts, CASE WHEN {grown} AND {seconds} <= {_GAP_MS // 1000} THEN ({' + '.join(growth)}) / {seconds} "
        f"END AS x FROM {metric.source.name} WHERE {where} AND {metric.columns[0]} IS NOT NULL "
        f"WINDOW w AS (PARTITION BY {key} ORDER BY ts)"
    )
    return f"FROM ({rate}) WHERE x IS NOT NULL AND {between(after_ms, until_ms)}"


def _relation(metric: NamedMetric, after_ms: int, until_ms: int) -> str:
    return metric.source.rows(instant_sql(after_ms), instant_sql(until_ms))


def _series(
    statement: SqlBuilder,
    metric: NamedMetric,
    selected: Selection,
    readings: str,
    after_ms: int,
    until_ms: int,
    before: Iterable[tuple[str, str]] = (),
) -> str:
    """Number the series that have readings, and give them their labels: (sid, l, key).

    `before`: names of metrics and series that come before; of a name that two tables have, the first has the series.
    """
    source = metric.source
    key = ", ".join(source.key)
    where = " AND ".join([between(after_ms, until_ms), *_limits(metric, selected.matchers)])
    described = "".join(f", any_value({column}) AS {column}" for column in source.described)
    keys = f"SELECT {key}{described} FROM {source.name} WHERE {where} GROUP BY {key}"
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
    rows = _rows(metric, selected, start_ms - 1, end_ms)
    if is_of_table:
        rows = (
            f"FROM {_relation(metric, start_ms - 1, end_ms)} WHERE {between(start_ms - 1, end_ms)}"
        )
    keys = f"SELECT DISTINCT {', '.join(metric.source.key)} FROM ({rows})"
    readings = statement.add("b", keys, materialized=True)
    return _series(statement, metric, selected, readings, start_ms - 1, end_ms)


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
