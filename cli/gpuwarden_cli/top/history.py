"""Keeps readings of the last hour in memory of fixed size, and makes means over equal time steps of them."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from math import isnan

from gpuwarden_cli.top.request import SPANS_S

KEPT_S = SPANS_S[-1]
_NAN = float("nan")


class ReadingHistory:
    """The newest readings of some metrics: a ring of four bytes a value. None is kept as NaN."""

    def __init__(self, names: Sequence[str], length: int = KEPT_S) -> None:
        self._length = length
        self._ts_ms = array("q")
        self._values = {name: array("f") for name in names}
        self._next = 0
        """Where the next reading goes, once the ring is full."""

    def add(self, ts_ms: int, values: Mapping[str, float | None]) -> None:
        """Keep readings of an instant; the oldest go when the ring is full."""
        is_full = len(self._ts_ms) == self._length
        if is_full:
            self._ts_ms[self._next] = ts_ms
        else:
            self._ts_ms.append(ts_ms)
        for name, kept in self._values.items():
            value = values.get(name)
            number = _NAN if value is None else value
            if is_full:
                kept[self._next] = number
            else:
                kept.append(number)
        if is_full:
            self._next = (self._next + 1) % self._length

    def binned(self, name: str, bins: int, span_s: int, now_ms: int) -> list[float | None]:
        """Means over `bins` equal steps of the last `span_s` seconds, the newest last; None: no reading."""
        sums, counts = [0.0] * bins, [0] * bins
        width_ms = span_s * 1000 / bins
        values = self._values[name]
        for at in self._newest_first():
            age_ms = now_ms - self._ts_ms[at]
            if age_ms >= span_s * 1000:
                break
            value = values[at]
            if not isnan(value):
                step = bins - 1 - int(max(0, age_ms) / width_ms)
                sums[step] += value
                counts[step] += 1
        return [total / count if count else None for total, count in zip(sums, counts, strict=True)]

    def _newest_first(self) -> Iterator[int]:
        yield from range(self._next - 1, -1, -1)
        yield from range(len(self._ts_ms) - 1, self._next - 1, -1)


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
