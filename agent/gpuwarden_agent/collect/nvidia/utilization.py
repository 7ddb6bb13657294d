"""Reads utilization as the mean of what the driver sampled since the last reading.

nvmlDeviceGetUtilizationRates, which nvidia-smi shows, gives one sample period only: 0.2 s of each second on
an H200 with driver 580. A GPU that worked in short pulses then read 4 % each second where the mean of
all periods was 33 %. The driver keeps the other periods for some seconds (nvmlDeviceGetSamples).
"""

from collections.abc import Sequence

from gpuwarden_agent.collect.nvidia.metrics import UTILIZATION_SAMPLES
from gpuwarden_agent.collect.nvidia.nvml import DriverSample
from gpuwarden_agent.collect.nvidia.query import DRIVER_SAMPLES, Query
from gpuwarden_agent.probe import Value

FIRST_US = 1_000_000
"""What the first reading covers, as there is none before it."""


def mean_since(samples: Sequence[DriverSample], since_us: int | None) -> float | None:
    """Mean of the samples after `since_us`, in percent; None: no valid one. `since_us` None: the newest
    FIRST_US. Samples that end before `since_us` count as new if all do: the clock was set back.
    """
    valid = [each for each in samples if 0 <= each.value <= 100]
    newest_us = max((each.at_us for each in valid), default=0)
    if since_us is None or newest_us < since_us:
        since_us = newest_us - FIRST_US
    new = [each.value for each in valid if each.at_us > since_us]
    return sum(new) / len(new) if new else None


class UtilizationReader:
    """Reads a whole GPU. Not thread-safe; call it with the device's lock held."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._since_us: dict[str, int] = {}
        self._is_still: set[str] = set()
        """Columns without a new sample at the last reading."""

    def read(self) -> dict[str, Value]:
        """`util_percent` and `memory_util_percent`, without those that have no new sample. None where the
        call is slow: means of ten seconds beside samples of one would be two things in one column.
        """
        if self._query.is_slow(DRIVER_SAMPLES):
            return {}
        means = {column: self._mean(column, kind) for column, kind in UTILIZATION_SAMPLES.items()}
        return {column: mean for column, mean in means.items() if mean is not None}

    def forget(self) -> None:
        """The device was opened again: its samples may be old."""
        self._since_us.clear()
        self._is_still.clear()

    def _mean(self, column: str, kind: int) -> float | None:
        since_us = self._since_us.get(column)
        # After a reading without samples all of them are asked for: the clock may have been set back.
        asked_us = 0 if since_us is None or column in self._is_still else since_us
        samples = self._query.ask_samples(kind, asked_us)
        if not samples:
            self._is_still.add(column)
            return None
        self._is_still.discard(column)
        mean = mean_since(samples, since_us)
        self._since_us[column] = max(each.at_us for each in samples)
        return mean
