"""The writer commits groups, answers each batch, and outlives full disks and bad batches."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import gpuwarden_collector.store.commit as commit_module
from gpuwarden.clock import ManualClock
from gpuwarden.query import QueryError
from gpuwarden.wire import BatchId
from gpuwarden_collector.decode import STORED_SCHEMAS, Decoded
from gpuwarden_collector.group import Batch, Durable, Later, Never
from gpuwarden_collector.prices import Entry, PriceBook
from gpuwarden_collector.query import SqlQuerier
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.store.commit import Changes, load_rows
from gpuwarden_collector.store.database import FILE_NAME, Database, Limits
from gpuwarden_collector.store.errors import RowsRefusedError
from gpuwarden_collector.store.generations import hot_table
from gpuwarden_collector.writer import (
    STUCK_AFTER_S,
    QueueFull,
    Writer,
    WriterStopped,
    load_known,
)

Run = Callable[..., AbstractAsyncContextManager[Writer]]


@pytest.fixture
def run(database: Database, clock: ManualClock, stats: Stats) -> Run:
    @asynccontextmanager
    async def started(**options: Any) -> AsyncIterator[Writer]:
        options = {"commit_interval_s": 0.01, **options}
        writer = Writer(database, load_known(database), stats, clock, **options)
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


def stored(database: Database) -> tuple[int, int]:
    row = database.writing.execute(
        "SELECT count(*), count(DISTINCT (gpu_uuid, ts)) FROM gpu_samples"
    ).fetchone()
    assert row is not None
    return row[0], row[1]


async def test_batches_that_wait_together_are_answered_together(
    run: Run, wire: Any, database: Database, stats: Stats
) -> None:
    async with run() as writer:
        outcomes = await asyncio.gather(*(writer.store(batch(wire, n)) for n in range(1, 101)))
    assert outcomes == [Durable()] * 100
    assert stored(database) == (100, 100)
    assert stats.batches == 100
    assert stats.commit_seconds.count < 100
    assert writer.queue_bytes == 0


async def test_two_requests_that_race_with_one_batch_store_it_once(
    run: Run, wire: Any, database: Database, stats: Stats
) -> None:
    async with run() as writer:
        outcomes = await asyncio.gather(*(writer.store(batch(wire, 1)) for _ in range(20)))
    assert outcomes.count(Durable()) == 1
    assert outcomes.count(Durable(is_duplicate=True)) == 19
    assert stored(database) == (1, 1)
    assert (stats.batches, stats.duplicates) == (1, 19)


async def test_a_restarted_writer_knows_what_is_stored(
    run: Run, wire: Any, database: Database
) -> None:
    async with run() as writer:
        await writer.store(batch(wire, 1))
    async with run() as writer:
        assert await writer.store(batch(wire, 1)) == Durable(is_duplicate=True)
        assert await writer.store(batch(wire, 2)) == Durable()
    assert stored(database) == (2, 2)


async def test_a_full_queue_is_said_and_takes_batches_again_later(run: Run, wire: Any) -> None:
    async with run(queue_bytes_max=2500) as writer:
        results = await asyncio.gather(
            *(writer.store(batch(wire, n)) for n in range(1, 6)), return_exceptions=True
        )
        assert results[:2] == [Durable(), Durable()]
        assert any(isinstance(result, QueueFull) for result in results)
        assert await writer.store(batch(wire, 9)) == Durable()


async def test_a_bad_batch_does_not_hold_up_good_ones(
    run: Run, wire: Any, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    nameless = {**wire.gpu_row(), "node": None}
    broken = pa.Table.from_pylist([nameless], schema=STORED_SCHEMAS["gpu_samples"])
    bad = Batch(BatchId("a", "b", 50), Decoded.of({"gpu_samples": broken}, 10))
    async with run() as writer:
        good = [batch(wire, n) for n in range(1, 6)]
        outcomes = await asyncio.gather(*(writer.store(b) for b in [*good[:3], bad, *good[3:]]))
    assert [type(outcome) for outcome in outcomes] == [Durable] * 3 + [Never] + [Durable] * 2
    assert stored(database) == (5, 5)
    assert "kept to the batch that it came from" in caplog.text


async def store_with_one(writer: Writer, bad: Batch, wire: Any) -> list[Any]:
    good = [batch(wire, n, agent="good") for n in range(1, 6)]
    every = [*good[:3], bad, *good[3:]]
    return list(await asyncio.gather(*(writer.store(b) for b in every)))


ONE_REFUSED = [Durable] * 3 + [Never] + [Durable] * 2


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), RecursionError("y"), KeyError("z")])
async def test_a_batch_that_cannot_be_planned_is_refused_alone(
    run: Run,
    wire: Any,
    database: Database,
    stats: Stats,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    def merged(known: Any, said: Any, *rest: Any) -> Any:
        raise error

    monkeypatch.setattr("gpuwarden_collector.inventory.merged", merged)
    node = {"node": "n", "agent_id": "a", "boot_id": "b", "simulated": True}
    tables = {"nodes": wire.table("nodes", [node])}
    async with run() as writer:
        for sequence in range(1, 9):
            bad = Batch(BatchId("bad", "b", sequence), Decoded.of(tables, 10))
            outcomes = await store_with_one(writer, bad, wire)
            assert [type(outcome) for outcome in outcomes] == ONE_REFUSED
        assert writer.is_alive()
    assert stored(database) == (5, 5)
    assert stats.faults.counts["store"] == 8
    traced = [r for r in caplog.records if r.exc_info]
    assert len(traced) == 1
    assert len([r for r in caplog.records if "kept to the batch" in r.getMessage()]) < 8


async def test_a_commit_that_raises_anything_undoes_all_of_it(
    run: Run, wire: Any, database: Database, stats: Stats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where Arrow itself cannot put a table together."""
    append = commit_module._append_sql

    def fails(hot: str, rows: int) -> str:
        if rows in (7, 12):  # the bad batch alone, and among the good ones
            raise pa.ArrowInvalid("offset overflow")
        return append(hot, rows)

    monkeypatch.setattr(commit_module, "_append_sql", fails)
    async with run() as writer:
        outcomes = await store_with_one(writer, batch(wire, 9, rows=7, agent="bad"), wire)
        assert [type(outcome) for outcome in outcomes] == ONE_REFUSED
        with pytest.raises(RowsRefusedError, match="offset overflow"):
            table = wire.table("gpu_samples", wire.gpu_rows(7, [1]))
            await writer.write(Changes(appended={"gpu_samples": table}))
        assert await writer.store(batch(wire, 10)) == Durable()
        assert not writer.is_failing()
    assert stored(database) == (6, 6)


