"""Keeps readings of the last hour in memory of fixed size, and makes means over equal time steps of them."""

from array import array
from collections.abc import Mapping, Sequence
from math import isnan

from gpuwarden_cli.top.request import SPANS_S

KEPT_S = SPANS_S[-1]
_NAN = float("nan")


class ReadingHistory:
    """The newest readings of some metrics: a ring of four bytes a value. None is kept as NaN.

    Steps begin at multiples of their length, and a finished step does not change: a graph that is drawn again reads
    only what was added since.
    """

    def __init__(self, names: Sequence[str], length: int = KEPT_S) -> None:
        self._length = length
        self._ts_ms = array("q")
        self._values = {name: array("f") for name in names}
        self._added = 0
        self._steps: tuple[int, int] = (0, 0)
        """Number of steps and span of `_sums`."""
        self._sums: dict[str, _StepSums] = {}
        """By metric."""

    def add(self, ts_ms: int, values: Mapping[str, float | None]) -> None:
        """Keep readings of an instant; the oldest go when the ring is full."""
        at = self._added % self._length
        is_full = self._added >= self._length
        if is_full:
            self._ts_ms[at] = ts_ms
        else:
            self._ts_ms.append(ts_ms)
        for name, kept in self._values.items():
            value = values.get(name)
            number = _NAN if value is None else value
            if is_full:
                kept[at] = number
            else:
                kept.append(number)
        self._added += 1

    def binned(self, name: str, bins: int, span_s: int, now_ms: int) -> list[float | None]:
        """Means over `bins` equal steps of the last `span_s` seconds, the newest last; None: no reading."""
        if self._steps != (bins, span_s):
            self._steps, self._sums = (bins, span_s), {}
        sums = self._sums.setdefault(name, _StepSums())
        width_ms = span_s * 1000 / bins
        values = self._values[name]
        for number in range(max(sums.read, self._added - self._length), self._added):
            value = values[number % self._length]
            if not isnan(value):
                sums.take(int(self._ts_ms[number % self._length] // width_ms), value)
        sums.read = self._added
        last = int(now_ms // width_ms)
        return sums.means(last - bins + 1, last + 1)


class _StepSums:
    """Sums and counts of the readings of each step, and how many readings they have."""

    def __init__(self) -> None:
        self.read = 0
        self._sums: dict[int, tuple[float, int]] = {}

    def take(self, step: int, value: float) -> None:
        total, count = self._sums.get(step, (0.0, 0))
        self._sums[step] = (total + value, count + 1)

    def means(self, first: int, end: int) -> list[float | None]:
        """Means of the steps; older ones are deleted."""
        for step in [step for step in self._sums if step < first]:
            del self._sums[step]
        found = map(self._sums.get, range(first, end))
        return [None if one is None else one[0] / one[1] for one in found]


class CounterRates:
    """Rates of counters from one reading to the next; None: unknown, also after a counter began again."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, float]] = {}

    def rate(self, name: str, ts_ms: int, total: float | None) -> float | None:
        """The rate per second since the last reading."""
        before = self._last.get(name)
        if total is None:
            self._last.pop(name, None)
            return None
        self._last[name] = (ts_ms, total)
        if before is None or ts_ms <= before[0] or total < before[1]:
            return None
        return 1000 * (total - before[1]) / (ts_ms - before[0])
