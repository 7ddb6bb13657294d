"""The open batch becomes durable, also when the disk does not want it for a while."""

import asyncio
import secrets
from typing import Any

import pytest
from tests.agent.fakes import decode_body, until_true

from gpuwarden.clock import ManualClock
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.events.recorder import EventRecorder
from gpuwarden_agent.queue.batch import OpenBatch
from gpuwarden_agent.queue.flusher import Flusher
from gpuwarden_agent.queue.inventory import AgentFacts, Inventory
from gpuwarden_agent.queue.spool import Spool
from gpuwarden_agent.worker import Worker


class Rig:
    """A flusher with a spool in memory."""

    def __init__(self, clock: ManualClock, *, bytes_max: int = 10**8, rows_max: int = 100) -> None:
        self.batch, self.counters = OpenBatch(rows_max=rows_max), Counters()
        self.spool = Spool(None, bytes_max=bytes_max, clock=clock)
        self.sealed = asyncio.Event()
        self.told: list[str] = []
        self.recorder = EventRecorder("n1", clock, self._write, simulated=False)
        facts = AgentFacts(node="n1", agent_id="a", boot_id="b", agent_version="1", labels={})
        self.flusher = Flusher(
            "n1",
            self.spool,
            Worker("spool"),
            clock=clock,
            counters=self.counters,
            batch=self.batch,
            inventory=Inventory(facts, []),
            recorder=self.recorder,
            sealed=self.sealed,
        )

    def _write(self, row: Any) -> None:
        self.told.append(row["kind"])
        self.batch.add("events", row)

    def sample(self, ts: int) -> None:
        self.batch.add("host_samples", {"ts": ts, "node": "n1", "simulated": False})
        self.batch.last_ts_ms = ts

    def fill_disk(self, is_full: bool) -> None:
        pages = self.spool._db.execute("PRAGMA page_count").fetchone()[0]
        self.spool._db.execute(f"PRAGMA max_page_count = {pages if is_full else 10**6}")


@pytest.fixture
def rig(manual_clock: ManualClock) -> Rig:
    return Rig(manual_clock)


async def test_a_batch_holds_samples_events_and_the_inventory_that_changed(rig: Rig) -> None:
    rig.sample(1000)
    rig.recorder.record("agent_started", "m")
    await rig.flusher.seal()
    rig.sample(2000)
    await rig.flusher.seal()
    first, second = rig.spool.oldest(9)
    assert set(decode_body(first.body)) == {"host_samples", "events", "nodes"}
    assert set(decode_body(second.body)) == {"host_samples"}
    assert (first.rows, second.rows, rig.counters.batches_sealed) == (3, 1, 2)
    assert rig.sealed.is_set()


async def test_the_newest_row_of_the_host_says_what_waits_in_the_spool(rig: Rig) -> None:
    for at in (1000, 2000):
        rig.sample(at)
    await rig.flusher.seal()
    (before,) = rig.spool.oldest(9)
    rig.sample(3000)
    await rig.flusher.seal()
    _, second = rig.spool.oldest(9)
    first_rows, second_rows = (
        decode_body(batch.body)["host_samples"].to_pylist() for batch in (before, second)
    )
    assert [row.get("spool_batches") for row in first_rows] == [None, 0]
    assert [row.get("spool_bytes") for row in first_rows] == [None, 0]
    assert (second_rows[0]["spool_batches"], second_rows[0]["spool_bytes"]) == (1, len(before.body))


async def test_nothing_is_sealed_when_there_is_nothing(rig: Rig) -> None:
    await rig.flusher.seal()
    await rig.flusher.seal()
    assert rig.spool.count == 1  # the inventory


async def test_what_is_asked_for_is_sealed_within_a_second(rig: Rig) -> None:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.flusher.run(stop))
        rig.sample(1000)
        rig.flusher.seal_soon()
        await until_true(lambda: rig.spool.count == 1, timeout_s=2)
        stop.set()
        rig.flusher.seal_soon()


