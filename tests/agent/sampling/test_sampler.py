"""Readings become samples: stamped, checked, and sealed with their own second."""

import asyncio
import itertools
import math
from typing import Any

import pytest
from tests.agent.fakes import fake_probe, until_true

from gpuwarden.clock import Clock, ManualClock, SystemClock, to_ms
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.events.recorder import EventRecorder
from gpuwarden_agent.queue.batch import OpenBatch
from gpuwarden_agent.queue.flusher import Flusher
from gpuwarden_agent.queue.inventory import AgentFacts, Inventory
from gpuwarden_agent.queue.spool import Spool
from gpuwarden_agent.sampling.sampler import Cadence, Sampler
from gpuwarden_agent.worker import Worker


class Rig:
    """A sampler with real parts around it and a spool in memory."""

    def __init__(self, clock: Clock, probes: list[Any], *, last_ts_ms: int | None = None) -> None:
        self.batch, self.counters = OpenBatch(), Counters()
        self.spool = Spool(None, bytes_max=10**8, clock=clock)
        recorder = EventRecorder(
            "n1", clock, lambda row: self.batch.add("events", row) or None, simulated=False
        )
        facts = AgentFacts(node="n1", agent_id="a", boot_id="b", agent_version="1", labels={})
        inventory = Inventory(facts, probes)
        self.flusher = Flusher(
            "n1",
            self.spool,
            Worker("spool"),
            clock=clock,
            counters=self.counters,
            batch=self.batch,
            inventory=inventory,
            recorder=recorder,
            sealed=asyncio.Event(),
        )
        self.sampler = Sampler(
            "n1",
            probes,
            Cadence(interval_ms=1000, batch_ms=5000, deadline_s=0.5),
            clock=clock,
            counters=self.counters,
            batch=self.batch,
            inventory=inventory,
            recorder=recorder,
            flusher=self.flusher,
            last_ts_ms=last_ts_ms,
        )

    def rows(self, table: str) -> list[dict[str, Any]]:
        return self.batch.take().by_table.get(table, [])


async def test_samples_carry_tick_node_and_whether_they_are_simulated(
    manual_clock: ManualClock,
) -> None:
    real = fake_probe("gpu0", gpu_uuid="GPU-0")
    made_up = fake_probe("sim", gpu_uuid="GPU-1", simulated=True)
    rig = Rig(manual_clock, [real, made_up])
    await rig.sampler._tick(7000)
    rows = rig.rows("gpu_samples")
    assert {(r["gpu_uuid"], r["ts"], r["node"], r["simulated"]) for r in rows} == {
        ("GPU-0", 7000, "n1", False),
        ("GPU-1", 7000, "n1", True),
    }


