"""Compiles a PromQL expression to one SQL statement over the sample tables."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import promql_parser as ast

from gpuwarden.query import QueryError, text_sql
from gpuwarden_prometheus import functions, operators, selectors
from gpuwarden_prometheus.functions import (
    DATE_FUNCTIONS,
    LAST_TWO,
    OVER_TIME,
    VALUE_FUNCTIONS,
    WHOLE,
    mapped,
    of_windows,
    over_time,
)
from gpuwarden_prometheus.metrics import is_label
from gpuwarden_prometheus.operators import COMPARISONS, NUMBER, SET_OPERATORS, Grouping, Matching
from gpuwarden_prometheus.relations import (
    BLOCK_STEPS,
    NAME,
    QUOTED,
    Grid,
    RangeVector,
    Scalar,
    SqlBuilder,
    Text,
    Vector,
    label_sql,
    labels_sql,
    nameless,
    number_sql,
    renumbered,
    with_sql,
)
from gpuwarden_prometheus.selectors import (
    NOTHING_ROLLED,
    LabelMatcher,
    Selection,
    Windows,
    selection,
)
from gpuwarden_prometheus.tiers import RolledUntil

CHARACTERS_MAX = 20_000
DEPTH_MAX = 100
OPERATORS_MAX = 1_000
"""The parser recurses: an expression that is nested too deeply ends its process."""
SUBQUERY_STEP_MS = 60_000
"""Step of a subquery that gives none, as Prometheus' default `evaluation_interval`."""
_SUBQUERY_STEPS_MAX = 50_000

_BEFORE_1970 = re.compile(r"@(?:\s|#[^\n]*\n)*-")
_AT_RANGE = "the time after @ must be of the years 1970 to 9999"

Value = Vector | Scalar | RangeVector | Text


@dataclass(frozen=True, slots=True)
class QueryTimes:
    """The instants of a query."""

    grid: Grid
    is_range: bool
    lookback_ms: int
    end_ms: int
    """The end that was asked for, which `@ end()` means; the last step may be before it."""
    rolled: RolledUntil = NOTHING_ROLLED
    is_in_blocks: bool = False
    """Whether the values of a range are given in blocks of steps."""


def parsed(query: str) -> ast.Expr:
    """Parse an expression. Raises QueryError."""
    if len(query) > CHARACTERS_MAX:
        raise QueryError(
            f"the expression has {len(query)} characters; at most {CHARACTERS_MAX} are taken"
        )
    depth = deepest = operators = 0
    bare = QUOTED.sub("", query)
    if _BEFORE_1970.search(bare):  # on which the parser panics, when the time is read
        raise QueryError(_AT_RANGE)
    for character in bare:
        operators += character in "+-*/%^=<>!"
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if deepest > DEPTH_MAX:
        raise QueryError(f"the expression is nested {deepest} deep; at most {DEPTH_MAX} is allowed")
    if operators > OPERATORS_MAX:
        raise QueryError(
            f"the expression has {operators} operators; at most {OPERATORS_MAX} are taken"
        )
    try:
        return ast.parse(query)
    except ValueError as error:
        raise QueryError(f"invalid PromQL: {error}") from error


def compiled(query: str, evaluation: QueryTimes) -> str:
    """SQL of a query's answer: rows of `metric`, JSON of the labels, and of its values as JSON; the second column is
    named by the type of the result. Raises QueryError."""
    statement = SqlBuilder()
    compiler = _Compiler(statement, evaluation)
    value = compiler.value(parsed(query), evaluation.grid)
    match value:
        case Vector():
            return _vector(statement, value, evaluation)
        case Scalar():
            return _scalar(statement, value, evaluation)
        case Text():
            if evaluation.is_range:
                raise QueryError("a range query cannot give a text")
            at = _seconds(str(evaluation.grid.start_ms))
            said = f"'[' || {at} || ',' || CAST(to_json({text_sql(value.value)}) AS VARCHAR) || ']'"
            return f"SELECT '' AS metric, {said} AS string"
        case RangeVector():
            if evaluation.is_range:
                raise QueryError(
                    "a range query cannot give a range vector: apply a function such as rate() to it"
                )
            return _samples(statement, value)
    raise AssertionError(value)


