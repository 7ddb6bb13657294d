"""Finds the columns without which the condition of a form can never begin an alert: those that it requires, and
those of which it needs one.

It follows from SQL's logic of NULL: a comparison with NULL is NULL, an AND needs both, `coalesce` needs one, `IS NULL`
can do without. What this does not see through, it does not require.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from gpuwarden.schema import TABLES, stored_columns
from gpuwarden_rules.definition.form_sql import KEY_OF_INVENTORY, Form
from gpuwarden_rules.definition.sql_syntax import syntax_tree

Column = tuple[str, str]
"""Table and name."""
Needs = frozenset[frozenset[Column]]
"""Of each of these sets one column is needed."""
_NOTHING: Needs = frozenset()
NEEDS_MAX = 64
_INVENTORY = frozenset(KEY_OF_INVENTORY)
_TOLERANT = frozenset(
    {"greatest", "least", "concat", "concat_ws", "struct_pack", "list_value", "count", "count_if"}
)
"""Functions that have a value although one of their arguments is NULL."""
_PARAMETER = re.compile(r"'(?:[^']|'')*'|\$\w+(?:::\w+)?")


def required_by(form: Form) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    """What its condition cannot begin an alert without, and columns of samples of which it needs one."""
    if form.kinds:
        # A column of a kind of events is empty in others, so none of them shows that there are events.
        return (("events", "kind"),), ()
    needs = _Form(form).condition()
    required = {column for need in needs if len(need) == 1 for column in need}
    choices = [
        sorted(need)
        for need in needs
        if len(need) > 1 and not need & required and not {table for table, _ in need} & _INVENTORY
    ]
    one_of = min(choices, key=lambda choice: (len(choice), choice), default=[])
    return tuple(sorted(required)), tuple(one_of)


class _Form:
    """Columns that the names of one form need."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._lets = {let.name: let.sql for let in form.lets}
        self._measures = {measure.name: measure for measure in form.measures}
        self._parts = None if form.parts is None else _Form(form.parts)
        self._named: dict[tuple[str, bool], Needs] = {}

    def condition(self) -> Needs:
        """What `when`, `covered` and `expected` need to be true."""
        form = self._form
        needed = _Strict(self._of_name).never_true(form.when)
        if form.covered:
            needed |= _Strict(self._of_name).never_true(form.covered)
        if form.expected:
            needed |= _Strict(self._of_inventory).never_true(form.expected)
        # What has a column that is always there is met.
        return frozenset(need for need in needed if all(map(_is_optional, need)))

    def _of_name(self, names: Sequence[str], counts: bool) -> Needs:
        *qualifier, name = names
        if qualifier:
            table = {"holder": "process_samples"}.get(qualifier[0], qualifier[0])
            return _need((table, name))
        if (name, counts) not in self._named:
            self._named[name, counts] = _NOTHING
            self._named[name, counts] = self._computed(name, counts)
        return self._named[name, counts]

    def _computed(self, name: str, counts: bool) -> Needs:
        if name == "coverage_percent":
            columns = self._form.measures[0].columns
            table = self._form.measures[0].source.table
            return frozenset({frozenset((table, one) for one in columns)})
        if name in self._lets:
            return _Strict(self._of_name).null_if(self._lets[name], counts)
        measure = self._measures.get(name)
        if measure is None:
            return _NOTHING
        if measure.source.parts and self._parts is not None:
            return _Strict(self._parts._of_name).null_if(measure.sql, counts)
        table = measure.source.table
        return _Strict(lambda names, _: _need((table, names[-1]))).null_if(measure.sql, counts)

    def _of_inventory(self, names: Sequence[str], counts: bool) -> Needs:
        return _need((self._form.subject.inventory or "", names[-1]))


def _is_optional(column: Column) -> bool:
    """Whether a column of samples or of the inventory can be absent; that there were no events says nothing."""
    table, name = column
    if table not in TABLES or table == "events":
        return False
    optional = {one.name for one in stored_columns(TABLES[table]) if not one.required}
    return name in optional


