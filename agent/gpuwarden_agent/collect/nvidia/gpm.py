"""Reads GPU performance monitoring (GPM): activity of each unit, averaged between two samples.

Hopper and newer only; DCGM is not needed. The driver keeps a sample in its memory until the next one,
ten seconds later; it is freed at the end.
"""

import math
from collections.abc import Sequence
from enum import Enum, auto

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.metrics import GPM_METRICS, ROWS, GpmMetric
from gpuwarden_agent.collect.nvidia.nvml import FieldValue, GpmSample, NvmlError
from gpuwarden_agent.collect.nvidia.query import Query
from gpuwarden_agent.probe import Value

GAP_S_MAX = 60.0
"""After a longer gap an average would cover minutes: start again."""

GAP_S_MIN = 0.1
"""Shortest time between two samples, by nvml.h."""

RATE_MAX = 1 << 43
"""More bytes a second than any link of any GPU carries."""


class Turn(Enum):
    """What to do with the earlier sample."""

    SEED = auto()  # none, or too old: take a sample, return nothing yet
    WAIT = auto()  # too recent: keep it
    READ = auto()


def turn(taken_s: float | None, now_s: float) -> Turn:
    """What to do at `now_s` after a sample at `taken_s`; None: there is none."""
    if taken_s is None or not 0 <= now_s - taken_s <= GAP_S_MAX:
        return Turn.SEED
    return Turn.READ if now_s - taken_s >= GAP_S_MIN else Turn.WAIT


def true_value(metric: GpmMetric, value: float) -> float | None:
    """The value in the column's unit; None if it is impossible.

    The counters of a ratio are read one after the other, so at full load it may exceed 100 % by a little.
    Larger values, as after the reset of a counter, are wrong.
    """
    if not math.isfinite(value) or value < 0:
        return None
    if metric.times == 1:
        return min(value, 100.0) if value <= 101 else None
    scaled = value * metric.times
    return scaled if scaled <= RATE_MAX else None


class GpmReader:
    """Takes samples of a GPU, or of one GPU instance of it (MIG)."""

    def __init__(self, query: Query, clock: Clock, gpu_instance: int | None = None) -> None:
        self._query = query
        self._clock = clock
        self._instance = gpu_instance
        self._is_supported = False
        self._earlier: GpmSample | None = None
        self._spare: GpmSample | None = None
        self._taken_s: float | None = None

    def read(self) -> dict[str, Value]:
        """Averages since the last call; empty at the first call and after a long gap."""
        now_s = self._clock.monotonic()
        do = turn(self._taken_s, now_s)
        if do is Turn.WAIT or not self._has_gpm():
            return {}
        sample = self._spare or self._query.ask_as(("gpm_sample",), self._query.device.gpm_sample)
        self._spare = sample
        if sample is None or not self._take(sample):
            return {}
        earlier, self._earlier, self._spare = self._earlier, sample, self._earlier
        self._taken_s = now_s
        if do is Turn.SEED or earlier is None:
            return {}
        return self._metrics(earlier, sample)

    def close(self) -> None:
        """Free the samples; the next read starts again."""
        for sample in (self._earlier, self._spare):
            try:
                if sample is not None:
                    sample.free()
            except NvmlError:
                # The driver that kept the sample is gone.
                continue
        self._earlier = self._spare = self._taken_s = None
        self._is_supported = False

    def _has_gpm(self) -> bool:
        if not self._is_supported:
            is_supported = self._query.ask(ROWS["is_gpm_supported"])
            if is_supported is False:
                error = NvmlError(nvml.NOT_SUPPORTED, "nvmlGpmQueryDeviceSupport")
                self._query.note(error, "is_gpm_supported")
            self._is_supported = bool(is_supported)
        return self._is_supported

    def _take(self, sample: GpmSample) -> bool:
        def take() -> bool:
            try:
                sample.take(self._instance)
            except NvmlError as error:
                return self._after_error(error)
            return True

        return self._query.ask_as(("gpm_take", self._instance), take) is True

    def _metrics(self, earlier: GpmSample, sample: GpmSample) -> dict[str, Value]:
        asked = [m for m in GPM_METRICS if self._query.is_there((m.column, self._instance))]
        if not asked:
            return {}
        ids = [metric.id for metric in asked]

        def metrics() -> Sequence[FieldValue]:
            try:
                return sample.metrics_since(earlier, ids)
            except NvmlError as error:
                self._after_error(error)
                return ()

        answers = self._query.ask_as(("gpm_metrics", self._instance), metrics)
        return self._values(asked, answers or ())

    def _after_error(self, error: NvmlError) -> bool:
        """Close, and return False, when the samples are lost because NVML was opened again: the driver
        itself works, as the calls before show. Raises any other error.
        """
        if error.code != nvml.UNINITIALIZED:
            raise error
        self.close()
        return False

    def _values(
        self, asked: Sequence[GpmMetric], answers: Sequence[FieldValue]
    ) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for metric, answer in zip(asked, answers, strict=False):
            call = f"nvmlGpmMetricsGet({metric.id})"
            reading = (metric.column, self._instance)
            self._query.note_value("gpm_metrics", call, reading, answer.code)
            if answer.value is None:
                continue
            value = true_value(metric, answer.value)
            if value is not None:
                values[metric.column] = value
            elif not math.isnan(answer.value):
                # NaN: GPM has no activity to take a ratio of. Anything else is wrong.
                self._query.count_failed(f"{call}: untrue value")
        return values
