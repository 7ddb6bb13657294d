"""Counts what the agent did and lost since it started."""

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields


class Delays:
    """How late ticks were: the last 600, which at one a second are ten minutes."""

    KEPT = 600

    def __init__(self) -> None:
        self._ring = array("f")
        self._next = 0

    def add(self, seconds: float) -> None:
        """Note a tick."""
        if len(self._ring) < self.KEPT:
            self._ring.append(seconds)
        else:
            self._ring[self._next] = seconds
            self._next = (self._next + 1) % self.KEPT

    def quantile(self, share: float) -> float:
        """The delay in seconds that `share` of the ticks did not exceed; 0 before the first."""
        ordered = sorted(self._ring)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


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
    tick_delays: Delays = field(default_factory=Delays)

    @property
    def tick_delay_p99_s(self) -> float:
        """The delay behind the wall clock's second that 99 of 100 ticks of late did not exceed."""
        return self.tick_delays.quantile(0.99)

    def log_fields(self) -> dict[str, object]:
        """The counts as fields of a log line; counters by name are summed."""
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {
            name: value.total() if isinstance(value, Counter) else value
            for name, value in values
            if value is not None and not isinstance(value, Delays)
        } | {"tick_delay_p99_ms": round(1000 * self.tick_delay_p99_s, 1)}


def total(several: Iterable[Counters]) -> Counters:
    """The sum of several agents' counters; `last_error` is the first that there is, delays are each
    agent's own.
    """
    result = Counters()
    for counters in several:
        for f in fields(Counters):
            mine, theirs = getattr(result, f.name), getattr(counters, f.name)
            if f.name == "last_error":
                result.last_error = result.last_error or counters.last_error
            elif isinstance(mine, Delays):
                continue
            elif isinstance(mine, Counter):
                mine.update(theirs)
            else:
                setattr(result, f.name, mine + theirs)
    return result
