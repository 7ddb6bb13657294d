"""Readings that a device does not have, that failed, and that end a read are kept apart."""

from typing import Any

import pytest
from tests.agent.collect.nvidia.fake_driver import Fails, FakeDevice

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.metrics import ROWS
from gpuwarden_agent.collect.nvidia.nvml import Call
from gpuwarden_agent.collect.nvidia.query import LEARNED_FOR_S, Query
from gpuwarden_agent.collect.nvidia.timing import TRIAL_CALLS

NEW, OLD = Call((), "nvmlNew", reading="new"), Call((), "nvmlOld", reading="old")
TEMPERATURE = Call((), "nvmlDeviceGetTemperature", reading="temperature")
OF_LINK = Call((), "nvmlOfLink", reading="of_link")


def gpu(answers: dict[str, Any], index: int = 0) -> FakeDevice:
    return FakeDevice(answers, index=index)


def calls_of(code: int, index: int = 0) -> FakeDevice:
    """Two calls for one reading, the newer of which answers with a return code."""
    return gpu({"new": Fails(code), "old": 5}, index)


def timed(clock: ManualClock, takes_ms: float, answer: Any = 41, index: int = 0) -> FakeDevice:
    """A device whose calls take some time of a clock that is moved by hand."""

    def answered(*_: Any) -> Any:
        clock.advance(takes_ms / 1000)
        return answer

    return gpu({"temperature": answered, "old": answered}, index)


@pytest.mark.parametrize(
    "code",
    [
        nvml.NOT_SUPPORTED,
        nvml.FUNCTION_NOT_FOUND,
        nvml.ARGUMENT_VERSION_MISMATCH,
        nvml.DEPRECATED,
    ],
)
def test_a_call_that_is_not_there_is_left_out_until_it_is_time(
    code: int, clock: ManualClock
) -> None:
    device = calls_of(code)
    query = Query(device, clock)
    assert [query.ask(NEW, OLD) for _ in range(3)] == [5, 5, 5]
    assert (device.calls["new"], device.calls["old"]) == (1, 3)
    clock.advance(LEARNED_FOR_S)
    query.ask(NEW, OLD)
    assert (device.calls["new"], device.calls["old"]) == (2, 4)
    assert not query.failed


def test_forgetting_asks_for_everything_again(clock: ManualClock) -> None:
    device = calls_of(nvml.NOT_SUPPORTED)
    query = Query(device, clock)
    query.ask(NEW)
    query.forget()
    query.ask(NEW)
    assert device.calls["new"] == 2


def test_an_older_call_does_not_stand_in_for_one_that_is_only_slow(clock: ManualClock) -> None:
    device = timed(clock, takes_ms=40)
    query = Query(device, clock)
    query.begin(1, due_s=1)
    for _ in range(TRIAL_CALLS + 1):
        query.ask(TEMPERATURE, OLD)
    assert device.calls["old"] == 0


def test_a_call_of_descriptions_and_samples_is_in_the_samples_tier(clock: ManualClock) -> None:
    device = timed(clock, takes_ms=1)
    query = Query(device, clock)
    query.begin(60, due_s=60)
    query.ask(TEMPERATURE)
    query.begin(1, due_s=1)
    assert query.ask(TEMPERATURE) == 41
    assert [report.tier_s for report in query.calls()] == [1]


def test_calls_are_reported_with_what_they_cost(clock: ManualClock) -> None:
    device = timed(clock, takes_ms=2)
    query = Query(device, clock)
    for _ in range(3):
        query.ask(TEMPERATURE)
    (report,) = query.calls()
    assert (report.call, report.reading) == ("nvml temperature", "temperature")
    assert (report.supported, report.code, report.count) == (True, "SUCCESS", 3)
    assert report.p50_ms == pytest.approx(2, rel=0.01)
    assert report.p99_ms == pytest.approx(2, rel=0.01)


def test_a_call_that_the_gpu_does_not_have_is_reported_so(clock: ManualClock) -> None:
    device = timed(clock, takes_ms=2, answer=Fails(nvml.NOT_SUPPORTED))
    query = Query(device, clock)
    query.ask(TEMPERATURE)
    (report,) = query.calls()
    assert (report.supported, report.code) == (False, "NOT_SUPPORTED")


def test_what_one_link_lacks_is_still_asked_of_the_others(clock: ManualClock) -> None:
    device = gpu({"of_link": {0: 0, 1: 1, 2: Fails(nvml.NOT_SUPPORTED)}})
    query = Query(device, clock)
    for _ in range(2):
        assert [query.ask_of(OF_LINK, link) for link in range(3)] == [0, 1, None]
    (report,) = query.calls()
    assert report.count == 5


def test_a_part_that_is_not_there_is_no_failure(clock: ManualClock) -> None:
    device = gpu({"fan_percent": {}})
    query = Query(device, clock)
    assert [query.ask_of(ROWS["fan_percent"], 3) for _ in range(3)] == [None] * 3
    (report,) = query.calls()
    assert (report.count, report.supported) == (1, False)
    assert not query.failed
