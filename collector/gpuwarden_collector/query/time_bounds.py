"""Finds the bounds of `ts` in a query's syntax tree, and casts them to the type of `ts`.

`now()` is a TIMESTAMP WITH TIME ZONE and `ts` a TIMESTAMP, so for `ts > now() - INTERVAL 1 HOUR` DuckDB (1.5.5) casts
the `ts` of every row, by ICU, and skips no row group. Queries use UTC, so casting the other side gives the same.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpuwarden_collector.query.guard import nodes_of

_LOWER = {"COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO"}
_UPPER = {"COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO"}
_ZONED = frozenset({"now", "get_current_timestamp"})
_STEADY = (
    frozenset({"-", "+", "today", "date_trunc", "trunc"})
    | _ZONED
    | {f"to_{unit}" for unit in ("weeks", "days", "hours", "minutes", "seconds", "milliseconds")}
)
"""Functions with one value for all rows of a query."""
_CALL = re.compile(rb"(?:now|get_current_timestamp)\s*\(\s*\)", re.IGNORECASE)
_CLASSES = frozenset({"FUNCTION", "CONSTANT", "CAST", "PARAMETER"})


def bounds_of(part: Mapping[str, Any]) -> Iterator[tuple[bool, Mapping[str, Any]]]:
    """Bounds of `ts` in a condition that have one value for all rows, each with whether it is a lower bound."""
    for is_lower, side in _sides(part):
        bound = part[side]
        if is_steady(bound):
            yield is_lower, bound


def with_cast_bounds(tree: Any, sql: str) -> str | None:
    """The query's text with its bounds cast to the type of `ts`; None: no cast is needed. `tree`: its syntax tree."""
    text = sql.encode()
    ends = set()
    for node in nodes_of(tree):
        for part in conditions(node.get("where_clause")):
            for _, side in _sides(part):
                ends |= {
                    call.end()
                    for place in _zoned(part[side])
                    if (call := _CALL.match(text, place)) is not None
                }
    if not ends:
        return None
    for end in sorted(ends, reverse=True):
        text = text[:end] + b"::TIMESTAMP" + text[end:]
    return text.decode()


def conditions(condition: Any) -> Sequence[Mapping[str, Any]]:
    """The parts of a condition that are joined by AND."""
    if not isinstance(condition, dict):
        return ()
    if condition.get("type") == "CONJUNCTION_AND":
        return [part for child in condition["children"] for part in conditions(child)]
    return [condition]


def is_steady(expression: Mapping[str, Any]) -> bool:
    """Whether an expression surely has one value for all rows of a query."""
    for node in nodes_of(expression):
        if "class" in node and node["class"] not in _CLASSES:
            return False
        if "function_name" in node and str(node["function_name"]).lower() not in _STEADY:
            return False
    return True


def _sides(part: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
    """Keys of the expressions compared with `ts`, each with whether it is a lower bound."""
    kind = part.get("type")
    if kind == "COMPARE_BETWEEN" and _is_ts(part["input"]):
        yield True, "lower"
        yield False, "upper"
    elif kind in _LOWER | _UPPER and _is_ts(part["left"]):
        yield kind in _LOWER, "right"
    elif kind in _LOWER | _UPPER and _is_ts(part["right"]):
        yield kind in _UPPER, "left"


def _is_ts(expression: Mapping[str, Any]) -> bool:
    if expression.get("class") != "COLUMN_REF":
        return False
    return str(expression["column_names"][-1]).lower() == "ts"


def _zoned(expression: Mapping[str, Any]) -> Iterator[int]:
    """Places in the text of functions that give an expression a time zone."""
    if is_steady(expression):
        for node in nodes_of(expression):
            if str(node.get("function_name", "")).lower() in _ZONED:
                yield int(node["query_location"])
