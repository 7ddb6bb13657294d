"""Rewrites queries of PostgreSQL's clients so that DuckDB can run them. Pure, on the syntax tree.

Names of PostgreSQL's catalogue become those of `catalog.sql`, and `public` becomes the schema `main`. Other
queries are not changed. The result is parsed and checked like any query.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuwarden_collector.query.port import TABLE_FUNCTIONS, nodes_of
from gpuwarden_postgres import catalog
from gpuwarden_postgres.types import SAMPLES, text_array

Node = dict[str, Any]

_ROLES = frozenset({"current_user", "session_user", "current_role"})
_OPERATOR = re.compile(r"OPERATOR\s*\(\s*(?:\w+\s*\.\s*)?([^\s\w)]+)\s*\)", re.IGNORECASE)
_NAMED = {
    "regclass": "relation",
    "regtype": "type",
    "regnamespace": "namespace",
    "regproc": "function",
}
_TEXT_NAMES = """
name cstring regprocedure regoper regoperator regrole regconfig regdictionary unknown
int2vector oidvector pg_node_tree sql_identifier character_data yes_or_no aclitem
"""
_TEXTS = frozenset(_TEXT_NAMES.split())
_PLAIN_COLLATIONS = frozenset({"default", "pg_catalog.default", "c", "pg_catalog.c", "posix"})
_NUMBERS = frozenset({"xid", "cid", "cardinal_number", "oid"})
_READ_AS = {"to_timestamp": "TIMESTAMP", "to_date": "DATE"}
_PLAIN_TIMES = frozenset({"YYYY-MM-DD", "YYYY-MM-DD HH24:MI:SS", "YYYY-MM-DD HH24:MI:SS.US"})
"""Formats of times that a cast can parse, as Superset sends them."""
_OTHER_NAMES = {
    "~": "regexp_matches",
    "regexp_full_match": "regexp_matches",
    "json_build_object": "json_object",
    "json_agg": "json_group_array",
    "to_json": "json_quote",
}


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The result of rewriting a statement."""

    is_changed: bool
    is_catalog: bool
    """Whether it reads PostgreSQL's catalogue."""


def rewrite(statement: Any, source: str) -> Rewritten:
    """Rewrite the syntax tree of one statement in place. `source`: its text."""
    with_names = {
        str(named["key"]).lower()
        for node in nodes_of(statement)
        for named in (node.get("cte_map") or {}).get("map", ())
    }
    before = repr(statement)
    is_catalog = _replace_children(statement)
    for node in nodes_of(statement):
        is_catalog = _rename(node, with_names, source) or is_catalog
    if is_catalog:
        for node in nodes_of(statement):
            _as_postgres(node)
    if is_catalog or all(node.get("type") != "BASE_TABLE" for node in nodes_of(statement)):
        for node in nodes_of(statement):
            _name_role(node, source)
    return Rewritten(is_catalog or repr(statement) != before, is_catalog)


def _rename(node: Any, with_names: set[str], source: str) -> bool:
    """Rename names in a node; whether the node belongs to the catalogue."""
    if node.get("type") == "BASE_TABLE":
        return _rename_table(node, with_names)
    if "function_name" in node:
        return _rename_function(node, source)
    if node.get("type") == "COLUMN_REF":
        names = node["column_names"]
        if len(names) > 2 and names[0].lower() in ("pg_catalog", "information_schema"):
            del names[0]
        elif len(names) > 2 and names[0].lower() == "public":
            names[0] = "main"
    return False


def _rename_table(node: Node, with_names: set[str]) -> bool:
    schema, name = str(node["schema_name"] or "").lower(), str(node["table_name"]).lower()
    if (node.get("catalog_name") or "").lower() not in ("", "gpuwarden"):
        return False
    if schema == "public":
        node["schema_name"] = "main"
        return False
    target = f"information_schema_{name}" if schema == "information_schema" else name
    is_ours = target in catalog.TABLES and (
        schema in ("pg_catalog", "information_schema") or (not schema and name not in with_names)
    )
    if is_ours:
        node["alias"] = node["alias"] or name
        node.update(schema_name="", catalog_name="", table_name=target)
    return is_ours


def _rename_function(node: Node, source: str) -> bool:
    if node.get("is_operator") and node["function_name"] == "pg_catalog":
        # DuckDB's tree has the schema in place of the operator (1.5.5).
        found = _OPERATOR.match(source.encode()[node["query_location"] :].decode(errors="replace"))
        node["function_name"] = found[1] if found else node["function_name"]
        node["schema"] = ""
    if str(node.get("schema") or "").lower() in ("pg_catalog", "information_schema"):
        node["schema"] = ""
    return str(node["function_name"]).lower() in catalog.FUNCTIONS


