"""Counts what the storage process does; the collector's own counters are in `stats.py`."""

import resource
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import partial
from itertools import accumulate

from gpuwarden_collector.storage.lake_maintenance import Lake

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    """Counts of observed seconds by bucket, as in Prometheus."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(_SECONDS) + 1)
        self.sum_s = 0.0

    @property
    def count(self) -> int:
        """Number of observed values."""
        return sum(self.buckets)

    def observe(self, seconds: float) -> None:
        """Count one value."""
        self.buckets[bisect_left(_SECONDS, seconds)] += 1
        self.sum_s += seconds

    def add(self, since: "Histogram", now: "Histogram") -> None:
        """Add the values observed between two states of another histogram."""
        pairs = zip(since.buckets, now.buckets, strict=True)
        for at, (before, after) in enumerate(pairs):
            self.buckets[at] += after - before
        self.sum_s += now.sum_s - since.sum_s

    def cumulative(self) -> list[tuple[str, int]]:
        """Upper bounds, each with the number of values up to it, as in Prometheus."""
        return list(zip((*map(str, _SECONDS), "+Inf"), accumulate(self.buckets), strict=True))


@dataclass(frozen=True, slots=True)
class Effort:
    """CPU time and waits of a process since its start, from the kernel."""

    cpu_s: float = 0.0
    waits: int = 0
    """Number of times that a thread waited, such as for a disk or a network."""

    @classmethod
    def so_far(cls) -> "Effort":
        """The effort of this process."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(used.ru_utime + used.ru_stime, used.ru_nvcsw)


@dataclass
class StorageStats:
    """Counters of the storage process."""

    effort: Effort = Effort()
    late_jobs: tuple[str, ...] = ()
    """Scheduled jobs that take too long."""
    sealed_rows: Counter[str] = field(default_factory=Counter)
    """Rows moved to the lake, by table."""
    seal_seconds: Histogram = field(default_factory=Histogram)
    seal_failures: int = 0
    doubled_rows: int = 0
    """Rows skipped because another collector of the lake has sealed them."""
    lost_segment_bytes: int = 0
    """Bytes of segments that were found damaged when they were sealed."""
    storage_restarts: int = 0
    """Times that the process ended and was started again; its supervisor counts them."""
    seal_looks: int = 0
    """Checks for a step of sealing."""
    rolled_until: datetime | None = None
    """The end of the newest rolled-up minute, naive UTC; None: there is none."""
    hours_rolled_until: datetime | None = None
    """The same of hours."""
    rolled_rows: Counter[str] = field(default_factory=Counter)
    """Rows of new windows, by rollup table."""
    mended_windows: int = 0
    """Windows of nodes that were computed again for late rows."""
    unmended_windows: int = 0
    """Windows of nodes with late rows after their samples were dropped."""
    rollup_seconds: Histogram = field(default_factory=Histogram)
    rollup_failures: int = 0
    dropped_rows: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Rows that retention dropped, by table and reason."""
    pinned_bytes: int = 0
    """Bytes that would stay on the disk if days were dropped for room."""
    maintenance_tasks: Counter[str] = field(default_factory=Counter)
    maintenance_seconds: defaultdict[str, float] = field(
        default_factory=partial(defaultdict, float)
    )
    maintenance_failures: Counter[str] = field(default_factory=Counter)
    lake: Lake | None = None
    """The lake at the last check of maintenance; None: there was none yet."""

    def add(self, since: "StorageStats", now: "StorageStats") -> None:
        """Add the difference between two states of another process's counters."""
        for name in (f.name for f in fields(StorageStats)):
            mine, before, after = (getattr(stats, name) for stats in (self, since, now))
            match after:
                case Histogram():
                    mine.add(before, after)
                case dict():
                    for key, count in after.items():
                        mine[key] += count - before.get(key, 0)
                case int():
                    setattr(self, name, mine + after - before)
                case _:
                    setattr(self, name, after)
