"""A wrong clock of the collector, or of an agent, has batches wait; none is refused permanently."""

import asyncio
import math
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.collector.child_processes import children
from tests.collector.test_alerts import alert

from gpuwarden.alert import Alert, AlertState
from gpuwarden.clock import Clock, ManualClock, SystemClock, to_ms
from gpuwarden.wire import NOW_HEADER
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.queue.spool import Spool
from gpuwarden_agent.ship.shipper import Shipper
from gpuwarden_agent.ship.transport import open_transport
from gpuwarden_agent.worker import Worker
from gpuwarden_collector.auth.senders import token_sender
from gpuwarden_collector.ingest.clock_check import ClockCheck, ClockEvidence, doubt
from gpuwarden_collector.processes.control_socket import ask
from gpuwarden_collector.storage.retention import WRONG_S

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
def test_a_clock_that_most_agents_confirm_is_right_despite_stored_times(
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
def test_a_clock_that_several_agents_contradict_is_wrong(
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
def test_every_offset_can_be_written_as_text(
    offsets: list[float], behind_s: float, is_synchronised: bool | None
) -> None:
    doubt(ClockEvidence(each_of_its_own(offsets), behind_s, is_synchronised))


class Judged:
    """A check of a clock that is moved by hand."""

    def __init__(self, newest: datetime | None = None) -> None:
        self.clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))
        self.kernel: bool | None = None
        self.check = ClockCheck(self.clock, newest, lambda: self.kernel)

    def hear(self, agents: int, ahead_s: float) -> None:
        for number in range(agents):
            self.check.note(token_sender(f"t{number}"), "agent", ahead_s)
        self.check.evaluate()

    @property
    def verdict(self) -> tuple[bool, bool]:
        """Whether it is doubted and whether it is trusted, judged now."""
        self.check.evaluate()
        return self.check.reason is not None, self.check.is_trusted


def test_a_clock_is_trusted_once_an_agent_or_the_kernel_has_confirmed_it() -> None:
    by_agent, by_kernel, by_few = Judged(), Judged(), Judged()
    assert by_agent.verdict == by_kernel.verdict == (False, False)
    by_agent.hear(1, 2.0)
    assert by_agent.verdict == (False, True)
    by_kernel.kernel = True
    assert by_kernel.verdict == (False, True)
    by_few.hear(2, 7_200.0)
    assert by_few.verdict == (False, False), "two do not outweigh it, nor do they confirm it"


def test_a_clock_stays_trusted_without_agents_until_it_is_set() -> None:
    judged = Judged()
    judged.hear(1, 0.0)
    judged.clock.advance(86_400)
    assert judged.verdict == (False, True)
    judged.clock.step(WRONG_S + 1)
    assert not judged.check.is_trusted, "before anybody has looked"
    assert judged.verdict == (False, False)
    judged.clock.step(-2)
    assert judged.verdict == (False, True), "it was set back"
    judged.clock.step(3_600)
    judged.hear(1, 0.0)
    assert judged.verdict == (False, True), "an agent says that it was right to set it"


def test_offsets_of_agents_stay_valid_after_the_clock_was_set() -> None:
    judged = Judged()
    judged.hear(3, 7_200.0)
    assert judged.verdict == (True, False)
    judged.clock.advance(60)
    judged.clock.step(7_200)
    assert judged.verdict == (False, True)
    judged.clock.step(-86_400)
    assert judged.verdict == (True, False)


def test_a_clock_that_was_doubted_must_be_confirmed_again() -> None:
    judged = Judged()
    judged.kernel = True
    judged.hear(3, 7_200.0)
    assert judged.verdict == (True, False)
    judged.kernel = None
    judged.clock.advance(3_600)
    assert judged.verdict == (False, False), "the sender that doubted it is gone"


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
                [await stack.enter_async_context(open_transport(url))],
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
@pytest.mark.parametrize(("wrong_h", "agents"), [(-1, 4), (340, 1), (-340, 4)])
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