def _replace_children(statement: Node) -> bool:
    """Replace nodes by DuckDB's equivalents; whether one belongs to the catalogue."""
    is_catalog = False
    for node in nodes_of({"root": statement}):
        for key, child in [*_children(node)]:
            found = _replacement(child)
            if found is not None:
                is_catalog = is_catalog or _is_of_catalog(child)
                holder, at = key
                holder[at] = found
    return is_catalog


def _is_of_catalog(replaced: Node) -> bool:
    """Whether a replaced node is used only with PostgreSQL's catalogue; a collation or a list may be in any query."""
    is_anywhere = replaced.get("type") == "COLLATE" or replaced.get("function_name") in (
        "unnest",
        *_READ_AS,
    )
    return not is_anywhere


def _children(node: Any) -> Iterator[tuple[tuple[Any, Any], Node]]:
    for name, value in node.items():
        if isinstance(value, dict):
            yield (node, name), value
        elif isinstance(value, list):
            for at, item in enumerate(value):
                if isinstance(item, dict):
                    yield (value, at), item


def _replacement(node: Node) -> Node | None:
    if node.get("type") == "COLLATE" and node["collation"].lower() in _PLAIN_COLLATIONS:
        child: Node = node["child"]
        return _replacement(child) or child
    if node.get("type") == "COLUMN_REF":
        name = str(node["column_names"][-1]).lower()
        is_role = name in _ROLES and len(node["column_names"]) == 1
        return _constant("gpuwarden", node["alias"] or name) if is_role else None
    if node.get("function_name") == "unnest" and (items := _literal_array(node)) is not None:
        return {**node, "children": [_call("list_value", *items)]}
    if node.get("function_name") in _READ_AS and len(node["children"]) == 2:
        return _time_read(node)
    if node.get("type") != "OPERATOR_CAST":
        return None
    name = _type_name(node["cast_type"])
    if name in _TEXTS or name in _NUMBERS:
        node["cast_type"] = {"id": "BIGINT" if name in _NUMBERS else "VARCHAR", "type_info": None}
        return node
    if name not in _NAMED:
        return None
    child = node["child"]
    is_text = child.get("class") == "CONSTANT" and child["value"]["type"]["id"] == "VARCHAR"
    is_oid = is_text or child.get("class") == "PARAMETER"
    made = _call(f"own_{_NAMED[name]}_{'oid' if is_oid else 'name'}", child)
    made["alias"] = node.get("alias") or ""
    return made


def _time_read(node: Node) -> Node | None:
    """`to_timestamp(text, format)` as a cast; None: the format is another one."""
    text, form = node["children"]
    if form.get("class") != "CONSTANT" or form["value"].get("value") not in _PLAIN_TIMES:
        return None
    kind = {"id": _READ_AS[node["function_name"]], "type_info": None}
    cast: Node = {"class": "CAST", "type": "OPERATOR_CAST", "cast_type": kind, "try_cast": False}
    return {**cast, "alias": node["alias"], "query_location": 0, "child": text}


def _literal_array(unnest: Node) -> list[Node] | None:
    """Items of an unnested `'{a,b}'`, as in `x = ANY('{a,b}')`; None: it is no such text."""
    child = unnest["children"][0] if unnest["children"] else {}
    if child.get("class") != "CONSTANT" or child["value"]["type"]["id"] != "VARCHAR":
        return None
    text = str(child["value"].get("value", ""))
    try:
        return [_constant(item, "") for item in text_array(text)] if text[:1] == "{" else None
    except ValueError:
        return None


def listed_parameters(tree: Any) -> frozenset[str]:
    """Names of parameters that are lists, as in `x = ANY($1)`."""
    return frozenset(
        str(child["identifier"])
        for node in nodes_of(tree)
        if node.get("function_name") == "unnest"
        for child in node["children"]
        if child.get("class") == "PARAMETER"
    )


def _type_name(cast_type: Mapping[str, Any]) -> str:
    if cast_type.get("id") not in ("UNBOUND", "USER"):
        return ""
    return str((cast_type.get("type_info") or {}).get("name", "")).lower()


def _constant(text: str | None, alias: str) -> Node:
    kind = {"id": "VARCHAR", "type_info": None}
    value: Node = {"type": kind, "is_null": text is None}
    if text is not None:
        value["value"] = text
    return {
        "class": "CONSTANT",
        "type": "VALUE_CONSTANT",
        "alias": alias,
        "query_location": 0,
        "value": value,
    }


def _call(name: str, *children: Node) -> Node:
    return {
        "class": "FUNCTION",
        "type": "FUNCTION",
        "alias": "",
        "query_location": 0,
        "function_name": name,
        "schema": "",
        "children": list(children),
        "filter": None,
        "order_bys": {"type": "ORDER_MODIFIER", "orders": []},
        "distinct": False,
        "is_operator": False,
        "export_state": False,
        "catalog": "",
    }


