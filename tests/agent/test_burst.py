"""A burst keeps its times, reads each buffered sample once, and says what a second's mean hides."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.collect.nvidia.fake_driver import UNSUPPORTED, Fails, FakeDevice
from tests.agent.fakes import fake_probe

from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden_agent.burst import (
    BUFFERED,
    POLLED,
    Burst,
    BurstSample,
    PolledProbe,
    run_burst,
    sources_of_burst,
    summaries,
)
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.burst import NvmlBurst
from gpuwarden_agent.collect.nvidia.gpu import GpuProbe
from gpuwarden_agent.probe import ProbeError

AT_US = 1_700_000_000_000_000


class Source:
    """Takes some time of a clock for each poll, and buffers a sample each 20 ms."""

    def __init__(self, clock: ManualClock, takes_s: float = 0.0, fails: bool = False) -> None:
        self.clock, self.takes_s, self.fails = clock, takes_s, fails
        self.polls: list[float] = []

    def poll(self, now_us: int) -> Iterable[BurstSample]:
        self.polls.append(self.clock.monotonic())
        self.clock.advance(self.takes_s)
        if self.fails:
            raise ProbeError("GPU 0 is lost")
        return [BurstSample(now_us, 0, "sm_clock_mhz", 1980, POLLED)]

    def drain(self) -> Iterable[BurstSample]:
        return ()


def burst_of(clock: ManualClock, source: Source, hz: float, seconds: float) -> Burst:
    return run_burst([source], clock, hz, seconds, sleep=clock.advance)


def test_readings_keep_their_times(clock: ManualClock) -> None:
    source = Source(clock, takes_s=0.01)
    began_s = clock.monotonic()
    burst = burst_of(clock, source, hz=20, seconds=2)
    assert [at - began_s for at in source.polls] == pytest.approx([n / 20 for n in range(40)])
    assert (burst.ticks, burst.missed, len(burst.samples)) == (40, 0, 40)


def test_slow_readings_leave_ticks_out_and_count_them(clock: ManualClock) -> None:
    burst = burst_of(clock, Source(clock, takes_s=0.12), hz=20, seconds=3)
    assert burst.ticks + burst.missed == 60
    assert burst.missed == 40


def test_failed_readings_are_counted_by_reason(clock: ManualClock) -> None:
    burst = burst_of(clock, Source(clock, fails=True), hz=10, seconds=1)
    assert burst.failed == {"GPU 0 is lost": 10}
    assert burst.samples == []


class Buffers:
    """A driver that keeps power each 20 ms and utilization each 200 ms, and has no other buffer."""

    def __init__(self) -> None:
        self.now_us = AT_US

    def __call__(self, kind: int, since_us: int) -> Any:
        steps = {0: 20_000, 1: 200_000}
        if kind not in steps:
            return UNSUPPORTED
        step = steps[kind]
        first = max(since_us, self.now_us - 120 * step) // step * step + step
        found = [(at, at // step % 1000) for at in range(first, self.now_us + 1, step)]
        return found or Fails(nvml.NOT_FOUND)


def test_each_sample_of_the_drivers_buffer_is_read_once_and_clocks_are_polled(
    clock: ManualClock,
) -> None:
    buffers = Buffers()
    device = FakeDevice(
        {"driver_samples": buffers, "temperature_v": 50, "sm_clock_mhz": 1980, "memory_clock_mhz": UNSUPPORTED,
         "utilization": (7, 3), "power_usage_mw": 480_000}
    )  # fmt: skip
    burst = NvmlBurst(device, clock)
    assert list(burst.drain()) == [], "the first ones are of before the burst"
    polled = {one.metric for one in burst.poll(AT_US)}
    assert polled == {"temperature_celsius", "sm_clock_mhz", "memory_util_percent"}
    times: list[int] = []
    for _ in range(3):
        buffers.now_us += 1_000_000
        times += [one.at_us for one in burst.drain() if one.metric == "power_watts"]
    assert times == [AT_US + 20_000 * n for n in range(1, 151)]


def test_a_gpu_without_buffers_is_polled(clock: ManualClock) -> None:
    device = FakeDevice()
    burst = NvmlBurst(device, clock)
    assert list(burst.drain()) == []
    values = {one.metric: (one.value, one.source) for one in burst.poll(AT_US)}
    assert values["power_watts"] == (69.85, POLLED)
    assert values["util_percent"] == (0, POLLED)


def test_a_hung_or_lost_gpu_is_a_failed_reading(clock: ManualClock) -> None:
    lost = FakeDevice({"open": Fails(nvml.GPU_IS_LOST)})
    with pytest.raises(ProbeError, match="is lost"):
        list(NvmlBurst(lost, clock).drain())
    hung = FakeDevice()
    hung.lock.acquire()
    with pytest.raises(ProbeError, match="does not return"):
        list(NvmlBurst(hung, clock).poll(AT_US))


def test_a_probe_with_quick_readings_gives_its_own_source(clock: ManualClock) -> None:
    gpu = GpuProbe(FakeDevice(index=3), clock)
    other = fake_probe("simulator")
    other.tables = {"gpu_samples": 1}
    host = fake_probe("host")
    host.tables = {"host_samples": 1}
    first, second = sources_of_burst([gpu, host, other])
    assert isinstance(first, NvmlBurst) and isinstance(second, PolledProbe)
    assert sources_of_burst([gpu], [4]) == []


def test_a_pulse_that_the_mean_hides_is_seen() -> None:
    samples = [
        BurstSample(AT_US + 20_000 * n, 0, "power_watts", 900.0 if n % 10 < 5 else 100.0, BUFFERED)
        for n in range(100)
    ]
    (said,) = summaries(samples)
    assert (said.least, said.mean, said.greatest) == (100.0, 500.0, 900.0)
    assert (said.least_second, said.greatest_second) == (500.0, 500.0)
    assert said.renewed_ms == 100.0


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 100)), max_size=60))
def test_summaries_are_of_all_samples_once(several: list[tuple[int, int, int]]) -> None:
    burst = Burst(
        [BurstSample(AT_US + 50_000 * at, gpu, "util_percent", v, POLLED) for gpu, at, v in several]
    )
    burst.sort()
    assert len({(s.gpu, s.at_us) for s in burst.samples}) == len(burst.samples)
    found = summaries(burst.samples)
    assert sum(one.samples for one in found) == len({(gpu, at) for gpu, at, _ in several})
    for one in found:
        assert one.least <= one.p5 <= one.p95 <= one.greatest
        assert one.least <= one.least_second <= one.greatest_second <= one.greatest


def test_an_interrupt_ends_it_with_what_was_read() -> None:
    source = Source(ManualClock(SystemClock().now()))
    waits = iter([None, None, KeyboardInterrupt])

    def sleep(seconds: float) -> None:
        if (then := next(waits)) is not None:
            raise then
        source.clock.advance(seconds)

    burst = run_burst([source], source.clock, 10, 5, sleep=sleep)
    assert burst.ticks == 3
