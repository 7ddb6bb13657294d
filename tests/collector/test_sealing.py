"""Samples move to the lake whole and once, whoever reads or dies meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.clock import ManualClock
from gpuwarden_collector.sealing import Drop, Freeze, Policy, Seal, Sealer, Wait, next_step
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.store.address import FILES, FOLDER
from gpuwarden_collector.store.commit import Changes, commit
from gpuwarden_collector.store.database import Database, Limits
from gpuwarden_collector.store.errors import StoreUnavailableError
from gpuwarden_collector.store.generations import hot_table
from gpuwarden_collector.writer import Writer, load_known

POLICY = Policy(interval_s=60, rows_max=1000)
LIMITS = Limits(memory="512MiB", threads=1)


@pytest.mark.parametrize(
    ("generations", "sealed", "rows", "age_s", "step"),
    [
        ([1], 0, 0, 9999, Wait()),
        ([1], 0, 10, 59, Wait()),
        ([1], 0, 10, 60, Freeze()),
        ([1], 0, 1000, 0, Freeze()),
        ([1, 2], 0, 9999, 9999, Seal(1)),
        ([1, 2], 1, 9999, 9999, Drop(1)),
        ([3, 4, 5], 2, 0, 0, Seal(3)),
        ([3, 4, 5], 3, 0, 0, Drop(3)),
    ],
)
def test_what_is_next(
    generations: list[int], sealed: int, rows: int, age_s: float, step: object
) -> None:
    assert next_step(generations, sealed, rows=rows, age_s=age_s, policy=POLICY) == step


@given(st.integers(1, 5), st.integers(0, 4), st.integers(0, 2000), st.floats(0, 100))
def test_every_start_ends_with_one_generation(
    count: int, done: int, rows: int, age_s: float
) -> None:
    """Whatever a kill left behind, the steps lead out of it, and no generation is lost or moved
    twice."""
    generations = list(range(1, count + 1))
    sealed = min(done, count - 1)
    moved = []
    for _ in range(20):
        match next_step(generations, sealed, rows=rows, age_s=age_s, policy=POLICY):
            case Wait():
                break
            case Freeze():
                generations.append(generations[-1] + 1)
                rows, age_s = 0, 0.0
            case Seal(generation):
                moved.append(generation)
                sealed = generation
            case Drop(generation):
                assert generation <= sealed
                generations.remove(generation)
    assert len(generations) == 1
    assert moved == sorted(set(moved))
    assert generations[0] == sealed + 1 or not moved


def put(database: Database, wire: Any, seconds: range, gpus: int = 4) -> None:
    rows = wire.table("gpu_samples", wire.gpu_rows(gpus, seconds))
    commit(database, Changes(appended={"gpu_samples": rows}))


def counted(database: Database) -> tuple[int, int]:
    with database.reading() as cursor:
        row = cursor.execute(
            "SELECT count(*), count(DISTINCT (gpu_uuid, ts)) FROM gpu_samples"
        ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def files(data_dir: Path) -> list[Path]:
    return sorted((data_dir / FOLDER / FILES).rglob("*.parquet"))


Run = Callable[..., AbstractAsyncContextManager[Sealer]]


@pytest.fixture
def run(database: Database, clock: ManualClock) -> Run:
    @asynccontextmanager
    async def running(policy: Policy = POLICY) -> AsyncIterator[Sealer]:
        writer = Writer(database, load_known(database), Stats(), clock, commit_interval_s=0.001)
        writer.start()
        sealer = Sealer(database, writer, Stats(), clock, policy)
        try:
            yield sealer
        finally:
            await sealer.stop()
            await writer.stop()

    return running


async def test_rows_move_when_they_are_due_and_are_read_as_before(
    run: Run, database: Database, data_dir: Path, clock: ManualClock, wire: Any
) -> None:
    put(database, wire, range(50))
    async with run() as sealer:
        assert await sealer.run_once() == 0, "not due"
        clock.advance(61)
        assert await sealer.run_once() == 200
        assert counted(database) == (200, 200)
        assert database.generations == [2]
        (file,) = files(data_dir)
        assert "year=2026" in str(file)
        put(database, wire, range(50, 60))
        assert counted(database) == (240, 240)
        assert await sealer.run_once() == 0
        assert await sealer.run_once(is_forced=True) == 40
        assert counted(database) == (240, 240)


async def test_the_lake_is_left_out_of_what_it_has_no_rows_of(
    run: Run, database: Database, wire: Any
) -> None:
    """To look there costs a question to its catalogue for each column."""

    def asks_the_lake(table: str) -> bool:
        with database.reading() as cursor:
            plan = cursor.execute(f"EXPLAIN SELECT max(ts) FROM {table}").fetchall()[0][1]
        return "DUCKLAKE_SCAN" in plan

    put(database, wire, range(50))
    assert not asks_the_lake("gpu_samples")
    async with run() as sealer:
        database.roll()
        assert asks_the_lake("gpu_samples"), "from now on rows can be there at any moment"
        assert asks_the_lake("events")
        await sealer.run_once()
    assert (asks_the_lake("gpu_samples"), asks_the_lake("events")) == (True, False)
    assert counted(database) == (200, 200)


async def test_late_rows_find_their_day(
    run: Run, database: Database, data_dir: Path, wire: Any
) -> None:
    put(database, wire, range(-86_400 * 2, -86_400 * 2 + 5))
    put(database, wire, range(5))
    async with run() as sealer:
        await sealer.run_once(is_forced=True)
    assert counted(database) == (40, 40)
    assert len({file.parent for file in files(data_dir)}) == 2


async def test_readers_never_see_a_gap_or_a_double(run: Run, database: Database, wire: Any) -> None:
    stop, wrong, reads = threading.Event(), [], 0

    def read() -> None:
        nonlocal reads
        while not stop.is_set():
            seen = counted(database)
            reads += 1
            if seen != (400, 400):
                wrong.append(seen)

    put(database, wire, range(100))
    readers = [threading.Thread(target=read) for _ in range(2)]
    async with run() as sealer:
        for reader in readers:
            reader.start()
        try:
            for _ in range(4):
                await sealer.run_once(is_forced=True)
                await asyncio.sleep(0.05)
                # Generations come and go; what they hold is one row that nobody counts.
                row = wire.table("host_samples", [
                    {"ts": wire.now, "node": "n1", "simulated": True}
                ])  # fmt: skip
                commit(database, Changes(appended={"host_samples": row}))
        finally:
            stop.set()
            for reader in readers:
                reader.join()
    assert reads > 0
    assert wrong == []


async def test_a_seal_that_fails_changes_nothing_and_is_taken_again(
    run: Run, database: Database, data_dir: Path, wire: Any, files_of_at_most: Any
) -> None:
    put(database, wire, range(500))
    async with run() as sealer:
        with files_of_at_most(200), pytest.raises(StoreUnavailableError):
            await sealer.run_once(is_forced=True)
        assert counted(database) == (2000, 2000)
        assert await sealer.run_once() == 2000
    assert counted(database) == (2000, 2000)
    assert database.generations == [2]


async def test_a_seal_is_ended_when_the_collector_stops(
    run: Run, database: Database, wire: Any
) -> None:
    put(database, wire, range(20_000))
    async with run() as sealer:
        sealing = asyncio.ensure_future(sealer.seal_due())
        await asyncio.sleep(0)
    await sealing
    assert counted(database) == (80_000, 80_000)


@pytest.mark.parametrize("when", ["frozen", "sealed"])
async def test_what_a_kill_left_undone_is_done_after_it(
    run: Run, database: Database, data_dir: Path, wire: Any, when: str
) -> None:
    """A kill between two steps: the next start finds an older generation."""
    put(database, wire, range(10))
    database.roll()
    if when == "sealed":
        async with run() as sealer:
            await sealer._seal(1)
        assert counted(database) == (40, 40)
    put(database, wire, range(10, 20))
    database.close()
    database.__init__(data_dir / "gpuwarden.duckdb", LIMITS)  # type: ignore[misc]
    assert (database.generations, counted(database)) == ([1, 2], (80, 80))
    async with run() as sealer:
        assert await sealer.run_once() == (0 if when == "sealed" else 40)
    assert (database.generations, counted(database)) == ([2], (80, 80))


def test_the_folder_may_be_moved(
    database: Database, data_dir: Path, clock: ManualClock, wire: Any
) -> None:
    put(database, wire, range(3000))
    asyncio.run(sealed(database, clock))
    database.close()
    moved = data_dir.with_name(data_dir.name + "-moved")
    data_dir.rename(moved)
    again = Database.open(moved, LIMITS)
    assert counted(again) == (12_000, 12_000)
    again.close()
    moved.rename(data_dir)


async def sealed(database: Database, clock: ManualClock) -> None:
    writer = Writer(database, load_known(database), Stats(), clock, commit_interval_s=0.001)
    writer.start()
    await Sealer(database, writer, Stats(), clock, POLICY).run_once(is_forced=True)
    await writer.stop()


def test_time_and_gpu_prune_both_the_lake_and_what_is_hot(
    database: Database, clock: ManualClock, wire: Any
) -> None:
    put(database, wire, range(3000))
    asyncio.run(sealed(database, clock))
    put(database, wire, range(3000, 6000))
    hot_from = (wire.now + timedelta(seconds=3001)).replace(tzinfo=None)
    with database.reading() as cursor:
        plan = cursor.execute(
            f"EXPLAIN SELECT max(util_percent) FROM gpu_samples WHERE ts >= '{hot_from}'"
        ).fetchall()[0][1]
    assert "EMPTY_RESULT" in plan, "no file of the lake has such rows"
    assert "DUCKLAKE_SCAN" not in plan
    assert hot_table("gpu_samples", 2).partition(".")[2] in plan
    assert "ts>=" in plan, "the filter goes down to the hot table"