def _as_postgres(node: Any) -> None:
    """Apply PostgreSQL's semantics: `~` matches a part of the text, and a column is named after its function."""
    if node.get("type") == "TABLE_FUNCTION":
        if node["alias"] and not node["column_name_alias"]:
            node["column_name_alias"] = [node["alias"]]
        if str(node["function"]["function_name"]).lower() not in TABLE_FUNCTIONS:
            _select_from(node)
    if "function_name" in node and node["function_name"] in _OTHER_NAMES:
        node.update(function_name=_OTHER_NAMES[node["function_name"]], is_operator=False)
    for item in node.get("select_list") or ():
        if not item.get("alias"):
            item["alias"] = _column_name(item)


def _name_role(node: Any, source: str) -> None:
    """Replace `user` without quotes, which people's tables take for a slip of `username`."""
    if node.get("type") == "COLUMN_REF" and [n.lower() for n in node["column_names"]] == ["user"]:
        at = node["query_location"]
        if source.encode()[at : at + 1] != b'"':
            alias = node["alias"] or "user"
            node.clear()
            node.update(_constant("gpuwarden", alias))


def _select_from(node: Any) -> None:
    """Turn a function with one value into a table of that value."""
    function, alias = node["function"], node["alias"] or node["function"]["function_name"]
    select: Node = {
        "type": "SELECT_NODE",
        "modifiers": [],
        "cte_map": {"map": []},
        "select_list": [function],
        "from_table": {"type": "EMPTY", "alias": "", "sample": None, "query_location": 0},
        "where_clause": None,
        "group_expressions": [],
        "group_sets": [],
        "aggregate_handling": "STANDARD_HANDLING",
        "having": None,
        "sample": None,
        "qualify": None,
    }
    columns = node["column_name_alias"]
    node.clear()
    node.update(type="SUBQUERY", alias=alias, sample=None, query_location=0)
    node.update(subquery={"node": select, "named_param_map": []}, column_name_alias=columns)


def _column_name(item: Node) -> str:
    kind = item.get("class")
    if kind == "FUNCTION" and not item.get("is_operator"):
        name = str(item["function_name"])
        return next((cast for cast, own in _NAMED.items() if name.startswith(f"own_{own}_")), name)
    if kind == "CAST":
        child: Node = item["child"]
        return (
            str(child["column_names"][-1])
            if child.get("class") == "COLUMN_REF"
            else _column_name(child)
        )
    return ""


_SIMPLE = frozenset({*SAMPLES, "VARCHAR"}) - {"BLOB"}


def parameter_types(tree: Any, columns: Mapping[str, str]) -> dict[str, str]:
    """DuckDB types of parameters, from the values they are compared with. `columns`: types by name."""
    found: dict[str, str] = {}
    for node in nodes_of(tree):
        match node.get("class"), node.get("type"):
            case "CAST", _:
                _note(found, (node["child"],), _cast_name(node["cast_type"]))
            case "SUBQUERY", _ if node.get("subquery_type") == "ANY" and node.get("child"):
                _unnested(found, node, columns)
            case "COMPARISON", _:
                _compared(found, (node["left"], node["right"]), columns)
            case "BETWEEN", _:
                _compared(found, (node["input"], node["lower"], node["upper"]), columns)
            case "OPERATOR", "COMPARE_IN" | "COMPARE_NOT_IN":
                _compared(found, node["children"], columns)
            case _, "LIMIT_MODIFIER":
                bounds = (node.get("limit"), node.get("offset"))
                _note(found, [bound for bound in bounds if bound], "BIGINT")
    return found


def _cast_name(cast_type: Mapping[str, Any]) -> str:
    """DuckDB's name of a plain type, or of a list of a plain type."""
    if cast_type.get("id") == "LIST":
        return f"{(cast_type.get('type_info') or {}).get('child_type', {}).get('id', '')}[]"
    return str(cast_type.get("id", ""))


def _unnested(found: dict[str, str], node: Any, columns: Mapping[str, str]) -> None:
    """Note the parameter of `x = ANY($1)` as a list of the type of x."""
    child = node["child"]
    name = str(child["column_names"][-1]).lower() if child.get("class") == "COLUMN_REF" else ""
    for call in nodes_of(node["subquery"]):
        if call.get("function_name") == "unnest" and name in columns:
            _note(found, call["children"], f"{columns[name]}[]")


def _compared(found: dict[str, str], items: Any, columns: Mapping[str, str]) -> None:
    for item in items:
        sql_type = ""
        if item.get("class") == "COLUMN_REF":
            sql_type = columns.get(str(item["column_names"][-1]).lower(), "")
        elif item.get("class") == "CAST":
            sql_type = _cast_name(item["cast_type"])
        elif item.get("class") == "CONSTANT":
            sql_type = item["value"]["type"]["id"]
        if sql_type:
            _note(found, items, sql_type)
            return


def _note(found: dict[str, str], items: Any, sql_type: str) -> None:
    if sql_type.removesuffix("[]") in _SIMPLE:
        for item in items:
            if item.get("class") == "PARAMETER":
                found.setdefault(str(item["identifier"]), sql_type)
