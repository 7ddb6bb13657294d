"""The files that a query's time names give what the lake would have answered."""

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.collector.made_up_store import move_all, put

from gpuwarden_collector.query.querier import SqlQuerier
from gpuwarden_collector.storage.database import Database

_LAST = datetime(2026, 3, 3, 0, 20, tzinfo=UTC)


def fill(database: Database, day: int, seconds: int = 1_200) -> None:
    put(
        database,
        "gpu_samples",
        f"SELECT TIMESTAMP '2026-03-0{day}' + to_seconds(s) AS ts, 'n' || (g // 2) AS node, "
        "g::INT AS gpu, 'GPU-' || g AS gpu_uuid, true AS simulated, "
        f"if(s % 7 = 0, NULL, (g + s) % 100) AS util_percent FROM range({seconds}) a(s), range(3) b(g)",
    )


@pytest.fixture
def days(database: Database) -> Database:
    """Two days in the lake, and a third that is hot."""
    for day in (1, 2):
        fill(database, day)
        move_all(database)
    fill(database, 3)
    return database


async def same(querier: SqlQuerier, database: Database, sql: str, **params: Any) -> int:
    """How many rows came, of a query and of the same again."""
    bound = {name: value.replace(tzinfo=None) for name, value in params.items()}
    with database.reading() as cursor:
        expected = cursor.execute(sql, bound).fetchall()
    for _ in range(2):
        rows = (await querier.query(sql, params)).rows
        found = [
            tuple(v.replace(tzinfo=None) if isinstance(v, datetime) else v for v in r) for r in rows
        ]
        assert found == expected, sql
    return len(expected)


async def files(querier: SqlQuerier, where: str) -> int:
    """How many files of the lake a query reads."""
    plan = await querier.query(f"EXPLAIN ANALYZE SELECT ts FROM gpu_samples WHERE {where}")
    return int(str(plan.rows).partition("Total Files Read: ")[2][:1] or 0)


QUERIES = (
    "ts > TIMESTAMP '2026-03-02 00:10:00'",
    "ts >= '2026-03-02' AND gpu_uuid = 'GPU-1'",
    "TIMESTAMPTZ '2026-03-01 12:00:00+02' < s.ts AND util_percent IS NULL",
    "ts < DATE '2026-03-02'",
    "ts BETWEEN '2026-03-01 00:19:00' AND '2026-03-02 00:01:00'",
    "ts > now() - INTERVAL 100 YEAR AND ts < now() + INTERVAL 1 DAY",
    "ts > TIMESTAMP '2026-03-01' OR gpu = 1",
    "NOT ts > TIMESTAMP '2026-03-02'",
    "ts > NULL",
    "ts > TIMESTAMP '2026-03-03' - to_minutes(gpu)",
    "ts > TIMESTAMP '2026-03-02 00:19:59.9' AND ts > '2026-03-01'",
    "ts > 'infinity'",
)


@pytest.mark.slow
async def test_answers_are_the_same_with_and_without_the_catalogue(
    querier: SqlQuerier, days: Database
) -> None:
    some = 0
    for where in QUERIES:
        some += await same(
            querier,
            days,
            f"SELECT ts, gpu_uuid, util_percent, node FROM gpu_samples s WHERE {where} ORDER BY ALL",
        )
    assert some > 1_000
    for sql in (
        "SELECT node, avg(util_percent) FROM gpu_samples WHERE ts > '2026-03-02' GROUP BY node ORDER BY 1",
        "WITH x AS (FROM gpu_samples WHERE ts > '2026-03-02') SELECT count(*), typeof(any_value(gpu)) FROM x",
        "SELECT count(*) FROM gpu_samples a JOIN gpu_samples b USING (ts, gpu_uuid) WHERE a.ts > '2026-03-02'",
        "SELECT count(*) FROM range(3) r(x) WHERE x < (SELECT count(*) FROM gpu_samples WHERE ts > '2026-03-03')",
        "SELECT count(*) FROM main.gpu_samples WHERE ts > '2026-03-02'",
        "SELECT count(*) FROM nodes WHERE last_seen_at > '2026-03-02'",
    ):
        assert await same(querier, days, sql)
    assert (
        await same(querier, days, "SELECT ts FROM gpu_samples WHERE ts > $at ORDER BY 1", at=_LAST)
        == 0
    )


async def test_only_files_of_the_time_are_read(querier: SqlQuerier, days: Database) -> None:
    assert await files(querier, "ts >= '2026-03-02' AND gpu = 1") == 1
    assert await files(querier, "ts > '2026-03-03'") == 0
    assert await files(querier, "ts > '2026-03-01'") == 2
    assert await files(querier, "gpu = 1") == 2
    assert await files(querier, "ts > TIMESTAMP '2026-03-03' - to_minutes(gpu)") == 2


async def test_what_is_in_the_catalogue_itself_is_not_left_out(
    querier: SqlQuerier, days: Database
) -> None:
    sql = "SELECT count(*) FROM gpu_samples WHERE ts > '2026-03-02'"
    assert await same(querier, days, sql)
    move_all(days)
    assert await same(querier, days, sql)
    fill(days, 4, seconds=2)
    move_all(days)  # so few rows are not a file
    assert await same(querier, days, sql)
    assert (await querier.query(sql)).rows == [(2 * 1_200 * 3 - 3 + 6,)]
