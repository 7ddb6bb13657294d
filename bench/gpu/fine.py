"""Measures what one reading a second hides: how often the driver renews each reading, and activity by number format.

`renewals` asks for each reading as fast as it can while the GPU works in pulses of 100 ms. `formats`
compares the operations a second of matrix products in each number format with GPM's activity of each unit.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.gpu import gpm
from bench.gpu.scenes import BUFFERS, Workshop

ASKED_S = 2.5
"""How long each reading is asked for."""
PAUSE_S = 0.002
GPM_GAPS_S = (0.02, 0.05, 0.1, 0.2)
SETTLE_S = 0.6
OVER_S = 1.6


@dataclass(frozen=True)
class Renewal:
    """One reading under pulses."""

    reading: str
    asked: int
    call_p50_us: float
    call_p99_us: float
    changes: int
    between_p50_ms: float | None
    """Median time between two changes of the value."""
    least: float | None
    most: float | None
    error: str = ""


def renewals(handle: Any, workshop: Workshop) -> list[Renewal]:
    """Each reading's own rate; the workload `pulses` runs meanwhile."""
    why = workshop.start("pulses")
    if why is not None:
        workshop.stop()
        raise RuntimeError(why)
    try:
        time.sleep(1.0)
        found = [_renewal(name, ask) for name, ask in _readings(handle)]
        found += [_buffer(handle, kind) for kind in BUFFERS]
        found += [_activity(handle, gap_s) for gap_s in GPM_GAPS_S]
        return found
    finally:
        workshop.stop()


def _readings(handle: Any) -> Iterator[tuple[str, Callable[[], float]]]:
    import pynvml

    def field(number: int) -> Callable[[], float]:
        def ask() -> float:
            answer = pynvml.nvmlDeviceGetFieldValues(handle, [number])[0]
            if answer.nvmlReturn:
                raise pynvml.NVMLError(answer.nvmlReturn)
            kinds = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}
            return float(getattr(answer.value, kinds.get(answer.valueType, "uiVal")))

        return ask

    yield "power, averaged (field 185)", field(185)
    yield "power, instant (field 186)", field(186)
    yield "power (GetPowerUsage)", lambda: float(pynvml.nvmlDeviceGetPowerUsage(handle))
    yield "energy (field 83)", field(83)
    yield (
        "utilization (GetUtilizationRates)",
        lambda: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
    )
    yield "SM clock (GetClockInfo)", lambda: float(pynvml.nvmlDeviceGetClockInfo(handle, 1))
    yield "memory clock (GetClockInfo)", lambda: float(pynvml.nvmlDeviceGetClockInfo(handle, 2))
    yield "temperature", lambda: float(pynvml.nvmlDeviceGetTemperature(handle, 0))
    yield (
        "clock event reasons",
        lambda: float(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)),
    )
    yield "PCIe sent (field 197)", field(197)
    yield "memory used", lambda: float(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def _renewal(name: str, ask: Callable[[], float]) -> Renewal:
    took: list[float] = []
    values: list[float] = []
    changed: list[float] = []
    ends = time.monotonic() + ASKED_S
    try:
        while (now := time.monotonic()) < ends:
            began = time.perf_counter_ns()
            value = ask()
            took.append((time.perf_counter_ns() - began) / 1000)
            if values and value != values[-1]:
                changed.append(now)
            values.append(value)
            time.sleep(PAUSE_S)
    except Exception as error:  # noqa: BLE001  # the answer of a call that is tried out
        return Renewal(name, len(took), 0.0, 0.0, 0, None, None, None, str(error)[:100])
    return Renewal(
        name, len(took), *_percentiles(took), len(changed), _between_ms(changed), min(values), max(values),
    )  # fmt: skip


def _percentiles(took: list[float]) -> tuple[float, float]:
    ordered = sorted(took)
    return (
        round(statistics.median(ordered), 1),
        round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 1),
    )


def _between_ms(instants: list[float]) -> float | None:
    gaps = [1000 * (b - a) for a, b in itertools.pairwise(instants)]
    return round(statistics.median(gaps), 2) if gaps else None