def _seconds(ms: str) -> str:
    """SQL of milliseconds as seconds, without trailing zeros."""
    whole = f"CAST({ms} // 1000 AS VARCHAR)"
    return f"({whole} || CASE WHEN {ms} % 1000 = 0 THEN '' ELSE '.' || lpad(CAST({ms} % 1000 AS VARCHAR), 3, '0') END)"


def _point(ms: str) -> str:
    return f"'[' || {_seconds(ms)} || ',\"' || {NUMBER} || '\"]'"


def _vector(statement: SqlBuilder, vector: Vector, evaluation: QueryTimes) -> str:
    grid = evaluation.grid
    metric = "CAST(to_json(l) AS VARCHAR) AS metric"
    points = f"SELECT sid, i, v FROM {vector.points}"
    if vector.may_repeat:
        # Series with the same labels may follow one another, but not have values at the same time.
        series, numbers = renumbered(statement, [f"SELECT 0 AS part, sid, l FROM {vector.series}"])
        one = "CASE WHEN count(*) > 1 THEN error('several series have the same labels') ELSE any_value(v) END"
        points = f"SELECT gid AS sid, i, {one} AS v FROM {vector.points} JOIN {numbers} USING (sid) GROUP BY gid, i"
        vector = replace(vector, series=series)
    if not evaluation.is_range:
        order = vector.order or "metric"
        return statement.text(
            f"SELECT {metric}, {_point(str(grid.start_ms))} AS vector FROM ({points}) JOIN {vector.series} USING (sid) "
            f"ORDER BY {order}"
        )
    kind, values = _matrix(points, evaluation)
    return statement.text(
        f"SELECT {metric}, {kind} FROM ({values}) JOIN {vector.series} USING (sid) ORDER BY metric"
    )


def _matrix(points: str, evaluation: QueryTimes) -> tuple[str, str]:
    """The kind of a range query's result, and SQL of its values: (sid, kind). `points`: SELECT of (sid, i, v)."""
    grid = evaluation.grid
    values = f"string_agg({_point(grid.ms_sql)}, ',' ORDER BY i)"
    if not evaluation.is_in_blocks:
        return (
            "matrix",
            f"SELECT sid, '[' || {values} || ']' AS matrix FROM ({points}) GROUP BY sid",
        )
    block = f"(({grid.start_ms // grid.step_ms} + i) // {BLOCK_STEPS})"
    blocks = f"SELECT sid, {block} AS b, {values} AS p FROM ({points}) GROUP BY sid, b"
    line = "b || ' ' || p"
    return (
        "blocks",
        f"SELECT sid, string_agg({line}, chr(10) ORDER BY b) AS blocks FROM ({blocks}) GROUP BY sid",
    )


def _scalar(statement: SqlBuilder, scalar: Scalar, evaluation: QueryTimes) -> str:
    grid = evaluation.grid
    points = scalar.points_at(grid)
    if not evaluation.is_range:
        return statement.text(
            f"SELECT '' AS metric, {_point(str(grid.start_ms))} AS scalar FROM {points}"
        )
    kind, values = _matrix(f"SELECT 0 AS sid, i, v FROM {points}", evaluation)
    return statement.text(f"SELECT '{{}}' AS metric, {kind} FROM ({values})")


def _samples(statement: SqlBuilder, samples: RangeVector) -> str:
    after_ms = samples.grid.start_ms - samples.window_ms
    values = f"'[' || string_agg({_point('t')}, ',' ORDER BY t) || ']'"
    return statement.text(
        f"SELECT CAST(to_json(l) AS VARCHAR) AS metric, matrix FROM (SELECT sid, {values} AS matrix FROM "
        f"{samples.samples} WHERE t > {after_ms} AND t <= {samples.grid.start_ms} GROUP BY sid) "
        f"JOIN {samples.series} USING (sid) ORDER BY metric"
    )


