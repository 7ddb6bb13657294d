"""Queries answer with Python values, keep their limits, and never write."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gpuwarden.clock import SystemClock
from gpuwarden.query import QueryError, QueryTimeoutError
from gpuwarden_collector.query import SqlQuerier
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.store.commit import Changes, commit
from gpuwarden_collector.store.database import Database

ENDLESS = "SELECT count(*) FROM range(100000000) a, range(100000000) b"


@pytest.fixture
async def querier(database: Database) -> AsyncIterator[SqlQuerier]:
    opened = SqlQuerier(database, Stats(), SystemClock(), queries_max=2, timeout_s=20)
    yield opened
    await opened.close()


async def test_rows_come_with_names_types_and_aware_instants(
    querier: SqlQuerier, database: Database, wire: Any
) -> None:
    rows = wire.table("gpu_samples", wire.gpu_rows(2, [0]))
    commit(database, Changes(appended={"gpu_samples": rows}))
    result = await querier.query("SELECT ts, gpu, pstate FROM gpu_samples ORDER BY gpu")
    assert result.records() == [
        {"ts": wire.now, "gpu": 0, "pstate": None},
        {"ts": wire.now, "gpu": 1, "pstate": None},
    ]
    assert result.types == ("TIMESTAMP", "INTEGER", "SMALLINT")
    assert not result.truncated


async def test_aware_parameters_compare_with_timestamps_in_any_zone(querier: SqlQuerier) -> None:
    instant = datetime(2026, 3, 1, 12, tzinfo=UTC)
    sql = "SELECT $now = TIMESTAMP '2026-03-01 12:00:00' AS same, $now AS now"
    for now in (instant, instant.astimezone(ZoneInfo("America/New_York"))):
        result = await querier.query(sql, {"now": now, "unused": 1})
        assert result.rows == [(True, instant)]


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({}, r"needs values for \$now"),
        ({"now": datetime(2026, 1, 1)}, "without time zone"),  # noqa: DTZ001  that is the case
    ],
)
async def test_wrong_parameters_are_named(
    querier: SqlQuerier, params: dict[str, Any], reason: str
) -> None:
    with pytest.raises(QueryError, match=reason):
        await querier.query("SELECT $now", params)


async def test_a_query_asked_again_is_judged_as_at_first(querier: SqlQuerier) -> None:
    sql = "SELECT $a + $b AS sum"
    for a in (1, 2):
        assert (await querier.query(sql, {"a": a, "b": 1, "c": 9})).rows == [(a + 1,)]
        with pytest.raises(QueryError, match=r"values for \$b"):
            await querier.query(sql, {"a": a})
        with pytest.raises(QueryError, match="only SELECT"):
            await querier.query("DROP TABLE gpus")
    for number in range(300):  # more than are remembered
        assert (await querier.query(f"SELECT {number}")).rows == [(number,)]


async def test_more_rows_than_the_limit_are_cut_and_said(querier: SqlQuerier) -> None:
    result = await querier.query("SELECT * FROM range(10)", row_limit=4)
    assert [row[0] for row in result.rows] == [0, 1, 2, 3]
    assert result.truncated
    exact = await querier.query("SELECT * FROM range(10)", row_limit=10)
    assert not exact.truncated


async def test_a_query_that_takes_too_long_is_ended_and_frees_its_slot(
    querier: SqlQuerier,
) -> None:
    for _ in range(3):  # more than there are slots
        with pytest.raises(QueryTimeoutError, match=r"longer than 0\.1 s"):
            await querier.query(ENDLESS, timeout_s=0.1)
    assert (await querier.query("SELECT 1")).rows == [(1,)]


async def test_queries_beyond_the_slots_wait_for_one(querier: SqlQuerier) -> None:
    with pytest.raises(ExceptionGroup) as failed:
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(querier.query(ENDLESS, timeout_s=5))
            await asyncio.sleep(0)
            with pytest.raises(QueryTimeoutError, match="no query could start within"):
                await querier.query("SELECT 1", timeout_s=0.1)
            raise ZeroDivisionError  # cancels the two
    assert failed.group_contains(ZeroDivisionError)
    assert (await querier.query("SELECT 1")).rows == [(1,)]


async def test_a_commit_in_need_of_memory_ends_queries_with_a_reason(
    querier: SqlQuerier, database: Database
) -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_failure(querier, ENDLESS))
        async with asyncio.timeout(20):
            while not task.done():
                database.interrupt_readers()
                await asyncio.sleep(0.01)
    assert "a commit needed its memory" in str(task.result())


async def _failure(querier: SqlQuerier, sql: str) -> QueryError:
    with pytest.raises(QueryError) as failed:
        await querier.query(sql)
    return failed.value


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT nothing FROM gpus", 'column "nothing"'),
        ("SELECT * FROM nothing", "nothing does not exist"),
        ("SELECT 'x'::INTEGER", "Could not convert"),
        ("DELETE FROM gpus", "not DELETE"),
    ],
)
async def test_wrong_queries_say_what_is_wrong(querier: SqlQuerier, sql: str, reason: str) -> None:
    assert reason in str(await _failure(querier, sql))


async def test_a_query_cannot_delete_files_of_the_lake(
    querier: SqlQuerier, database: Database
) -> None:
    lost = Path(database.lake_root) / "main" / "lost.parquet"
    lost.parent.mkdir(parents=True, exist_ok=True)
    lost.write_bytes(b"PAR1")
    call = "ducklake_delete_orphaned_files('lake', cleanup_all => true)"
    for sql in (
        f"SELECT * FROM {call}",
        f"EXPLAIN\u00a0ANALYZE\u00a0SELECT\u00a0$$ SELECT $$, * FROM {call} -- $$",
    ):
        assert "delete_orphaned_files() is not allowed" in str(await _failure(querier, sql))
    assert lost.exists()


async def test_an_explained_query_runs_as_it_was_judged(querier: SqlQuerier) -> None:
    sql = "-- why\n EXPLAIN\u00a0ANALYZE\u2003SELECT $a::INTEGER + $b"
    for _ in range(2):
        (row,) = (await querier.query(sql, {"a": 1, "b": 2, "c": 3})).rows
        assert row[0] == "analyzed_plan"
    (row,) = (await querier.query("EXPLAIN (FORMAT json) FROM gpus")).rows
    assert row[0] == "physical_plan"
    assert json.loads(row[1])


async def test_a_refused_statement_does_not_hold_a_thread_up(querier: SqlQuerier) -> None:
    # A statement that ran would be ended by the limit of time, and say so.
    sql = "PRAGMA json_execute_serialized_sql(sleep_ms(60000)::VARCHAR)"
    assert "PRAGMA is not allowed" in str(await _failure(querier, sql))


async def test_instants_differ_as_durations(querier: SqlQuerier) -> None:
    result = await querier.query(
        "SELECT TIMESTAMP '2026-01-02' - TIMESTAMP '2026-01-01', sum(7), 1.25"
    )
    assert result.rows == [(timedelta(days=1), 7, 1.25)]
    assert [type(cell) for cell in result.rows[0]] == [timedelta, int, float]