class _Strict:
    """Which columns make an expression NULL, or keep a condition from being true, where they are NULL."""

    def __init__(self, of_name: Callable[[Sequence[str], bool], Needs]) -> None:
        self._of_name = of_name

    def null_if(self, sql: str, counts: bool = False) -> Needs:
        """Columns each of which makes the expression NULL; with `counts` a number of readings 0."""
        return self._null(_parsed(sql), counts)

    def never_true(self, sql: str) -> Needs:
        """Columns without each of which the condition is never true."""
        return self._untrue(_parsed(sql))

    def _untrue(self, node: Mapping[str, Any]) -> Needs:
        if node["type"] == "CONJUNCTION_AND":
            return _union(map(self._untrue, node["children"]))
        if node["type"] == "CONJUNCTION_OR":
            return _common(map(self._untrue, node["children"]))
        if node["type"] == "OPERATOR_IS_NOT_NULL":
            return self._null(node["children"][0])
        if node["type"] in ("COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO"):
            # A count of no readings is 0.
            return self._null(node["left"], counts=True) | self._null(node["right"])
        return self._null(node)

    def _null(self, node: Mapping[str, Any], counts: bool = False) -> Needs:
        kind, class_ = node["type"], node["class"]
        if class_ == "COLUMN_REF":
            return self._of_name(node["column_names"], counts)
        if class_ in ("CONJUNCTION",):
            return _common(map(self._null, node["children"]))
        if class_ == "CASE":
            branches = [
                self._untrue(check["when_expr"]) | self._null(check["then_expr"])
                for check in node["case_checks"]
                if not _is_null(check["then_expr"])
            ]
            other = node["else_expr"]
            return _common([*branches, *([] if _is_null(other) else [self._null(other)])])
        if class_ == "FUNCTION":
            return self._of_call(node, counts)
        if kind in ("OPERATOR_COALESCE", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
            is_chosen = kind == "OPERATOR_COALESCE"
            return _common(map(self._null, node["children"])) if is_chosen else _NOTHING
        if class_ in ("COMPARISON", "CAST", "OPERATOR", "BETWEEN"):
            names = ("left", "right", "child", "input", "lower", "upper")
            inner = [node[name] for name in names if name in node] + [*node.get("children", ())]
            is_distinct = kind.endswith("DISTINCT_FROM")
            return _NOTHING if is_distinct else _union(map(self._null, inner))
        return _NOTHING

    def _of_call(self, node: Mapping[str, Any], counts: bool) -> Needs:
        name, children = node["function_name"], node["children"]
        filtered = self._untrue(node["filter"]) if node["filter"] else _NOTHING
        if name == "struct_pack" and len(children) == 1:
            # What the newest row has, NULL included, says that all is well where it is NULL.
            return _NOTHING
        if name in ("count", "count_if") and counts:
            inner = self._untrue if name == "count_if" else self._null
            return _union(map(inner, children)) | filtered
        if name in _TOLERANT:
            common = name in ("greatest", "least")
            return _common(map(self._null, children)) if common else _NOTHING
        return _union(map(self._null, children)) | filtered


def _need(column: Column) -> Needs:
    return frozenset({frozenset({column})})


def _union(parts: Iterable[Needs]) -> Needs:
    """What is needed where each part is."""
    return frozenset().union(*parts)


def _common(parts: Iterable[Needs]) -> Needs:
    """What is needed where one of the parts is enough."""
    first, *others = [*parts] or [_NOTHING]
    for other in others:
        either = sorted({one | two for one, two in product(first, other)}, key=len)
        first = frozenset(either[:NEEDS_MAX])
    return first


def _is_null(node: Mapping[str, Any]) -> bool:
    return node["class"] == "CONSTANT" and bool(node["value"].get("is_null"))


def _parsed(expression: str) -> Mapping[str, Any]:
    sql = _PARAMETER.sub(lambda match: "1" if match[0][0] == "$" else match[0], expression)
    tree = syntax_tree(f"SELECT {sql}")
    if tree["error"]:
        # DuckDB says what is wrong with it when it is bound.
        return {"type": "VALUE_CONSTANT", "class": "CONSTANT", "value": {}}
    node: Mapping[str, Any] = tree["statements"][0]["node"]["select_list"][0]
    return node
