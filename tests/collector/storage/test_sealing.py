"""Samples move to the lake whole and once, beside readers and kills."""

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.collector.made_up_store import LIMITS, counted, move, move_all

from gpuwarden.clock import ManualClock
from gpuwarden.wire import BatchId
from gpuwarden_collector.ingest.commit_plan import Batch, Stored
from gpuwarden_collector.ingest.decode import Decoded
from gpuwarden_collector.ingest.writer import Writer, load_known
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.address import FILES, FOLDER
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.errors import StoreUnavailableError
from gpuwarden_collector.storage.lake import seal
from gpuwarden_collector.storage.lake_files import ASIDE
from gpuwarden_collector.storage.seal import (
    DropSegments,
    Freeze,
    Save,
    Seal,
    Sealer,
    SealPolicy,
    next_step,
)
from gpuwarden_collector.storage.segment import FOLDER as SEGMENTS
from gpuwarden_collector.storage.segment import segment_path

POLICY = SealPolicy(interval_s=600, bytes_max=100_000)


@pytest.mark.parametrize(
    ("frozen", "sealed", "saved", "written", "age_s", "is_urgent", "step"),
    [
        ([], 0, 0, 0, 9999, True, None),
        ([], 0, 0, 10, 599, False, None),
        ([], 0, 0, 10, 600, False, Freeze()),
        ([], 0, 0, 10, 119, True, None),
        ([], 0, 0, 10, 120, True, Freeze()),
        ([], 0, 0, 99_999, 0, False, None),
        ([], 0, 0, 100_000, 0, False, Freeze()),
        ([1], 0, 0, 9999, 9999, False, Save()),
        ([1], 1, 0, 9999, 9999, False, Save()),
        ([1], 0, 1, 9999, 9999, False, Seal(1)),
        ([1], 1, 1, 9999, 9999, False, DropSegments(1)),
        ([3, 4], 2, 4, 0, 0, False, Seal(3)),
        ([3, 4], 3, 4, 0, 0, False, DropSegments(3)),
        ([3, 4], 9, 9, 0, 0, False, DropSegments(4)),
    ],
)
def test_a_segment_is_frozen_saved_sealed_and_dropped_in_this_order(
    frozen: list[int],
    sealed: int,
    saved: int,
    written: int,
    age_s: float,
    is_urgent: bool,
    step: object,
) -> None:
    found = next_step(
        frozen,
        sealed,
        saved,
        written_bytes=written,
        age_s=age_s,
        policy=POLICY,
        is_urgent=is_urgent,
    )
    assert found == step


@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4), st.integers(0, 200_000),
       st.floats(0, 1000))  # fmt: skip
def test_every_start_ends_without_a_frozen_segment(
    count: int, sealed: int, saved: int, written: int, age_s: float
) -> None:
    """Whatever a kill left behind, the steps lead out of it, and no segment is lost or moved twice."""
    frozen, newest = list(range(1, count + 1)), count
    moved, before = [], sealed
    for _ in range(20):
        match next_step(frozen, sealed, saved, written_bytes=written, age_s=age_s, policy=POLICY):
            case None:
                break
            case Freeze():
                newest += 1
                frozen.append(newest)
                written, age_s = 0, 0.0
            case Save():
                saved = newest
            case Seal(segment):
                assert segment <= saved
                moved.append(segment)
                sealed = max(sealed, segment)
            case DropSegments(until):
                assert until <= sealed
                frozen = [segment for segment in frozen if segment > until]
    assert frozen == []
    assert moved == [segment for segment in range(1, newest + 1) if segment > before]


def put(database: Database, wire: Any, seconds: range, gpus: int = 4) -> None:
    rows = wire.table("gpu_samples", wire.gpu_rows(gpus, seconds))
    commit(database, Changes(appended={"gpu_samples": rows}))


def files(data_dir: Path) -> list[Path]:
    return sorted((data_dir / FOLDER / FILES).rglob("*.parquet"))


Run = Callable[..., AbstractAsyncContextManager[Sealer]]


@pytest.fixture
def run(database: Database, clock: ManualClock) -> Run:
    @asynccontextmanager
    async def running(policy: SealPolicy = POLICY) -> AsyncIterator[Sealer]:
        async with writing(database, clock) as writer:
            sealer = Sealer(database, writer, Stats(), clock, policy)
            try:
                yield sealer
            finally:
                await sealer.stop()

    return running


