"""Lists what the syntax tree of a query may be made of: every key of every node, with the values it may have. Pure.

DuckDB's tree has a key for each part of a statement, those that it will add in later versions too. What is not listed
here is refused, so that a new kind of statement, clause or type is closed until a person has judged it. Left out on
purpose: `EXPORT_STATE`, whose values hold addresses of memory, `AT` of a table's version, `DEFAULT`, and the types
AGGREGATE_STATE, POINTER, TYPE, VARIANT and GEOMETRY.

Keys: DuckDB 1.5.5, `json_serialize_sql`; src/include/duckdb/storage/serialization/*.json in its sources.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_EXPRESSION = "class:{tag} alias:text query_location:int type:"
_TABLE = "type:{tag} alias:text sample:sample? query_location:int "
_QUERY = "type:{tag} modifiers:[modifier] cte_map:ctes "
_TYPE_INFO = "type:{tag} alias:text extension_info:null "
_ORDER = "type:{tag} null_order:ORDER_DEFAULT|NULLS_FIRST|NULLS_LAST expression:expression"
_FAMILIES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "statement": ("", {"": "node:query named_param_map:[parameter]"}),
    "parameter": ("", {"": "key:text value:int"}),
    "query": (
        "type",
        {
            "SELECT_NODE": _QUERY + "select_list:[expression] from_table:table where_clause:expression?"
            " group_expressions:[expression] group_sets:[[int]] aggregate_handling:STANDARD_HANDLING|FORCE_AGGREGATES"
            " having:expression? sample:sample? qualify:expression?",
            "SET_OPERATION_NODE": _QUERY + "setop_type:UNION|UNION_BY_NAME|INTERSECT|EXCEPT left:query right:query setop_all:bool",
            "RECURSIVE_CTE_NODE": _QUERY + "cte_name:text union_all:bool left:query right:query aliases:[text]"
            " key_targets:[expression]",
        },
    ),
    "ctes": ("", {"": "map:[cte]"}),
    "cte": ("", {"": "key:text value:cte_body"}),
    "cte_body": (
        "",
        {
            "": "aliases:[text] query:statement key_targets:[expression]"
            " materialized:CTE_MATERIALIZE_DEFAULT|CTE_MATERIALIZE_ALWAYS|CTE_MATERIALIZE_NEVER"
        },
    ),
    "modifier": (
        "type",
        {
            "ORDER_MODIFIER": "type:{tag} orders:[order]",
            "LIMIT_MODIFIER": "type:{tag} limit:expression? offset:expression?",
            "LIMIT_PERCENT_MODIFIER": "type:{tag} limit:expression? offset:expression?",
            "DISTINCT_MODIFIER": "type:{tag} distinct_on_targets:[expression]",
        },
    ),
    "order": ("type", dict.fromkeys(("ORDER_DEFAULT", "ASCENDING", "DESCENDING"), _ORDER)),
    "sample": (
        "",
        {"": "sample_size:constant is_percentage:bool method:Reservoir|Bernoulli|System seed:int"},
    ),
    "table": (
        "type",
        {
            "BASE_TABLE": _TABLE + "schema_name:text table_name:text column_name_alias:[text] catalog_name:text at_clause:null",
            "EMPTY": _TABLE,
            "EXPRESSION_LIST": _TABLE + "expected_names:[text] expected_types:[type] values:[[expression]]",
            "JOIN": _TABLE + "left:table right:table condition:expression? using_columns:[text] delim_flipped:false"
            " join_type:INNER|LEFT|RIGHT|FULL|SEMI|ANTI ref_type:REGULAR|NATURAL|CROSS|POSITIONAL|ASOF"
            " duplicate_eliminated_columns:[null]",
            "PIVOT": _TABLE + "source:table aggregates:[expression] unpivot_names:[text] pivots:[pivot] groups:[text]"
            " column_name_alias:[text] include_nulls:bool",
            "SHOW_REF": _TABLE + "table_name:text query:query? show_type:DESCRIBE|SUMMARY|SHOW_FROM|SHOW_UNQUALIFIED"
            " catalog_name:text schema_name:text",
            "SUBQUERY": _TABLE + "subquery:statement column_name_alias:[text]",
            "TABLE_FUNCTION": _TABLE + "function:expression column_name_alias:[text]"
            " with_ordinality:WITH_ORDINALITY|WITHOUT_ORDINALITY",
        },
    ),
    "pivot": (
        "",
        {"": "pivot_expressions:[expression] unpivot_names:[text] entries:[pivot_entry] pivot_enum:text"},
    ),
    "pivot_entry": ("", {"": "values:[constant] star_expr:expression? alias:text"}),
    "expression": (
        "class",
        {
            "BETWEEN": _EXPRESSION + "COMPARE_BETWEEN input:expression lower:expression upper:expression",
            "CASE": _EXPRESSION + "CASE_EXPR case_checks:[case_check] else_expr:expression",
            "CAST": _EXPRESSION + "OPERATOR_CAST child:expression cast_type:type try_cast:bool",
            "COLLATE": _EXPRESSION + "COLLATE child:expression collation:text",
            "COLUMN_REF": _EXPRESSION + "COLUMN_REF column_names:[text]",
            "COMPARISON": _EXPRESSION + "COMPARE_EQUAL|COMPARE_NOTEQUAL|COMPARE_LESSTHAN|COMPARE_GREATERTHAN"
            "|COMPARE_LESSTHANOREQUALTO|COMPARE_GREATERTHANOREQUALTO|COMPARE_DISTINCT_FROM|COMPARE_NOT_DISTINCT_FROM"
            " left:expression right:expression",
            "CONJUNCTION": _EXPRESSION + "CONJUNCTION_AND|CONJUNCTION_OR children:[expression]",
            "CONSTANT": _EXPRESSION + "VALUE_CONSTANT value:constant",
            "FUNCTION": _EXPRESSION + "FUNCTION function_name:text schema:text children:[expression] filter:expression?"
            " order_bys:modifier distinct:bool is_operator:bool export_state:false catalog:text",
            "LAMBDA": _EXPRESSION + "LAMBDA lhs:expression expr:expression",
            "OPERATOR": _EXPRESSION + "ARRAY_CONSTRUCTOR|ARRAY_EXTRACT|ARRAY_SLICE|COMPARE_IN|COMPARE_NOT_IN"
            "|GROUPING_FUNCTION|OPERATOR_COALESCE|OPERATOR_IS_NOT_NULL|OPERATOR_IS_NULL|OPERATOR_NOT|OPERATOR_TRY"
            "|OPERATOR_UNPACK|STRUCT_EXTRACT children:[expression]",
            "PARAMETER": _EXPRESSION + "VALUE_PARAMETER identifier:text",
            "POSITIONAL_REFERENCE": _EXPRESSION + "POSITIONAL_REFERENCE index:int",
            "STAR": _EXPRESSION + "STAR relation_name:text exclude_list:[text] replace_list:[replacement] columns:bool"
            " expr:expression? qualified_exclude_list:[qualified] rename_list:[renaming]",
            "SUBQUERY": _EXPRESSION + "SUBQUERY subquery_type:ANY|EXISTS|NOT_EXISTS|SCALAR subquery:statement child:expression?"
            " comparison_type:INVALID|COMPARE_EQUAL|COMPARE_NOTEQUAL|COMPARE_LESSTHAN|COMPARE_GREATERTHAN"
            "|COMPARE_LESSTHANOREQUALTO|COMPARE_GREATERTHANOREQUALTO",
            "WINDOW": _EXPRESSION + "WINDOW_AGGREGATE|WINDOW_CUME_DIST|WINDOW_FILL|WINDOW_FIRST_VALUE|WINDOW_LAG"
            "|WINDOW_LAST_VALUE|WINDOW_LEAD|WINDOW_NTH_VALUE|WINDOW_NTILE|WINDOW_PERCENT_RANK|WINDOW_RANK|WINDOW_RANK_DENSE"
            "|WINDOW_ROW_NUMBER function_name:text schema:text catalog:text children:[expression] partitions:[expression]"
            " orders:[order] start:boundary end:boundary start_expr:expression? end_expr:expression?"
            " offset_expr:expression? default_expr:expression? ignore_nulls:bool filter_expr:expression?"
            " exclude_clause:NO_OTHER|CURRENT_ROW|GROUP|TIES distinct:bool arg_orders:[order]",
        },
    ),
    "case_check": ("", {"": "when_expr:expression then_expr:expression"}),
    "replacement": ("", {"": "key:text value:expression"}),
    "renaming": ("", {"": "key:qualified value:text"}),
    "qualified": ("", {"": "catalog:text schema:text table:text column:text"}),
    "type": ("", {"": "id:type_id type_info:type_info?"}),
    "type_info": (
        "type",
        {
            "ARRAY_TYPE_INFO": _TYPE_INFO + "child_type:type size:int",
            "DECIMAL_TYPE_INFO": _TYPE_INFO + "width:int scale:int",
            "LIST_TYPE_INFO": _TYPE_INFO + "child_type:type",
            "STRING_TYPE_INFO": _TYPE_INFO + "collation:text",
            "STRUCT_TYPE_INFO": _TYPE_INFO + "child_types:[field]",
            "UNBOUND_TYPE_INFO": _TYPE_INFO + "name:type_name catalog:nothing schema:nothing user_type_modifiers:[constant]",
        },
    ),
    "field": ("", {"": "first:text second:type"}),
    "constant": ("", {"": "type:type is_null:bool value:datum"}),
    "integer_halves": ("", {"": "upper:int lower:int"}),
    "constants": ("", {"": "children:[datum]"}),
}  # fmt: skip
TYPE_IDS = frozenset(
    [
        "ARRAY",
        "BIGINT",
        "BIGNUM",
        "BIT",
        "BLOB",
        "BOOLEAN",
        "DATE",
        "DECIMAL",
        "DOUBLE",
        "ENUM",
        "FLOAT",
        "HUGEINT",
        "INTEGER",
        "INTERVAL",
        "LIST",
        "MAP",
        "NULL",
        "SMALLINT",
        "STRUCT",
        "TIME",
        "TIMESTAMP",
        "TIMESTAMP_MS",
        "TIMESTAMP_NS",
        "TIMESTAMP_S",
        "TIME_NS",
        "TINYINT",
        "UBIGINT",
        "UHUGEINT",
        "UINTEGER",
        "UNION",
        "USMALLINT",
        "UTINYINT",
        "UUID",
        "VARCHAR",
        "UNBOUND",
    ]
) | {"TIMESTAMP WITH TIME ZONE", "TIME WITH TIME ZONE"}
"""Types of a query's values; UNBOUND: one of `TYPE_NAMES`."""
TYPE_NAMES = frozenset(
    [
        "array",
        "bigint",
        "bignum",
        "binary",
        "bit",
        "bitstring",
        "blob",
        "bool",
        "boolean",
        "bpchar",
        "bytea",
        "char",
        "date",
        "datetime",
        "dec",
        "decimal",
        "double",
        "enum",
        "float",
        "float4",
        "float8",
        "guid",
        "hugeint",
        "int",
        "int1",
        "int128",
        "int16",
        "int2",
        "int32",
        "int4",
        "int64",
        "int8",
        "integer",
        "integral",
        "interval",
        "json",
        "list",
        "logical",
        "long",
        "map",
        "null",
        "numeric",
        "nvarchar",
        "oid",
        "real",
        "row",
        "short",
        "signed",
        "smallint",
        "string",
        "struct",
        "text",
        "time",
        "time_ns",
        "timestamp",
        "timestamp_ms",
        "timestamp_ns",
        "timestamp_s",
        "timestamp_us",
        "timestamptz",
        "timetz",
        "tinyint",
        "ubigint",
        "uhugeint",
        "uint128",
        "uint16",
        "uint32",
        "uint64",
        "uint8",
        "uinteger",
        "union",
        "usmallint",
        "utinyint",
        "uuid",
        "varbinary",
        "varchar",
        "varint",
    ]
)
"""Names of these types, in lower case."""
_BOUNDARIES = frozenset(
    {"UNBOUNDED_PRECEDING", "UNBOUNDED_FOLLOWING"}
    | {f"CURRENT_ROW_{unit}" for unit in ("ROWS", "RANGE", "GROUPS")}
    | {f"EXPR_{way}_{unit}" for way in ("PRECEDING", "FOLLOWING") for unit in ("ROWS", "RANGE", "GROUPS")}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class UnlistedPart:
    """A part of a syntax tree that is not listed."""

    reason: str
    location: object
    """DuckDB's place of the nearest node above it in the text, if that has one."""


Form = str
"""What a value may be: `text`, `int`, `bool`, `null`, words joined by `|`, the name of a family, or a list of one as
`[form]`; `form?`: or NULL."""


def _parsed() -> dict[str, tuple[str, dict[str, dict[str, Form]]]]:
    families = {}
    for family, (tag, variants) in _FAMILIES.items():
        forms = {}
        for variant, keys in variants.items():
            pairs = (pair.partition(":") for pair in keys.replace("{tag}", variant).split())
            forms[variant] = {key: form for key, _, form in pairs}
        families[family] = tag, forms
    return families


_NODES = _parsed()
_WORDS = {
    form: frozenset(word.replace("NULLS_", "NULLS ") for word in form.split("|"))
    for _, variants in _NODES.values()
    for forms in variants.values()
    for form in forms.values()
    if form[0].isupper()
}


def refused(tree: Any) -> UnlistedPart | None:
    """The first part of a statement's tree that is not listed; None: all of it is."""
    waiting: list[tuple[Any, Form, str, object]] = [(tree, "statement", "a statement", None)]
    while waiting:
        value, form, where, location = waiting.pop()
        if form.endswith("?"):
            if value is None:
                continue
            form = form[:-1]
        if form[0] == "[":
            if not isinstance(value, list):
                return UnlistedPart(f"{where} is not a list", location)
            waiting.extend((one, form[1:-1], where, location) for one in value)
        elif form in _NODES or form == "datum":
            node = _family_of(value, form)
            if node is None:
                continue
            tag, variants = _NODES[node]
            name = value.get(tag, "") if isinstance(value, dict) else None
            if not isinstance(name, str) or name not in variants:
                return UnlistedPart(
                    f"{where} may not be {_shown(value if name is None else name)}", location
                )
            forms = variants[name]
            location = value.get("query_location", location)
            kind = name or node
            for key, one in value.items():
                if key not in forms:
                    return UnlistedPart(f"{kind} may not have {_shown(key)}", location)
                waiting.append((one, forms[key], f"{key} of {kind}", location))
            missing = forms.keys() - value.keys() - _OPTIONAL
            if missing:
                return UnlistedPart(f"{kind} has no {min(missing)}", location)
        elif not _is_plain(value, form):
            return UnlistedPart(f"{where} may not be {_shown(value)}", location)
    return None


_OPTIONAL = frozenset({"value"})
"""A constant that is NULL has none."""


def _family_of(value: Any, form: Form) -> str | None:
    """The family of a node; None: a value that needs no look."""
    if form != "datum":
        return form
    if isinstance(value, dict):
        return (
            "constants"
            if "children" in value
            else "integer_halves"
            if "upper" in value
            else "constant"
        )
    return None if value is None or isinstance(value, str | int | float) else "constant"


def _is_plain(value: Any, form: Form) -> bool:
    if form == "null":
        return value is None
    if form in ("bool", "false"):
        return isinstance(value, bool) and not (form == "false" and value)
    if form == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if not isinstance(value, str):
        return False
    match form:
        case "text":
            return True
        case "nothing":
            return not value
        case "boundary":
            return value in _BOUNDARIES
        case "type_id":
            return value in TYPE_IDS
        case "type_name":
            return value.lower() in TYPE_NAMES
    return value in _WORDS[form]


def _shown(value: object) -> str:
    return "a clause" if isinstance(value, dict | list) else str(value)[:60]