async def test_bytes_that_are_no_text_do_not_hold_up_the_fleet(
    run: Run, wire: Any, database: Database, stats: Stats
) -> None:
    """Admission refuses them; should it ever not, their sender must not be asked to send them again."""
    table = wire.table("gpu_samples", [wire.gpu_row()])
    raw = pa.array([b"\xff\xfe"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 1, raw.buffers())
    table = table.set_column(table.schema.get_field_index("node"), "node", text)
    async with run() as writer:
        bad = Batch(BatchId("bad", "b", 1), Decoded.of({"gpu_samples": table}, 10))
        outcomes = await store_with_one(writer, bad, wire)
    assert [type(outcome) for outcome in outcomes] == ONE_REFUSED
    assert stored(database) == (5, 5)


@pytest.mark.parametrize("labels", ["[" * 65_536, '{"a": ' + "9" * 5_000 + "}"])
async def test_labels_that_python_cannot_read_have_no_price_and_end_nothing(
    run: Run, wire: Any, database: Database, labels: str
) -> None:
    node = {"node": "n", "agent_id": "a", "boot_id": "b", "simulated": True, "labels": labels}
    gpu = {"gpu_uuid": "GPU-9", "node": "n", "simulated": True}
    tables = {"nodes": wire.table("nodes", [node]), "gpus": wire.table("gpus", [gpu])}
    prices = PriceBook((Entry("here", labels={"team": "x"}, usd_per_hour=1.0),))
    async with run(prices=prices) as writer:
        assert await writer.store(Batch(BatchId("a", "b", 1), Decoded.of(tables, 10))) == Durable()
        await writer.take_prices(prices)  # as each start does
    assert [row["labels"] for row in load_rows(database, "nodes")] == [labels]


FullDisk = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def full_disk(tmp_path: Path, files_of_at_most: Any) -> FullDisk:
    """Whatever makes the write-ahead log longer fails."""

    def filled() -> Any:
        return files_of_at_most((tmp_path / f"{FILE_NAME}.wal").stat().st_size)

    return filled


async def test_on_a_full_disk_batches_wait_at_the_agent_and_nothing_is_lost_or_doubled(
    run: Run,
    wire: Any,
    database: Database,
    stats: Stats,
    clock: ManualClock,
    full_disk: FullDisk,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with run() as writer:
        assert await writer.store(batch(wire, 1, rows=50)) == Durable()
        assert not writer.is_failing()
        with full_disk():
            for sequence in (2, 3, 2):
                outcome = await writer.store(batch(wire, sequence, rows=50))
                assert isinstance(outcome, Later)
                assert outcome.retry_after_s > 0
            assert writer.is_alive()
            assert writer.is_failing()
            clock.advance(STUCK_AFTER_S)
            assert not writer.is_failing()
            assert isinstance(await writer.store(batch(wire, 2, rows=50)), Later)
            assert writer.is_failing()
        for sequence in (1, 2, 3):
            outcome = await writer.store(batch(wire, sequence, rows=50))
            assert isinstance(outcome, Durable)
        assert not writer.is_failing()
    assert stored(database) == (150, 150)
    assert stats.commit_failures == 4
    said = [r.getMessage() for r in caplog.records if "store takes" in r.getMessage()]
    assert said == [
        "the store takes no batches; agents keep them",
        "the store takes batches again",
    ]


async def test_a_commit_that_failed_only_after_it_was_durable_is_not_repeated(
    run: Run, wire: Any, database: Database, full_disk: FullDisk
) -> None:
    """As when DuckDB's checkpoint after a commit fails: the error hides that the rows are there."""
    async with run() as writer:
        assert await writer.store(batch(wire, 1)) == Durable()
        database.writing.execute(
            f"INSERT INTO {hot_table('gpu_samples', 1)} "
            "SELECT * REPLACE (ts + INTERVAL 1 SECOND AS ts) FROM gpu_samples"
        )
        database.writing.execute("UPDATE internal.ledger SET floor = 3")
        with full_disk():
            assert isinstance(await writer.store(batch(wire, 9)), Later)
        assert await writer.store(batch(wire, 2)) == Durable(is_duplicate=True)
    assert stored(database) == (2, 2)


async def test_last_seen_is_written_every_ten_seconds_and_at_the_end(
    run: Run, wire: Any, database: Database, clock: ManualClock
) -> None:
    gpu = wire.table("gpus", [{"gpu_uuid": "GPU-0", "node": "n1", "simulated": True}])

    def seen() -> Any:
        return load_rows(database, "gpus")[0]["last_seen_at"]

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
        clock.advance(61 * 86_400)
        await writer.store(batch(wire, 1, agent="here"))
        await writer.write(Changes())
    assert [row["agent_id"] for row in load_rows(database, "internal.ledger")] == ["here"]


async def test_a_writer_without_progress_is_not_alive(
    database: Database, wire: Any, stats: Stats, stuck_clock: Any, eventually: Any
) -> None:
    writer = Writer(database, load_known(database), stats, stuck_clock)
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
    assert task.result() == Durable()
    await eventually(writer.is_alive)
    await writer.stop()
    assert not writer.is_alive()


async def test_what_waits_is_committed_before_the_writer_ends(
    run: Run, wire: Any, database: Database
) -> None:
    async with asyncio.TaskGroup() as group:
        async with run(commit_interval_s=10) as writer:
            await writer.store(batch(wire, 1))
            tasks = [group.create_task(writer.store(batch(wire, n))) for n in (2, 3)]
            await asyncio.sleep(0)
        with pytest.raises(WriterStopped):
            await writer.store(batch(wire, 4))
    assert [task.result() for task in tasks] == [Durable(), Durable()]
    assert stored(database) == (3, 3)


async def test_changes_that_the_store_refuses_are_raised_to_their_writer(run: Run) -> None:
    nameless = pa.Table.from_pylist([{"node": "n1"}], schema=STORED_SCHEMAS["gpus"])
    async with run() as writer:
        with pytest.raises(RowsRefusedError):
            await writer.write(Changes(upserted={"gpus": nameless}))
        await writer.write(Changes())


async def test_a_query_that_holds_the_memory_gives_way_to_a_commit(
    tmp_path: Path, wire: Any, stats: Stats, clock: ManualClock, eventually: Any
) -> None:
    database = Database.open(tmp_path / "small", Limits(memory="40MiB", temp="1GiB", threads=1))
    hungry = "SELECT count(*) FROM (SELECT DISTINCT hash(x) FROM range(2000000000) t(x))"
    querier = SqlQuerier(database, Stats(), clock)
    writer = Writer(database, load_known(database), stats, clock, commit_interval_s=0.01)
    writer.start()
    async with asyncio.TaskGroup() as group:
        query = group.create_task(_result_or_error(querier, hungry))
        await eventually(lambda: is_memory_full(database))
        outcomes = [await writer.store(batch(wire, n, rows=20_000)) for n in range(1, 4)]
        database.interrupt_readers()
    assert outcomes == [Durable()] * 3
    assert isinstance(query.result(), QueryError)
    await writer.stop()
    await querier.close()
    assert stored(database)[0] == 60_000
    database.close()


def is_memory_full(database: Database) -> bool:
    """Whether a query has taken nearly all of the 40 MiB."""
    with database.reading() as cursor:
        row = cursor.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchone()
    return row is not None and row[0] > 36 * 2**20


async def _result_or_error(querier: SqlQuerier, sql: str) -> Any:
    try:
        return await querier.query(sql)
    except QueryError as error:
        return error


async def test_a_fault_of_the_writer_fails_what_waits_and_is_told(
    database: Database, wire: Any, stats: Stats, clock: ManualClock
) -> None:
    class Faulty(ManualClock):
        def now(self) -> Any:
            raise ZeroDivisionError("a fault")

    writer = Writer(database, load_known(database), stats, Faulty(clock.now()))
    ended = writer.start()
    results = await asyncio.gather(
        *(writer.store(batch(wire, n)) for n in (1, 2)), return_exceptions=True
    )
    assert [type(result) for result in results] == [WriterStopped] * 2
    with pytest.raises(ZeroDivisionError):
        await ended
    assert not writer.is_alive()
