"""Makes a rule's condition in PromQL from its form, over the names of the agent's exporter, or says why PromQL cannot.

A measure is one function over a window of one metric, and becomes that of PromQL: `max(x)` max_over_time, `share(x > 5)` the mean of
a comparison. A condition becomes comparisons of vectors that are all aggregated by the rule's labels: `and` and `or` are those of
PromQL, and the negation of `until` keeps an alert. What PromQL has no word for is a reason: events, the inventory, who holds a GPU, texts.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from gpuwarden.metrics import METRICS, Type
from gpuwarden.prometheus_names import names_of
from gpuwarden.schema import TABLES
from gpuwarden_rules.definition.form_sql import COVERED_PERCENT, PERCENTILES, Form, Measure
from gpuwarden_rules.definition.sql_syntax import syntax_tree
from gpuwarden_rules.definition.yaml_positions import Scalar

STEP_S = 15
"""Between readings of a window that are compared one by one, as the exporter is usually scraped."""
EVENTS = "Its rows are events, which the exporter does not have."
OF_COLLECTOR = "Its rows are about the collector: alert on the collector's own `/metrics`."
INVENTORY = "What is expected is in the inventory, which the exporter does not show."
HOLDER = "It joins each GPU with the processes and jobs on it."
PEERS = "It compares GPUs with each other, by what the exporter does not show."
PARTS = "It judges the parts of each one before it counts them."
TEXTS = "It reads texts, which no series can have as a value."
ROLLUPS = "It judges minutes (rollups), which the exporter does not have."

_CALL = re.compile(r"(?P<function>[a-z]\w*)\((?P<inner>.*)\)\Z", re.DOTALL | re.IGNORECASE)
_COALESCED = re.compile(r"coalesce\(([\w\s,]+)\)", re.IGNORECASE)
_OVER_TIME = {
    "avg": "avg_over_time",
    "max": "max_over_time",
    "min": "min_over_time",
    "last": "last_over_time",
    "median": "quantile_over_time(0.5, ",
    **{f"p{percent}": f"quantile_over_time({percent / 100:g}, " for percent in PERCENTILES},
}
_COMPARED = {
    "COMPARE_GREATERTHAN": (">", "<="),
    "COMPARE_GREATERTHANOREQUALTO": (">=", "<"),
    "COMPARE_LESSTHAN": ("<", ">="),
    "COMPARE_LESSTHANOREQUALTO": ("<=", ">"),
    "COMPARE_EQUAL": ("==", "!="),
    "COMPARE_NOTEQUAL": ("!=", "=="),
}

_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE")
_NUMERIC_CAST = re.compile(rf"::({'|'.join(_NUMBERS)}|INT)\Z", re.IGNORECASE)
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_ANY = {("greatest", ">"), ("least", "<")}
"""Comparisons of the most or the least of some values that hold where one of the values is so."""


class UnsayableError(ValueError):
    """PromQL cannot say it; the message says why, as a sentence."""


def promql_of_form(form: Form, params: Mapping[str, Scalar]) -> tuple[str, str]:
    """The expression that begins an alert and the one that keeps it ("": none). Raises UnsayableError."""
    _refuse_what_is_not_exported(form)
    condition = _Condition(form, params)
    expr = condition.said(form.when)
    if form.covered:
        expr = f"{expr} and {condition.covered(form.covered)}"
    keeps = condition.said(form.until, negated=True) if form.until else ""
    return " ".join(expr.split()), " ".join(keeps.split())


def _refuse_what_is_not_exported(form: Form) -> None:
    tables = {measure.source.table for measure in form.measures}
    said = " ".join(_reached(form, f"{form.when} {form.until} {form.covered}"))
    if form.expected:
        raise UnsayableError(INVENTORY)
    if form.kinds or "events" in tables:
        raise UnsayableError(EVENTS)
    if "collector_samples" in tables:
        raise UnsayableError(OF_COLLECTOR)
    if tables & {"progress_samples", "slurm_job_samples"}:
        raise UnsayableError("What jobs report is not in the exporter.")
    if form.parts is not None:
        raise UnsayableError(PARTS)
    if "holder." in said or tables & {"process_samples", "process_1m", "allocation_samples"}:
        raise UnsayableError(HOLDER)
    if re.search(r"\bover\b", said, re.IGNORECASE):
        raise UnsayableError(PEERS)
    if re.search(r"\b(?:gpus|nodes)\.", said):
        raise UnsayableError(INVENTORY)


def _reached(form: Form, sql: str) -> list[str]:
    """An expression and the lets that follow from its names."""
    found = [sql]
    for let in reversed(form.lets):
        if any(re.search(rf"\b{let.name}\b", text) for text in found):
            found.append(let.sql)
    return found


class _Condition:
    """Says the expressions of one form."""

    def __init__(self, form: Form, params: Mapping[str, Scalar]) -> None:
        self._form, self._params = form, params
        self._measures = {measure.name: measure for measure in form.measures}
        self._lets = {let.name: let.sql for let in form.lets}
        self._labels = ", ".join(form.labels)

    def said(self, sql: str, *, negated: bool = False) -> str:
        """The vector where a condition holds, or does not."""
        return self._holds(_parsed(self._with_values(sql)), negated)

    def covered(self, sql: str) -> str:
        """That enough of the window has readings: counted by steps, as the exporter shows a reading for a minute."""
        if sql != f"coverage_percent >= {COVERED_PERCENT}":
            return self.said(sql)
        measure = self._form.measures[0]
        columns = sorted(measure.columns)
        counts = [
            self._over(
                f"count_over_time({self._metric(measure, one)[0]}[{{window}}:{STEP_S}s])", measure
            )
            for one in columns
        ]
        least = COVERED_PERCENT / 100 * self._window_s(measure) / STEP_S
        return f"({' or '.join(counts)}) >= {least:g}"

    def _with_values(self, sql: str) -> str:
        def value(match: re.Match[str]) -> str:
            found = self._params.get(match[1])
            if isinstance(found, bool | str) or found is None:
                raise UnsayableError(TEXTS)
            return f"{found:g}"

        return re.sub(r"\$(\w+)", value, sql)

    def _holds(self, node: Mapping[str, Any], negated: bool) -> str:
        kind = node["type"]
        if kind in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
            is_and = (kind == "CONJUNCTION_AND") is not negated
            parts = [self._holds(child, negated) for child in node["children"]]
            return "(" + (" and " if is_and else " or ").join(parts) + ")"
        if kind == "OPERATOR_NOT":
            return self._holds(node["children"][0], not negated)
        if kind in _COMPARED:
            sign = _COMPARED[kind][negated]
            left = self._resolved(node["left"])
            if left["class"] == "FUNCTION" and (left["function_name"], sign[0]) in _ANY:
                right = self._value(node["right"])
                values = map(self._value, left["children"])
                return "(" + " or ".join(f"{value} {sign} {right}" for value in values) + ")"
            return f"{self._value(node['left'])} {sign} {self._value(node['right'])}"
        if node["class"] == "FUNCTION" and node["function_name"] == "not":
            return self._holds(node["children"][0], not negated)
        if kind == "COLUMN_REF":
            resolved = self._resolved(node)
            if resolved is not node:
                return self._holds(resolved, negated)
            return f"{self._value(node)} == {0 if negated else 1}"
        raise UnsayableError(f"PromQL has no word for {_described(node)} in a condition.")

    def _resolved(self, node: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a let says, else the node itself."""
        names = node.get("column_names", ())
        if len(names) == 1 and names[0] in self._lets:
            return self._resolved(_parsed(self._with_values(self._lets[names[0]])))
        return node

    def _value(self, node: Mapping[str, Any]) -> str:
        kind = node["type"]
        if kind == "COLUMN_REF":
            return self._named([*node["column_names"]])
        if kind == "VALUE_CONSTANT":
            return self._constant(node["value"])
        if kind == "OPERATOR_CAST" and node["cast_type"]["id"] == "BOOLEAN":
            return "1" if node["child"]["value"]["value"] == "t" else "0"
        if kind == "OPERATOR_CAST" and node["cast_type"]["id"] in _NUMBERS:
            return self._value(node["child"])
        if kind == "OPERATOR_COALESCE":
            return "(" + " or ".join(map(self._vector, node["children"])) + ")"
        if kind == "FUNCTION" and node["function_name"] in ("greatest", "least"):
            sign = ">=" if node["function_name"] == "greatest" else "<="
            first, *others = map(self._vector, node["children"])
            for other in others:
                first = f"({first} {sign} {other} or {other} or {first})"
            return first
        if kind == "FUNCTION" and node["function_name"] in ("+", "-", "*", "/"):
            values = [self._value(child) for child in node["children"]]
            return (
                f"-{values[0]}"
                if len(values) == 1
                else f"({values[0]} {node['function_name']} {values[1]})"
            )
        if kind == "FUNCTION" and node["function_name"] == "nullif":
            value, other = map(self._value, node["children"])
            return f"({value} != {other})"
        if kind == "CASE_EXPR" and (limits := _clamped(node)) is not None:
            value, low, high = map(self._value, limits)
            return f"clamp({value}, {low}, {high})"
        if kind == "WINDOW_AGGREGATE" or node["class"] == "WINDOW":
            raise UnsayableError(PEERS)
        raise UnsayableError(f"PromQL has no word for {_described(node)}.")

    def _vector(self, node: Mapping[str, Any]) -> str:
        """A value as a vector: a number is that of each alert."""
        value = self._value(node)
        if node["type"] != "VALUE_CONSTANT":
            return value
        return f"({self._measured(self._form.measures[0])} * 0 + {value})"

    def _constant(self, value: Mapping[str, Any]) -> str:
        number: Any = value.get("value")
        if value.get("is_null"):
            raise UnsayableError("PromQL has no word for NULL.")
        if value["type"]["id"] == "VARCHAR":
            raise UnsayableError(TEXTS)
        if value["type"]["id"] == "DECIMAL":
            return f"{int(number) / 10 ** value['type']['type_info']['scale']:g}"
        return f"{float(number):.15g}"

    def _named(self, names: Sequence[str]) -> str:
        if names[0] in ("gpus", "nodes"):
            raise UnsayableError(INVENTORY)
        if names[0] == "holder":
            raise UnsayableError(HOLDER)
        name = names[-1]
        if name in self._lets:
            return self._value(_parsed(self._with_values(self._lets[name])))
        if name not in self._measures:
            raise UnsayableError(TEXTS)
        return self._measured(self._measures[name])

    def _measured(self, measure: Measure) -> str:
        """The vector of a measure."""
        call = _CALL.match(_NUMERIC_CAST.sub("", measure.text.strip()))
        if call is None:
            raise UnsayableError(f"PromQL has no word for `{measure.text}`.")
        function, inner = call["function"].lower(), call["inner"].strip()
        if function in _OVER_TIME:
            metric, scale = self._metric(measure, inner)
            opened = _OVER_TIME[function]
            opened = opened if opened.endswith(" ") else f"{opened}("
            return scale(self._over(f"{opened}{metric}[{{window}}])", measure))
        if function in ("delta", "rate"):
            metric, scale = self._metric(measure, inner)
            grown = f"last_over_time({metric}[{{window}}]) - min_over_time({metric}[{{window}}])"
            if function == "rate":
                # Over the time between its readings; from its lowest value where it was reset.
                a_second = f"({grown}) / {self._window_s(measure):g}"
                reset = f"resets({metric}[{{window}}]) > 0"
                grown = f"rate({metric}[{{window}}]) unless {reset} or {a_second}"
            return scale(f"({self._over(grown, measure)})")
        if function == "share":
            return f"(100 * {self._over(f'avg_over_time(({self._of_row(measure, inner)})[{{window}}:{STEP_S}s])', measure)})"
        if function == "coverage":
            columns = _COALESCED.fullmatch(inner)
            names = re.split(r"\s*,\s*", columns[1]) if columns else [inner]
            counts = " or ".join(self._counted(measure, name) for name in names)
            return f"(100 * ({counts}) * {STEP_S} / {self._window_s(measure):g})"
        if function == "count":
            return self._counted(measure, inner)
        raise UnsayableError(f"PromQL has no word for `{function}` over time.")

    def _counted(self, measure: Measure, column: str) -> str:
        """How often a column has a reading, at the steps of a scrape."""
        metric, _ = self._metric(measure, column)
        return self._over(f"count_over_time({metric}[{{window}}:{STEP_S}s])", measure)

    def _of_row(self, measure: Measure, text: str) -> str:
        """A comparison of readings as 0 or 1."""
        node = _parsed(self._with_values(text))
        if node["type"] not in _COMPARED:
            raise UnsayableError(f"PromQL has no word for `share({text})`.")
        left, right = node["left"], node["right"]
        sign = _COMPARED[node["type"]][0]
        if left["type"] == "FUNCTION" and left["function_name"] == "&" and sign == "!=":
            # A bit of a number, where PromQL has no operator for bits.
            column, mask = left["children"]
            bit = int(mask["value"]["value"])
            if bit & (bit - 1):
                raise UnsayableError("PromQL has no operator for several bits.")
            metric, _ = self._metric(measure, column["column_names"][-1])
            return f"floor({metric} / {bit}) % 2"
        if left["type"] != "COLUMN_REF":
            raise UnsayableError(f"PromQL has no word for `share({text})`.")
        metric, scale = self._metric(measure, left["column_names"][-1])
        return f"{scale(metric)} {sign} bool {self._value(right)}"

    def _metric(self, measure: Measure, column: str) -> tuple[str, Callable[[str], str]]:
        """The exporter's series of a column, and how its value becomes that of the column."""
        for table in self._form.subject.tables:
            exported = _exported(table).get(column)
            if exported is not None:
                name, times, over = exported
                has_mig = "mig_instance" in TABLES[table].names
                selector = '{mig_instance=""}' if has_mig else ""
                if self._form.where and measure.source.is_own:
                    raise UnsayableError(
                        "It counts only some rows, by a condition that no selector can say."
                    )
                return f"{name}{selector}", _scaled(times, over)
        raise UnsayableError(ROLLUPS if measure.source.is_rollup else TEXTS)

    def _over(self, vector: str, measure: Measure) -> str:
        return (
            f"max by ({self._labels}) ({vector.replace('{window}', span(self._window_s(measure)))})"
        )

    def _window_s(self, measure: Measure) -> float:
        window = self._with_values(measure.source.window)
        return float(window)


