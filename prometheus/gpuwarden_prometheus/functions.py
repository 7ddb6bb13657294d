"""Translates functions of PromQL. Sources: Prometheus' documentation of functions, and for what it leaves open the
behaviour of Prometheus 2.42 and later."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpuwarden.query import QueryError
from gpuwarden_prometheus.relations import (
    RangeVector,
    Scalar,
    SqlBuilder,
    Vector,
    nameless,
    number_sql,
)
from gpuwarden_prometheus.tiers import MINUTE_MS

_NAN = "'nan'::DOUBLE"


def checked(condition: str, then: str) -> str:
    """SQL of a value where it is defined, NaN elsewhere: DuckDB refuses what PromQL calls NaN."""
    return f"CASE WHEN {condition} THEN {then} ELSE {_NAN} END"


_TIME = "make_timestamp_ms(CAST(v * 1000 AS BIGINT))"
VALUE_FUNCTIONS: Mapping[str, str] = {
    "abs": "abs(v)",
    "ceil": "ceil(v)",
    "floor": "floor(v)",
    "exp": "exp(v)",
    "sqrt": checked("v >= 0", "sqrt(v)"),
    "ln": "CASE WHEN v > 0 THEN ln(v) WHEN v = 0 THEN '-inf'::DOUBLE ELSE 'nan'::DOUBLE END",
    "log2": "CASE WHEN v > 0 THEN log2(v) WHEN v = 0 THEN '-inf'::DOUBLE ELSE 'nan'::DOUBLE END",
    "log10": "CASE WHEN v > 0 THEN log10(v) WHEN v = 0 THEN '-inf'::DOUBLE ELSE 'nan'::DOUBLE END",
    "sgn": "CASE WHEN isnan(v) THEN v ELSE CAST(sign(v) AS DOUBLE) END",
    "deg": "degrees(v)",
    "rad": "radians(v)",
    "sin": checked("isfinite(v)", "sin(v)"),
    "cos": checked("isfinite(v)", "cos(v)"),
    "tan": checked("isfinite(v)", "tan(v)"),
    "asin": checked("abs(v) <= 1", "asin(v)"),
    "acos": checked("abs(v) <= 1", "acos(v)"),
    "atan": "atan(v)",
    "sinh": "sinh(v)",
    "cosh": "cosh(v)",
    "tanh": "tanh(v)",
    "asinh": "asinh(v)",
    "acosh": checked("v >= 1", "acosh(v)"),
    "atanh": "CASE WHEN abs(v) < 1 THEN atanh(v) WHEN abs(v) = 1 THEN v * 'inf'::DOUBLE ELSE 'nan'::DOUBLE END",
}
"""SQL of functions of one value `v`."""

DATE_FUNCTIONS: Mapping[str, str] = {
    "minute": f"minute({_TIME})",
    "hour": f"hour({_TIME})",
    "day_of_week": f"dayofweek({_TIME})",
    "day_of_month": f"day({_TIME})",
    "day_of_year": f"dayofyear({_TIME})",
    "days_in_month": f"day(last_day({_TIME}))",
    "month": f"month({_TIME})",
    "year": f"year({_TIME})",
}
"""SQL of functions of a time `v` in seconds, UTC."""


def mapped(statement: SqlBuilder, vector: Vector, value: str) -> Vector:
    """The vector with another value, of `v` and `i`, without names of metrics."""
    points = statement.add("p", f"SELECT sid, i, CAST({value} AS DOUBLE) AS v FROM {vector.points}")
    return replace(nameless(statement, vector), points=points, order="")


@dataclass(frozen=True, slots=True)
class OverTime:
    """A function of a window's samples."""

    value: str
    """SQL of its value from aggregates of the window's samples."""
    samples_min: int = 1
    keeps_name: bool = False


_RATED_SECONDS = "((lt - ft) / 1000.0)"
"""Time between first and last sample."""


