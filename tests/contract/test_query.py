"""Results of queries."""

from datetime import UTC, datetime

import duckdb

from gpuwarden.query import QueryError, QueryTimeoutError, Result, timestamp_sql


def test_records_name_each_value() -> None:
    result = Result(["node", "gpu"], ["VARCHAR", "INTEGER"], [("n1", 0), ("n1", None)])
    assert result.records() == [{"node": "n1", "gpu": 0}, {"node": "n1", "gpu": None}]


def test_a_timeout_is_a_query_error() -> None:
    assert issubclass(QueryTimeoutError, QueryError)


def test_an_instant_as_a_literal_is_that_instant() -> None:
    instant = datetime(2026, 1, 31, 23, 59, 59, 123000, tzinfo=UTC)
    row = duckdb.sql(f"SELECT {timestamp_sql(instant)}").fetchone()
    assert row == (instant.replace(tzinfo=None),)