def _clamped(node: Mapping[str, Any]) -> tuple[Any, Any, Any] | None:
    """Value, lowest and highest of `clamp`, which is a CASE in SQL; None: it is another one."""
    if len(node["case_checks"]) != 2:
        return None
    below, above = node["case_checks"]
    types = (below["when_expr"]["type"], above["when_expr"]["type"])
    if types != ("COMPARE_LESSTHAN", "COMPARE_GREATERTHAN"):
        return None
    return node["else_expr"], below["then_expr"], above["then_expr"]


def _scaled(times: int, over: int) -> Callable[[str], str]:
    if times == over == 1:
        return lambda vector: vector
    if over != 1:
        return lambda vector: f"({over} * {vector})"
    return lambda vector: f"({vector} / {times})"


@cache
def _exported(table: str) -> Mapping[str, tuple[str, int, int]]:
    """Name, multiplier and divisor of each column that the exporter shows as a number."""
    if table not in METRICS:
        return {}
    texts = {metric.name for metric in METRICS[table] if metric.type is Type.STRING}
    return {
        one.columns[0]: (one.name, one.scale.times, one.scale.over)
        for one in names_of("own", table)
        if one.columns[0] not in texts
    }


def span(seconds: float) -> str:
    """PromQL's text of a duration: `3m`, `7d`, `90s`; empty if it is not whole seconds."""
    if seconds <= 0 or seconds != int(seconds):
        return ""
    size, unit = next(found for found in _UNITS if seconds % found[0] == 0)
    return f"{int(seconds) // size}{unit}"


def _parsed(expression: str) -> Mapping[str, Any]:
    """The syntax tree of an expression."""
    parsed = syntax_tree(f"SELECT {expression}")
    if parsed["error"]:
        raise UnsayableError(f"`{expression}` is not an expression.")
    node: Mapping[str, Any] = parsed["statements"][0]["node"]["select_list"][0]
    return node


def _described(node: Mapping[str, Any]) -> str:
    return (
        f"`{node['function_name']}`"
        if node.get("function_name")
        else str(node["type"]).replace("_", " ").lower()
    )
