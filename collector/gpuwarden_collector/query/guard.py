"""Checks whether a parsed query may run, from the syntax tree of the text that runs. Pure.

A query is exactly one SELECT or EXPLAIN of a SELECT (DESCRIBE, SHOW and SUMMARIZE are SELECTs to DuckDB).
A SELECT could still read files and the lake's own tables, call functions that change the database, and in a
cluster query PostgreSQL. So only listed functions, tables and SHOW commands are allowed
(`allowed_names.py`). The database itself refuses writes too: the transaction is read-only, and external
access is off, except for the lake's folder. Every other part of the tree must be listed too (`syntax.py`).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from gpuwarden.query import ROLE_FUNCTIONS, QueryError, role_refusal
from gpuwarden.schema import ADMINS_ONLY
from gpuwarden_collector.query.allowed_names import (
    CATALOG_FUNCTIONS,
    FUNCTIONS,
    INFORMATION,
    TABLE_FUNCTIONS,
    TABLES,
)
from gpuwarden_collector.query.complaints import characters, did_you_mean
from gpuwarden_collector.query.syntax import TYPE_IDS, TYPE_NAMES, refused

CATALOGS = frozenset({"", "gpuwarden"})
"""The store's name, or none: DuckDB searches the store first."""
SCHEMAS = frozenset({"", "main", "information_schema"})
SHOWN = frozenset({"tables", "databases", "schemas", "variables", "__show_tables_expanded"})
"""Arguments of SHOW and of DESCRIBE without a query; the last is SHOW ALL TABLES."""
_WITH_NAME = re.compile(r"(?!duckdb_|pragma_|pg_|sqlite_|hot_|newest_)[\w -]+")
"""Names that a WITH may define. Outside of the WITH's scope DuckDB takes a name for one of its own tables or
for a file; these names are neither."""
TEXT_FILLERS = {"repeat": 1, "lpad": 1, "rpad": 1}
"""Functions whose result has the length of the argument at that position. DuckDB's memory limit does not count
it, and an interrupt does not end them."""
FILLED_CHARACTERS_MAX = 10_000
SQL_CHARACTERS_MAX = 100_000
_NAME_CHARACTERS_MAX = 100
_CALLERS = frozenset({"aggregate", "array_aggr", "array_aggregate", "list_aggr", "list_aggregate"})
"""Functions that call the aggregate whose name their second argument is."""
_CASTERS = frozenset({"from_json", "from_json_strict", "json_transform", "json_transform_strict"})
"""Functions whose second argument is JSON that names types."""
_TYPE_IN_TEXT = re.compile(r"\s*(\w[\w ]*?)\s*(?:\([\d, ]*\))?\s*(?:\[\d*\]\s*)*")
_SELECT_WORDS = frozenset({"", "SELECT", "FROM", "WITH", "VALUES", "TABLE", "PIVOT", "UNPIVOT"})


@dataclass(frozen=True, slots=True)
class Parsed:
    """A parsed query."""

    word: str
    """First word of the query, in capitals."""
    selects: tuple[Mapping[str, Any], ...] | None
    """Syntax tree of each statement, without EXPLAIN; None: not all are SELECT."""
    parameters: frozenset[str]
    sql: str
    """The text to run: the parsed text, after an EXPLAIN if there is one."""
    begins_at: int = 0
    """Position of the parsed text in the original query."""
    explain: int = 0
    """Length of the EXPLAIN in `sql`."""

    @property
    def shift(self) -> int:
        """Offset from a position in `sql` to the original query."""
        return self.begins_at - self.explain


def check_text(sql: str) -> None:
    """Raise QueryError for a text that must not be parsed."""
    if len(sql) > SQL_CHARACTERS_MAX:
        raise QueryError(f"the query has {len(sql)} characters; most is {SQL_CHARACTERS_MAX}")
    if "\0" in sql:
        raise QueryError("the query has a NUL character: leave it out")


@dataclass(frozen=True, slots=True)
class Names:
    """Tables and functions that are allowed besides the public ones."""

    tables: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()


NO_MORE = Names()


def check(parsed: Parsed, more: Names = NO_MORE) -> None:
    """Raise QueryError for a query that is not allowed. `more`: names that are allowed too, without a schema."""
    if parsed.selects is None:
        raise QueryError(_not_a_select(parsed))
    if not parsed.selects:
        is_explain = parsed.word == "EXPLAIN"
        raise QueryError("EXPLAIN needs a SELECT after it" if is_explain else "the query is empty")
    if len(parsed.selects) > 1:
        raise QueryError(f"only one statement is allowed, this has {len(parsed.selects)}")
    tree = parsed.selects[0]
    names = {name.lower() for node in nodes_of(tree) for name in with_names(node)}
    roles = ROLE_FUNCTIONS - {name.lower() for node in nodes_of(tree) for name in _aliases(node)}
    for node in nodes_of(tree):
        reason = _forbidden(node, names | more.tables, more.functions) or _role(node, roles)
        if reason:
            offset = characters(parsed.sql[parsed.explain :], node.get("query_location"))
            place = None if offset is None else offset + parsed.begins_at
            raise QueryError(reason, offset=place, hint=_hint(node))
    if (part := refused(tree)) is not None:
        offset = characters(parsed.sql[parsed.explain :], part.location)
        place = None if offset is None else offset + parsed.begins_at
        reason = f"this form of SQL is not open to queries: {part.reason}"
        raise QueryError(reason, offset=place)


