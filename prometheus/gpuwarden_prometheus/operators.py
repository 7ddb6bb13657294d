"""Translates binary operators and aggregations of PromQL."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuwarden.query import QueryError
from gpuwarden_prometheus.functions import checked, quantile_sql, scalar_sql
from gpuwarden_prometheus.relations import (
    NAME,
    Scalar,
    SqlBuilder,
    Vector,
    identity_sql,
    label_sql,
    labels_sql,
    nameless,
    only_sql,
    renumbered,
    with_sql,
    without_sql,
)

COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})
SET_OPERATORS = frozenset({"and", "or", "unless"})
ARITHMETIC: Mapping[str, str] = {
    "+": "{a} + {b}",
    "-": "{a} - {b}",
    "*": "{a} * {b}",
    "/": "{a} / {b}",
    "%": checked("isfinite({a}) AND {b} <> 0 AND NOT isnan({b})", "{a} % {b}"),
    "^": checked(
        "NOT isnan({a}) AND NOT isnan({b}) AND NOT ({a} < 0 AND isfinite({b}) AND {b} <> trunc({b}))",
        "pow({a}, {b})",
    ),
    "atan2": "atan2({a}, {b})",
}


@dataclass(frozen=True, slots=True)
class Matching:
    """How two vectors are matched."""

    labels: Sequence[str] = ()
    is_on: bool = False
    """By these labels only, not by all others."""
    many: str = ""
    """The side with several series for a match, "left" or "right"; "": neither."""
    included: Sequence[str] = ()
    """Labels that the many side takes from the other."""

    def labels_sql(self, of: str = "l") -> str:
        """The labels that are matched."""
        return only_sql(self.labels, of) if self.is_on else without_sql([NAME, *self.labels], of)


def arithmetic(op: str, left: str, right: str) -> str:
    """SQL of an arithmetic operator of two numbers."""
    return ARITHMETIC[op].format(a=f"({left})", b=f"({right})")


def comparison(op: str, left: str, right: str) -> str:
    """SQL of a comparison: DuckDB takes NaN for equal to itself and greater than all numbers, PromQL does not."""
    sql = f"({left}) {'=' if op == '==' else '<>' if op == '!=' else op} ({right})"
    if op == "!=":
        return f"({sql} OR isnan({left}) OR isnan({right}))"
    return f"({sql} AND NOT isnan({left}) AND NOT isnan({right}))"


def of_scalars(statement: SqlBuilder, op: str, left: Scalar, right: Scalar) -> Scalar:
    """An operator of two scalars; a comparison gives 0 or 1."""
    points = [scalar.points for scalar in (left, right) if scalar.points]
    source = points[0] if points else ""
    if len(points) == 2:
        source = statement.add(
            "p", f"SELECT i, a.v, b.v AS w FROM {points[0]} a JOIN {points[1]} b USING (i)"
        )
    names = iter(["v", "w"])
    a, b = (next(names) if scalar.points else scalar.sql for scalar in (left, right))
    sql = f"CAST({comparison(op, a, b)} AS DOUBLE)" if op in COMPARISONS else arithmetic(op, a, b)
    if source:
        return Scalar(points=statement.add("p", f"SELECT i, {sql} AS v FROM {source}"))
    return Scalar(sql, constant=_folded(op, left.constant, right.constant))


_FOLDED: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip


def _folded(op: str, left: float | None, right: float | None) -> float | None:
    if left is None or right is None:
        return None
    try:
        return _FOLDED[op](left, right)
    except (KeyError, ArithmeticError):
        return None


def with_scalar(
    statement: SqlBuilder, op: str, vector: Vector, scalar: Scalar, *, is_left: bool, is_bool: bool
) -> Vector:
    """An operator of a vector and a scalar. `is_left`: the vector is the left side."""
    source, number = scalar_sql(scalar, vector.points)
    a, b = ("v", number) if is_left else (number, "v")
    if op in COMPARISONS and not is_bool:
        kept = f"SELECT sid, i, v FROM {source} WHERE {comparison(op, a, b)}"
        return replace(vector, points=statement.add("p", kept), order="")
    sql = f"CAST({comparison(op, a, b)} AS DOUBLE)" if is_bool else arithmetic(op, a, b)
    points = statement.add("p", f"SELECT sid, i, {sql} AS v FROM {source}")
    return nameless(statement, replace(vector, points=points, order=""))


def of_vectors(
    statement: SqlBuilder,
    op: str,
    left: Vector,
    right: Vector,
    matching: Matching,
    *,
    is_bool: bool,
) -> Vector:
    """An arithmetic operator or comparison of matched series."""
    is_filter = op in COMPARISONS and not is_bool
    if matching.many == "right":
        many, one = right, left
    else:
        many, one = left, right
    signed = [_signed(statement, side, matching) for side in (many, one)]
    labels = "m.l"
    if not is_filter:
        labels = without_sql([NAME], labels)
    if not matching.many:
        labels = (
            only_sql(matching.labels, labels)
            if matching.is_on
            else without_sql(matching.labels, labels)
        )
    if matching.included:
        labels = with_sql([(n, label_sql(n, "o.l")) for n in matching.included], labels)
    pairs = statement.add(
        "m",
        f"SELECT m.sid AS many, o.sid AS one, {labels} AS l FROM {signed[0]} m JOIN {signed[1]} o USING (signature)",
        materialized=True,
    )
    paired = statement.add(
        "m",
        f"SELECT *, dense_rank() OVER (ORDER BY {identity_sql()}) AS sid FROM {pairs}",
        materialized=True,
    )
    a, b = ("o.v", "m.v") if matching.many == "right" else ("m.v", "o.v")
    if is_filter:
        value, where = a, f" AND {comparison(op, a, b)}"
    else:
        value = f"CAST({comparison(op, a, b)} AS DOUBLE)" if is_bool else arithmetic(op, a, b)
        where = ""
    checks = [
        _unique(statement, one.points, signed[1], "right" if matching.many != "right" else "left")
    ]
    if not matching.many:
        checks.append(_unique(statement, many.points, signed[0], "left"))
    points = statement.add(
        "p",
        f"SELECT k.sid, m.i, {value} AS v FROM {paired} k JOIN {many.points} m ON m.sid = k.many "
        f"JOIN {one.points} o ON o.sid = k.one AND o.i = m.i WHERE {' AND '.join(checks)}{where}",
    )
    series = statement.add("s", f"SELECT sid, any_value(l) AS l FROM {paired} GROUP BY sid")
    has_names = is_filter and many.has_names and not (matching.is_on and not matching.many)
    return Vector(
        series, points, has_names=has_names, may_repeat=bool(matching.many) or many.may_repeat
    )


def _signed(statement: SqlBuilder, side: Vector, matching: Matching) -> str:
    signature = identity_sql(matching.labels_sql())
    return statement.add(
        "m", f"SELECT sid, l, {signature} AS signature FROM {side.series}", materialized=True
    )


def _unique(statement: SqlBuilder, points: str, signed: str, side: str) -> str:
    """SQL that is true if no step has two series of this side for one match; otherwise it fails."""
    twice = statement.add(
        "m", f"FROM {signed} QUALIFY count(*) OVER (PARTITION BY signature) > 1", materialized=True
    )
    both = (
        f"SELECT 1 FROM {points} JOIN {twice} USING (sid) GROUP BY signature, i HAVING count(*) > 1"
    )
    return (
        f"CASE WHEN EXISTS ({both}) THEN error('several series of the {side} side match at one time: "
        "match by more labels, or use group_left or group_right') ELSE true END"
    )


def of_sets(
    statement: SqlBuilder, op: str, left: Vector, right: Vector, matching: Matching
) -> Vector:
    """`and`, `or` and `unless`."""
    a, b = (_signed(statement, side, matching) for side in (left, right))
    rows = [
        f"SELECT p.sid, p.i, p.v, m.signature FROM {side.points} p JOIN {signed} m USING (sid)"
        for side, signed in ((left, a), (right, b))
    ]
    if op != "or":
        kind = "SEMI" if op == "and" else "ANTI"
        kept = f"SELECT sid, i, v FROM ({rows[0]}) {kind} JOIN ({rows[1]}) r USING (signature, i)"
        return replace(left, points=statement.add("p", kept), order="")
    series, numbers = renumbered(
        statement,
        [f"SELECT {n} AS part, sid, l FROM {side.series}" for n, side in enumerate((left, right))],
    )
    more = f"SELECT sid, i, v FROM ({rows[1]}) ANTI JOIN ({rows[0]}) l USING (signature, i)"
    points = statement.add(
        "p",
        " UNION ALL ".join(
            f"SELECT gid AS sid, i, v FROM ({part}) JOIN {numbers} n USING (sid) WHERE n.part = {number}"
            for number, part in enumerate((f"SELECT sid, i, v FROM {left.points}", more))
        ),
    )
    return Vector(series, points, has_names=left.has_names or right.has_names, may_repeat=True)


_AGGREGATES: Mapping[str, str] = {
    "sum": "sum(v)",
    "avg": "avg(v)",
    "min": "coalesce(min(v) FILTER (NOT isnan(v)), min(v))",
    "max": "coalesce(max(v) FILTER (NOT isnan(v)), max(v))",
    "count": "count(*)",
    "group": "1",
    "stddev": "stddev_pop(v)",
    "stdvar": "var_pop(v)",
}


ONE_VALUE = frozenset({*_AGGREGATES, "quantile"})
"""Aggregations that make one value of a group, whatever its series are."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """The labels of an aggregation."""

    labels: Sequence[str] = ()
    is_without: bool = False

    def labels_sql(self) -> str:
        """The labels of a series' group."""
        return without_sql([NAME, *self.labels]) if self.is_without else only_sql(self.labels)


