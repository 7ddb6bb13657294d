"""A wrong clock of the collector, or of an agent, has batches wait; none is refused for good."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.clock import Clock, SystemClock
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.queue.spool import Spool
from gpuwarden_agent.ship.shipper import Shipper
from gpuwarden_agent.ship.transport import open_transport
from gpuwarden_agent.worker import Worker
from gpuwarden_collector.ops.clock_check import WRONG_S, ClockEvidence, doubt

BATCHES = 200
GOOD = st.floats(-WRONG_S, WRONG_S)
BAD = st.one_of(st.floats(-1e9, -WRONG_S - 1), st.floats(WRONG_S + 1, 1e9))


def each_of_its_own(offsets: Sequence[float]) -> list[list[float]]:
    """Offsets of agents that each have a token of their own."""
    return [[offset] for offset in offsets]


@given(
    st.lists(GOOD, min_size=1),
    st.lists(BAD),
    st.floats(-1e9, 1e9),
    st.sampled_from([None, True, False]),
)
def test_with_most_agents_the_clock_is_right_whatever_was_stored(
    good: list[float], bad: list[float], behind_s: float, is_synchronised: bool | None
) -> None:
    bad = bad[: len(good) - 1]
    evidence = ClockEvidence(each_of_its_own([*bad, *good]), behind_s, is_synchronised)
    assert doubt(evidence) is None


@given(
    st.lists(GOOD),
    BAD,
    st.lists(st.floats(0, WRONG_S - 1), min_size=3),
    st.floats(-1e9, 1e9),
    st.sampled_from([None, True, False]),
)
def test_against_most_of_several_agents_that_agree_it_is_wrong(
    good: list[float],
    there: float,
    apart: list[float],
    behind_s: float,
    is_synchronised: bool | None,
) -> None:
    bad = [there + math.copysign(offset, there) for offset in apart]
    good = good[: len(bad) - 1]
    evidence = ClockEvidence(each_of_its_own([*good, *bad]), behind_s, is_synchronised)
    found = doubt(evidence)
    assert found is not None
    assert f"{len(bad)} of {len(bad) + len(good)} agents: set it right" in found


@given(
    st.lists(GOOD, max_size=1),
    st.sets(st.integers(-1_000_000, 1_000_000).filter(bool), min_size=2),
    st.sampled_from([None, True, False]),
)
def test_agents_that_do_not_agree_with_each_other_outvote_nobody(
    good: list[float], scattered: set[int], is_synchronised: bool | None
) -> None:
    offsets = [*good, *(number * 3 * WRONG_S for number in scattered)]
    assert doubt(ClockEvidence(each_of_its_own(offsets), 0.0, is_synchronised)) is None


@pytest.mark.parametrize(
    ("offsets", "behind_s", "is_synchronised", "words"),
    [
        ([], -5.0, None, None),
        ([], 3_600.0, None, "1:00:00 behind the newest time that it has stored"),
        ([], 3_600.0, False, "the kernel says that it is not synchronised"),
        ([], 3_600.0, True, None),
        ([7_200.0], 0.0, True, None),
        ([7_200.0], 0.0, False, "2:00:00 behind those of 1 of 1 agents"),
        ([-7_200.0, -7_200.0], 0.0, None, None),
        ([-7_200.0] * 3, 0.0, True, "2:00:00 ahead of those of 3 of 3 agents"),
    ],
)
def test_what_is_doubted_with_few_agents(
    offsets: Sequence[float], behind_s: float, is_synchronised: bool | None, words: str | None
) -> None:
    found = doubt(ClockEvidence(each_of_its_own(offsets), behind_s, is_synchronised))
    assert found is None if words is None else words in (found or "")


@given(st.lists(GOOD, min_size=4), st.lists(BAD), st.sampled_from([None, True, False]))
def test_agents_of_one_sender_do_not_outvote_those_of_four(
    good: list[float], invented: list[float], is_synchronised: bool | None
) -> None:
    offsets = [*each_of_its_own(good), invented]
    assert doubt(ClockEvidence(offsets, 0.0, is_synchronised)) is None


@given(
    st.lists(st.floats(-1e20, 1e20), min_size=1),
    st.floats(-1e20, 1e20),
    st.sampled_from([None, True, False]),
)
def test_what_is_said_of_any_clock_can_be_said(
    offsets: list[float], behind_s: float, is_synchronised: bool | None
) -> None:
    doubt(ClockEvidence(each_of_its_own(offsets), behind_s, is_synchronised))


class OffsetClock(SystemClock):
    """The machine's clock, wrong by so much."""

    def __init__(self, hours: float = 0) -> None:
        self.hours = hours

    def now(self) -> datetime:
        return super().now() + timedelta(hours=self.hours)

    def __reduce__(self) -> Any:
        return SystemClock, ()


