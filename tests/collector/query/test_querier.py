"""Queries answer with Python values, keep their limits, and never write."""

import asyncio
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import psutil
import pytest
from tests.collector.made_up_store import move

from gpuwarden.clock import SystemClock
from gpuwarden.query import QueryError, QueryTimeoutError
from gpuwarden_collector.processes import forkserver
from gpuwarden_collector.processes.forkserver import QUERY, RULES, STORAGE, ForkServer, spawn
from gpuwarden_collector.query import querier as querier_module
from gpuwarden_collector.query.querier import SqlQuerier
from gpuwarden_collector.query.worker import WorkerSettings
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits

ENDLESS = "SELECT count(*) FROM range(100000000) a, range(100000000) b"
STUBBORN = "SELECT bitstring('1', 2000000000)"
"""Computes for long, and heeds no interrupt."""
_TOO_MUCH = "needs more memory|the query ended its process|larger than|longer than"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Database]:
    """One for all: tests that store rows have those of a node of their own, or another store."""
    folder = tmp_path_factory.mktemp("queried")
    shutil.copytree(empty_store, folder, dirs_exist_ok=True)
    opened = Database.open(folder, EngineLimits(memory="512MiB", threads=1))
    yield opened
    opened.close()


@pytest.fixture
async def querier(worker_settings: WorkerSettings) -> AsyncIterator[SqlQuerier]:
    async with SqlQuerier(
        worker_settings, Stats(), SystemClock(), queries_max=2, timeout_s=20
    ) as opened:
        yield opened


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


async def test_wrong_parameters_are_named(querier: SqlQuerier) -> None:
    with pytest.raises(QueryError, match=r"needs values for \$now"):
        await querier.query("SELECT $now", {})
    with pytest.raises(QueryError, match="without a time zone"):
        await querier.query("SELECT $now", {"now": datetime(2026, 1, 1)})  # noqa: DTZ001


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


async def test_queries_beside_leave_a_process_to_those_that_are_waited_for(
    querier: SqlQuerier,
) -> None:
    with pytest.raises(ExceptionGroup) as failed:
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(querier.background.query(ENDLESS))
            async with asyncio.timeout(15):
                for _ in range(3):
                    assert (await querier.query("SELECT 1")).rows == [(1,)]
            raise ZeroDivisionError  # cancels the others
    assert failed.group_contains(ZeroDivisionError)
    assert (await querier.background.query("SELECT 1")).rows == [(1,)]


async def test_rules_get_a_core_before_the_storage_process_and_that_before_people(
    worker_settings: WorkerSettings,
) -> None:
    nices = []
    for kind in (RULES, QUERY):
        async with SqlQuerier(
            worker_settings, Stats(), SystemClock(), queries_max=1, kind=kind
        ) as opened:
            await opened.query("SELECT 1")
            nices += [psutil.Process(pid).nice() for pid in opened.pids]
    ours, theirs = socket.socketpair()
    with ours:
        storage = psutil.Process(spawn([theirs.detach()], STORAGE))
        async with asyncio.timeout(20):
            while storage.name() != "gpuwarden-store":  # noqa: ASYNC110  nobody says so
                await asyncio.sleep(0.01)
        nices.insert(1, storage.nice())
    assert os.getpriority(os.PRIO_PROCESS, 0) < nices[0] < nices[1] < nices[2]


async def _failure(querier: SqlQuerier, sql: str, timeout_s: float | None = None) -> QueryError:
    with pytest.raises(QueryError) as failed:
        await querier.query(sql, timeout_s=timeout_s)
    return failed.value


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


@pytest.mark.slow
async def test_what_needs_too_much_memory_is_refused_and_costs_the_next_query_nothing(
    querier: SqlQuerier,
) -> None:
    before = psutil.Process().memory_info().rss
    for sql in (
        "SELECT len(range(1000000000))",
        "SELECT len(array_resize([1], 2000000000))",
        "SELECT len(list_sort(range(500000000)))",
        "SELECT len(list_sort(range(20000000)))",
        "SELECT len(format('{:.1000000000f}', 1.0))",
        "SELECT len(repeat(repeat(repeat('x', 1000), 1000), 1000))",
        "SELECT len(replace(replace(repeat('x', 10000), 'x', repeat('y', 10000)), 'y', repeat('z', 100)))",
        "SELECT len(string_agg(repeat('x', 10000), '')) FROM range(1000000)",
        "WITH RECURSIVE x AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM x, range(10)) SELECT count(*) FROM x",
        "SELECT repeat('x', 10000) FROM range(100000)",
        "SELECT histogram(i) FROM range(100000000) t(i)",
    ):
        assert re.search(_TOO_MUCH, str(await _failure(querier, sql, timeout_s=5))), sql
        # A sort of its own, which a process that has no memory left could not do.
        next_sql = "SELECT count(*) FROM (SELECT DISTINCT hash(i) FROM range(1000000) t(i))"
        assert (await querier.query(next_sql)).rows == [(1_000_000,)], sql
    assert psutil.Process().memory_info().rss < before + 64 * 2**20