def _extrapolated(is_counter: bool, is_rate: bool) -> str:
    """Growth within the window, extrapolated to its ends: `extrapolatedRate` of Prometheus.

    To a window's end that is further away than 1.1 times the average interval, only half an interval is added. A
    counter is not extrapolated below zero.
    """
    growth = "(lv - fv + sd - fd)" if is_counter else "(lv - fv)"
    interval = f"({_RATED_SECONDS} / (n - 1))"
    to_start, to_end = "((ft - since) / 1000.0)", "((until - lt) / 1000.0)"
    to_zero = f"({_RATED_SECONDS} * (fv / {growth}))"
    start = f"CASE WHEN {to_start} >= {interval} * 1.1 THEN {interval} / 2 ELSE {to_start} END"
    if is_counter:
        start = (
            f"CASE WHEN {growth} > 0 AND fv >= 0 THEN least({start}, {to_zero}) ELSE {start} END"
        )
    end = f"CASE WHEN {to_end} >= {interval} * 1.1 THEN {interval} / 2 ELSE {to_end} END"
    factor = f"({_RATED_SECONDS} + {start} + {end}) / {_RATED_SECONDS}"
    over = " / ((until - since) / 1000.0)" if is_rate else ""
    return f"{growth} * ({factor}){over}"


OVER_TIME: Mapping[str, OverTime] = {
    "rate": OverTime(_extrapolated(True, True), 2),
    "increase": OverTime(_extrapolated(True, False), 2),
    "delta": OverTime(_extrapolated(False, False), 2),
    "avg_over_time": OverTime("sv / n"),
    "sum_over_time": OverTime("sv"),
    "count_over_time": OverTime("n"),
    "min_over_time": OverTime("mn"),
    "max_over_time": OverTime("mx"),
    "last_over_time": OverTime("lv", keeps_name=True),
    "first_over_time": OverTime("fv", keeps_name=True),
    "present_over_time": OverTime("1"),
    "changes": OverTime("sc - fc"),
    "resets": OverTime("sr - fr"),
}
"""Functions of what parts of a window have: `n` samples from `ft` to `lt`, their first and last value `fv` and `lv`,
sum `sv`, least `mn`, greatest `mx`; and of steps between samples the sum with that before the part, and this one alone:
`sd` and `fd` (the value that a counter lost at a reset), `sc` and `fc` (a change), `sr` and `fr` (a reset)."""

WHOLE: Mapping[str, OverTime] = {
    "stddev_over_time": OverTime("stddev_pop(v)"),
    "stdvar_over_time": OverTime("var_pop(v)"),
    "mad_over_time": OverTime("mad(v)"),
    "deriv": OverTime(
        "CASE WHEN max(v) = min(v) THEN 0 ELSE regr_slope(v, (t - until) / 1000.0) END", 2
    ),
}
"""Functions that need all samples of the window at once: SQL of aggregates of `v` and `t`."""
LAST_TWO: Mapping[str, str] = {
    "irate": "(lv - CASE WHEN lv < pv THEN 0 ELSE pv END) / ((lt - pt) / 1000.0)",
    "idelta": "lv - pv",
}
"""Functions of the window's last two samples."""

_PARTS: Mapping[str, str] = {
    "n": "sum(n)",
    "ft": "min(ft)",
    "lt": "max(lt)",
    "fv": "arg_min(fv, ft)",
    "lv": "arg_max(lv, lt)",
    "sv": "sum(sv)",
    "mn": "min(mn)",
    "mx": "coalesce(max(mx) FILTER (NOT isnan(mx)), max(mx))",
    "sd": "sum(sd)",
    "fd": "arg_min(fd, ft)",
    "sc": "sum(sc)",
    "fc": "arg_min(fc, ft)",
    "sr": "sum(sr)",
    "fr": "arg_min(fr, ft)",
}
"""How parts become one."""
_JOINED_MAX = 64
"""Up to this number of windows a join repeats rows in less time than `unnest`."""
_PART_MS = 5_000
"""Shortest part of a window whose samples are summarised first: most tables have a row a second."""