async def test_batches_are_as_long_as_the_collector_asks_and_events_go_at_once(
    manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = fake_probe("gpu0", gpu_uuid="GPU-0")
    rig = Rig(manual_clock, [probe])
    sealed_at: list[int] = []

    async def ticks(seconds: range) -> list[int]:
        """Lengths of the batches that were sealed, except those that a change has cut."""
        sealed_at.clear()
        for second in seconds:
            monkeypatch.setattr(rig.flusher, "seal_soon", lambda at=second: sealed_at.append(at))
            await rig.sampler._tick(second * 1000)
        return [b - a for a, b in itertools.pairwise(sealed_at)][1:]

    assert set(await ticks(range(100, 160))) == {5}
    rig.sampler.batch_at_least(20)
    assert set(await ticks(range(160, 260))) == {20}
    rig.sampler.batch_at_least(2)
    assert set(await ticks(range(260, 320))) == {5}
    rig.sampler.batch_at_least(20)
    event = {"kind": "xid", "severity": "critical", "message": "m"}
    probe.answer = lambda ts_ms: {"events": [event]} if ts_ms == 333_000 else {}
    await ticks(range(320, 340))
    assert 333 in sealed_at


async def test_an_event_that_knows_its_time_keeps_it(manual_clock: ManualClock) -> None:
    probe = fake_probe("kmsg")
    row = {"kind": "xid", "severity": "critical", "message": "m"}
    probe.answer = lambda _: {"events": [{**row, "ts": 4321}, row]}
    rig = Rig(manual_clock, [probe])
    await rig.sampler._tick(7000)
    assert [r["ts"] for r in rig.rows("events") if r["kind"] == "xid"] == [4321, 7000]


async def test_a_value_that_cannot_be_true_becomes_absent_and_is_told_once(
    manual_clock: ManualClock,
) -> None:
    probe = fake_probe("gpu0", gpu_uuid="GPU-0")
    row = {"gpu_uuid": "GPU-0", "util_percent": 4e9, "power_watts": math.nan, "sm_clock_mhz": 100}
    probe.answer = lambda _: {"gpu_samples": [dict(row)]}
    rig = Rig(manual_clock, [probe])
    await rig.sampler._tick(1000)
    await rig.sampler._tick(2000)
    taken = rig.batch.take().by_table
    for sample in taken["gpu_samples"]:
        assert "util_percent" not in sample
        assert "power_watts" not in sample
        assert sample["sm_clock_mhz"] == 100
    assert rig.counters.values_impossible == {
        "gpu_samples.util_percent": 2,
        "gpu_samples.power_watts": 2,
    }
    messages = [e["message"] for e in taken["events"] if e["kind"] == "values_impossible"]
    assert len(messages) == 2
    assert any("util_percent" in m and "4000000000.0" in m for m in messages)


async def test_a_reading_with_one_wrong_row_gives_no_row_at_all(manual_clock: ManualClock) -> None:
    probe = fake_probe()
    probe.answer = lambda _: {"host_samples": [{"load_1m": 1.0}, {"no_such_column": 1}]}
    rig = Rig(manual_clock, [probe])
    await rig.sampler._tick(1000)
    taken = rig.batch.take().by_table
    assert "host_samples" not in taken
    assert [e["kind"] for e in taken["events"]] == ["probe_failed"]


async def test_a_key_that_two_probes_make_is_kept_once_and_counted(
    manual_clock: ManualClock,
) -> None:
    rig = Rig(manual_clock, [fake_probe("host"), fake_probe("host again")])
    await rig.sampler._tick(1000)
    assert rig.counters.rows_dropped == 1
    assert len(rig.rows("host_samples")) == 1


async def test_inventory_with_a_wrong_column_fails_and_names_it(manual_clock: ManualClock) -> None:
    probe = fake_probe()
    probe.inventory = {"nodes": [{"cpu_count": 8}]}
    rig = Rig(manual_clock, [probe])
    await rig.sampler._tick(1000)
    (event,) = rig.rows("events")
    assert "cpu_count" in event["message"]
    assert "inventory" in event["message"]


async def test_events_of_a_probe_are_stamped_and_keep_keys_of_their_own(
    manual_clock: ManualClock,
) -> None:
    probe = fake_probe("sim", simulated=True)
    xid = {"kind": "xid", "severity": "critical", "message": "Xid 79"}
    probe.answer = lambda _: {"events": [{**xid, "gpu": 0}, {**xid, "gpu": 1}]}
    rig = Rig(manual_clock, [probe])
    await rig.sampler._tick(1000)
    assert [(e["ts"], e["gpu"], e["simulated"]) for e in rig.rows("events")] == [
        (1000, 0, True),
        (1001, 1, True),
    ]


async def test_the_past_is_made_without_a_gap_to_the_present() -> None:
    clock = SystemClock()
    simulator = fake_probe("simulator", simulated=True)
    real = fake_probe("gpu0", gpu_uuid="GPU-0")
    rig = Rig(clock, [simulator, real])
    stop = asyncio.Event()
    from_ms = to_ms(clock.now()) - 1_000_000
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.sampler.run(stop, backfill_from_ms=from_ms))
        await until_true(lambda: len(real.read_at) >= 2)
        stop.set()
    ticks = simulator.read_at
    assert ticks == list(range(ticks[0], ticks[0] + len(ticks) * 1000, 1000))
    assert 0 <= from_ms - ticks[0] < 1000
    assert real.read_at == ticks[-len(real.read_at) :]
    assert rig.spool.count == 3, "sealed every 300 ticks; the rest is in the open batch"


async def test_the_past_begins_after_what_was_sealed_before() -> None:
    clock = SystemClock()
    now_ms = to_ms(clock.now()) // 1000 * 1000
    simulator = fake_probe("simulator", simulated=True)
    rig = Rig(clock, [simulator], last_ts_ms=now_ms - 10_000)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.sampler.run(stop, backfill_from_ms=now_ms - 3_600_000))
        await until_true(lambda: len(simulator.read_at) >= 9)
        stop.set()
    assert simulator.read_at[0] == now_ms - 9_000


async def test_a_step_of_the_clock_is_an_event_with_its_size(manual_clock: ManualClock) -> None:
    probe = fake_probe()
    rig = Rig(manual_clock, [probe])
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.sampler.run(stop))
        await until_true(lambda: len(probe.read_at) == 1)
        manual_clock.advance(1)
        manual_clock.step(120)
        await until_true(lambda: len(probe.read_at) == 2)
        stop.set()
    (event,) = [e for e in rig.rows("events") if e["kind"] == "clock_stepped"]
    assert event["duration_seconds"] == pytest.approx(120)
    assert "forward by 2 min" in event["message"]
    assert rig.counters.ticks_missed == 0
