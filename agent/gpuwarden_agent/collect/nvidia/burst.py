"""Reads one NVIDIA GPU many times a second: cheap calls, and the samples that the driver buffers by itself."""

from collections.abc import Iterable

from gpuwarden.clock import Clock
from gpuwarden_agent.burst import BUFFERED, POLLED, BurstSample
from gpuwarden_agent.collect.nvidia.metrics import BUFFERS, ROWS
from gpuwarden_agent.collect.nvidia.nvml import Call, NvmlCalls, NvmlError
from gpuwarden_agent.collect.nvidia.query import Query, probe_error
from gpuwarden_agent.probe import ProbeError

LOCK_WAIT_S = 1.0

_CLOCKS = (ROWS["sm_clock_mhz"], ROWS["memory_clock_mhz"])
_WITHOUT_BUFFER = (ROWS["utilization"], ROWS["power_usage_mw"])
"""Polled while the driver buffers none of their columns."""


class NvmlBurst:
    """A `BurstSource`. Polls at about 0.1 ms a reading; a drain takes some milliseconds."""

    def __init__(self, device: NvmlCalls, clock: Clock) -> None:
        self._device = device
        self._query = Query(device, clock)
        self._since_us: dict[str, int] = {}
        self._buffered: set[str] = set()

    def poll(self, now_us: int) -> Iterable[BurstSample]:
        values: dict[str, float] = {}
        with _Held(self._device):
            temperature = self._query.ask(ROWS["temperature_v"], ROWS["temperature"])
            if temperature is not None:
                values["temperature_celsius"] = temperature
            for row in (*_CLOCKS, *_WITHOUT_BUFFER):
                if set(row.columns) - self._buffered:
                    values |= self._asked(row)
        return [
            BurstSample(now_us, self._device.index, metric, value, POLLED)
            for metric, value in values.items()
            if metric not in self._buffered
        ]

    def drain(self) -> Iterable[BurstSample]:
        found: list[BurstSample] = []
        with _Held(self._device):
            for metric, (kind, over) in BUFFERS.items():
                since_us = self._since_us.get(metric)
                samples = self._query.ask_samples(kind, since_us or 0)
                if not samples:
                    continue
                self._since_us[metric] = max(sample.at_us for sample in samples)
                if since_us is not None:  # the first ones are of before the burst
                    new = [sample for sample in samples if sample.at_us > since_us]
                    found += [
                        BurstSample(s.at_us, self._device.index, metric, s.value / over, BUFFERED)
                        for s in new
                    ]
                self._buffered.add(metric)
        return found

    def _asked(self, row: Call) -> dict[str, float]:
        answer = self._query.ask(row)
        if answer is None:
            return {}
        told = zip(row.columns, row.values(answer), strict=False)
        return {column: v for column, v in told if isinstance(v, int | float)}


class _Held:
    """The opened device, for one reading."""

    def __init__(self, device: NvmlCalls) -> None:
        self._device = device

    def __enter__(self) -> None:
        if not self._device.lock.acquire(timeout=LOCK_WAIT_S):
            raise ProbeError(
                f"GPU {self._device.index} is held by a driver call that does not return"
            )
        try:
            if self._device.uuid is None:
                self._device.open()
        except NvmlError as error:
            self._device.lock.release()
            raise probe_error(error, self._device.index) from error

    def __exit__(self, *_: object) -> None:
        self._device.lock.release()