def over_time(statement: SqlBuilder, samples: RangeVector, name: str) -> Vector:
    """A function of each window: of `OVER_TIME`, `WHOLE` or `LAST_TWO`."""
    if name in OVER_TIME:
        found = OVER_TIME[name]
        points = _of_parts(statement, samples, found)
    elif name in WHOLE:
        found = WHOLE[name]
        points = of_windows(statement, samples, found.value, found.samples_min)
    else:
        found = OverTime(LAST_TWO[name], 2)
        points = _of_last_two(statement, samples, found.value)
    return of_points(statement, samples, points, keeps_name=found.keeps_name)


def of_points(
    statement: SqlBuilder, samples: RangeVector, points: str, *, keeps_name: bool = False
) -> Vector:
    """The vector of a range vector's series with the points that a function gave."""
    vector = Vector(
        samples.series, expanded(statement, samples, points), samples.has_names, samples.may_repeat
    )
    return vector if keeps_name else nameless(statement, vector)


def of_windows(
    statement: SqlBuilder, samples: RangeVector, value: str, samples_min: int = 1
) -> str:
    """Points of aggregates of each window's samples: SQL of `v`, `t` and the window's end `until`."""
    windows = statement.add("w", _windows(samples, samples.samples, "t", "t", "sid, t, v"))
    until = samples.grid.ms_sql
    return statement.add(
        "p",
        f"SELECT sid, i, CAST({value} AS DOUBLE) AS v FROM (SELECT *, {until} AS until FROM {windows}) "
        f"GROUP BY sid, i HAVING count(*) >= {samples_min}",
    )


def expanded(statement: SqlBuilder, samples: RangeVector, points: str) -> str:
    """Repeat the values of one instant at all steps, if the samples are of one."""
    if not samples.expand_to:
        return points
    return statement.add(
        "p", f"SELECT sid, unnest(range({samples.expand_to})) AS i, v FROM {points}"
    )


def _of_parts(statement: SqlBuilder, samples: RangeVector, found: OverTime) -> str:
    grid = samples.grid
    used = {"n", "ft", "lt", *re.findall(r"\w+", found.value)}
    joined = ", ".join(f"{how} AS {name}" for name, how in _PARTS.items() if name in used)
    parts = samples.samples
    if not samples.has_parts:
        parts = statement.add("q", _steps_between(samples, found.value))
    part_ms = _part_ms(samples)
    if part_ms >= (MINUTE_MS + 1 if samples.has_parts else _PART_MS):
        # Where no part is in a window in part, the samples of a part are in the same windows.
        part = f"((ft - {grid.start_ms - samples.window_ms + 1}) // {part_ms})"
        parts = statement.add("q", f"SELECT sid, {joined} FROM {parts} GROUP BY sid, {part}")
    windows = statement.add("w", _windows(samples, parts, "ft", "lt", "*"))
    until = grid.ms_sql
    return statement.add(
        "p",
        f"SELECT sid, i, CAST({found.value} AS DOUBLE) AS v FROM (SELECT *, {until} AS until, "
        f"{until} - {samples.window_ms} AS since FROM (SELECT sid, i, {joined} FROM {windows} GROUP BY sid, i)) "
        f"WHERE n >= {found.samples_min}",
    )


def _part_ms(samples: RangeVector) -> int:
    if samples.grid.steps == 1:
        return samples.window_ms
    return math.gcd(samples.window_ms, samples.grid.step_ms)


def _steps_between(samples: RangeVector, value: str) -> str:
    """Each sample as a part of its own."""
    one = "SELECT sid, 1 AS n, t AS ft, t AS lt, v AS fv, v AS lv, v AS sv, v AS mn, v AS mx"
    if not {"sd", "sc", "sr"} & set(value.replace("(", " ").replace(")", " ").split()):
        none = ", ".join(f"0 AS {name}" for name in ("sd", "fd", "sc", "fc", "sr", "fr"))
        return f"{one}, {none} FROM {samples.samples}"
    return (
        f"{one}, sd, sd AS fd, sc, sc AS fc, sr, sr AS fr FROM (SELECT *, "
        "CASE WHEN v < pv THEN pv ELSE 0 END AS sd, CASE WHEN v < pv THEN 1 ELSE 0 END AS sr, "
        "CASE WHEN v <> pv THEN 1 ELSE 0 END AS sc FROM "
        f"(SELECT sid, t, v, lag(v) OVER (PARTITION BY sid ORDER BY t) AS pv FROM {samples.samples}))"
    )