def _ms(delta: timedelta | None) -> int:
    return 0 if delta is None else round(delta.total_seconds() * 1000)


def selection_of(selector: ast.VectorSelector) -> Selection:
    """What a selector matches. Raises QueryError."""
    groups = selector.matchers.or_matchers or [selector.matchers.matchers]
    ops = {
        "MatchOp.Equal": "=", "MatchOp.NotEqual": "!=", "MatchOp.Re": "=~", "MatchOp.NotRe": "!~",
    }  # fmt: skip
    shared = selector.matchers.matchers if selector.matchers.or_matchers else []
    alternatives = [
        [LabelMatcher(m.name, ops[str(m.op)], m.value) for m in (*shared, *group)]
        for group in groups
    ]
    if any("\0" in m.value or "\0" in m.name for group in alternatives for m in group):
        raise QueryError("a matcher has a NUL character: leave it out")
    return selection(selector.name, alternatives)


class _Compiler:
    """Compiles the parts of an expression."""

    def __init__(self, statement: SqlBuilder, evaluation: QueryTimes) -> None:
        self._statement = statement
        self._evaluation = evaluation
        self._only: frozenset[str] | None = None
        """The labels of a selector that what is around it looks at; None: all."""

    def value(self, expr: ast.Expr, grid: Grid) -> Value:
        """The value of an expression at the instants of a grid. Raises QueryError."""
        match expr:
            case ast.NumberLiteral():
                return Scalar(number_sql(expr.val), constant=expr.val)
            case ast.StringLiteral():
                return Text(expr.val)
            case ast.ParenExpr():
                return self.value(expr.expr, grid)
            case ast.UnaryExpr():
                return self._negated(expr, grid)
            case ast.VectorSelector():
                return self._instant(expr, grid)
            case ast.MatrixSelector():
                return self._range(expr, grid)
            case ast.SubqueryExpr():
                return self._subquery(expr, grid)
            case ast.AggregateExpr():
                return self._aggregate(expr, grid)
            case ast.BinaryExpr():
                return self._binary(expr, grid)
            case ast.Call():
                return self._call(expr, grid)
        raise QueryError(f"{type(expr).__name__} is not supported")

    def vector(self, expr: ast.Expr, grid: Grid) -> Vector:
        """The value of an expression that gives a vector."""
        value = self.value(expr, grid)
        if not isinstance(value, Vector):
            raise QueryError("an instant vector is expected")
        return value

    def scalar(self, expr: ast.Expr, grid: Grid) -> Scalar:
        """The value of an expression that gives a number."""
        value = self.value(expr, grid)
        if not isinstance(value, Scalar):
            raise QueryError("a number is expected")
        return value

    def _negated(self, expr: ast.UnaryExpr, grid: Grid) -> Value:
        value = self.value(expr.expr, grid)
        if isinstance(value, Vector):
            return mapped(self._statement, value, "-v")
        if isinstance(value, Scalar):
            return operators.of_scalars(
                self._statement, "*", value, Scalar(number_sql(-1.0), constant=-1.0)
            )
        raise QueryError("only numbers and vectors have a negative")

    def _moved(
        self, at: "ast.AtModifier | None", offset: timedelta | None, grid: Grid
    ) -> tuple[Grid, int]:
        """The grid of a selector, and the number of steps that its one instant stands for; 0: it is not fixed."""
        if at is None:
            return grid.moved(-_ms(offset)), 0
        whole = self._evaluation.grid
        match str(at.type):
            case "AtModifierType.Start":
                ms = whole.start_ms
            case "AtModifierType.End":
                ms = self._evaluation.end_ms
            case _:
                try:
                    assert at.at is not None
                    ms = round(at.at.timestamp() * 1000)
                except (ValueError, OverflowError) as error:
                    raise QueryError(_AT_RANGE) from error
        return grid.at(ms - _ms(offset)), grid.steps

    def _instant(self, expr: ast.VectorSelector, grid: Grid) -> Vector:
        at, repeated = self._moved(expr.at, expr.offset, grid)
        found = selectors.instant_vector(
            self._statement,
            self._selection(expr),
            at,
            self._evaluation.lookback_ms,
            self._evaluation.rolled,
        )
        if not repeated:
            return found
        points = f"SELECT sid, unnest(range({repeated})) AS i, v, t FROM {found.points}"
        return replace(found, points=self._statement.add("p", points))

    def _range(self, expr: ast.MatrixSelector, grid: Grid, function: str = "") -> RangeVector:
        inner = expr.vector_selector
        at, repeated = self._moved(inner.at, inner.offset, grid)
        windows = Windows(at, _ms(expr.range), function, repeated)
        return selectors.range_vector(
            self._statement, self._selection(inner), windows, self._evaluation.rolled
        )

    def _subquery(self, expr: ast.SubqueryExpr, grid: Grid) -> RangeVector:
        at, repeated = self._moved(expr.at, expr.offset, grid)
        step_ms = _ms(expr.step) or SUBQUERY_STEP_MS
        window_ms = _ms(expr.range)
        first_ms = ((at.start_ms - window_ms) // step_ms + 1) * step_ms
        steps = max(1, (at.end_ms - first_ms) // step_ms + 1)
        if steps > _SUBQUERY_STEPS_MAX:
            raise QueryError(
                f"a subquery has {steps} steps; at most {_SUBQUERY_STEPS_MAX}: choose a longer step"
            )
        whole_first_ms = ((at.whole_start_ms - window_ms) // step_ms + 1) * step_ms
        inner = Grid(first_ms, step_ms, steps, (first_ms - whole_first_ms) // step_ms)
        found = self.value(expr.expr, inner)
        if isinstance(found, Scalar):
            found = self._as_vector(found, inner)
        if not isinstance(found, Vector):
            raise QueryError("a subquery needs an instant vector")
        samples = self._statement.add(
            "r", f"SELECT sid, {inner.ms_sql} AS t, v FROM {found.points}"
        )
        return RangeVector(
            found.series,
            samples,
            window_ms,
            at,
            found.has_names,
            found.may_repeat,
            expand_to=repeated,
        )

    def _as_vector(self, scalar: Scalar, grid: Grid) -> Vector:
        return Vector(
            self._statement.add("s", f"SELECT 0::BIGINT AS sid, {labels_sql([])} AS l"),
            self._statement.add(
                "p", f"SELECT 0::BIGINT AS sid, i, v FROM {scalar.points_at(grid)}"
            ),
        )

    def _aggregate(self, expr: ast.AggregateExpr, grid: Grid) -> Vector:
        parameter: Scalar | str | None = None
        if expr.param is not None:
            found = self.value(expr.param, grid)
            parameter = found.value if isinstance(found, Text) else found  # type: ignore[assignment]
        grouping = Grouping()
        if expr.modifier is not None:
            is_without = str(expr.modifier.type) == "AggModifierType.Without"
            grouping = Grouping(tuple(expr.modifier.labels), is_without)
        self._only, before = self._looked_at(expr, grouping), self._only
        vector = self.vector(expr.expr, grid)
        self._only = before
        return operators.aggregated(self._statement, str(expr.op), vector, grouping, parameter)

    def _looked_at(self, expr: ast.AggregateExpr, grouping: Grouping) -> frozenset[str] | None:
        if (
            grouping.is_without
            or str(expr.op) not in operators.ONE_VALUE
            or not _is_of_one(expr.expr)
        ):
            return None
        return frozenset(grouping.labels)

    def _selection(self, expr: ast.VectorSelector) -> Selection:
        found = selection_of(expr)
        return found if len(found.metrics) != 1 else replace(found, only=self._only)

    def _binary(self, expr: ast.BinaryExpr, grid: Grid) -> Value:
        op = str(expr.op)
        left, right = self.value(expr.lhs, grid), self.value(expr.rhs, grid)
        modifier = expr.modifier
        is_bool = modifier is not None and modifier.return_bool
        statement = self._statement
        if isinstance(left, Scalar) and isinstance(right, Scalar):
            return operators.of_scalars(statement, op, left, right)
        if isinstance(left, Vector) and isinstance(right, Scalar):
            return operators.with_scalar(statement, op, left, right, is_left=True, is_bool=is_bool)
        if isinstance(left, Scalar) and isinstance(right, Vector):
            return operators.with_scalar(statement, op, right, left, is_left=False, is_bool=is_bool)
        if not (isinstance(left, Vector) and isinstance(right, Vector)):
            raise QueryError(f"the operator {op} needs numbers or instant vectors")
        matching = _matching(modifier)
        if op in SET_OPERATORS:
            return operators.of_sets(statement, op, left, right, matching)
        if op not in COMPARISONS and op not in operators.ARITHMETIC:
            raise QueryError(f"the operator {op} is not supported")
        return operators.of_vectors(statement, op, left, right, matching, is_bool=is_bool)

    def _call(self, expr: ast.Call, grid: Grid) -> Value:
        name, arguments, statement = expr.func.name, list(expr.args), self._statement
        if name in OVER_TIME or name in WHOLE or name in LAST_TWO:
            return over_time(statement, self._windows(arguments[0], grid, name), name)
        if name in VALUE_FUNCTIONS:
            return mapped(statement, self.vector(arguments[0], grid), VALUE_FUNCTIONS[name])
        if name in DATE_FUNCTIONS:
            times = (
                self.vector(arguments[0], grid)
                if arguments
                else self._as_vector(self._time(grid), grid)
            )
            return mapped(statement, times, DATE_FUNCTIONS[name])
        method = getattr(self, f"_call_{name}", None)
        if method is None:
            raise QueryError(f"the function {name}() is not supported")
        found: Value = method(arguments, grid)
        return found

    def _windows(self, expr: ast.Expr, grid: Grid, function: str = "") -> RangeVector:
        """`function`: the one that is applied."""
        bare = _bare(expr)
        if isinstance(bare, ast.MatrixSelector):
            return self._range(bare, grid, function)
        value = self.value(expr, grid)
        if not isinstance(value, RangeVector):
            raise QueryError("a range vector is expected")
        return value

    def _time(self, grid: Grid) -> Scalar:
        return Scalar(f"({grid.ms_sql} / 1000.0)")

    def _call_time(self, arguments: Sequence[ast.Expr], grid: Grid) -> Scalar:
        return self._time(grid)

    def _call_pi(self, arguments: Sequence[ast.Expr], grid: Grid) -> Scalar:
        return Scalar("pi()", constant=3.141592653589793)

    def _call_vector(self, arguments: Sequence[ast.Expr], grid: Grid) -> Vector:
        return self._as_vector(self.scalar(arguments[0], grid), grid)

    def _call_scalar(self, arguments: Sequence[ast.Expr], grid: Grid) -> Scalar:
        vector = self.vector(arguments[0], grid)
        one = "CASE WHEN count(sid) = 1 THEN any_value(v) ELSE 'nan'::DOUBLE END"
        return Scalar(
            points=self._statement.add(
                "p",
                f"SELECT i, {one} AS v FROM {grid.steps_sql} LEFT JOIN "
                f"{vector.points} USING (i) GROUP BY i",
            )
        )

    def _call_timestamp(self, arguments: Sequence[ast.Expr], grid: Grid) -> Vector:
        inner = _bare(arguments[0])
        vector = self.vector(inner, grid)
        time = "t / 1000.0" if isinstance(inner, ast.VectorSelector) else f"{grid.ms_sql} / 1000.0"
        points = self._statement.add("p", f"SELECT sid, i, {time} AS v FROM {vector.points}")
        return nameless(self._statement, replace(vector, points=points, order=""))

    def _call_absent(self, arguments: Sequence[ast.Expr], grid: Grid) -> Vector:
        vector = self.vector(arguments[0], grid)
        return self._absence(arguments[0], vector.points, grid)

    def _call_absent_over_time(self, arguments: Sequence[ast.Expr], grid: Grid) -> Vector:
        samples = self._windows(arguments[0], grid)
        found = of_windows(self._statement, samples, "1")
        return self._absence(
            arguments[0], functions.expanded(self._statement, samples, found), grid
        )

    def _absence(self, expr: ast.Expr, points: str, grid: Grid) -> Vector:
        """1 at steps without points, with the labels that equality matchers name."""
        expr = _bare(expr)
        selector = expr.vector_selector if isinstance(expr, ast.MatrixSelector) else expr
        pairs: dict[str, str] = {}
        if isinstance(selector, ast.VectorSelector):
            matchers = [m for m in selector.matchers.matchers if m.name != NAME]
            names = [m.name for m in matchers]
            pairs = {
                m.name: m.value
                for m in matchers
                if str(m.op) == "MatchOp.Equal" and names.count(m.name) == 1
            }
        labels = labels_sql([(name, text_sql(value)) for name, value in pairs.items()])
        return Vector(
            self._statement.add("s", f"SELECT 0::BIGINT AS sid, {labels} AS l"),
            self._statement.add(
                "p",
                f"SELECT 0::BIGINT AS sid, i, 1::DOUBLE AS v FROM {grid.steps_sql} WHERE i NOT IN (SELECT i FROM {points})",
            ),
        )

    def _call_sort(self, arguments: Sequence[ast.Expr], grid: Grid) -> Vector:
        return replace(self.vector(arguments[0], grid), order="isnan(v), v")

    def _call_sort_desc(self, arguments: Sequence[ast.Expr], grid: Grid) -> Vector:
        return replace(self.vector(arguments[0], grid), order="isnan(v), v DESC")

    def _call_clamp(self, arguments: Sequence[ast.Expr], grid: Grid) -> Vector:
        low, high = (self.scalar(a, grid) for a in arguments[1:])
        return functions.clamped(self._statement, self.vector(arguments[0], grid), low, high)

    def _call_clamp_min(self, arguments: Sequence[ast.Expr], grid: Grid) -> Vector:
        low = self.scalar(arguments[1], grid)
        return functions.clamped(self._statement, self.vector(arguments[0], grid), low, None)

    def _call_clamp_max(self, arguments: Sequence[ast.Expr], grid: Grid) -> Vector:
        high = self.scalar(arguments[1], grid)
        return functions.clamped(self._statement, self.vector(arguments[0], grid), None, high)

    def _call_round(self, arguments: Sequence[ast.Expr], grid: Grid) -> Vector:
        to = self.scalar(arguments[1], grid).constant if len(arguments) > 1 else 1.0
        if to is None or not to:
            raise QueryError("round() needs a number other than 0 as its second argument")
        inverse = number_sql(1.0 / to)
        return mapped(
            self._statement,
            self.vector(arguments[0], grid),
            f"floor(v * {inverse} + 0.5) / {inverse}",
        )

    def _call_quantile_over_time(self, arguments: Sequence[ast.Expr], grid: Grid) -> Vector:
        value = functions.quantile_sql(self.scalar(arguments[0], grid))
        samples = self._windows(arguments[1], grid)
        return self._of_windows(samples, value, 1)

    def _call_predict_linear(self, arguments: Sequence[ast.Expr], grid: Grid) -> Vector:
        ahead = self.scalar(arguments[1], grid)
        if ahead.constant is None:
            raise QueryError(
                "predict_linear() needs a number of seconds, not an expression of series"
            )
        x = "(t - until) / 1000.0"
        line = f"regr_slope(v, {x}) * {number_sql(ahead.constant)} + regr_intercept(v, {x})"
        value = f"CASE WHEN max(v) = min(v) THEN max(v) ELSE {line} END"
        return self._of_windows(self._windows(arguments[0], grid), value, 2)

    def _of_windows(self, samples: RangeVector, value: str, samples_min: int) -> Vector:
        points = of_windows(self._statement, samples, value, samples_min)
        return functions.of_points(self._statement, samples, points)

    def _call_label_replace(self, arguments: Sequence[ast.Expr], grid: Grid) -> Vector:
        into, replacement, source, pattern = (self._text(a, grid) for a in arguments[1:])
        _check_label(into)
        value = label_sql(source)
        # RE2 of DuckDB writes groups as \1, Go's as $1 or ${1}.
        replaced = f"regexp_replace({value}, {text_sql(f'^(?s:{pattern})$')}, {text_sql(_go_groups(replacement))})"
        changed = f"CASE WHEN regexp_full_match({value}, {text_sql(pattern)}, 's') THEN {replaced} ELSE {label_sql(into)} END"
        return self._relabelled(self.vector(arguments[0], grid), into, changed)

    def _call_label_join(self, arguments: Sequence[ast.Expr], grid: Grid) -> Vector:
        into, separator, *sources = (self._text(a, grid) for a in arguments[1:])
        _check_label(into)
        joined = (
            f"concat_ws({text_sql(separator)}, {', '.join(map(label_sql, sources))})"
            if sources
            else "''"
        )
        return self._relabelled(self.vector(arguments[0], grid), into, joined)

    def _relabelled(self, vector: Vector, label: str, value: str) -> Vector:
        series = f"SELECT sid, {with_sql([(label, value)])} AS l FROM {vector.series}"
        return replace(vector, series=self._statement.add("s", series), may_repeat=True)

    def _text(self, expr: ast.Expr, grid: Grid) -> str:
        value = self.value(expr, grid)
        if not isinstance(value, Text):
            raise QueryError("a text is expected")
        if "\0" in value.value:
            raise QueryError("a text has a NUL character: leave it out")
        return value.value


def _is_of_one(expr: ast.Expr) -> bool:
    """Whether an expression computes with the values of one selector alone, not with its labels."""
    match expr:
        case ast.VectorSelector() | ast.MatrixSelector():
            return True
        case ast.ParenExpr() | ast.UnaryExpr():
            return _is_of_one(expr.expr)
        case ast.Call():
            name, arguments = expr.func.name, list(expr.args)
            known = (
                name in OVER_TIME or name in WHOLE or name in LAST_TWO or name in VALUE_FUNCTIONS
            )
            return known and _is_of_one(arguments[0])
        case ast.BinaryExpr():
            sides = (expr.lhs, expr.rhs)
            numbers = [isinstance(_bare(side), ast.NumberLiteral) for side in sides]
            return sum(numbers) == 1 and _is_of_one(sides[numbers.index(False)])
    return False


def _bare(expr: ast.Expr) -> ast.Expr:
    """The expression without parentheses around it."""
    while isinstance(expr, ast.ParenExpr):
        expr = expr.expr
    return expr


def _check_label(name: str) -> None:
    if not is_label(name):
        raise QueryError(f"{name!r} is not a name of a label")


def _go_groups(replacement: str) -> str:
    escaped = replacement.replace("\\", "\\\\")
    return re.sub(r"\$(?:\{(\d)\}|(\d))", lambda m: f"\\{m[1] or m[2]}", escaped).replace("$$", "$")


def _matching(modifier: "ast.BinModifier | None") -> Matching:
    if modifier is None:
        return Matching()
    labels: Sequence[str] = ()
    is_on = False
    if modifier.matching is not None:
        labels = tuple(modifier.matching.labels)
        is_on = str(modifier.matching.type) == "LabelModifierType.Include"
    many = {"ManyToOne": "left", "OneToMany": "right"}.get(
        str(modifier.card).rpartition(".")[2], ""
    )
    fill = modifier.fill_values
    if fill is not None and (fill.lhs is not None or fill.rhs is not None):
        raise QueryError("fill values of binary operators are not supported")
    return Matching(labels, is_on, many, tuple(modifier.group_labels or ()))