@pytest.mark.slow
async def test_what_takes_too_long_ends_soon_after_and_leaves_nothing_on_disk(
    querier: SqlQuerier, worker_settings: WorkerSettings
) -> None:
    loop = asyncio.get_running_loop()
    for sql in (
        STUBBORN,
        ENDLESS,
        "WITH RECURSIVE x AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM x) SELECT count(*) FROM x",
        "SELECT count(*) FROM range(1000000000) a(i) JOIN range(1000000000) b(i) USING (i)",
        "SELECT i FROM range(1000000000) t(i) ORDER BY hash(i) LIMIT 1 OFFSET 900000000",
        "SELECT count(DISTINCT i) FROM range(1000000000) t(i)",
    ):
        began_s = loop.time()
        assert isinstance(await _failure(querier, sql, timeout_s=2), QueryTimeoutError), sql
        assert loop.time() - began_s < 10, sql
        assert (await querier.query("SELECT 1")).rows == [(1,)], sql
    await querier.close()
    assert [p for p in worker_settings.spill.rglob("*") if p.name.startswith("duckdb")] == []


async def test_a_stream_holds_little_and_a_held_answer_is_bounded(querier: SqlQuerier) -> None:
    sql = "SELECT repeat(chr(1), 1000) AS x FROM range(70000)"
    with pytest.raises(QueryError, match="larger than 64 MiB"):
        await querier.query(sql, row_limit=70_000)
    before, most, size = psutil.Process().memory_info().rss, 0, 0
    async with querier.stream("json", sql) as stream:
        async for part in stream:
            size += len(part)
            most = max(most, psutil.Process().memory_info().rss)
        assert (stream.columns, stream.types) == (("x",), ("VARCHAR",))
        assert (stream.rows, stream.truncated) == (70_000, False)
    assert size > 400_000_000  # six characters each
    assert most < before + 20_000_000
    (pid,) = querier.pids
    assert psutil.Process(pid).memory_info().rss < 300_000_000


async def test_rows_come_as_arrow_batches_before_the_query_has_ended(querier: SqlQuerier) -> None:
    sql = "SELECT i, (CASE WHEN i % 2 = 0 THEN 'a' ELSE 'b' END)::ENUM('a', 'b') AS e FROM range($n) t(i)"
    rows, last = 0, None
    async with querier.stream("arrow", sql, {"n": 500_000}, row_limit=1_000_000) as stream:
        async for batch in stream.batches():
            assert rows or not stream.is_ended
            assert batch["i"][0].as_py() == rows
            rows, last = rows + batch.num_rows, batch
    assert last is not None
    assert (rows, last["e"][-1].as_py()) == (500_000, "b")
    async with querier.stream("arrow", sql, {"n": 0}) as stream:
        assert [batch.num_rows async for batch in stream.batches()] == []


async def test_a_stream_is_cut_at_what_was_asked_or_may_be(querier: SqlQuerier) -> None:
    asked = ((None, 100_000, True), (7, 7, False), (0, 0, False), (200_000, 150_000, False))
    for limit, rows, says_so in asked:
        sql = "SELECT * FROM range(150000)" if limit == 200_000 else "SELECT * FROM range(1000000)"
        async with querier.stream("ndjson", sql, row_limit=limit) as stream:
            body = b"".join([part async for part in stream])
        assert (stream.rows, stream.truncated) == (rows, limit != 200_000)
        assert (b"gpuwarden.truncated" in body[-100:]) == says_so


async def test_a_process_that_is_killed_costs_its_query_and_no_other(querier: SqlQuerier) -> None:
    assert (await querier.query("SELECT 1")).rows == [(1,)]
    (pid,) = querier.pids
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_failure(querier, ENDLESS))
        await asyncio.sleep(0.1)
        os.kill(pid, signal.SIGKILL)
    assert "the query ended its process" in str(task.result())
    assert (await querier.query("SELECT 1")).rows == [(1,)]
    (pid,) = querier.pids
    os.kill(pid, signal.SIGKILL)  # nobody asks it now
    await _gone(pid)
    assert (await querier.query("SELECT 1")).rows == [(1,)]


