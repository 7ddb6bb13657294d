"""Decides from the durations of driver calls how often each call is made: pure functions.

A call belongs to a tier: every second, every ten seconds or every minute. Its first calls are timed.
A call that is slow on this machine moves one tier down, once: a reading of 40 ms every second
would, on a node of eight GPUs, hold the driver's lock for a third of the time. Of a slow batch of fields
only the slow fields move: on an H200 with driver 580 the energy alone takes 4 ms of a batch's 4 to 9.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuwarden_agent.counters import Recent, quantile

TIERS_S = (1, 10, 60)
"""Seconds between two calls, fastest first."""

TRIAL_CALLS = 10
"""Calls that are timed before the tier is decided."""

SLOW_MS = 5.0
"""A median above it is slow."""

SLOW_BATCH_MS = 3.0
"""A batch of fields whose median is above it gives its slow fields away."""

FIELD_ROUNDS = 3
"""How often each field of a slow batch is read in a call of its own."""

KEPT = 64
"""Durations kept of each call: what p50 and p99 are of."""


def slower(tier_s: int) -> int:
    """The next tier down; the last one's is itself."""
    return next((tier for tier in TIERS_S if tier > tier_s), tier_s)


def tier_after_trial(tier_s: int, timings_ms: Sequence[float]) -> int:
    """The tier of a call whose own is `tier_s`: the next one if the median of its first TRIAL_CALLS
    calls is slow. The median, because the very first call often wakes the GPU up.
    """
    trial = timings_ms[:TRIAL_CALLS]
    median_ms = quantile(trial, 0.5)
    is_slow = len(trial) == TRIAL_CALLS and median_ms is not None and median_ms > SLOW_MS
    return slower(tier_s) if is_slow else tier_s


def slow_fields(batch_ms: float, timings_ms: Mapping[int, Sequence[float]]) -> frozenset[int]:
    """The fields to leave out of a batch whose median is `batch_ms`: the slowest ones, until the rest is
    not slow. `timings_ms`: of calls for one field alone, by field. Empty if no field is the cause: then
    the call itself is slow.
    """
    if batch_ms <= SLOW_BATCH_MS:
        return frozenset()
    medians = {field: quantile(timings, 0.5) or 0.0 for field, timings in timings_ms.items()}
    # What even the cheapest field takes is the cost of a call.
    call_ms = min(medians.values(), default=0.0)
    slow: set[int] = set()
    for field in sorted(medians, key=lambda each: -medians[each]):
        if batch_ms <= SLOW_BATCH_MS:
            break
        slow.add(field)
        batch_ms -= medians[field] - call_ms
    is_fast = batch_ms <= SLOW_BATCH_MS and len(slow) < len(medians)
    return frozenset(slow) if is_fast else frozenset()


@dataclass(frozen=True, slots=True)
class CallReport:
    """What is known of one call, or of one field of a batch, for people."""

    call: str
    """NVML's name; a field of a batch with its id."""
    reading: str
    """What it is called for: a column, or a method of the port."""
    supported: bool
    code: str
    """NVML's name of the last return code."""
    p50_ms: float | None
    p99_ms: float | None
    count: int
    """Calls made; 0 for fields, which are counted by their batch."""
    tier_s: int
    """Seconds between two calls."""


class CallTimes:
    """The tier of one call, how often it was made, and its newest timings."""

    __slots__ = ("_recent", "call", "code", "count", "own_tier_s", "tier_s")

    def __init__(self, tier_s: int) -> None:
        self.call = ""
        self.code = 0
        self.count = 0
        self.own_tier_s = tier_s
        self.tier_s = tier_s
        self._recent = Recent(KEPT)

    def add(self, duration_ms: float, code: int) -> None:
        """Add a call that was made."""
        self._recent.add(duration_ms)
        self.count += 1
        self.code = code

    @property
    def timings_ms(self) -> Sequence[float]:
        """In the order of the calls until KEPT of them were made."""
        return self._recent.values
