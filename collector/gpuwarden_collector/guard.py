"""Decides whether a parsed query may run: pure, from the syntax tree.

Exactly one statement, SELECT or EXPLAIN of a SELECT (DESCRIBE, SHOW and SUMMARIZE are SELECTs to
DuckDB). A SELECT can still call functions that read the catalogue or maintain the database, so
table functions are on an allow-list. The database refuses writes and files by itself as well: the
transaction is read-only and external access is off.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from gpuwarden.query import QueryError
from gpuwarden_collector.store.reading import Parsed

TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest", "json_each", "json_tree"})
SCHEMAS = frozenset({"", "main", "information_schema"})
SYSTEM_PREFIXES = ("duckdb_", "pragma_", "pg_", "sqlite_")
FORBIDDEN_FUNCTIONS = frozenset(
    {
        "currval",
        "current_setting",
        "getenv",
        "getvariable",
        "json_serialize_plan",
        "nextval",
        "setseed",
        "sleep_ms",
        "write_log",
    }
)
TEXT_FILLERS = {"repeat": 1, "lpad": 1, "rpad": 1}
"""Functions that make a text as long as the argument at that position says; DuckDB's memory limit
does not see it and no interrupt ends it."""
FILLED_CHARACTERS_MAX = 10_000
SQL_CHARACTERS_MAX = 100_000


def check_length(sql: str) -> None:
    """Raise QueryError for a text too long to be parsed."""
    if len(sql) > SQL_CHARACTERS_MAX:
        raise QueryError(f"the query has {len(sql)} characters; most is {SQL_CHARACTERS_MAX}")


def check(parsed: Parsed) -> None:
    """Raise QueryError, naming what is not allowed."""
    if not parsed.kinds:
        raise QueryError("the query is empty")
    if len(parsed.kinds) > 1:
        hint = "; PIVOT must name its values: PIVOT ... ON column IN (...)" * (
            parsed.kinds == ("CREATE", "SELECT")
        )
        raise QueryError(f"only one statement is allowed, this has {len(parsed.kinds)}{hint}")
    kind = parsed.kinds[0]
    if kind not in ("SELECT", "EXPLAIN"):
        raise QueryError(f"only SELECT and EXPLAIN are allowed, not {kind}")
    if parsed.tree is None:
        what = "EXPLAIN of anything but a SELECT" if kind == "EXPLAIN" else "PRAGMA"
        raise QueryError(f"{what} is not allowed; DESCRIBE, SHOW TABLES and SUMMARIZE are")
    for node in _nodes(parsed.tree):
        reason = _forbidden(node)
        if reason:
            raise QueryError(reason)


def _nodes(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """All objects of the tree, without recursion: queries may be nested deeply."""
    waiting: list[Any] = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def _forbidden(node: Mapping[str, Any]) -> str | None:
    match node.get("type"):
        case "TABLE_FUNCTION":
            name = str(node.get("function", {}).get("function_name", "")).lower()
            if name not in TABLE_FUNCTIONS:
                allowed = ", ".join(sorted(TABLE_FUNCTIONS))
                return f"table function {name}() is not allowed; allowed are {allowed}"
        case "BASE_TABLE" | "SHOW_REF":
            return _forbidden_table(node)
        case "FUNCTION":
            return _forbidden_function(node)
    return None


def _forbidden_table(node: Mapping[str, Any]) -> str | None:
    schema = str(node.get("schema_name", "")).lower()
    catalog = str(node.get("catalog_name", "")).lower()
    name = str(node.get("table_name", "")).lower()
    if schema not in SCHEMAS or catalog in ("system", "temp"):
        where = ".".join(part for part in (catalog, schema) if part)
        return f"schema {where} is not open to queries; tables are in main"
    if name.startswith(SYSTEM_PREFIXES):
        return f"{name} is not open to queries; see information_schema.tables and .columns"
    return None


def _forbidden_function(node: Mapping[str, Any]) -> str | None:
    name = str(node.get("function_name", "")).lower()
    if name in FORBIDDEN_FUNCTIONS or name.startswith(SYSTEM_PREFIXES):
        return f"function {name}() is not allowed"
    position = TEXT_FILLERS.get(name)
    if position is not None:
        length = _constant(node.get("children", []), position)
        if not isinstance(length, int) or length > FILLED_CHARACTERS_MAX:
            return f"function {name}() needs a constant length of at most {FILLED_CHARACTERS_MAX}"
    return None


def _constant(children: list[Mapping[str, Any]], position: int) -> object:
    if position >= len(children):
        return None
    return children[position].get("value", {}).get("value")