def _buffer(handle: Any, kind: str) -> Renewal:
    """What the driver sampled by itself over some seconds: its times are its own."""
    import pynvml

    name = f"buffer {kind.lower()}"
    since_us = time.time_ns() // 1000
    time.sleep(ASKED_S)
    began = time.perf_counter_ns()
    try:
        which = getattr(pynvml, f"NVML_{kind}_SAMPLES")
        value_type, samples = pynvml.nvmlDeviceGetSamples(handle, which, since_us)
    except pynvml.NVMLError as error:
        return Renewal(name, 0, 0.0, 0.0, 0, None, None, None, str(error)[:100])
    took_us = round((time.perf_counter_ns() - began) / 1000, 1)
    member = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal"}.get(value_type, "uiVal")
    new = [sample for sample in samples if sample.timeStamp > since_us]
    values = [float(getattr(sample.sampleValue, member)) for sample in new]
    stamps = [sample.timeStamp / 1e6 for sample in new]
    return Renewal(
        name, len(new), took_us, took_us, sum(a != b for a, b in itertools.pairwise(values)),
        _between_ms(stamps), min(values, default=None), max(values, default=None),
    )  # fmt: skip


def _activity(handle: Any, gap_s: float) -> Renewal:
    """SM activity of GPM between samples that are `gap_s` apart."""
    import pynvml

    name = f"GPM SM activity every {1000 * gap_s:.0f} ms"
    took: list[float] = []
    values: list[float] = []
    sampled: list[float] = []
    samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
    try:
        pynvml.nvmlGpmSampleGet(handle, samples[0])
        for _ in range(int(ASKED_S / gap_s)):
            time.sleep(gap_s)
            sampled.append(time.monotonic())
            began = time.perf_counter_ns()
            pynvml.nvmlGpmSampleGet(handle, samples[1])
            got = pynvml.c_nvmlGpmMetricsGet_t()
            got.version = pynvml.NVML_GPM_METRICS_GET_VERSION
            got.numMetrics = 1
            got.sample1, got.sample2 = samples
            got.metrics[0].metricId = 2
            pynvml.nvmlGpmMetricsGet(got)
            took.append((time.perf_counter_ns() - began) / 1000)
            if got.metrics[0].nvmlReturn == 0:
                values.append(float(got.metrics[0].value))
            samples.reverse()
        changes = sum(abs(a - b) > 1 for a, b in itertools.pairwise(values))
        return Renewal(
            name, len(took), *_percentiles(took), changes, _between_ms(sampled),
            min(values, default=None), max(values, default=None), f"{len(values)} with a value",
        )  # fmt: skip
    except pynvml.NVMLError as error:
        return Renewal(name, len(took), 0.0, 0.0, 0, None, None, None, str(error)[:100])
    finally:
        for sample in samples:
            pynvml.nvmlGpmSampleFree(sample)


def formats(handle: Any, workshop: Workshop) -> list[dict[str, Any]]:
    """For each number format: operations a second, SM clock, and GPM's activity of every unit."""
    import pynvml

    why = workshop.start("precisions")
    if why is not None:
        workshop.stop()
        raise RuntimeError(why)
    rows: list[dict[str, Any]] = []
    ends = time.monotonic() + 60
    try:
        while time.monotonic() < ends:
            for line in workshop.take():
                if line.get("began") == "end":
                    return rows
                if "began" in line:
                    time.sleep(SETTLE_S)
                    activity = gpm.between(handle, OVER_S)
                    clock = pynvml.nvmlDeviceGetClockInfo(handle, 1)
                    watts = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
                    rows.append({"format": line["began"], "sm_clock_mhz": clock, "watts": watts, "gpm": {
                        str(metric): round(value, 2)
                        for metric, value in activity.items()
                        if isinstance(value, float) and metric <= 13
                    }})  # fmt: skip
                elif "lacking" in line:
                    rows.append(line)
                elif rows and (rate := line.get(rows[-1].get("format"))) is not None:
                    rows[-1]["tflops"] = round(rate / 1e12, 1)
            time.sleep(0.02)
        return rows
    finally:
        workshop.stop()
