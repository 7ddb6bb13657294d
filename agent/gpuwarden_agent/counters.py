"""Counts what the agent did and lost since it started."""

# ruff: noqa: RUF009  each call makes a field of its own

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

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


def _counted(
    name: str,
    meaning: str,
    label: str | None = None,
    *,
    kind: str = "counter",
    make: Callable[[], Any] | None = None,
) -> Any:
    """A count, exported as gpuwarden_agent_NAME. `label`: what it is counted by, None for a single number."""
    metric = {"name": name, "meaning": meaning, "label": label, "kind": kind}
    return field(default_factory=make or (Counter if label else int), metadata=metric)


@dataclass(slots=True)
class Counters:
    """Counts since start; gauges and `last_error` are as of now.

    Only the event loop changes them, so anything on the loop may read them at any time.
    """

    ticks: int = _counted("ticks_total", "Ticks at which probes were read.")
    ticks_missed: int = _counted("ticks_missed_total", "Ticks that the agent came too late for.")
    readings: Counter[str] = _counted("readings_total", "Readings that became samples.", "probe")
    readings_skipped: Counter[str] = _counted(
        "readings_skipped_total",
        "Ticks at which a probe was still busy with an earlier call.",
        "probe",
    )
    readings_late: Counter[str] = _counted(
        "readings_late_total", "Readings dropped because they came after the deadline.", "probe"
    )
    probe_errors: Counter[str] = _counted("probe_errors_total", "Calls that failed.", "probe")
    values_impossible: Counter[str] = _counted(
        "values_impossible_total",
        "Values left out because they were outside the catalogue's limits.",
        "column",
    )
    rows: Counter[str] = _counted("rows_total", "Rows that entered a batch.", "table")
    rows_dropped: int = _counted("rows_dropped_total", "Rows lost before they were sealed.")
    batches_sealed: int = _counted("batches_sealed_total", "Batches put into the spool.")
    batches_sent: int = _counted("batches_sent_total", "Requests made to the collector.")
    batches_acknowledged: int = _counted(
        "batches_acknowledged_total", "Batches that the collector has made durable."
    )
    batches_refused: int = _counted("batches_refused_total", "Batches that the collector refused.")
    refused_dropped: int = _counted(
        "refused_batches_dropped_total", "Refused batches that were deleted to make room."
    )
    batches_dropped: int = _counted("batches_dropped_total", "Batches that a full spool gave up.")
    bytes_sealed: int = _counted("sealed_bytes_total", "Bytes of the batches put into the spool.")
    spool_batches: int = _counted(
        "spool_batches", "Batches that wait for the collector.", kind="gauge"
    )
    spool_bytes: int = _counted("spool_bytes", "Bytes that wait for the collector.", kind="gauge")
    tries_failed: int = _counted(
        "tries_failed",
        "Tries in a row that brought no batch to the collector; 0: it takes them.",
        kind="gauge",
    )
    last_error: str | None = None
    tick_delays: Recent = _counted(
        "tick_delay_p99_seconds",
        "How late 99 of 100 ticks were at most, of the last 600.",
        kind="gauge",
        make=lambda: Recent(DELAYS_KEPT),
    )

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
