"""A syntax tree of which any part is unknown is refused, and what people write is not."""

import copy
import json
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.each import each

from gpuwarden.query import QueryError
from gpuwarden_collector.query import guard
from gpuwarden_collector.query.execute import parse
from gpuwarden_collector.query.guard import nodes_of
from gpuwarden_collector.query.syntax import refused

CORPUS = Path(__file__).parent / "sql_harmless.sql"
CONNECTION = duckdb.connect()


def tree_of(sql: str) -> Any:
    """The syntax tree of a SELECT."""
    parsed = parse(CONNECTION, sql)
    assert parsed.selects, sql
    return parsed.selects[0]


def harmless() -> list[str]:
    """Queries in all forms that people write, one a line."""
    return CORPUS.read_text().splitlines()


@each("sql", harmless())
def test_every_form_of_a_query_that_people_write_is_open(sql: str) -> None:
    assert refused(tree_of(sql)) is None


@each(
    ("sql", "part"),
    [
        ("SELECT (any_value('longer than twelve bytes') EXPORT_STATE)::BLOB", "export_state"),
        ("SELECT sum(1) EXPORT_STATE", "export_state"),
        ("SELECT 1 UNION ALL BY NAME SELECT sum(1) EXPORT_STATE", "export_state"),
        ("SELECT 1::VARIANT", "VARIANT"),
        ("SELECT TRY_CAST('1' AS VARIANT[])", "VARIANT"),
        ("SELECT [1]::STRUCT(a INTEGER, b MAP(VARCHAR, VARIANT))[]", "VARIANT"),
        ("SELECT 1::POINTER", "POINTER"),
        ("SELECT 'INTEGER'::TYPE", "TYPE"),
        ("SELECT 'x'::GEOMETRY", "GENERIC_TYPE_INFO"),
        ("SELECT 1::of_somebody", "of_somebody"),
        ("SELECT 1::main.of_somebody", "schema"),
        ("SELECT 1::AGGREGATE_STATE", "AGGREGATE_STATE"),
        ("FROM gpus AT (VERSION => 1)", "at_clause"),
        ("SELECT DEFAULT", "DEFAULT"),
    ],
)
def test_states_of_aggregates_and_values_with_addresses_are_refused(sql: str, part: str) -> None:
    found = refused(tree_of(sql))
    assert found is not None and part in found.reason, found


@each(
    ("sql", "part"),
    [
        ("SELECT finalize(x) FROM (SELECT 1 AS x)", "finalize()"),
        ("SELECT combine(x, x) FROM (SELECT 1 AS x)", "combine()"),
        ("SELECT cast_to_type(from_hex('00'), 1)", "cast_to_type()"),
        ("SELECT replace_type(1, 2, 'x')", "replace_type()"),
        ("SELECT list_aggregate([1], 'fin' || 'alize')", "as a constant"),
        ("SELECT list_aggr([1], 'combine')", "as a constant"),
        ("SELECT [1].aggregate($name)", "as a constant"),
        ("SELECT array_aggregate([1])", "as a constant"),
        ("""SELECT from_json('1', '"VARIANT"')""", "structure of types"),
        ("""SELECT json_transform('1', '{"a": ["POINTER"]}')""", "structure of types"),
        ("SELECT from_json_strict('1', $structure)", "structure of types"),
        ("""SELECT json_transform_strict('1', '{"a": 1}')""", "structure of types"),
    ],
)
def test_no_function_reads_a_state_or_gives_a_value_another_type(sql: str, part: str) -> None:
    with pytest.raises(QueryError, match=re.escape(part)):
        guard.check(parse(CONNECTION, sql))


@each(
    "sql",
    [
        "SELECT list_aggregate([1, 2], 'sum')",
        """SELECT from_json('{}', '{"a": "BIGINT", "b": ["VARCHAR"], "c": "DECIMAL(4, 2)[]"}')""",
    ],
)
def test_functions_that_call_others_by_name_are_open_for_those_that_are(sql: str) -> None:
    guard.check(parse(CONNECTION, sql))


def _places(tree: Any) -> Iterator[tuple[Any, str]]:
    """Each key of each node, in an order that does not change."""
    for node in nodes_of(tree):
        for key in node:
            yield node, key


@given(st.sampled_from(harmless()), st.integers(0), st.sampled_from(["key", "value", "node"]))
def test_one_unknown_key_value_or_node_anywhere_is_refused(sql: str, at: int, what: str) -> None:
    tree = copy.deepcopy(tree_of(sql))
    places = list(_places(tree))
    node, key = places[at % len(places)]
    if what == "key":
        node["of_tomorrow"] = None
    elif what == "node":
        node[key] = {"class": "OF_TOMORROW", "type": "OF_TOMORROW"}
    else:
        node[key] = object()
    assert refused(tree) is not None


@given(st.sampled_from(harmless()), st.integers(0))
def test_a_node_without_one_of_its_keys_is_refused(sql: str, at: int) -> None:
    tree = copy.deepcopy(tree_of(sql))
    places = [(node, key) for node, key in _places(tree) if key not in ("value", "query_location")]
    node, key = places[at % len(places)]
    del node[key]
    assert refused(tree) is not None


def test_a_refusal_names_the_place() -> None:
    with pytest.raises(QueryError) as error:
        guard.check(parse(CONNECTION, "EXPLAIN SELECT 1, 2 + sum(3) EXPORT_STATE"))
    assert error.value.offset == len("EXPLAIN SELECT 1, 2 + ")


def test_a_tree_of_any_depth_is_judged() -> None:
    node: Mapping[str, Any] = tree_of("SELECT 1")["node"]["select_list"][0]
    inner = json.loads(json.dumps(node))
    cast = tree_of("SELECT TRY(1)")["node"]["select_list"][0]
    random.seed(1)
    for _ in range(50_000):
        inner = {**cast, "children": [inner]}
    tree = tree_of("SELECT 1")
    tree["node"]["select_list"] = [inner]
    assert refused(tree) is None