def _of_last_two(statement: SqlBuilder, samples: RangeVector, value: str) -> str:
    before = "OVER (PARTITION BY sid ORDER BY t)"
    pairs = f"(SELECT *, lag(v) {before} AS pv, lag(t) {before} AS pt FROM {samples.samples})"
    windows = statement.add("w", _windows(samples, pairs, "t", "t", "*"))
    since = f"{samples.grid.ms_sql} - {samples.window_ms}"
    return statement.add(
        "p",
        f"SELECT sid, i, CAST({value} AS DOUBLE) AS v FROM (SELECT sid, i, arg_max(v, t) AS lv, max(t) AS lt, "
        f"arg_max(pv, t) AS pv, arg_max(pt, t) AS pt FROM {windows} WHERE pt IS NOT NULL GROUP BY sid, i) "
        f"WHERE pt > {since} AND lt > pt",
    )


def _windows(samples: RangeVector, rows: str, first: str, last: str, columns: str) -> str:
    """Each row once for each window that it is in. `first`, `last`: columns of its time."""
    grid = samples.grid
    # Rounded up; the divided number is never negative, because DuckDB rounds towards zero.
    shift = samples.window_ms // grid.step_ms + 1
    base_ms = grid.start_ms - shift * grid.step_ms
    since = f"greatest(0, ({last} - {base_ms + 1 - grid.step_ms}) // {grid.step_ms} - {shift})"
    until = f"least({grid.steps}, ({first} + {samples.window_ms} - {base_ms + 1}) // {grid.step_ms} - {shift} + 1)"
    most = samples.window_ms // grid.step_ms + 2
    if most <= _JOINED_MAX:
        return f"SELECT {columns}, {since} + k AS i FROM {rows}, range({most}) r(k) WHERE {since} + k < {until}"
    return f"SELECT {columns}, unnest(range({since}, {until})) AS i FROM {rows}"


def quantile_sql(scalar: Scalar) -> str:
    """SQL of an aggregate: the quantile of values, interpolated."""
    if scalar.constant is None:
        raise QueryError("a quantile must be a number, not an expression of series")
    at = scalar.constant
    if math.isnan(at):
        return f"CASE WHEN count(*) > 0 THEN {_NAN} END"
    if at < 0 or at > 1:
        return f"CASE WHEN count(*) > 0 THEN '{'-' if at < 0 else ''}inf'::DOUBLE END"
    return f"quantile_cont(v, {at!r})"


def scalar_sql(scalar: Scalar, points: str) -> tuple[str, str]:
    """A relation with the scalar's value `w` beside points: (FROM, SQL of the value)."""
    if scalar.points:
        return f"{points} JOIN (SELECT i, v AS w FROM {scalar.points}) USING (i)", "w"
    return points, f"({scalar.sql})"


def clamped(
    statement: SqlBuilder, vector: Vector, low: Scalar | None, high: Scalar | None
) -> Vector:
    """Values within bounds; a lower bound above the upper one leaves none."""
    least = low.constant if low else float("-inf")
    most = high.constant if high else float("inf")
    if least is None or most is None:
        raise QueryError("clamp needs numbers as bounds, not expressions of series")
    if least > most:
        empty = statement.add("p", f"SELECT * FROM {vector.points} WHERE false")
        return nameless(statement, replace(vector, points=empty))
    if math.isnan(least) or math.isnan(most):
        return mapped(statement, vector, _NAN)
    bounded = f"greatest({number_sql(least)}, least({number_sql(most)}, v))"
    return mapped(statement, vector, f"CASE WHEN isnan(v) THEN v ELSE {bounded} END")
