"""Utilization covers the time between two readings, and is never an older sample's."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.collect.nvidia.fake_driver import UNSUPPORTED, Fails, FakeDevice

from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.nvml import DriverSample
from gpuwarden_agent.collect.nvidia.query import Query
from gpuwarden_agent.collect.nvidia.timing import TRIAL_CALLS
from gpuwarden_agent.collect.nvidia.utilization import FIRST_US, UtilizationReader, mean_since

STEP_US = 200_000
AT_US = 1_700_000_000_000_000


class Sampling:
    """A driver that samples every 0.2 s and keeps the newest hundred."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, float]] = []
        self.at_us = AT_US

    def work(self, *percents: float) -> None:
        for percent in percents:
            self.at_us += STEP_US
            self.kept = [*self.kept, (self.at_us, percent)][-100:]

    def answer(self, kind: int, since_us: int) -> Any:
        if kind != 1:
            return UNSUPPORTED
        new = [each for each in self.kept if each[0] > since_us]
        return new or Fails(nvml.NOT_FOUND)


@pytest.fixture
def sampling() -> Sampling:
    return Sampling()


@pytest.fixture
def query(sampling: Sampling, clock: ManualClock) -> Query:
    return Query(FakeDevice({"driver_samples": sampling.answer}), clock)


def test_a_pulse_between_two_readings_counts(sampling: Sampling, query: Query) -> None:
    reader = UtilizationReader(query)
    sampling.work(*[0] * 20, 100, 0, 0, 0, 0)
    assert reader.read() == {"util_percent": 20.0}
    sampling.work(0, 100, 100, 0, 0)
    assert reader.read() == {"util_percent": 40.0}


def test_without_a_new_sample_there_is_no_mean_and_no_failure(
    sampling: Sampling, query: Query
) -> None:
    reader = UtilizationReader(query)
    sampling.work(50)
    assert reader.read() == {"util_percent": 50.0}
    for _ in range(4):
        assert reader.read() == {}
    sampling.work(70)
    assert reader.read() == {"util_percent": 70.0}
    assert not query.failed


def test_a_clock_that_was_set_back_costs_one_reading(sampling: Sampling, query: Query) -> None:
    reader = UtilizationReader(query)
    sampling.work(50)
    reader.read()
    sampling.at_us -= 3_600_000_000
    sampling.kept.clear()
    sampling.work(10, 20)
    assert reader.read() == {}
    sampling.work(30)
    assert reader.read() == {"util_percent": 20.0}
    sampling.work(80)
    assert reader.read() == {"util_percent": 80.0}


def test_a_driver_that_keeps_no_samples_is_asked_once(clock: ManualClock) -> None:
    device = FakeDevice()
    reader = UtilizationReader(Query(device, clock))
    assert [reader.read() for _ in range(5)] == [{}] * 5
    assert device.calls["driver_samples"] == 2, "one a kind"


def test_a_slow_driver_keeps_its_samples(sampling: Sampling, clock: ManualClock) -> None:
    """A column has no means of ten seconds between samples of one."""

    def slowly(kind: int, since_us: int) -> Any:
        clock.advance(0.02)
        return sampling.answer(kind, since_us)

    query = Query(FakeDevice({"driver_samples": slowly}), clock)
    reader = UtilizationReader(query)
    for second in range(15):
        query.begin(1, due_s=10 if second % 10 == 0 else 1)
        sampling.work(50, 50)
        assert bool(reader.read()) == (second < TRIAL_CALLS - 1)


def test_impossible_samples_are_left_out() -> None:
    samples = [DriverSample(AT_US, 40), DriverSample(AT_US, 4_294_967_295), DriverSample(AT_US, -1)]
    assert mean_since(samples, None) == 40
    assert mean_since(samples[1:], None) is None
    assert mean_since([], None) is None


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 100), min_size=1, max_size=30), min_size=1, max_size=8))
def test_each_sample_counts_in_one_reading(readings: list[list[int]]) -> None:
    sampling = Sampling()
    reader = UtilizationReader(
        Query(FakeDevice({"driver_samples": sampling.answer}), SystemClock())
    )
    sampling.work(*readings[0])
    first = readings[0][-FIRST_US // STEP_US :]
    assert reader.read()["util_percent"] == pytest.approx(sum(first) / len(first))
    for percents in readings[1:]:
        sampling.work(*percents)
        assert reader.read()["util_percent"] == pytest.approx(sum(percents) / len(percents))
