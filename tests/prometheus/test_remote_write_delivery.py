"""Each sample reaches a receiver that answers as Prometheus 2 does, or is refused, counted and named."""

import asyncio
import logging
from collections.abc import Iterable
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.clock import ManualClock
from gpuwarden_collector.forwarding.port import ReceiverState
from gpuwarden_prometheus.remote_write import delivery
from gpuwarden_prometheus.remote_write.bodies import BodyEncoder
from gpuwarden_prometheus.remote_write.delivery import Reply, RequestDelivery, reason_of
from gpuwarden_prometheus.remote_write.messages import decode
from gpuwarden_prometheus.remote_write.samples import LabelSet, Series, encoded_samples
from gpuwarden_prometheus.remote_write.settings import RemoteReceiver

BASE_MS = 1_790_000_000_000
RECEIVER = RemoteReceiver("r", "http://r.example/write")


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(delivery.asyncio, "sleep", sleep)
    return waits


_SETS: dict[str, LabelSet] = {}


def series(name: str, times: Iterable[int]) -> Series:
    """Samples at these seconds; the value is the second."""
    seconds = np.array(list(times), np.int64)
    labels = _SETS.setdefault(name, LabelSet({"__name__": name}))
    content = encoded_samples(seconds * 1000 + BASE_MS, seconds.astype("<f8")).tobytes()
    return Series(labels, content)


class Prometheus2:
    """Takes a request whole or not at all, and the samples of a series in order."""

    def __init__(self, failures: Iterable[str] = (), *, too_old_s: int = -1) -> None:
        self.stored: dict[str, dict[int, float]] = {}
        self.requests = 0
        self._failures = iter(failures)
        self._too_old_s = too_old_s

    async def __call__(self, body: bytes) -> Reply:
        self.requests += 1
        failure = next(self._failures, "")
        if failure == "lost before":
            raise OSError("connection reset")
        reply = self._take(body)
        if failure == "lost after":
            raise TimeoutError
        return reply

    def _take(self, body: bytes) -> Reply:
        new = {name: dict(samples) for name, samples in self.stored.items()}
        for one in decode(1, body, 1 << 24).timeseries:
            samples = new.setdefault(one.labels[0].value, {})
            for sample in one.samples:
                second = (sample.timestamp - BASE_MS) // 1000
                newest = max(samples, default=-1)
                if second <= self._too_old_s:
                    return Reply(400, "out of bounds")
                if second < newest:
                    return Reply(400, "out of order sample")
                samples[second] = sample.value
        self.stored = new
        return Reply(204)


def made(receiver: object, state: ReceiverState, version: int = 1) -> RequestDelivery:
    chosen = RemoteReceiver("r", "http://r.example/write", version)
    clock = ManualClock(datetime(2026, 3, 1, tzinfo=UTC))
    return RequestDelivery(chosen, receiver, BodyEncoder(version, {}), state, clock)  # type: ignore[arg-type]


_FAILURES = st.lists(st.sampled_from(["", "", "lost before", "lost after"]), max_size=12)
_SHAPE = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@given(st.lists(_SHAPE, min_size=1, max_size=4), _FAILURES, st.data())
def test_nothing_is_lost_when_answers_are_lost_and_a_run_is_killed(shapes, failures, data) -> None:
    """A killed run is repeated from a request that it had sent, as the position says."""
    requests, at = [], [0] * 6
    for shape in shapes:
        request = []
        for number, count in enumerate(shape):
            request.append(series(f"s{number}", range(at[number], at[number] + count)))
            at[number] += count
        requests.append(request)
    receiver, state = Prometheus2(failures), ReceiverState()
    killed = data.draw(st.integers(0, len(requests)))

    async def run() -> None:
        for request in requests[:killed]:
            await made(receiver, state).deliver(request, is_repeated=False)
        again = made(receiver, state)
        for request in requests:
            await again.deliver(request, is_repeated=True)

    asyncio.run(run())
    assert receiver.stored == {
        f"s{number}": {second: float(second) for second in range(count)}
        for number, count in enumerate(at)
        if count
    }


@given(st.lists(st.integers(0, 12), min_size=1, max_size=8), st.integers(-1, 20))
def test_only_the_samples_that_a_receiver_refuses_are_left_out(starts, too_old_s) -> None:
    request = [series(f"s{number}", range(start, start + 4)) for number, start in enumerate(starts)]
    receiver, state = Prometheus2(too_old_s=too_old_s), ReceiverState()
    asyncio.run(made(receiver, state).deliver(request, is_repeated=False))
    expected = {
        f"s{number}": {s: float(s) for s in range(start, start + 4) if s > too_old_s}
        for number, start in enumerate(starts)
    }
    assert receiver.stored == {name: samples for name, samples in expected.items() if samples}
    stored = sum(map(len, expected.values()))
    assert state.sent == stored
    assert state.refused.total() == 4 * len(starts) - stored
    assert set(state.refused) <= {"too_old"}