async def test_others_have_their_turn_though_rows_come_as_fast_as_they_move(
    run: Run, database: Database, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop = database.drop

    def drop_and_put(until: int) -> None:
        drop(until)
        put(database, wire, range(5))

    monkeypatch.setattr(database, "drop", drop_and_put)
    put(database, wire, range(5))
    async with run(SealPolicy(interval_s=0, bytes_max=1)) as sealer:
        for _ in range(2):
            async with asyncio.timeout(60):
                assert await sealer.run_once() == 20


async def test_rows_move_when_they_are_due_and_are_read_as_before(
    run: Run, database: Database, data_dir: Path, clock: ManualClock, wire: Any
) -> None:
    put(database, wire, range(50))
    async with run() as sealer:
        assert await sealer.run_once() == 0, "not due"
        clock.advance(601)
        assert await sealer.run_once() == 200
        assert counted(database) == (200, 200)
        assert database.frozen == []
        (file,) = files(data_dir)
        assert "year=2026" in str(file)
        put(database, wire, range(50, 60))
        assert counted(database) == (240, 240)
        assert await sealer.run_once() == 0
        assert await sealer.run_once(is_forced=True) == 40
        assert counted(database) == (240, 240)


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
            for _ in range(2):
                await sealer.run_once(is_forced=True)
                await asyncio.sleep(0.05)
                # Segments come and go; what they hold is one row that nobody counts.
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
    assert database.frozen == []


@pytest.mark.parametrize("is_cut", [True, False], ids=["cut off", "missing"])
async def test_a_segment_is_kept_whose_sealed_rows_are_lost(
    run: Run, database: Database, data_dir: Path, wire: Any, *, is_cut: bool
) -> None:
    put(database, wire, range(100))
    segment = database.freeze()
    move(database, segment)
    (file,) = files(data_dir)
    if is_cut:
        os.truncate(file, 0)
    else:
        file.unlink()
    content = segment_path(data_dir / SEGMENTS, segment).read_bytes()
    async with run() as sealer:
        await sealer.run_once()
    assert database.frozen == []
    (kept,) = (data_dir / ASIDE).iterdir()
    assert kept.read_bytes() == content


async def test_a_seal_is_ended_when_the_collector_stops(
    run: Run, database: Database, wire: Any
) -> None:
    put(database, wire, range(2_000))
    async with run() as sealer:
        sealing = asyncio.ensure_future(sealer.seal_due())
        await asyncio.sleep(0)
    await sealing
    assert counted(database) == (8_000, 8_000)


STEPS = ("frozen", "saved", "half sealed", "sealed", "dropped")


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
async def test_a_kill_after_any_step_loses_and_doubles_nothing(
    run: Run, data_dir: Path, database: Database, clock: ManualClock, wire: Any, step: str
) -> None:
    """The next start finds the files as they are then, and agents send what was not answered again."""

    def batch(sequence: int) -> Batch:
        rows = wire.table("gpu_samples", wire.gpu_rows(4, [sequence]))
        return Batch(BatchId("a", "b", sequence), Decoded.of({"gpu_samples": rows}, 100))

    async with writing(database, clock) as writer:
        for sequence in range(1, 11):
            await writer.store(batch(sequence))
        await writer.freeze()
        if step != "frozen":
            await writer.save()
        await writer.store(batch(11))
        if step in ("sealed", "dropped"):
            move(database, 1)
        if step == "half sealed":
            with pytest.raises(StoreUnavailableError), database.maintaining() as cursor:
                seal(
                    cursor,
                    database.lake_root,
                    database.collector,
                    1,
                    {"gpu_samples": "FROM gpu_samples"},
                    fail,
                )
        if step == "dropped":
            database.drop(1)
        killed = Path(shutil.copytree(data_dir, data_dir / "killed"))
    again = Database.open(killed, LIMITS)
    assert counted(again) == (44, 44)
    async with writing(again, clock) as writer:
        # As a start after a start that was killed as soon as all was sealed.
        await Sealer(again, writer, Stats(), clock, POLICY).run_once()
        killed = Path(shutil.copytree(killed, data_dir / "killed again"))
    again.close()
    again = Database.open(killed, LIMITS)
    async with writing(again, clock) as writer:
        for sequence in range(1, 12):
            assert await writer.store(batch(sequence)) == Stored(is_duplicate=True)
    assert counted(again) == (44, 44)
    again.close()


def fail() -> None:
    raise StoreUnavailableError("the power went")


@asynccontextmanager
async def writing(database: Database, clock: ManualClock) -> AsyncIterator[Writer]:
    writer = Writer(
        database, load_known(database, clock.now()), Stats(), clock, commit_interval_s=0.001
    )
    writer.start()
    try:
        yield writer
    finally:
        await writer.stop()


def test_the_folder_may_be_moved(database: Database, data_dir: Path, wire: Any) -> None:
    put(database, wire, range(300))
    move_all(database)
    database.close()
    moved = data_dir.with_name(data_dir.name + "-moved")
    data_dir.rename(moved)
    again = Database.open(moved, LIMITS)
    assert counted(again) == (1_200, 1_200)
    again.close()
    moved.rename(data_dir)
