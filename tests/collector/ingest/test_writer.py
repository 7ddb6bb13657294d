"""The writer commits groups, answers each batch, and outlives full disks and bad batches."""

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.collector.made_up_store import LIMITS, counted

from gpuwarden.clock import ManualClock
from gpuwarden.wire import BatchId
from gpuwarden_collector.ingest.commit_plan import Batch, Rejected, RetryLater, Stored
from gpuwarden_collector.ingest.decode import Decoded
from gpuwarden_collector.ingest.writer import STUCK_AFTER_S, QueueFull, Writer, load_known
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.commit import Changes, WriterStopped
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.errors import RowsRefusedError
from gpuwarden_collector.storage.schemas import STORED_SCHEMAS

Run = Callable[..., AbstractAsyncContextManager[Writer]]


@pytest.fixture
def run(database: Database, clock: ManualClock, stats: Stats) -> Run:
    @asynccontextmanager
    async def started(database: Database = database, **options: Any) -> AsyncIterator[Writer]:
        options = {"commit_interval_s": 0.01, **options}
        writer = Writer(database, load_known(database, clock.now()), stats, clock, **options)
        writer.start()
        try:
            yield writer
        finally:
            await writer.stop()

    return started


@pytest.fixture
def stats() -> Stats:
    return Stats()


def batch(wire: Any, sequence: int, rows: int = 1, agent: str = "a") -> Batch:
    table = wire.table("gpu_samples", wire.gpu_rows(rows, [sequence % 300]))
    return Batch(BatchId(agent, "b", sequence), Decoded.of({"gpu_samples": table}, 1000), 10)


async def test_batches_that_wait_together_are_answered_together(
    run: Run, wire: Any, database: Database, stats: Stats
) -> None:
    async with run() as writer:
        outcomes = await asyncio.gather(*(writer.store(batch(wire, n)) for n in range(1, 101)))
    assert outcomes == [Stored()] * 100
    assert counted(database) == (100, 100)
    assert stats.batches == 100
    assert stats.commit_seconds.count < 100
    assert writer.queue_bytes == 0


@pytest.mark.parametrize(("is_frozen", "is_saved"), [(False, True), (True, False)])
async def test_a_restarted_writer_knows_what_is_stored(
    run: Run, wire: Any, database: Database, data_dir: Path, is_frozen: bool, is_saved: bool
) -> None:
    async with run() as writer:
        for sequence in (1, 3):
            await writer.store(batch(wire, sequence))
        if is_frozen:
            await writer.freeze()
        if is_saved:
            await writer.save()
        await writer.store(batch(wire, 4))
        killed = Path(shutil.copytree(data_dir, data_dir / "killed"))
    again = Database.open(killed, LIMITS)
    async with run(database=again) as writer:
        for sequence in (1, 3, 4):
            assert await writer.store(batch(wire, sequence)) == Stored(is_duplicate=True)
        assert await writer.store(batch(wire, 2)) == Stored()
    assert counted(again) == (4, 4)
    again.close()


async def test_a_full_queue_refuses_batches_and_takes_them_later(run: Run, wire: Any) -> None:
    async with run(queue_bytes_max=2500) as writer:
        results = await asyncio.gather(
            *(writer.store(batch(wire, n)) for n in range(1, 6)), return_exceptions=True
        )
        assert results[:2] == [Stored(), Stored()]
        assert any(isinstance(result, QueueFull) for result in results)
        assert await writer.store(batch(wire, 9)) == Stored()