@asynccontextmanager
async def shipping(
    url: str, clock: Clock, spools: Sequence[Spool], refused: list[str]
) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        tasks = []
        for spool in spools:
            shipper = Shipper(
                spool,
                Worker("spool"),
                [await stack.enter_async_context(open_transport(url, clock))],
                clock=clock,
                counters=Counters(),
                sealed=asyncio.Event(),
                on_refused=refused.append,
                backoff_max_s=0.2,
            )
            tasks.append(group.create_task(shipper.run()))
        yield
        for task in tasks:
            task.cancel()


def spooled(wire: Any, clock: Clock, agent: int, batches: int) -> Spool:
    spool = Spool(None, bytes_max=10**9, clock=clock, boot=f"boot-{agent}")
    for second in range(batches):
        rows = [
            row
            | {
                "ts": clock.now() + timedelta(seconds=second),
                "node": f"n{agent}",
                "gpu_uuid": f"GPU-{agent}",
            }
            for row in wire.gpu_rows(1, [second])
        ]
        spool.put(wire.zstd(wire.stream("gpu_samples", rows)), 1)
    return spool


@pytest.mark.slow
@pytest.mark.parametrize("agents", [1, 4])
@pytest.mark.parametrize("wrong_h", [-1, 340, -340])
async def test_a_wrong_clock_of_the_collector_discards_nothing_and_all_is_stored_when_it_is_right(
    wrong_h: int,
    agents: int,
    start: Any,
    wire: Any,
    eventually: Any,
    session: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpuwarden_agent.ship.shipper.RETRY_AFTER_S_MAX", 0.05)
    clock, wrong = SystemClock(), OffsetClock(wrong_h)
    spools = [spooled(wire, clock, n, BATCHES // agents) for n in range(agents)]
    refused: list[str] = []
    async with start(clock=wrong) as collector:
        async with shipping(collector.url, clock, spools, refused):
            await eventually(lambda: collector.stats.refused["503"] >= 2 * agents)
            if agents > 1:
                async with session.get(f"{collector.url}/readyz") as ready:
                    assert ready.status == 503
                    assert "agents: set it right" in await ready.text()
            assert sum(spool.count for spool in spools) + collector.stats.batches == BATCHES
            wrong.hours = 0
            await eventually(lambda: not any(spool.count for spool in spools))
        assert collector.stats.batches == BATCHES
    assert refused == []


async def test_an_agent_whose_clock_is_ahead_keeps_its_batches_and_hears_why(
    start: Any, wire: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is set right: what was stamped before is set aside, what comes then is stored."""
    monkeypatch.setattr("gpuwarden_agent.ship.shipper.RETRY_AFTER_S_MAX", 0.05)
    monkeypatch.setattr("gpuwarden_collector.daemon.kernel_synchronised", lambda: True)
    ahead = OffsetClock(3)
    spool = spooled(wire, ahead, 1, 2)
    refused: list[str] = []
    async with (
        start(clock=SystemClock()) as collector,
        shipping(collector.url, ahead, [spool], refused),
    ):
        await eventually(lambda: collector.stats.refused["503"] >= 2)
        assert spool.count == 2
        ahead.hours = 0
        await eventually(lambda: not spool.count)
        assert len(refused) == 2
        assert "in the future" in refused[0]
    assert len(spool.refused()) == 2
