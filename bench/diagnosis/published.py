"""Rules that others publish, on the same samples: SageMaker Debugger's, and the plain "below 50 %".

Thresholds are the documented defaults. CPUBottleneck and IOBottleneck say that data do not arrive; the other
two only that something is wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.diagnosis.recordings import Recording

BUSY_CPU, IDLE_GPU, IO_WAIT, OF_TIME = 90.0, 10.0, 50.0, 0.5
LOW_P95, HIGH_P5 = 70.0, 10.0
LOW_MEAN = 50.0


@dataclass(frozen=True, slots=True)
class Series:
    """A GPU and its host, second by second."""

    util: Sequence[float]
    cpu: Sequence[float]
    iowait: Sequence[float]


def series_of(recording: Recording) -> Mapping[str, Series]:
    """By UUID; seconds that lack a reading are left out."""
    hosts = {
        row["ts"]: (row["cpu_util_percent"], row["cpu_iowait_percent"])
        for row in recording.tables["host_samples"]
        if "cpu_util_percent" in row and "cpu_iowait_percent" in row
    }
    found: dict[str, list[tuple[float, float, float]]] = {uuid: [] for uuid in recording.scenarios}
    for row in recording.tables["gpu_samples"]:
        if "util_percent" in row and row["ts"] in hosts:
            found[row["gpu_uuid"]].append((row["util_percent"], *hosts[row["ts"]]))
    return {
        uuid: Series(*map(list, zip(*readings, strict=True)))
        for uuid, readings in found.items()
        if readings
    }


def cpu_bottleneck(series: Series) -> bool:
    """SageMaker CPUBottleneck: the GPU is idle while the CPUs are full, more than half of the time."""
    together = [g < IDLE_GPU and c > BUSY_CPU for g, c in zip(series.util, series.cpu, strict=True)]
    return sum(together) > OF_TIME * len(together)


def io_bottleneck(series: Series) -> bool:
    """SageMaker IOBottleneck: the GPU is idle while CPUs wait for I/O, more than half of the time."""
    together = [
        g < IDLE_GPU and w > IO_WAIT for g, w in zip(series.util, series.iowait, strict=True)
    ]
    return sum(together) > OF_TIME * len(together)


def low_utilization(series: Series) -> bool:
    """SageMaker LowGPUUtilization: never busy, or up and down."""
    ordered = sorted(series.util)
    p95, p5 = (ordered[min(int(share * len(ordered)), len(ordered) - 1)] for share in (0.95, 0.05))
    return p95 < LOW_P95 or p5 < HIGH_P5


def below_half(series: Series) -> bool:
    """The mean is below 50 %."""
    return sum(series.util) / len(series.util) < LOW_MEAN
