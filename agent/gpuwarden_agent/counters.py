"""Counts what the agent did and lost since it started."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

DELAYS_KEPT = 600
"""Ticks whose delays are kept: ten minutes of one a second."""


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that `share` of them do not exceed; None if there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Recent:
    """Keeps the newest numbers of a series, as floats of 32 bits."""

    __slots__ = ("_next", "_size", "values")

    def __init__(self, size: int) -> None:
        """`size`: how many are kept."""
        self._size = size
        self._next = 0
        self.values: Sequence[float] = array("f")
        """In the order of their arrival until `size` of them came."""

    def add(self, value: float) -> None:
        """Add a number, in the place of the oldest one when `size` are there."""
        assert isinstance(self.values, array)
        if len(self.values) < self._size:
            self.values.append(value)
        else:
            self.values[self._next] = value
            self._next = (self._next + 1) % self._size


@dataclass(slots=True)
class Counters:
    """Counts since start; `spool_*`, `tries_failed` and `last_error` are as of now.

    Only the event loop changes them, so anything on the loop may read them at any time.
    """

    ticks: int = 0
    ticks_missed: int = 0
    readings: Counter[str] = field(default_factory=Counter)
    """Readings that became samples, by probe."""
    readings_skipped: Counter[str] = field(default_factory=Counter)
    """Ticks at which a probe was still busy with an earlier call, by probe."""
    readings_late: Counter[str] = field(default_factory=Counter)
    """Readings dropped because they came after the deadline, by probe."""
    probe_errors: Counter[str] = field(default_factory=Counter)
    """Calls that failed, by probe."""
    values_impossible: Counter[str] = field(default_factory=Counter)
    """Values left out because they were outside the catalogue's limits, by table.column."""
    rows: Counter[str] = field(default_factory=Counter)
    """Rows that entered a batch, by table."""
    rows_dropped: int = 0
    """Rows lost before they were sealed: the spool could not take them, or a key came twice."""
    batches_sealed: int = 0
    batches_sent: int = 0
    """Requests made: a batch sent twice counts twice."""
    batches_acknowledged: int = 0
    batches_refused: int = 0
    refused_dropped: int = 0
    """Of them, those that were deleted, as refused ones took too much room."""
    batches_dropped: int = 0
    """Batches that a full spool gave up, oldest first."""
    bytes_sealed: int = 0
    spool_batches: int = 0
    spool_bytes: int = 0
    tries_failed: int = 0
    """Tries in a row that brought no batch to the collector; 0: it takes them."""
    last_error: str | None = None
    tick_delays: Recent = field(default_factory=lambda: Recent(DELAYS_KEPT))

    @property
    def tick_delay_p99_s(self) -> float:
        """The delay, behind the wall clock's second, that 99 of 100 recent ticks did not exceed; 0 before the first."""
        return quantile(self.tick_delays.values, 0.99) or 0.0

    def log_fields(self) -> dict[str, object]:
        """The counts as fields of a log line; counters by name are summed."""
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {
            name: value.total() if isinstance(value, Counter) else value
            for name, value in values
            if value is not None and not isinstance(value, Recent)
        } | {"tick_delay_p99_ms": round(1000 * self.tick_delay_p99_s, 1)}


def total(several: Iterable[Counters]) -> Counters:
    """Add up the counters of several agents. `last_error` is the first there is; delays are not added."""
    result = Counters()
    for counters in several:
        for f in fields(Counters):
            mine, theirs = getattr(result, f.name), getattr(counters, f.name)
            if f.name == "last_error":
                result.last_error = result.last_error or counters.last_error
            elif isinstance(mine, Recent):
                continue
            elif isinstance(mine, Counter):
                mine.update(theirs)
            else:
                setattr(result, f.name, mine + theirs)
    return result
