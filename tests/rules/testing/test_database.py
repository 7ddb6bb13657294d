"""The database in memory answers as the collector's does: aware instants, NULL as None."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from gpuwarden.query import QueryError

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_instants_go_in_and_come_out_aware(database) -> None:
    berlin = NOON.astimezone(timezone(timedelta(hours=1)))
    row = {"ts": berlin, "node": "n", "kind": "k", "severity": "info", "message": "m"}
    database.insert("events", [{**row, "simulated": True}, {**row, "simulated": True, "gpu": 3}])
    result = database.run("SELECT ts, gpu FROM events WHERE ts = $now ORDER BY gpu", {"now": NOON})
    assert result.columns == ["ts", "gpu"]
    assert result.types == ["TIMESTAMP", "INTEGER"]
    assert result.rows == [(NOON, 3), (NOON, None)]


def test_a_wrong_query_is_an_error_in_one_line(database) -> None:
    with pytest.raises(QueryError, match="oops") as caught:
        database.run("SELECT oops FROM gpus")
    assert "\n" not in str(caught.value)


async def test_a_limit_cuts_and_says_so(database) -> None:
    result = await database.query("SELECT * FROM range(5)", row_limit=3)
    assert (len(result.rows), result.truncated) == (3, True)
    result = await database.query("SELECT * FROM range(3)", row_limit=3)
    assert (len(result.rows), result.truncated) == (3, False)
