"""Rules read a collector over HTTP as they read a database: with Python's types and clear errors."""

from datetime import UTC, datetime, timedelta

from gpuwarden_cli.read.remote import RemoteQuerier

COLUMNS = [("n", "BIGINT"), ("at", "TIMESTAMP"), ("span", "INTERVAL"), ("x", "VARCHAR")]
ROW = [1, "2026-01-01T12:00:00.500Z", 90.5, None]
ANSWER = {
    "columns": [{"name": name, "type": kind} for name, kind in COLUMNS],
    "rows": [ROW, ROW],
    "truncated": False,
}


async def test_values_have_the_types_of_the_database(answering) -> None:
    asked = answering(200, ANSWER)
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    result = await RemoteQuerier().query("SELECT $now, $least", {"now": now, "least": 3})
    at = datetime(2026, 1, 1, 12, 0, 0, 500_000, tzinfo=UTC)
    assert result.rows == [(1, at, timedelta(seconds=90.5), None)] * 2
    assert result.types == ["BIGINT", "TIMESTAMP", "INTERVAL", "VARCHAR"]
    assert asked[0]["params"] == {"now": {"timestamp": "2026-01-01T12:00:00+00:00"}, "least": 3}


async def test_the_collector_is_told_how_many_rows_are_wanted_and_says_that_there_are_more(
    answering,
) -> None:
    asked = answering(200, {**ANSWER, "rows": [ROW], "truncated": True})
    result = await RemoteQuerier().query("SELECT 1", row_limit=1)
    assert (asked[0]["row_limit"], len(result.rows), result.truncated) == (1, 1, True)