async def test_an_agent_whose_clock_is_ahead_keeps_its_batches_and_gets_the_reason(
    start: Any, wire: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is set right: what was stamped before is set aside, what comes then is stored."""
    monkeypatch.setattr("gpuwarden_agent.ship.shipper.RETRY_AFTER_S_MAX", 0.05)
    monkeypatch.setattr("gpuwarden_collector.stages.kernel_synchronised", lambda: True)
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
        await eventually(lambda: len(refused) == 2)
        assert "in the future" in refused[0]
        await eventually(lambda: not spool.count)
    assert len(spool.refused()) == 2


YEAR_S = 400 * 86_400.0


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only agents confirm the clock; it is judged, and the ledger read, all the time."""
    monkeypatch.setattr("gpuwarden_collector.stages.kernel_synchronised", lambda: None)
    monkeypatch.setattr("gpuwarden_collector.stages.CLOCK_CHECK_INTERVAL_S", 0.01)
    monkeypatch.setattr("gpuwarden_collector.ingest.writer._EXPIRY_INTERVAL_S", 0.0)


def resolved(wire: Any) -> Alert:
    over = {"fired_at": wire.now, "resolved_at": wire.now}
    return alert(wire, state=AlertState.RESOLVED, **over)


async def maintained(data_dir: Path) -> None:
    async with asyncio.timeout(20):
        # A collector that is being started is asked again.
        while "tasks" not in (await asyncio.to_thread(ask, data_dir, "maintain", 10.0) or {}):
            pass


@pytest.mark.usefixtures("forgetful")
async def test_nothing_is_dropped_by_age_before_the_clock_is_confirmed(
    start: Any, wire: Any, post: Any, clock: Any, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = {
        node: wire.zstd(
            wire.stream("gpu_samples", [wire.gpu_row(node=node, gpu_uuid=f"GPU-{node}")])
        )
        for node in ("n1", "n2")
    }
    events = wire.zstd(wire.stream("events", []))
    async with start() as collector:
        for node, body in bodies.items():
            assert (await post(collector.url, body, agent=node))[0] == 204
        await collector.seal()
        await collector.alerts.save([resolved(wire)])
    clock.step(YEAR_S)
    monkeypatch.setattr("gpuwarden_collector.stages.PAST_S_MAX", 2 * YEAR_S)
    async with start() as collector:
        for is_confirmed, node in ((False, "n1"), (True, "n2")):
            now = {NOW_HEADER: str(to_ms(clock.now()))} if is_confirmed else {}
            for number in (1, 2):  # the second after the clock was judged
                agent = f"{node}-{number}"
                assert (await post(collector.url, events, agent=agent, headers=now))[0] == 204
                await asyncio.sleep(0.2)
            await maintained(data_dir)
            kept = await collector.alerts.resolved_since(wire.now - timedelta(seconds=1))
            assert len(kept) == (0 if is_confirmed else 1)
            assert (await post(collector.url, bodies[node], agent=node))[0] == 204
            assert collector.stats.duplicates == 1, "only before"


@pytest.mark.usefixtures("forgetful")
async def test_a_storage_process_that_is_replaced_trusts_the_clock_no_more_than_the_collector(
    start: Any,
    wire: Any,
    clock: Any,
    data_dir: Path,
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpuwarden_collector.stages.CLOCK_CHECK_INTERVAL_S", 1e6)
    async with start() as collector:
        await collector.alerts.save([resolved(wire)])
    clock.step(YEAR_S)
    # One of a test before may still find out that nobody asks it.
    others = children("gpuwarden-store")
    async with start() as collector:
        await eventually(lambda: children("gpuwarden-store", others))
        (process,) = children("gpuwarden-store", others)
        os.kill(process, signal.SIGKILL)
        await eventually(lambda: collector.stats.storage_restarts == 1)
        await maintained(data_dir)
        assert await collector.alerts.resolved_since(wire.now - timedelta(seconds=1))


OWN_CLOCKS: tuple[tuple[float | None, int, int], ...] = (
    (None, 60, 422),
    (60.0, 60, 503),  # it is made now, and one of the two clocks is a minute off
    (0.0, 60, 422),
    (-100.0, -150, 503),
    (0.0, -150, 422),
    (-5.0, 60, 422),  # by either clock
)
"""By how much an agent's clock is ahead, the second of its row, and the status that it gets."""


@pytest.mark.parametrize("kernel", [True, None])
async def test_what_the_sender_s_own_clock_would_admit_waits(
    kernel: bool | None,
    start: Any,
    wire: Any,
    post: Any,
    clock: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However close the clocks are, and however narrow the bounds."""
    monkeypatch.setattr("gpuwarden_collector.stages.kernel_synchronised", lambda: kernel)
    monkeypatch.setattr("gpuwarden_collector.stages.AHEAD_S_MAX", 10)
    monkeypatch.setattr("gpuwarden_collector.stages.PAST_S_MAX", 120)
    unconfirmed = "neither an agent nor the kernel has confirmed the collector's clock"
    async with start() as collector:
        for number, (ahead_s, row_s, status) in enumerate(OWN_CLOCKS):
            offset_ms = int((ahead_s or 0) * 1000)
            now = {} if ahead_s is None else {NOW_HEADER: str(to_ms(clock.now()) + offset_ms)}
            body = wire.zstd(wire.stream("gpu_samples", [wire.gpu_row(second=row_s)]))
            got, text, headers = await post(
                collector.url, body, agent=f"agent-{number}", headers=now
            )
            if ahead_s is None and kernel is None:
                assert (got, unconfirmed in text) == (503, True), text
            else:
                assert got == status, (ahead_s, text)
            assert ("Retry-After" in headers) == (got == 503)
            if got == 503 and ahead_s:
                apart = timedelta(seconds=abs(ahead_s))
                way = "ahead of" if ahead_s > 0 else "behind"
                assert f"{apart} {way} the collector's" in text
