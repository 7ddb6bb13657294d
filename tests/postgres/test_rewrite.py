"""Names of PostgreSQL's catalogue are changed on the syntax tree, and nothing else is."""

import json
from typing import Any

import duckdb
import pytest
from tests.each import each

from gpuwarden_postgres.rewrite import Rewritten, parameter_types, rewrite


@pytest.fixture(scope="module")
def cursor() -> Any:
    with duckdb.connect() as connection:
        yield connection


def tree_of(cursor: Any, sql: str) -> Any:
    row = cursor.execute("SELECT json_serialize_sql($1)", [sql]).fetchone()
    return json.loads(row[0])["statements"][0]


def rewritten(cursor: Any, sql: str) -> tuple[Rewritten, str]:
    tree = tree_of(cursor, sql)
    found = rewrite(tree, sql)
    row = cursor.execute("SELECT json_deserialize_sql($1)", [json.dumps({"statements": [tree]})])
    return found, row.fetchone()[0]


@each(
    "sql",
    [
        "SELECT * FROM gpu_samples",
        "SELECT 'pg_catalog.pg_class' AS pg_class, ts FROM main.gpu_samples",
        "WITH pg_class AS (SELECT 1) SELECT * FROM pg_class",
        "SELECT node ~ 'n1', ts::DATE FROM gpus ORDER BY node COLLATE NOCASE",
        "SELECT * FROM lake.pg_catalog.pg_class",
        "SELECT pg_class.node FROM gpus AS pg_class",
    ],
)
def test_other_queries_stay_as_they_were_written(cursor: Any, sql: str) -> None:
    assert rewritten(cursor, sql)[0] == Rewritten(False, False)


@each(
    "sql, expected, is_catalog",
    [
        ("SELECT a.oid FROM pg_catalog.pg_class a", "SELECT a.oid FROM pg_class AS a", True),
        (
            "SELECT pg_catalog.pg_class.oid FROM pg_catalog.pg_class",
            "SELECT pg_class.oid FROM pg_class AS pg_class",
            True,
        ),
        (
            "SELECT table_name FROM information_schema.tables",
            'SELECT table_name FROM information_schema_tables AS "tables"',
            True,
        ),
        ("SELECT * FROM public.gpus", "SELECT * FROM main.gpus", False),
        (
            "SELECT 'a' OPERATOR(pg_catalog.~) '^(ä)$' COLLATE pg_catalog.default FROM pg_am",
            "SELECT regexp_matches('a', '^(ä)$') FROM pg_am AS pg_am",
            True,
        ),
        (
            "SELECT 'gpus'::regclass, a.oid::pg_catalog.regclass FROM gpus a",
            "SELECT own_relation_oid('gpus') AS regclass, own_relation_name(a.oid) AS regclass FROM gpus AS a",
            True,
        ),
        ("SELECT current_user", "SELECT 'gpuwarden' AS current_user", True),
        ("SELECT user", "SELECT 'gpuwarden' AS \"user\"", False),
        (
            "SELECT gpu = ANY('{1,NULL}') FROM gpus",
            "SELECT (gpu = ANY(SELECT unnest(list_value('1', NULL)))) FROM gpus",
            False,
        ),
        (
            "SELECT s FROM pg_am, string_split('a', ',') s",
            "SELECT s FROM pg_am AS pg_am , (SELECT string_split('a', ',') AS string_split) AS s(s)",
            True,
        ),
    ],
)
def test_names_of_the_catalogue_become_ours(
    cursor: Any, sql: str, expected: str, is_catalog: bool
) -> None:
    found, text = rewritten(cursor, sql)
    assert (found, " ".join(text.split())) == (Rewritten(True, is_catalog), expected)


def test_types_of_parameters_follow_from_what_they_are_compared_with(cursor: Any) -> None:
    sql = (
        "SELECT * FROM gpus WHERE gpu = $1 AND node IN ($2, 'x') AND ts BETWEEN $3 AND $4 "
        "AND gpu = ANY($5) AND $6::INTEGER[] IS NULL AND other = $7 LIMIT $8"
    )
    columns = {"gpu": "INTEGER", "node": "VARCHAR", "ts": "TIMESTAMP"}
    assert parameter_types(tree_of(cursor, sql), columns) == {
        "1": "INTEGER",
        "2": "VARCHAR",
        "3": "TIMESTAMP",
        "4": "TIMESTAMP",
        "5": "INTEGER[]",
        "6": "INTEGER[]",
        "8": "BIGINT",
    }
