"""Results of queries."""

from gpuwarden.query import QueryError, QueryTimeoutError, Result


def test_records_name_each_value() -> None:
    result = Result(["node", "gpu"], ["VARCHAR", "INTEGER"], [("n1", 0), ("n1", None)])
    assert result.records() == [{"node": "n1", "gpu": 0}, {"node": "n1", "gpu": None}]


def test_a_timeout_is_a_query_error() -> None:
    assert issubclass(QueryTimeoutError, QueryError)
