"""Asks DuckDB about the syntax of SQL: which words are reserved, and what an expression consists of. It reads no data."""

import json
from functools import cache
from typing import Any

import duckdb

from gpuwarden.query import text_sql


@cache
def _parser() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})


@cache
def reserved_words() -> frozenset[str]:
    """Words that SQL takes for something else than a name."""
    sql = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')"
    return frozenset(name for (name,) in _parser().cursor().execute(sql).fetchall())


def syntax_tree(sql: str) -> Any:
    """DuckDB's syntax tree of a SELECT, as json_serialize_sql gives it."""
    # Not by a parameter: DuckDB imports pandas for the first one, 0.4 s at each start.
    rows = _parser().cursor().execute(f"SELECT json_serialize_sql({text_sql(sql)})").fetchall()
    return json.loads(rows[0][0])