def _hint(node: Mapping[str, Any]) -> str | None:
    """A hint for the name of a missing function or table."""
    name = str(node.get("function_name", ""))
    if name:
        is_missing = name.lower() not in FUNCTIONS | TABLE_FUNCTIONS | ROLE_FUNCTIONS
        return did_you_mean(name, FUNCTIONS) if is_missing else None
    return did_you_mean(str(node["table_name"]), TABLES) if "table_name" in node else None


def tables(parsed: Parsed) -> set[str]:
    """Names of tables that a query reads, and of its WITH queries."""
    return {
        str(node.get("table_name", "")).lower()
        for tree in parsed.selects or ()
        for node in nodes_of(tree)
        if node.get("type") in ("BASE_TABLE", "SHOW_REF")
    }


def is_plainly_named(parsed: Parsed) -> bool:
    """Whether a query names its tables without a schema, and does not list tables."""
    return not any(
        node.get("type") == "SHOW_REF"
        or str(node.get("function_name", "")).lower() in CATALOG_FUNCTIONS
        or (node.get("type") == "BASE_TABLE" and _place(node) != ("", ""))
        for tree in parsed.selects or ()
        for node in nodes_of(tree)
    )


def is_select(parsed: Parsed) -> bool:
    """Whether a query that may run is a SELECT, not EXPLAIN, DESCRIBE or the like."""
    return parsed.word in _SELECT_WORDS


def _not_a_select(parsed: Parsed) -> str:
    """The reason for refusing a text that is not all SELECT."""
    if parsed.word == "PRAGMA":
        return "PRAGMA is not allowed; DESCRIBE, SHOW TABLES and SUMMARIZE are"
    if parsed.word != "EXPLAIN" and parsed.word not in _SELECT_WORDS:
        return f"only SELECT and EXPLAIN are allowed, not {_short(parsed.word)}"
    if re.search(r"\bPIVOT\b", parsed.sql, re.IGNORECASE):
        return (
            "only one SELECT is allowed; PIVOT must name its values: PIVOT ... ON column IN (...)"
        )
    if parsed.word == "EXPLAIN":
        return "EXPLAIN of anything but a SELECT is not allowed; DESCRIBE, SHOW TABLES and SUMMARIZE are"
    return "only one statement is allowed, SELECT or EXPLAIN of a SELECT"


def nodes_of(tree: Any) -> Iterator[Mapping[str, Any]]:
    """All objects of a syntax tree or a part of it, without recursion, because queries may be nested deeply."""
    waiting: list[Any] = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def with_names(node: Mapping[str, Any]) -> Iterator[str]:
    """Names that a node's WITH defines."""
    for named in (node.get("cte_map") or {}).get("map", ()):
        yield str(named["key"])


def _aliases(node: Mapping[str, Any]) -> Iterator[str]:
    """Names that a query gives to columns and tables at this node."""
    yield str(node.get("alias") or "")
    for key in ("column_name_alias", "aliases", "expected_names", "unpivot_names"):
        yield from node.get(key) or ()


def _role(node: Mapping[str, Any], roles: AbstractSet[str]) -> str | None:
    """The reason for refusing a column that DuckDB would take for a function of these."""
    names = node.get("column_names") or []
    if len(names) != 1 or names[0].lower() not in roles:
        return None
    return role_refusal(names[0].lower())


def _forbidden(
    node: Mapping[str, Any], names: AbstractSet[str], functions: AbstractSet[str]
) -> str | None:
    # Check a node's keys, not its type, so that no other type with the same keys passes.
    for name in with_names(node):
        if not _WITH_NAME.fullmatch(name.lower()):
            return (
                f"a WITH may not name a query {_short(name)}: choose a name of letters, digits, _, "
                "- and blanks that does not begin like a table of DuckDB's own"
            )
    if node.get("type") == "TABLE_FUNCTION":
        return _forbidden_table_function(node.get("function") or {})
    if "function_name" in node:
        return _forbidden_function(node, functions)
    if node.get("type") == "SHOW_REF":
        return _forbidden_show(node)
    if "table_name" in node:
        return _forbidden_table(node, names)
    return None


def _forbidden_table_function(function: Mapping[str, Any]) -> str | None:
    name = str(function.get("function_name", "")).lower()
    place = (function.get("catalog") or "", str(function.get("schema") or "").lower())
    if name in TABLE_FUNCTIONS and place not in (("", ""), ("", "main")):
        return f"table function {_short(name)}() may be called without a schema only"
    if name not in TABLE_FUNCTIONS:
        allowed = ", ".join(sorted(TABLE_FUNCTIONS))
        return f"table function {_short(name)}() is not allowed; allowed are {allowed}"
    return None


