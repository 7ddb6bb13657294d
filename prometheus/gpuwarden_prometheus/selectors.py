"""Translates selectors of PromQL to SQL of the sample tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from gpuwarden.alert import compiled_pattern
from gpuwarden.prometheus_names import OWNER_LABELS, SLURM_JOB_SQL
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
from gpuwarden_prometheus.tiers import Piece, RolledUntil

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
    only: frozenset[str] | None = None
    """The labels that what follows looks at; None: all."""

    def labels_of(self, metric: NamedMetric) -> list[tuple[str, str]]:
        """Names and SQL of the labels that are needed."""
        labels = [(NAME, text_sql(metric.name)), *metric.labels]
        if self.only is None:
            return labels
        matched_by = {matcher.name for group in self.matchers for matcher in group}
        return [pair for pair in labels if pair[0] in self.only or pair[0] in matched_by]


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
        keep_ms = metric.keep_ms if metric.is_kept_longer else min(lookback_ms, metric.keep_ms)
        usable = tiers.of_instants(
            metric.rolled, grid.step_ms, grid.whole_steps, is_rate=metric.is_rate
        )
        spans = tiers.step_spans(usable, grid.start_ms, grid.step_ms, grid.steps, known)
        read = [
            Piece(
                grid.start_ms
                + span.first * grid.step_ms
                - (span.rolled.window_ms if span.rolled else keep_ms),
                grid.start_ms + span.last * grid.step_ms,
                span.rolled,
            )
            for span in spans
        ]
        source = _Read(statement, metric, selected, read)
        series = source.series(before)
        before.append((metric.name, series))
        points = [
            _newest(source, piece, grid, span, keep_ms)
            if piece.rolled is None
            else _rolled_instants(source, piece, grid)
            for span, piece in zip(spans, read, strict=True)
        ]
        found.append((series, statement.add("p", " UNION ALL ".join(points))))
    return _union(statement, found, "i, v, t", "0::BIGINT AS i, 0::DOUBLE AS v, 0::BIGINT AS t")


def _rolled_instants(source: "_Read", piece: Piece, grid: Grid) -> str:
    """Points of a rollup's rows. A row is the newest for as long as its window: no two are at one step."""
    rolled = piece.rolled
    assert rolled is not None
    at = f"(epoch_ms(ts) + {rolled.window_ms})"
    # Rounded up; the divided number is never negative, because DuckDB rounds towards zero.
    behind = -(-rolled.window_ms // grid.step_ms)
    base_ms = grid.start_ms - behind * grid.step_ms
    step = f"(({at} - {base_ms - grid.step_ms + 1}) // {grid.step_ms} - {behind})"
    rows = f"{source.joined(piece)} AND {source.value(piece)} IS NOT NULL"
    value = source.metric.scaled(source.value(piece))
    if rolled.window_ms <= grid.step_ms:
        is_new = f"{grid.start_ms} + {step} * {grid.step_ms} - {at} < {rolled.window_ms}"
        return f"SELECT s.sid, {step} AS i, {value} AS v, {at} AS t {rows} AND {is_new}"
    until = f"(({at} + {rolled.window_ms - 1} - {base_ms}) // {grid.step_ms} - {behind})"
    first = (piece.after_ms + rolled.window_ms - grid.start_ms) // grid.step_ms
    last = (piece.until_ms - grid.start_ms) // grid.step_ms
    return f"SELECT s.sid, unnest(range(greatest({step}, {first}), least({until}, {last}) + 1)) AS i, {value} AS v, {at} AS t {rows}"


def _newest(source: "_Read", piece: Piece, grid: Grid, span: tiers.StepSpan, keep_ms: int) -> str:
    """Points of the newest samples."""
    behind = -(-keep_ms // grid.step_ms)
    start_ms = grid.start_ms + span.first * grid.step_ms
    base_ms = start_ms - behind * grid.step_ms
    step = (
        f"greatest(0, (epoch_ms(ts) - {base_ms + 1 - grid.step_ms}) // {grid.step_ms} - {behind})"
    )
    value = source.metric.value
    readings = (
        f"SELECT sid, i + {span.first} AS i, arg_max({value}, ts) AS v, epoch_ms(max(ts)) AS t FROM "
        f"(SELECT s.sid, {step} AS i, ts, x FROM ({source.rows(piece)}) JOIN {source.name} s USING ({source.key})) "
        "GROUP BY sid, i"
    )
    return _held(readings, grid, keep_ms)


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
    usable = {
        metric.name: tiers.of_windows(
            metric.rolled, windows.function, windows.window_ms, grid.step_ms, grid.whole_steps
        )
        for metric in selected.metrics
    }
    whole_since_ms = grid.whole_start_ms - windows.window_ms
    has_parts = known.minutes_ms > whole_since_ms and any(usable.values())
    if has_parts:
        # Samples are summed by minute: the first one is whole, as it is where the windows begin earlier.
        since_ms = since_ms // tiers.MINUTE_MS * tiers.MINUTE_MS
    columns = PART_COLUMNS if has_parts else "t, v"
    found = []
    before: list[tuple[str, str]] = []
    for metric in selected.metrics:
        read = tiers.pieces(usable[metric.name], since_ms, grid.end_ms, known)
        source = _Read(statement, metric, selected, read)
        series = source.series(before)
        before.append((metric.name, series))
        if not has_parts:
            samples = (
                f"SELECT s.sid, epoch_ms(ts) AS t, {metric.value} AS v FROM ({source.rows(read[0])}) "
                f"JOIN {series} s USING ({source.key})"
            )
        elif windows.function in ("rate", "increase"):
            samples = _grown_parts(source)
        else:
            samples = " UNION ALL ".join(_parts(source, piece) for piece in read)
        found.append((series, statement.add("r", samples)))
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


_NO_STEPS = ", ".join(f"0 AS {name}" for name in ("sd", "fd", "sc", "fc", "sr", "fr"))


def _parts(source: "_Read", piece: Piece) -> str:
    """Parts of windows, see `functions.OVER_TIME`: a rollup's row is a part at the end of its window."""
    metric, rolled = source.metric, piece.rolled
    if rolled is None:
        return (
            f"SELECT sid, count(*) AS n, t AS ft, t AS lt, any_value(v) AS fv, arg_max(v, ts) AS lv, sum(v) AS sv, "
            f"min(v) AS mn, max(v) AS mx, {_NO_STEPS} FROM "
            f"(SELECT s.sid, ts, {_minute_end(piece)} AS t, {metric.value} AS v FROM ({source.rows(piece)}) "
            f"JOIN {source.name} s USING ({source.key})) GROUP BY sid, t"
        )
    last, mean, least, most = (
        metric.scaled(_double(rolled.one(how, "last", "avg", "max")))
        for how in ("last", "avg", "min", "max")
    )
    t = f"(epoch_ms(ts) + {rolled.window_ms})"
    return (
        f"SELECT s.sid, {rolled.count} AS n, {t} AS ft, {t} AS lt, {last} AS fv, {last} AS lv, "
        f"{mean} * {rolled.count} AS sv, {least} AS mn, {most} AS mx, {_NO_STEPS} {source.joined(piece)} "
        f"AND {rolled.one(*tiers.OF_INSTANTS)} IS NOT NULL"
    )


def _grown_parts(source: "_Read") -> str:
    """Parts of a counter that has grown as the rollups say."""
    grown = " UNION ALL ".join(_growth(source, piece) for piece in source.read)
    d = source.metric.scaled("d")
    # The value is any high number, so that no rate is extrapolated to zero; all growth is in `sd`.
    return (
        "SELECT sid, 1 AS n, t AS ft, t AS lt, 1e18 AS fv, 1e18 AS lv, 0 AS sv, 0 AS mn, 0 AS mx, "
        f"{d} AS sd, {d} AS fd, 0 AS sc, 0 AS fc, 0 AS sr, 0 AS fr FROM ({grown})"
    )


def _growth(source: "_Read", piece: Piece) -> str:
    """Rows (sid, t, d) of a counter's growth."""
    if piece.rolled is not None:
        delta = piece.rolled.one("delta")
        return (
            f"SELECT s.sid, epoch_ms(ts) + {piece.rolled.window_ms} AS t, {_double(delta)} AS d "
            f"{source.joined(piece)} AND {delta} IS NOT NULL"
        )
    rows = source.rows(replace(piece, after_ms=piece.after_ms - _GAP_MS))
    # As long as the others, because extrapolation looks at the average interval.
    return (
        "SELECT sid, t, sum(d) AS d FROM ("
        f"SELECT sid, {_minute_end(piece)} AS t, CASE WHEN x < px THEN x ELSE coalesce(x - px, 0) END AS d FROM "
        f"(SELECT s.sid, ts, x, lag(x) OVER (PARTITION BY s.sid ORDER BY ts) AS px FROM ({rows}) "
        f"JOIN {source.name} s USING ({source.key})) "
        f"WHERE {between(piece.after_ms, piece.until_ms)}) GROUP BY sid, t"
    )


def _minute_end(piece: Piece) -> str:
    """SQL of the end of a sample's minute, as a rollup's row would have it."""
    return f"least(((epoch_ms(ts) - 1) // {tiers.MINUTE_MS} + 1) * {tiers.MINUTE_MS}, {piece.until_ms})"


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


OWNER = "owner_number"
_OF_OWNER = {"pod": "split_part(pod, chr(47), 2)", "job": SLURM_JOB_SQL.format("")}


def owners_sql(read: Sequence[Piece]) -> str:
    """SQL of the owners that schedulers gave GPUs to: (gpu_uuid, since, until, number, labels of dcgm-exporter).

    A minute has its newest owner. One in which several share the GPU has none: a value must not count for each.
    """
    labels = ", ".join(
        f"arg_max({_OF_OWNER.get(column, column)}, ts) AS {label}"
        for label, column in OWNER_LABELS.items()
    )
    of_minutes = (
        f"SELECT gpu_uuid, time_bucket(INTERVAL 1 MINUTE, ts) AS m, arg_max(concat_ws('/', job, container), ts) AS owner, {labels} "
        f"FROM allocation_samples WHERE {between(read[0].after_ms - 2 * tiers.MINUTE_MS, read[-1].until_ms)} "
        "GROUP BY gpu_uuid, m HAVING count(*) = count(DISTINCT ts)"
    )
    follows = "owner = lag(owner) OVER w AND m = lag(m) OVER w + INTERVAL 1 MINUTE"
    stretches = (
        f"SELECT *, sum(is_new) OVER (PARTITION BY gpu_uuid ORDER BY m) AS stretch FROM "
        f"(SELECT *, CASE WHEN {follows} THEN 0 ELSE 1 END AS is_new FROM ({of_minutes}) "
        "WINDOW w AS (PARTITION BY gpu_uuid ORDER BY m))"
    )
    kept = ", ".join(f"any_value({label}) AS {label}" for label in OWNER_LABELS)
    return (
        f"SELECT gpu_uuid, min(m) AS since, max(m) + INTERVAL 1 MINUTE AS until, {kept}, "
        f"dense_rank() OVER (ORDER BY gpu_uuid, owner) AS {OWNER} FROM ({stretches}) GROUP BY gpu_uuid, stretch, owner"
    )


class _Read:
    """Where a metric's readings are, as parts of the statement."""

    def __init__(
        self, statement: SqlBuilder, metric: NamedMetric, selected: Selection, read: Sequence[Piece]
    ) -> None:
        self.metric = metric
        self.read = read
        self._labels = selected.labels_of(metric)
        self._label_sql = " ".join(value for _, value in self._labels)
        self._key = metric.source.key
        self._owners = ""
        if "o." in self._label_sql:
            self._owners = statement.add("o", owners_sql(read), materialized=True)
            self._key = (*metric.source.key, OWNER)
        self.key = ", ".join(self._key)
        """Columns by which readings find their series."""
        self.name = ""
        """The relation of series, once they are numbered."""
        self._statement = statement
        self._selected = selected
        self._computed = ""
        if metric.source.computed is not None:
            after_ms, until_ms = read[0].after_ms, read[-1].until_ms
            rows = metric.source.rows(instant_sql(after_ms), instant_sql(until_ms))
            self._computed = statement.shared("b", f"FROM {rows}")

    def series(self, before: Iterable[tuple[str, str]] = (), *, is_of_table: bool = False) -> str:
        """Number the series, and give them their labels: (sid, l, key).

        `before`: names of metrics and series that come before; of a name that two tables have, the first has the
        series. `is_of_table`: of any metric of the table.
        """
        metric, source = self.metric, self.metric.source
        sql = self._label_sql
        described = "".join(
            f", any_value({column}) AS {column}"
            for column in source.described
            if f"k.{column}" in sql
        )
        keys = " UNION ALL ".join(
            f"SELECT {self.key}{described} FROM {self._relation(piece)} WHERE {self._where(piece)}"
            f"{'' if is_of_table else f' AND {self._read_column(piece)} IS NOT NULL'} GROUP BY {self.key}"
            for piece in self.read
        )
        if len(self.read) > 1:
            keys = f"SELECT {self.key}{described} FROM ({keys}) GROUP BY {self.key}"
        labels = labels_sql(self._labels)
        joins = ""
        if "n." in sql:
            joins += " LEFT JOIN nodes n USING (node)"
        if source.has_gpu and ("g." in sql or metric.only_nvidia):
            joins += " LEFT JOIN gpus g USING (gpu_uuid)"
        if self._owners:
            joins += f" LEFT JOIN (SELECT DISTINCT * EXCLUDE (gpu_uuid, since, until) FROM {self._owners}) o USING ({OWNER})"
        vendor = " WHERE g.vendor IS NULL OR g.vendor = 'nvidia'" if metric.only_nvidia else ""
        named = (
            f"SELECT {', '.join(f'k.{column}' for column in self._key)}, {labels} AS l "
            f"FROM ({keys}) k{joins}{vendor}"
        )
        for name, series in before:
            if name == metric.name:
                plain = ", ".join(source.key)
                named = f"SELECT n.* FROM ({named}) n ANTI JOIN {series} USING ({plain})"
        self.name = self._statement.add(
            "s",
            f"SELECT row_number() OVER () AS sid, * FROM ({named}) WHERE {matched(self._selected.matchers)}",
            materialized=True,
        )
        return self.name

    def value(self, piece: Piece) -> str:
        """SQL of the value of a rollup's row, before it is scaled."""
        assert piece.rolled is not None
        if not self.metric.is_rate:
            return _double(piece.rolled.one("last", "avg"))
        grown = " + ".join(map(_double, piece.rolled.columns["delta"]))
        return f"(({grown}) / {piece.rolled.window_ms // 1000})"

    def joined(self, piece: Piece) -> str:
        """FROM and WHERE of a rollup's rows with their series `s`."""
        return f"FROM {self._relation(piece)} b JOIN {self.name} s USING ({self.key}) WHERE {self._where(piece)}"

    def rows(self, piece: Piece) -> str:
        """Samples (key, ts, x)."""
        metric, relation, where = self.metric, self._relation(piece), self._where(piece)
        if not metric.is_rate:
            column = metric.columns[0]
            return f"SELECT {self.key}, ts, {_double(column)} AS x FROM {relation} WHERE {where} AND {column} IS NOT NULL"
        since = self._where(replace(piece, after_ms=piece.after_ms - _GAP_MS))
        growth = [f"{column} - lag({column}) OVER w" for column in metric.columns]
        seconds = "((epoch_ms(ts) - epoch_ms(lag(ts) OVER w)) / 1000.0)"
        grown = " AND ".join(f"{column} >= lag({column}) OVER w" for column in metric.columns)
        rate = (
            f"SELECT {self.key}, ts, CASE WHEN {grown} AND {seconds} <= {_GAP_MS // 1000} "
            f"THEN ({' + '.join(growth)}) / {seconds} END AS x FROM {relation} "
            f"WHERE {since} AND {metric.columns[0]} IS NOT NULL WINDOW w AS (PARTITION BY {self.key} ORDER BY ts)"
        )
        return f"FROM ({rate}) WHERE x IS NOT NULL AND {between(piece.after_ms, piece.until_ms)}"

    def _relation(self, piece: Piece) -> str:
        table = self._computed or self.metric.source.name
        if piece.rolled is not None:
            table = piece.rolled.table
        if not self._owners:
            return table
        return (
            f"(SELECT b.*, coalesce(o.{OWNER}, 0) AS {OWNER} FROM {table} b LEFT JOIN {self._owners} o "
            "ON o.gpu_uuid = b.gpu_uuid AND b.ts >= o.since AND b.ts < o.until)"
        )

    def _where(self, piece: Piece) -> str:
        shift_ms = 0 if piece.rolled is None else piece.rolled.window_ms
        span = between(piece.after_ms - shift_ms, piece.until_ms - shift_ms)
        return " AND ".join([span, *_limits(self.metric, self._selected.matchers)])

    def _read_column(self, piece: Piece) -> str:
        if piece.rolled is None:
            return self.metric.columns[0]
        return piece.rolled.one(*tiers.OF_INSTANTS, "delta")


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
    read = [Piece(start_ms - 1, end_ms, None)]
    return _Read(statement, metric, selected, read).series(is_of_table=is_of_table)


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