def aggregated(
    statement: SqlBuilder,
    op: str,
    vector: Vector,
    grouping: Grouping,
    parameter: Scalar | str | None,
) -> Vector:
    """An aggregation over the series of each group."""
    labels = grouping.labels_sql()
    if op in ("topk", "bottomk"):
        assert isinstance(parameter, Scalar)
        return _ranked(statement, op, vector, labels, parameter)
    if op == "count_values":
        assert isinstance(parameter, str)
        return _counted(statement, vector, labels, parameter)
    if op == "quantile":
        assert isinstance(parameter, Scalar)
        value = quantile_sql(parameter)
    elif op in _AGGREGATES:
        value = _AGGREGATES[op]
    else:
        raise QueryError(f"the aggregation {op} is not supported")
    if not grouping.is_without and not grouping.labels:
        series = statement.add("s", f"SELECT 1::BIGINT AS sid, {labels_sql([])} AS l")
        one = f"SELECT 1::BIGINT AS sid, i, CAST({value} AS DOUBLE) AS v FROM {vector.points} GROUP BY i"
        return Vector(series, statement.add("p", one))
    series, numbers = renumbered(
        statement, [f"SELECT 0 AS part, sid, {labels} AS l FROM {vector.series}"]
    )
    points = statement.add(
        "p",
        f"SELECT gid AS sid, i, CAST({value} AS DOUBLE) AS v FROM {vector.points} JOIN {numbers} USING (sid) "
        "GROUP BY gid, i",
    )
    has_names = vector.has_names and not grouping.is_without and NAME in grouping.labels
    return Vector(series, points, has_names=has_names)


