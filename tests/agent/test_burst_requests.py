"""Bursts that the collector asks for: run once each, one after another, or refused with the reason."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import pytest

from gpuwarden.burst import BurstRequest, bursts_header
from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import until
from gpuwarden.schema import WIRE_TABLES
from gpuwarden_agent.burst import POLLED, BurstSample
from gpuwarden_agent.burst_requests import KNOWN_MAX, WAITING_MAX, BurstRunner
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.events.recorder import EventRecorder
from gpuwarden_agent.probe import ProbeError, Row
from gpuwarden_agent.queue.batch import OpenBatch
from gpuwarden_agent.queue.rows import impossible_columns


class QuickProbe:
    """A probe of GPU 0 with quick readings of ours."""

    name, simulated, blocking, gpu_uuid = "gpu0", False, True, "GPU-0"
    tables: ClassVar = {"gpu_samples": 1}

    def __init__(self, poll: Callable[[int], Iterable[BurstSample]] | None = None) -> None:
        self.poll = poll or (lambda now_us: [BurstSample(now_us, 0, "power_watts", 250.0, POLLED)])
        self.bursts = 0

    def burst(self) -> "QuickProbe":
        self.bursts += 1
        return self

    def drain(self) -> Iterable[BurstSample]:
        return ()


class Agent:
    def __init__(self, probes: list[Any], is_allowed: bool = True) -> None:
        self.batch, self.counters, self.events = OpenBatch(), Counters(), list[Row]()
        clock = SystemClock()
        self.runner = BurstRunner(
            "n1",
            probes,
            clock,
            self.batch,
            self.counters,
            EventRecorder("n1", clock, self.events.append, simulated=False, is_quiet=True),
            is_allowed=is_allowed,
            gpu_index=lambda uuid: 0 if uuid == "GPU-0" else None,
        )
        self.stop = asyncio.Event()

    def ask(self, number: int, gpu_uuid: str = "GPU-0", seconds: float = 1.0) -> None:
        request = BurstRequest(f"{number:012x}", gpu_uuid, 50.0, seconds)
        self.runner.take(bursts_header([request]))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            group.create_task(self.runner.run(self.stop))
            while not condition():
                await until(self.stop, 0.02)
            self.stop.set()

    @property
    def kinds(self) -> list[Any]:
        return [row["kind"] for row in self.events]


async def test_samples_of_a_burst_are_rows_and_its_end_is_an_event() -> None:
    probe = QuickProbe()
    agent = Agent([probe])
    agent.ask(1)
    agent.ask(1)  # the collector repeats it in each answer
    await agent.until(lambda: bool(agent.events))
    assert probe.bursts == 1
    rows = agent.batch.take().by_table["burst_samples"]
    assert 25 <= len(rows) <= 51
    assert set(rows[0]) == {column.name for column in WIRE_TABLES["burst_samples"].columns}
    assert rows[0] | {"ts": 0} == {
        "ts": 0, "node": "n1", "gpu": 0, "gpu_uuid": "GPU-0", "simulated": False, "burst": "000000000001",
        "metric": "power_watts", "source": "polled", "value": 250.0,
    }  # fmt: skip
    assert impossible_columns("burst_samples", rows[0]) == ()
    (event,) = agent.events
    assert event["kind"] == "burst_done"
    assert '"burst": "000000000001"' in str(event["details"])
    assert agent.counters.rows["burst_samples"] == len(rows)
    agent.ask(1)
    assert agent.kinds == ["burst_done"]


async def test_what_cannot_be_run_is_refused_with_the_reason() -> None:
    def broken(now_us: int) -> Iterable[BurstSample]:
        raise ProbeError("GPU is lost")

    def odd(now_us: int) -> Iterable[BurstSample]:
        raise RuntimeError("the driver is odd")

    for probes, gpu, why in (
        ([], "GPU-0", "no source of this agent reads that GPU"),
        ([QuickProbe()], "GPU-9", "no source of this agent reads that GPU"),
        ([QuickProbe(broken)], "GPU-0", "GPU is lost"),
        ([QuickProbe(odd)], "GPU-0", "the driver is odd"),
        ([QuickProbe(lambda now_us: [])], "GPU-0", "the driver answered nothing"),
    ):
        agent = Agent(probes)
        agent.ask(1, gpu)
        await agent.until(lambda agent=agent: bool(agent.events))
        assert agent.kinds == ["burst_refused"]
        assert why in str(agent.events[0]["message"])
        assert agent.batch.count == 0


async def test_an_agent_that_may_not_refuses() -> None:
    agent = Agent([QuickProbe()], is_allowed=False)
    agent.ask(1)
    assert "setting bursts is false" in str(agent.events[0]["message"])


async def test_no_request_waits_in_a_line_without_end() -> None:
    agent = Agent([QuickProbe()])
    for number in range(WAITING_MAX + 2):
        agent.ask(number)
    assert agent.kinds == ["burst_refused"] * 2
    for number in range(2 * KNOWN_MAX):
        agent.ask(number)
    assert len(agent.runner._known) == KNOWN_MAX


async def test_an_agent_that_stops_waits_for_no_burst() -> None:
    started = threading.Event()

    def poll(now_us: int) -> Iterable[BurstSample]:
        started.set()
        return [BurstSample(now_us, 0, "power_watts", 250.0, POLLED)]

    agent = Agent([QuickProbe(poll)])
    agent.ask(1, seconds=60)
    await agent.until(started.is_set)
    assert agent.events == []


@pytest.mark.parametrize("header", [None, "", "[]", "rubbish"])
async def test_answers_without_requests_cost_nothing(header: str | None) -> None:
    agent = Agent([QuickProbe()])
    agent.runner.take(header)
    assert agent.events == []