async def test_rows_wait_in_memory_while_the_disk_is_full_and_none_is_lost(rig: Rig) -> None:
    await rig.flusher.seal()
    rig.fill_disk(True)
    for ts in range(1, 41):
        rig.batch.add(
            "host_samples", {"ts": ts, "node": "n" + "x" * 500 + str(ts), "simulated": False}
        )
        await rig.flusher.seal()
    assert rig.counters.last_error is not None
    assert "full" in rig.counters.last_error
    rig.fill_disk(False)
    await rig.flusher.seal()
    stamps = [
        ts.as_py().timestamp()
        for batch in rig.spool.oldest(99)
        for ts in decode_body(batch.body).get("host_samples", {"ts": []})["ts"]
    ]
    assert sorted(round(stamp * 1000) for stamp in stamps) == list(range(1, 41))
    assert rig.counters.rows_dropped == 0


async def test_memory_stays_bounded_while_the_disk_is_full_and_the_loss_is_told(
    manual_clock: ManualClock,
) -> None:
    rig = Rig(manual_clock, rows_max=20)
    await rig.flusher.seal()
    rig.fill_disk(True)
    lost = 0
    for ts in range(1, 61):
        lost += rig.batch.add(
            "host_samples", {"ts": ts, "node": "y" * 4000 + str(ts * 7919), "simulated": False}
        )
        await rig.flusher.seal()
    rig.flusher.report_lost_rows(lost)
    assert rig.batch.count <= 21
    rig.fill_disk(False)
    rows = rig.batch.take().by_table
    kept = [row["ts"] for row in rows["host_samples"]]
    assert kept == list(range(kept[0], 61))
    assert [e["kind"] for e in rows["events"]] == ["spool_failed", "rows_dropped"]


async def test_a_spool_that_fails_is_told_once_and_its_recovery_with_its_duration(
    rig: Rig, manual_clock: ManualClock
) -> None:
    await rig.flusher.seal()
    rig.fill_disk(True)
    rig.batch.add("host_samples", {"ts": 1, "node": "z" * 9000, "simulated": False})
    for number in range(4):
        rig.batch.add(
            "host_samples",
            {"ts": number + 2, "node": secrets.token_hex(9000), "simulated": False},
        )
        await rig.flusher.seal()
        manual_clock.advance(5)
    assert rig.told == ["spool_failed"]
    assert rig.flusher.is_failing
    rig.fill_disk(False)
    await rig.flusher.seal()
    await rig.flusher.seal()
    assert rig.told == ["spool_failed", "spool_recovered"]
    _, first, last = (decode_body(batch.body) for batch in rig.spool.oldest(9))
    assert "database or disk is full" in first["events"]["message"][0].as_py()
    assert last["events"]["duration_seconds"].to_pylist() == [20.0]


async def test_a_full_spool_is_told_once_in_a_while_and_not_for_every_batch(
    manual_clock: ManualClock,
) -> None:
    rig = Rig(manual_clock, bytes_max=3000)
    for ts in range(1, 41):
        rig.sample(ts * 1000)
        await rig.flusher.seal()
        manual_clock.advance(25)
    assert rig.spool.size_bytes <= 3000
    assert rig.counters.batches_dropped == 40 - rig.spool.count
    assert rig.told == ["batches_dropped"] * 2  # in 1000 s, at most once in 600


async def test_making_up_the_past_waits_while_half_of_the_spool_is_full(rig: Rig) -> None:
    stop = asyncio.Event()
    rig.spool.bytes_max = 100
    rig.spool.put(b"x" * 80, 1)
    rig.sample(1000)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(rig.flusher.seal_in_turn(stop))
        await asyncio.sleep(0)
        assert not task.done()
        rig.spool.acknowledge(1)
    assert rig.counters.batches_sealed == 1
    assert rig.counters.batches_dropped == 0