def _ranked(statement: SqlBuilder, op: str, vector: Vector, labels: str, count: Scalar) -> Vector:
    source, number = scalar_sql(count, vector.points)
    groups = statement.add(
        "m", f"SELECT sid, {identity_sql(labels)} AS g FROM {vector.series}", materialized=True
    )
    order = "isnan(v), v DESC" if op == "topk" else "isnan(v), v"
    points = statement.add(
        "p",
        f"SELECT sid, i, v FROM {source} JOIN {groups} USING (sid) "
        f"QUALIFY row_number() OVER (PARTITION BY g, i ORDER BY {order}, sid) <= "
        f"CASE WHEN isnan({number}) THEN error('{op}() needs a number, not NaN') ELSE {number} END",
    )
    return replace(vector, points=points, order=order)


NUMBER = (
    "CASE WHEN isnan(v) THEN 'NaN' WHEN isinf(v) THEN if(v > 0, '+Inf', '-Inf') "
    "WHEN abs(v) < 1e15 AND v = trunc(v) THEN CAST(CAST(v AS BIGINT) AS VARCHAR) ELSE CAST(v AS VARCHAR) END"
)
"""SQL of a number as text."""


def _counted(statement: SqlBuilder, vector: Vector, labels: str, label: str) -> Vector:
    counted = statement.add(
        "p",
        f"SELECT {with_sql([(label, 'value')], 'g')} AS l, i, "
        f"CAST(count(*) AS DOUBLE) AS v FROM (SELECT {labels} AS g, i, {NUMBER} AS value FROM {vector.points} "
        f"JOIN {vector.series} USING (sid)) GROUP BY g, value, i",
        materialized=True,
    )
    numbered = statement.add(
        "m",
        f"SELECT l, i, v, dense_rank() OVER (ORDER BY {identity_sql()}) AS sid FROM {counted}",
        materialized=True,
    )
    return Vector(
        statement.add("s", f"SELECT sid, any_value(l) AS l FROM {numbered} GROUP BY sid"),
        statement.add("p", f"SELECT sid, i, v FROM {numbered}"),
    )
