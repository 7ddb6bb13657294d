"""Samples GPUs 10 to 50 times a second for a short time, and says what a second's mean hides.

A burst is read on this host, beside the agent or without it, and is not stored. A source polls what the driver
renews itself, and drains what it buffers in finer steps.
"""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Protocol, runtime_checkable

from gpuwarden.clock import Clock, to_ms
from gpuwarden_agent.counters import quantile
from gpuwarden_agent.probe import Probe, ProbeError

HZ_MIN, HZ_MAX = 1.0, 50.0
SECONDS_MAX = 600.0
DRAIN_S = 1.0
"""The driver of an H200 keeps 2.4 s of power in steps of 20 ms."""
METRICS = ("util_percent", "memory_util_percent", "power_watts", "sm_clock_mhz", "memory_clock_mhz", "temperature_celsius")  # fmt: skip
"""Columns of `gpu_samples` that are sampled."""

POLLED, BUFFERED = "polled", "buffer"


@dataclass(frozen=True, slots=True)
class BurstSample:
    """A value at a time: of the reading if it was polled, of the driver if it was buffered."""

    at_us: int
    gpu: int
    metric: str
    value: float
    source: str
    """POLLED or BUFFERED."""


class BurstSource(Protocol):
    """Reads one or several GPUs quickly. Raises ProbeError."""

    def poll(self, now_us: int) -> Iterable[BurstSample]:
        """The readings of now."""
        ...

    def drain(self) -> Iterable[BurstSample]:
        """What the driver buffered since the last call; at the first: nothing."""
        ...


@runtime_checkable
class HasBursts(Protocol):
    """A probe with quicker readings than `read`."""

    def burst(self) -> BurstSource:
        """A source for one burst."""
        ...


class PolledProbe:
    """A probe that is read as the agent reads it."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    def poll(self, now_us: int) -> Iterable[BurstSample]:
        rows = self._probe.read(now_us // 1000, ("gpu_samples",)).get("gpu_samples", [])
        for row in rows:
            for metric in METRICS:
                value = row.get(metric)
                if isinstance(value, int | float) and row.get("mig_instance") is None:
                    yield BurstSample(now_us, int(str(row["gpu"])), metric, value, POLLED)

    def drain(self) -> Iterable[BurstSample]:
        return ()


@dataclass(slots=True)
class Burst:
    """The result: samples in the order of their times by GPU and metric, and what failed."""

    samples: list[BurstSample] = field(default_factory=list)
    ticks: int = 0
    missed: int = 0
    """Ticks that were left out because the readings before took too long."""
    failed: dict[str, int] = field(default_factory=dict)
    """Failed readings by reason."""

    def sort(self) -> None:
        """Order the samples; of one time and source, the first stays."""
        ordered = sorted(self.samples, key=lambda s: (s.gpu, s.metric, s.source, s.at_us))
        key = lambda s: (s.gpu, s.metric, s.source, s.at_us)
        self.samples = [next(same) for _, same in groupby(ordered, key)]


def sources_of_burst(probes: Iterable[Probe], gpus: Collection[int] = ()) -> list[BurstSource]:
    """Sources of the probes that read GPUs. `gpus`: indices; empty: all."""
    found: list[BurstSource] = []
    for probe in probes:
        if "gpu_samples" not in probe.tables:
            continue
        own = int(probe.name[3:]) if probe.name[3:].isdecimal() else None
        if gpus and own is not None and own not in gpus:
            continue
        found.append(probe.burst() if isinstance(probe, HasBursts) else PolledProbe(probe))
    return found


def run_burst(
    sources: Sequence[BurstSource],
    clock: Clock,
    hz: float,
    seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> Burst:
    """Sample until `seconds` are over. Blocks. An interrupt ends it early, with what was read."""
    burst = Burst()
    began_s = clock.monotonic()
    drained_s = began_s
    tick = 0

    def take(call: Callable[..., Iterable[BurstSample]], *arguments: int) -> None:
        try:
            burst.samples += call(*arguments)
        except ProbeError as error:
            burst.failed[str(error)] = burst.failed.get(str(error), 0) + 1

    for source in sources:
        take(source.drain)
    try:
        while tick < seconds * hz:
            wait_s = began_s + tick / hz - clock.monotonic()
            if wait_s > 0:
                sleep(wait_s)
            now_us = 1000 * to_ms(clock.now())
            for source in sources:
                take(source.poll, now_us)
            burst.ticks += 1
            due = int((clock.monotonic() - began_s) * hz) + 1
            burst.missed += max(0, min(due, int(seconds * hz)) - tick - 1)
            tick = max(tick + 1, due)
            if clock.monotonic() - drained_s >= DRAIN_S:
                drained_s = clock.monotonic()
                for source in sources:
                    take(source.drain)
    except KeyboardInterrupt:
        pass
    for source in sources:
        take(source.drain)
    burst.sort()
    return burst


@dataclass(frozen=True, slots=True)
class BurstSummary:
    """One metric of one GPU from one source."""

    gpu: int
    metric: str
    source: str
    samples: int
    renewed_ms: float | None
    """Median time between two changes of the value; None: it changed less than twice."""
    least: float
    p5: float
    mean: float
    p95: float
    greatest: float
    least_second: float
    """Least mean of a second."""
    greatest_second: float


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def summaries(samples: Iterable[BurstSample]) -> list[BurstSummary]:
    """A summary for each GPU, metric and source of sorted samples."""
    found = []
    for (gpu, metric, source), group in groupby(samples, lambda s: (s.gpu, s.metric, s.source)):
        several = list(group)
        values = [sample.value for sample in several]
        changed = [b.at_us for a, b in pairwise(several) if a.value != b.value]
        gaps = [(later - earlier) / 1000 for earlier, later in pairwise(changed)]
        seconds = [
            _mean([sample.value for sample in second])
            for _, second in groupby(several, lambda sample: sample.at_us // 1_000_000)
        ]
        found.append(
            BurstSummary(
                gpu,
                metric,
                source,
                len(values),
                quantile(gaps, 0.5),
                min(values),
                quantile(values, 0.05) or 0.0,
                _mean(values),
                quantile(values, 0.95) or 0.0,
                max(values),
                min(seconds),
                max(seconds),
            )
        )
    return found