def _forbidden_table(node: Mapping[str, Any], names: AbstractSet[str]) -> str | None:
    catalog, schema = _place(node)
    if reason := _forbidden_place(catalog, schema):
        return reason
    name = str(node["table_name"]).lower()
    allowed = INFORMATION if schema == "information_schema" else TABLES
    if name in allowed or (not schema and name in names):
        return None
    return (
        f"table {_short(name)} does not exist or is not open to queries; SHOW TABLES lists those "
        "that are"
    )


def _forbidden_show(node: Mapping[str, Any]) -> str | None:
    if node.get("query") is not None:
        return None  # DESCRIBE or SUMMARIZE of a query, whose nodes are checked too
    if node.get("show_type") == "SHOW_FROM":
        return _forbidden_place(*_place(node))
    name = str(node.get("table_name", "")).strip('"').lower()
    return None if name in SHOWN else f"SHOW {_short(name)} is not allowed; SHOW TABLES is"


def _place(node: Mapping[str, Any]) -> tuple[str, str]:
    """Catalog and schema of a table, "" where it names none."""
    catalog, schema = node.get("catalog_name"), node.get("schema_name")
    return str(catalog or "").lower(), str(schema or "").lower()


def _forbidden_place(catalog: str, schema: str) -> str | None:
    if catalog in CATALOGS and schema in SCHEMAS:
        return None
    place = ".".join(part for part in (catalog, schema) if part)
    return f"schema {_short(place)} is not open to queries; tables are in main"


def _forbidden_function(node: Mapping[str, Any], functions: AbstractSet[str]) -> str | None:
    # Ignore the schema: DuckDB parses x.upper() as upper() of the schema x.
    name = str(node["function_name"]).lower()
    if name in ROLE_FUNCTIONS and name not in functions:
        return role_refusal(name)
    if name not in FUNCTIONS and name not in TABLE_FUNCTIONS and name not in functions:
        return f"function {_short(name)}() is not allowed, or there is none of this name"
    position = TEXT_FILLERS.get(name)
    if position is not None:
        length = _constant(node.get("children", []), position)
        if not isinstance(length, int) or length > FILLED_CHARACTERS_MAX:
            return f"function {name}() needs a constant length of at most {FILLED_CHARACTERS_MAX}"
    if name in _CALLERS:
        called = _constant(node.get("children", []), 1)
        if not isinstance(called, str) or called.lower() not in FUNCTIONS:
            return f"function {name}() needs the name of an aggregate as a constant"
    if name in _CASTERS and not _names_types(_constant(node.get("children", []), 1)):
        return f"function {name}() needs a constant structure of types such as VARCHAR and BIGINT[]"
    return None


def _names_types(structure: object) -> bool:
    """Whether a text is JSON whose texts are all types of a query's values."""
    try:
        waiting = [json.loads(structure)] if isinstance(structure, str) else [None]
    except (ValueError, RecursionError):
        return False
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
        elif not isinstance(item, str) or not _is_type(item):
            return False
    return True


def _is_type(text: str) -> bool:
    match = _TYPE_IN_TEXT.fullmatch(text)
    return match is not None and (
        match[1].lower() in TYPE_NAMES or match[1].upper() in TYPE_IDS - {"UNBOUND"}
    )


def _constant(children: Sequence[Mapping[str, Any]], position: int) -> object:
    if position >= len(children):
        return None
    return children[position].get("value", {}).get("value")


def _short(name: str) -> str:
    return name if len(name) <= _NAME_CHARACTERS_MAX else name[:_NAME_CHARACTERS_MAX] + "..."


ALL = "*"
"""All rows."""
NOBODY = ""
_ROWS_MAX = 1_000_000_000


def own_rows_sql(table: str, token: str) -> str:
    """A query whose FROM replaces a table by the token's own rows of it.

    The subquery ends with a LIMIT that no table reaches. DuckDB does not move conditions below a LIMIT, so an error of
    the query's condition cannot reveal rows of other tokens. `token`: letters and digits.
    """
    if not token.isalnum():
        raise ValueError(f"{token!r} is not the id of a token")
    rows = f"SELECT * FROM main.{table} WHERE token = '{token}' LIMIT {_ROWS_MAX}"
    return f"FROM ({rows}) AS {table}"


def closed_tables(read: Iterable[str], log_of: str) -> list[str]:
    """Tables among `read` that are not fully open. `log_of`: a token, ALL or NOBODY."""
    return [] if log_of == ALL else sorted(ADMINS_ONLY & set(read))


def keep_to_own(select: Any, standing: Mapping[str, Mapping[str, Any]]) -> None:
    """Replace tables in a syntax tree by these nodes. Raises QueryError."""
    nodes = [*nodes_of(select)]
    for name in (name.lower() for node in nodes for name in with_names(node)):
        if name in standing:
            raise QueryError(f"a WITH may not name a query {name}: a table has that name")
    for node in nodes:
        table = standing.get(str(node.get("table_name", "")).lower())
        if table is None or node.get("type") != "BASE_TABLE":
            continue
        alias = {key: node[key] for key in ("alias", "sample", "column_name_alias") if key in node}
        assert isinstance(node, dict)
        node.clear()
        node.update(deepcopy(dict(table)))
        node.update({key: value for key, value in alias.items() if value})
