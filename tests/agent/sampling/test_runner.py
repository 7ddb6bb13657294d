"""One probe with its thread and its deadline."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from tests.agent.fakes import fake_probe, until_true

from gpuwarden.clock import SystemClock
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.probe import ProbeError
from gpuwarden_agent.queue.rows import RowError
from gpuwarden_agent.sampling.runner import ProbeRunner


class Taken:
    """What a runner handed on."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.readings: list[tuple[int, Any]] = []
        self.described: list[Any] = []
        self.events: list[tuple[str, str]] = []


@pytest.fixture
def taken() -> Taken:
    return Taken()


def make(probe: Any, taken: Taken, deadline_s: float = 0.05) -> ProbeRunner:
    return ProbeRunner(
        probe,
        deadline_s=deadline_s,
        interval_ms=1000,
        clock=SystemClock(),
        counters=taken.counters,
        accept=lambda _, ts_ms, reading: taken.readings.append((ts_ms, reading)),
        describe=lambda _, reading: taken.described.append(reading),
        report=lambda _, report: taken.events.append((report.kind, report.message)),
    )


@asynccontextmanager
async def running(runner: ProbeRunner) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(runner.run())
        yield
        task.cancel()
    await runner.close()


@contextmanager
def hanging(probe: Any) -> Iterator[None]:
    """The probe's next read does not return until the block is left."""
    probe.go_on.clear()
    try:
        yield
    finally:
        probe.go_on.set()


async def test_a_probe_that_only_computes_is_read_at_once(taken: Taken) -> None:
    runner = make(fake_probe(), taken)
    runner.tick(1000)
    assert [ts_ms for ts_ms, _ in taken.readings] == [1000]
    assert len(taken.described) == 1, "the first tick also asks what the source is"
    runner.tick(2000)
    assert len(taken.described) == 1, "and then once a minute"


async def test_a_reading_of_a_thread_comes_with_its_tick(taken: Taken) -> None:
    probe = fake_probe(blocking=True)
    runner = make(probe, taken, deadline_s=10)
    async with running(runner):
        runner.tick(1000)
        assert not runner.is_idle.is_set()
        await until_true(lambda: bool(taken.described))
        assert [ts_ms for ts_ms, _ in taken.readings] == [1000]
    assert probe.closed == 1


async def test_a_stuck_call_is_told_within_the_deadline_and_its_ticks_are_counted(
    taken: Taken,
) -> None:
    probe = fake_probe("gpu0", blocking=True)
    runner = make(probe, taken)
    async with running(runner):
        with hanging(probe):
            runner.tick(1000)
            await until_true(lambda: bool(taken.events))
            assert runner.is_idle.is_set(), "nobody waits for a stuck call"
            runner.tick(2000)
            runner.tick(3000)
            assert taken.counters.readings_skipped["gpu0"] == 2
            assert [kind for kind, _ in taken.events] == ["probe_stuck"]
        await until_true(lambda: len(taken.events) == 2)
        assert taken.events[1][0] == "probe_recovered"
        assert taken.readings == [], "a reading that comes late is not a sample"
        assert taken.counters.readings_late["gpu0"] == 1
        await until_true(lambda: bool(taken.described))
        runner.tick(4000)
        await until_true(lambda: bool(taken.readings))
        assert [ts_ms for ts_ms, _ in taken.readings] == [4000]


async def test_leaving_does_not_wait_for_a_stuck_call(taken: Taken) -> None:
    probe = fake_probe(blocking=True)
    runner = make(probe, taken)
    with hanging(probe):
        async with asyncio.timeout(5), running(runner):
            runner.tick(1000)
            await until_true(lambda: bool(taken.events))
        assert probe.closed == 0, "methods of one probe never run at the same time"


async def test_a_source_is_closed_after_the_call_that_leaving_interrupted(taken: Taken) -> None:
    probe = fake_probe(blocking=True)
    runner = make(probe, taken, deadline_s=10)
    with hanging(probe):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(runner.run())
            runner.tick(1000)
            await until_true(lambda: probe.read_at == [1000])
            task.cancel()
        closing = asyncio.ensure_future(runner.close())
        await asyncio.sleep(0.01)
        assert probe.closed == 0, "methods of one probe never run at the same time"
    await closing
    assert probe.closed == 1


@pytest.mark.parametrize("is_blocking", [False, True])
async def test_a_failing_source_is_told_once_by_its_kind_and_not_asked_what_it_is(
    taken: Taken, is_blocking: bool
) -> None:
    probe = fake_probe("gpu0", blocking=is_blocking)
    normal = probe.answer

    def lost(_: int) -> Any:
        raise ProbeError("fell off the bus", kind="gpu_lost")

    runner = make(probe, taken, deadline_s=10)
    async with running(runner):
        probe.answer = lost
        for ts_ms in (1000, 2000):
            await until_true(lambda: not runner._is_busy)
            runner.tick(ts_ms)
            await runner.is_idle.wait()
        assert taken.events == [("gpu_lost", "gpu0: fell off the bus")]
        assert taken.counters.probe_errors["gpu0"] == 2
        assert taken.described == []
        probe.answer = normal
        await until_true(lambda: not runner._is_busy)
        runner.tick(3000)
        await runner.is_idle.wait()
        assert [kind for kind, _ in taken.events] == ["gpu_lost", "probe_recovered"]


async def test_a_bug_in_a_probe_fails_that_probe_alone_and_is_named(taken: Taken) -> None:
    probe = fake_probe()
    probe.answer = lambda _: {}["missing"]
    make(probe, taken).tick(1000)
    assert taken.events == [("probe_failed", "host: KeyError: 'missing'")]


async def test_rows_that_no_table_has_fail_their_probe_alone(taken: Taken) -> None:
    runner = make(fake_probe(), taken)

    def refuse(*_: object) -> None:
        raise RowError("host_samples has no column 'x'")

    runner._accept = refuse
    runner.tick(1000)
    assert taken.events == [("probe_failed", "host: RowError: host_samples has no column 'x'")]


async def test_a_slow_cadence_is_read_once_in_its_period(taken: Taken) -> None:
    runner = make(fake_probe(tables={"host_samples": 10}), taken)
    for second in range(8, 22):
        runner.tick(second * 1000)
    assert [ts_ms for ts_ms, _ in taken.readings] == [8000, 10_000, 20_000]