@pytest.mark.slow
async def test_the_process_that_forks_may_be_killed_at_any_time(
    worker_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ForkServer()
    monkeypatch.setattr("gpuwarden_collector.query.querier.spawn", server.spawn)
    async with SqlQuerier(worker_settings, Stats(), SystemClock()) as querier:
        for _ in range(2):
            assert (await querier.query("SELECT 1")).rows == [(1,)]
            (pid,) = querier.pids
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            await _gone(pid)
        assert (await querier.query("SELECT 1")).rows == [(1,)]
        (pid,) = querier.pids
        server.stop()
        await _gone(pid)


@pytest.mark.slow
async def test_a_process_that_is_stopped_costs_no_query(
    worker_settings: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that answers queries nor the one that forks them."""
    monkeypatch.setattr(querier_module, "TAKEN_S", 2.0)
    monkeypatch.setattr(forkserver, "FORK_S", 2.0)
    server, stats = ForkServer(), Stats()
    monkeypatch.setattr(querier_module, "spawn", server.spawn)
    async with SqlQuerier(worker_settings, stats, SystemClock(), timeout_s=20) as querier:
        async with asyncio.timeout(40):
            assert (await querier.query("SELECT 1")).rows == [(1,)]
            (pid,) = querier.pids
            await _stopped(pid)
            assert (await querier.query("SELECT 2")).rows == [(2,)]
            await _gone(pid)
            assert stats.query_restarts == 1
            (pid,), forking = querier.pids, server.pid
            assert forking is not None
            await _stopped(forking)
            assert (await querier.query("SELECT 3")).rows == [(3,)]  # it is not needed yet
            await _stopped(pid)
            asked = (querier.query(f"SELECT {number}") for number in range(4))
            assert [r.rows for r in await asyncio.gather(*asked)] == [[(n,)] for n in range(4)]
            assert server.pid != forking
            await _gone(forking)
            await _gone(pid)
        server.stop()


@pytest.mark.slow
async def test_a_process_that_is_stopped_while_it_answers_is_ended_when_its_time_is_over(
    querier: SqlQuerier,
) -> None:
    assert (await querier.query("SELECT 1")).rows == [(1,)]
    (pid,) = querier.pids
    asked = asyncio.ensure_future(_failure(querier, ENDLESS, timeout_s=3))
    await asyncio.sleep(0.5)
    await _stopped(pid)
    async with asyncio.timeout(30):
        assert isinstance(await asked, QueryTimeoutError)
        await _gone(pid)
        assert (await querier.query("SELECT 1")).rows == [(1,)]


@pytest.mark.slow
async def test_a_pool_never_has_more_processes_than_it_may(querier: SqlQuerier) -> None:
    before = set(_query_processes())
    most = 0
    async with asyncio.TaskGroup() as group:
        asked = [
            group.create_task(_either(querier, sql))
            for sql in (STUBBORN, "SELECT 1", "SELECT len(list_sort(range(20000000)))", ENDLESS) * 2
        ]
        while not all(task.done() for task in asked):
            await asyncio.sleep(0.02)
            most = max(most, len(set(_query_processes()) - before))
    assert most == 2
    assert len(querier.pids) <= 2


async def test_who_goes_away_twice_leaves_no_query_behind(querier: SqlQuerier) -> None:
    for _ in range(3):
        task = asyncio.ensure_future(querier.query(STUBBORN))
        await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()  # while the query is being ended
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await querier.query("SELECT 1")).rows == [(1,)]


async def test_a_store_that_cannot_be_read_is_one_sentence_and_is_not_tried_without_end(
    worker_settings: WorkerSettings, caplog: pytest.LogCaptureFixture
) -> None:
    state = worker_settings.data_dir / "state.sqlite"
    async with SqlQuerier(worker_settings, Stats(), SystemClock(), queries_max=2) as querier:
        held = state.rename(state.with_name("away"))
        said = {str(await _failure(querier, "SELECT 1")) for _ in range(50)}
        held.rename(state)
        assert [reason.partition(":")[0] for reason in said] == ["the store cannot be read now"]
        assert len([r for r in caplog.records if r.getMessage() == "no query process"]) <= 2
        async with asyncio.timeout(20):
            while True:
                try:
                    assert (await querier.query("SELECT 1")).rows == [(1,)]
                    break
                except QueryError:
                    await asyncio.sleep(0.1)


async def test_closing_ends_all_processes_and_what_they_run(
    worker_settings: WorkerSettings,
) -> None:
    async with SqlQuerier(worker_settings, Stats(), SystemClock(), queries_max=2) as querier:
        assert (await querier.query("SELECT 1")).rows == [(1,)]
        async with asyncio.TaskGroup() as group:
            task = group.create_task(_failure(querier, STUBBORN))
            group.create_task(_either(querier, "SELECT 1"))
            await asyncio.sleep(0.5)
            pids = querier.pids
            await querier.close()
        assert "the collector stops" in str(task.result())
        for pid in pids:
            await _gone(pid)
        assert list(worker_settings.spill.glob(f"{os.getpid()}-*")) == []


@pytest.mark.slow
@pytest.mark.parametrize("where", ["", "WHERE ts > TIMESTAMP '2026-02-01'"])
async def test_each_row_is_seen_once_while_rows_move_to_the_lake(
    where: str, worker_settings: WorkerSettings, data_dir: Path, wire: Any
) -> None:
    begun, done = [0], [0]
    database = Database.open(data_dir, EngineLimits(memory="512MiB", threads=1))
    settings = replace(
        worker_settings, data_dir=data_dir, address=database.address, spill=database.spill_dir
    )

    def store_and_move() -> None:
        for at in range(12):
            for part in range(3):
                rows = wire.table("gpu_samples", wire.gpu_rows(4, [at * 3 + part]))
                begun[0] += 4
                commit(database, Changes(appended={"gpu_samples": rows}))
                done[0] += 4
                time.sleep(0.02)
            segment = database.freeze()
            move(database, segment)
            time.sleep(0.05 * (at % 3))  # queries may know by then what the lake holds, or not
            database.drop(segment)

    seen = []

    async def ask(moving: "asyncio.Task[None]") -> None:
        sql = "SELECT count(*), count(DISTINCT (gpu_uuid, ts)) FROM gpu_samples " + where
        while not moving.done():
            least = done[0]
            ((count, different),) = (await querier.query(sql)).rows
            seen.append((least <= count <= begun[0], count == different))

    async with SqlQuerier(settings, Stats(), SystemClock(), queries_max=2) as querier:
        async with asyncio.TaskGroup() as group:
            moving = group.create_task(asyncio.to_thread(store_and_move))
            for _ in range(2):
                group.create_task(ask(moving))
        assert set(seen) == {(True, True)}
        assert (await querier.query("SELECT count(*) FROM gpu_samples")).rows == [(144,)]
    database.close()


def _query_processes() -> list[int]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.name() == "gpuwarden-query":
                found.append(process.pid)
    return found


async def _either(querier: SqlQuerier, sql: str) -> None:
    with contextlib.suppress(QueryError):
        await querier.query(sql, timeout_s=3)


async def _stopped(pid: int) -> None:
    """Stop all threads of a process."""
    os.kill(pid, signal.SIGSTOP)
    async with asyncio.timeout(20):
        for stat in Path(f"/proc/{pid}/task").glob("*/stat"):  # noqa: ASYNC240
            while stat.read_text().rpartition(")")[2].split()[0] != "T":  # noqa: ASYNC110  as in _gone
                await asyncio.sleep(0.01)


async def _gone(pid: int) -> None:
    async with asyncio.timeout(20):
        while psutil.pid_exists(pid):  # noqa: ASYNC110  a process of somebody else
            await asyncio.sleep(0.01)


async def test_processes_end_where_agents_hold_more_than_a_thousand_descriptors(
    worker_settings: WorkerSettings,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        async with SqlQuerier(worker_settings, Stats(), SystemClock(), queries_max=1) as querier:
            assert (await querier.query("SELECT 7")).rows == [(7,)]
            (pid,) = querier.pids
        assert not psutil.pid_exists(pid)
    finally:
        for number in many:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_union_is_answered_in_each_form_or_refused_in_one_line(querier: SqlQuerier) -> None:
    sql = "SELECT union_value(k := {'z': [1]}) AS a, union_value(k := [1, 2]) AS b, 1::UNION(a INT) AS c"
    assert (await querier.query(sql)).rows == [({"z": [1]}, [1, 2], 1)]
    for form, expected in (("ndjson", b'{"a":{"z":[1]},"b":[1,2],"c":1}\n'), ("csv", b"1\n")):
        async with querier.stream(form, sql) as stream:
            body = b"".join([bytes(part) async for part in stream])
        assert body.endswith(expected)
    with pytest.raises(QueryError, match="Parquet cannot hold this.*cast it to VARCHAR"):
        async with querier.stream("parquet", sql) as stream:
            pass
    (pid,) = querier.pids
    assert (await querier.query("SELECT 1")).rows == [(1,)]
    assert querier.pids == [pid]
