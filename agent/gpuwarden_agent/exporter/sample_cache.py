"""Caches the newest row of one key, and older values of columns that this row does not have.

Some columns come less often than the rows of their table: by the catalogue (/dev/shm and NFS every ten
seconds), or because a driver call is slow and its probe makes it less often. The newest value of such a
column stays for 2.5 of its periods. The period that a probe chose follows from its rows: it is the time
between two values with rows without a value in between. So a column that a row lacks is absent until
its next value gives the period; a column that fails stays absent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpuwarden.metrics import METRICS
from gpuwarden.prometheus_names import KEEP_PERIODS, KEEP_S
from gpuwarden_agent.probe import Row, Value

PERIOD_MAX_MS = 60_000
"""The longest period that a probe may choose; a value that comes later had failed in between."""

TIERED_TABLES = frozenset({"gpu_samples", "gpu_detail_samples"})
"""Tables whose probes read a column less often when the driver is slow to give it."""

RATED: Mapping[str, tuple[str, ...]] = {
    "gpu_samples": (
        "pcie_tx_bytes_total",
        "pcie_rx_bytes_total",
        "nvlink_tx_bytes_total",
        "nvlink_rx_bytes_total",
    )
}
"""Counters that some names export as a rate."""

_CADENCE_S = {table: min(m.cadence_s for m in metrics) for table, metrics in METRICS.items()}
_SLOW_MS = {
    table: {m.name: m.cadence_s * 1000 for m in metrics if m.cadence_s > _CADENCE_S[table]}
    for table, metrics in METRICS.items()
}
_TIERED = {table: tuple(m.name for m in METRICS[table]) for table in TIERED_TABLES}


@dataclass(frozen=True, slots=True)
class Slow:
    """The newest value of a column that comes less often than the rows of its table."""

    value: Value
    ts_ms: int
    period_ms: int
    """0: not known yet."""

    def is_shown(self, now_ms: int) -> bool:
        """Whether the value is still current."""
        return now_ms - self.ts_ms <= KEEP_PERIODS * self.period_ms


@dataclass(frozen=True, slots=True)
class Counted:
    """The newest value of a counter, and how it grew since the one before."""

    value: float
    ts_ms: int
    per_second: float | None = None
    """None: after the first value, over a gap, and where the counter was reset or wrapped."""


@dataclass(frozen=True, slots=True)
class CachedSample:
    """The newest row of a key, with older values."""

    row: Row
    ts_ms: int
    slow: Mapping[str, Slow] = field(default_factory=dict)
    """By column; also those that this row has."""
    counted: Mapping[str, Counted] = field(default_factory=dict)
    """By column, those of `RATED`."""

    def at(self, now_ms: int) -> "CachedSample":
        """A copy with its slow columns filled in, without values that are too old."""
        slow = {name: s for name, s in self.slow.items() if s.is_shown(now_ms)}
        if not self.slow:
            return self
        values = {name: s.value for name, s in slow.items()}
        return replace(self, row=self.row | values, slow=slow)

    def rate(self, columns: tuple[str, ...]) -> float | None:
        """Sum of the growth a second of counters; None if the row or a rate lacks one."""
        added = 0.0
        for column in columns:
            counted = self.counted.get(column)
            if counted is None or counted.per_second is None or self.row.get(column) is None:
                return None
            added += counted.per_second
        return added


def keep_ms(table: str, interval_s: float = 1.0) -> int:
    """How long the newest sample of a table is shown: a minute, or 2.5 of the periods in which it
    comes. `interval_s`: seconds between the agent's ticks.
    """
    return round(1000 * max(KEEP_S, KEEP_PERIODS * max(_CADENCE_S[table], interval_s)))


def followed(held: CachedSample | None, table: str, row: Row, ts_ms: int) -> CachedSample:
    """The sample after a newer row; `held` None: it is the first."""
    before = held or CachedSample({}, ts_ms)
    slow: dict[str, Slow | None] = {
        column: _slow_by_catalogue(before, column, row, ts_ms, period_ms)
        for column, period_ms in _SLOW_MS[table].items()
    } | {column: _slow_by_rows(before, column, row, ts_ms) for column in _TIERED.get(table, ())}
    counted = {column: _counted(before, column, row, ts_ms) for column in RATED.get(table, ())}
    return CachedSample(
        row,
        ts_ms,
        {column: known for column, known in slow.items() if known is not None},
        {column: known for column, known in counted.items() if known is not None},
    )


def _slow_by_catalogue(
    before: CachedSample, column: str, row: Row, ts_ms: int, period_ms: int
) -> Slow | None:
    value = row.get(column)
    return before.slow.get(column) if value is None else Slow(value, ts_ms, period_ms)


def _slow_by_rows(before: CachedSample, column: str, row: Row, ts_ms: int) -> Slow | None:
    value, known = row.get(column), before.slow.get(column)
    if value is not None:
        if known is None or known.ts_ms == before.ts_ms:
            return None  # the row before had a value, too: it comes with every row
        return Slow(value, ts_ms, min(ts_ms - known.ts_ms, PERIOD_MAX_MS))
    if known is None:
        earlier = before.row.get(column)
        return None if earlier is None else Slow(earlier, before.ts_ms, 0)
    return known if ts_ms - known.ts_ms <= KEEP_PERIODS * PERIOD_MAX_MS else None


def _counted(before: CachedSample, column: str, row: Row, ts_ms: int) -> Counted | None:
    value, known = row.get(column), before.counted.get(column)
    if value is None:
        return known
    assert not isinstance(value, str)
    if known is None:
        return Counted(value, ts_ms)
    seconds = (ts_ms - known.ts_ms) / 1000
    if seconds > KEEP_S or value < known.value:
        return Counted(value, ts_ms)
    return Counted(value, ts_ms, (value - known.value) / seconds)