def test_late_rows_that_are_all_too_old_cost_few_requests(caplog: pytest.LogCaptureFixture) -> None:
    receiver, state = Prometheus2(too_old_s=1000), ReceiverState()
    late = [series(f"s{number}", range(10)) for number in range(400)]
    fresh = [series("fresh", range(2000, 2010))]
    with caplog.at_level(logging.WARNING):
        asyncio.run(made(receiver, state).deliver([*late, *fresh], is_repeated=False))
    assert state.refused == {"too_old": 4000}
    assert len(receiver.stored["fresh"]) == 10
    assert receiver.requests < 60
    assert vars(caplog.records[0])["one_of"].startswith("__name__=s")


def test_a_request_that_was_stored_before_costs_three_probes() -> None:
    receiver, state = Prometheus2(), ReceiverState()
    request = [series(f"s{number}", range(5)) for number in range(500)]
    sender = made(receiver, state)
    asyncio.run(sender.deliver(request, is_repeated=False))
    asyncio.run(sender.deliver(request, is_repeated=True))
    assert receiver.requests == 5
    assert state.refused == {"repeated": 2500}


def test_the_reasons_are_the_receivers() -> None:
    said = {
        "out of bounds": "too_old",
        "out of order sample": "out_of_order",
        "duplicate sample for timestamp": "duplicate",
        "label name is too long": "other",
    }
    assert {text: reason_of(text) for text in said} == said


class Scripted:
    """Answers one after the other."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = iter(replies)

    async def __call__(self, body: bytes) -> Reply:
        return next(self._replies)


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_what_may_change_is_repeated_and_named(status, no_waits) -> None:
    state = ReceiverState()
    receiver = Scripted(Reply(status, "no", 7.0), Reply(status, "no"), Reply(204))
    asyncio.run(made(receiver, state).deliver([series("s", [1])], is_repeated=False))
    assert (state.sent, state.failures, state.problem) == (1, 2, None)
    assert no_waits == [7.0, 1.0]


def test_a_sample_that_is_too_old_is_not_repeated_whatever_the_status() -> None:
    state = ReceiverState()
    receiver = Scripted(Reply(500, "too old sample"))
    asyncio.run(made(receiver, state).deliver([series("s", [1])], is_repeated=False))
    assert (state.sent, state.failures, state.refused) == (0, 0, {"too_old": 1})


def test_a_failing_receiver_has_its_problem_in_a_sentence() -> None:
    state = ReceiverState()

    class Failing:
        async def __call__(self, body: bytes) -> Reply:
            if state.failures == 3:
                assert state.problem == "it answers 404: no such page"
                return Reply(204)
            return Reply(404, "no such page")

    asyncio.run(made(Failing(), state).deliver([series("s", [1])], is_repeated=False))
    assert state.failures == 3


def test_a_receiver_that_says_what_it_wrote_is_believed() -> None:
    state = ReceiverState()
    receiver = Scripted(Reply(400, "out of order", written=3))
    asyncio.run(made(receiver, state).deliver([series("s", range(5))], is_repeated=False))
    assert state.sent == 3
    assert state.refused == {"out_of_order": 2}


def test_version_2_needs_an_answer_of_version_2() -> None:
    """A receiver of version 1 would take such a body for an empty one."""
    state = ReceiverState()
    problems = []

    class Old:
        async def __call__(self, body: bytes) -> Reply:
            problems.append(state.problem)
            return Reply(204, written=1 if len(problems) > 1 else None)

    asyncio.run(made(Old(), state, 2).deliver([series("s", [1])], is_repeated=False))
    assert "set version = 1" in (problems[1] or "")


def test_a_request_that_is_too_large_is_divided() -> None:
    state = ReceiverState()

    class Small:
        taken = 0

        async def __call__(self, body: bytes) -> Reply:
            count = sum(len(one.samples) for one in decode(1, body, 1 << 24).timeseries)
            if count > 2:
                return Reply(413)
            self.taken += count
            return Reply(204)

    receiver = Small()
    request = [series("a", range(5)), series("b", range(3))]
    asyncio.run(made(receiver, state).deliver(request, is_repeated=False))
    assert (receiver.taken, state.sent, state.refused.total()) == (8, 8, 0)