async def test_a_bad_batch_does_not_hold_up_good_ones(
    run: Run, wire: Any, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    nameless = {**wire.gpu_row(), "node": None}
    broken = pa.Table.from_pylist([nameless], schema=STORED_SCHEMAS["gpu_samples"])
    bad = Batch(BatchId("a", "b", 50), Decoded.of({"gpu_samples": broken}, 10))
    async with run() as writer:
        good = [batch(wire, n) for n in range(1, 6)]
        outcomes = await asyncio.gather(*(writer.store(b) for b in [*good[:3], bad, *good[3:]]))
    assert [type(outcome) for outcome in outcomes] == [Stored] * 3 + [Rejected] + [Stored] * 2
    assert counted(database) == (5, 5)
    assert "gpu_samples.node must have a value in every row" in caplog.text


async def test_on_a_full_disk_batches_wait_at_the_agent_and_nothing_is_lost_or_doubled(
    run: Run,
    wire: Any,
    database: Database,
    stats: Stats,
    clock: ManualClock,
    files_of_at_most: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with run() as writer:
        assert await writer.store(batch(wire, 1, rows=50)) == Stored()
        assert not writer.is_failing()
        with files_of_at_most(database.segment_bytes):
            for sequence in (2, 3, 2):
                outcome = await writer.store(batch(wire, sequence, rows=50))
                assert isinstance(outcome, RetryLater)
                assert outcome.retry_after_s > 0
            assert writer.is_alive()
            assert writer.is_failing()
            clock.advance(STUCK_AFTER_S)
            assert not writer.is_failing()
            assert isinstance(await writer.store(batch(wire, 2, rows=50)), RetryLater)
            assert writer.is_failing()
        for sequence in (1, 2, 3):
            outcome = await writer.store(batch(wire, sequence, rows=50))
            assert isinstance(outcome, Stored)
        assert not writer.is_failing()
    assert counted(database) == (150, 150)
    assert stats.commit_failures == 4
    assert len([r for r in caplog.records if "store takes" in r.getMessage()]) == 2


@pytest.mark.parametrize(
    "where",
    [
        "gpuwarden_collector.ingest.writer.plan",
        "gpuwarden_collector.storage.segment._frame_parts",
        "gpuwarden_collector.storage.commit._stored",
    ],
)
async def test_without_memory_batches_are_refused_for_now_and_stored_once(
    where: str, run: Run, wire: Any, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise pa.ArrowMemoryError("no memory")

    batches = [batch(wire, 1), batch(wire, 2)]
    async with run() as writer:
        with monkeypatch.context() as patched:
            patched.setattr(where, fail)
            outcomes = await asyncio.gather(*map(writer.store, batches))
            assert [type(outcome) for outcome in outcomes] == [RetryLater] * 2
        assert await asyncio.gather(*map(writer.store, batches)) == [Stored()] * 2
    assert counted(database) == (2, 2)


async def test_a_frame_is_stored_once_even_if_its_follower_fails(
    run: Run, wire: Any, database: Database, data_dir: Path
) -> None:
    def fail(tables: Any) -> None:
        raise MemoryError

    failures: list[Exception] = []
    database._log.follow(fail, failures.append)
    async with run() as writer:
        batches = [batch(wire, n) for n in range(1, 9)]
        assert await asyncio.gather(*map(writer.store, batches)) == [Stored()] * 8
    assert counted(database) == (8, 8)
    assert {type(failure) for failure in failures} == {MemoryError}


async def test_a_batch_whose_sync_failed_is_stored_once_though_the_ledger_was_saved_since(
    run: Run, wire: Any, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start finds its frame in the page cache and stores it."""

    def fail(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async with run() as writer:
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", fail)
            assert isinstance(await writer.store(batch(wire, 1)), RetryLater)
        await writer.save()
        killed = Path(shutil.copytree(data_dir, tmp_path / "killed"))
    again = Database.open(killed, LIMITS)
    try:
        async with run(again) as writer:
            assert await writer.store(batch(wire, 1)) == Stored(is_duplicate=True)
        assert counted(again) == (1, 1)
    finally:
        again.close()


async def test_last_seen_is_written_every_ten_seconds_and_at_the_end(
    run: Run, wire: Any, database: Database, clock: ManualClock
) -> None:
    gpu = wire.table("gpus", [{"gpu_uuid": "GPU-0", "node": "n1", "simulated": True}])

    def seen() -> Any:
        return database.state.rows("gpus")[0]["last_seen_at"]

    async with run() as writer:
        await writer.store(Batch(BatchId("a", "b", 1), Decoded.of({"gpus": gpu}, 10)))
        first = seen()
        clock.advance(5)
        await writer.store(batch(wire, 2))
        assert seen() == first
        clock.advance(6)
        await writer.store(batch(wire, 3))
        await writer.write(Changes())  # after it the house has been kept
        assert seen() == first + timedelta(seconds=11)
        clock.advance(3)
        await writer.store(batch(wire, 4))
    assert seen() == first + timedelta(seconds=14)


async def test_the_ledger_forgets_agents_after_sixty_days(
    run: Run, wire: Any, database: Database, clock: ManualClock
) -> None:
    async with run() as writer:
        await writer.store(batch(wire, 1, agent="gone"))
        await writer.freeze()
        await writer.save()
        clock.advance(61 * 86_400)
        await writer.store(batch(wire, 1, agent="here"))
        await writer.write(Changes())
        await writer.freeze()
        await writer.save()
    assert [row["agent_id"] for row in database.state.rows("ledger")] == ["here"]


async def test_a_writer_without_progress_is_not_alive(
    database: Database, wire: Any, stats: Stats, stuck_clock: Any, eventually: Any
) -> None:
    writer = Writer(database, load_known(database, stuck_clock.now()), stats, stuck_clock)
    writer.start()
    assert writer.is_alive()
    async with asyncio.TaskGroup() as group:
        stuck_clock.may_go.clear()
        task = group.create_task(writer.store(batch(wire, 1)))
        await eventually(stuck_clock.is_stuck.is_set)
        stuck_clock.advance(STUCK_AFTER_S - 1)
        assert writer.is_alive()
        stuck_clock.advance(1)
        assert not writer.is_alive()
        stuck_clock.may_go.set()
    assert task.result() == Stored()
    await eventually(writer.is_alive)
    await writer.stop()
    assert not writer.is_alive()


async def test_waiting_batches_are_committed_before_the_writer_ends(
    run: Run, wire: Any, database: Database
) -> None:
    async with asyncio.TaskGroup() as group:
        async with run(commit_interval_s=10) as writer:
            await writer.store(batch(wire, 1))
            tasks = [group.create_task(writer.store(batch(wire, n))) for n in (2, 3)]
            await asyncio.sleep(0)
        with pytest.raises(WriterStopped):
            await writer.store(batch(wire, 4))
    assert [task.result() for task in tasks] == [Stored(), Stored()]
    assert counted(database) == (3, 3)


async def test_changes_that_the_store_refuses_are_raised_to_their_writer(run: Run) -> None:
    nameless = pa.Table.from_pylist([{"node": "n1"}], schema=STORED_SCHEMAS["gpus"])
    async with run() as writer:
        with pytest.raises(RowsRefusedError):
            await writer.write(Changes(upserted={"gpus": nameless}))
        await writer.write(Changes())


async def test_a_fault_of_the_writer_fails_waiting_batches_and_is_logged(
    database: Database, wire: Any, stats: Stats, clock: ManualClock
) -> None:
    class Faulty(ManualClock):
        def now(self) -> Any:
            raise ZeroDivisionError("a fault")

    writer = Writer(database, load_known(database, clock.now()), stats, Faulty(clock.now()))
    ended = writer.start()
    results = await asyncio.gather(
        *(writer.store(batch(wire, n)) for n in (1, 2)), return_exceptions=True
    )
    assert [type(result) for result in results] == [WriterStopped] * 2
    with pytest.raises(ZeroDivisionError):
        await ended
    assert not writer.is_alive()
