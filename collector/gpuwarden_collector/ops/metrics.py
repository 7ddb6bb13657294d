"""Counts what the collector does. Touched on the event loop only, but for the faults, which any thread may
note.
"""

import resource
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import partial
from itertools import accumulate

from gpuwarden_collector.ops.disk import Usage
from gpuwarden_collector.ops.faults import Faults
from gpuwarden_collector.storage.lake_maintenance import Lake

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LAGS_MAX = 1_000


class Histogram:
    """Counts of observed seconds by bucket, as Prometheus wants them."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(_SECONDS) + 1)
        self.sum_s = 0.0

    @property
    def count(self) -> int:
        """How many values were observed."""
        return sum(self.buckets)

    def observe(self, seconds: float) -> None:
        """Count one value."""
        self.buckets[bisect_left(_SECONDS, seconds)] += 1
        self.sum_s += seconds

    def add(self, since: "Histogram", now: "Histogram") -> None:
        """Add what was observed between two states of another histogram."""
        pairs = zip(since.buckets, now.buckets, strict=True)
        for at, (before, after) in enumerate(pairs):
            self.buckets[at] += after - before
        self.sum_s += now.sum_s - since.sum_s

    def cumulative(self) -> list[tuple[str, int]]:
        """Upper edge to how many were at most that, as Prometheus wants it."""
        return list(zip((*map(str, _SECONDS), "+Inf"), accumulate(self.buckets), strict=True))


@dataclass(frozen=True, slots=True)
class Effort:
    """What a process has done since its start, as the kernel counts it."""

    cpu_s: float = 0.0
    waits: int = 0
    """Times that one of its threads waited, as for a disk or a network, and went on."""

    @classmethod
    def so_far(cls) -> "Effort":
        """Of this process."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(used.ru_utime + used.ru_stime, used.ru_nvcsw)


@dataclass
class StorageStats:
    """Counters of the storage process."""

    effort: Effort = Effort()
    late_jobs: tuple[str, ...] = ()
    """Jobs by the clock whose turn does not end."""
    sealed_rows: Counter[str] = field(default_factory=Counter)
    """Rows moved to the lake, by table."""
    seal_seconds: Histogram = field(default_factory=Histogram)
    seal_failures: int = 0
    doubled_rows: int = 0
    """Rows removed because another collector of the lake has sealed them."""
    lost_segment_bytes: int = 0
    """Bytes of segments that were damaged when they were to move to the lake."""
    seal_looks: int = 0
    """Times that it was looked what is to move to the lake."""
    rolled_until: datetime | None = None
    """The end of the newest minute that is rolled up, naive UTC; None: none is."""
    rolled_rows: Counter[str] = field(default_factory=Counter)
    """Rows of new windows, by rollup table."""
    mended_windows: int = 0
    """Windows of nodes that were computed again because rows came late."""
    unmended_windows: int = 0
    """Windows of nodes that rows came late for after their samples were dropped."""
    rollup_seconds: Histogram = field(default_factory=Histogram)
    rollup_failures: int = 0
    dropped_rows: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Rows that retention let go of, by table and reason."""
    pinned_bytes: int = 0
    """Of days that room is short for and whose files would stay on the disk if they were dropped."""
    maintenance_tasks: Counter[str] = field(default_factory=Counter)
    maintenance_seconds: defaultdict[str, float] = field(
        default_factory=partial(defaultdict, float)
    )
    maintenance_failures: Counter[str] = field(default_factory=Counter)
    lake: Lake | None = None
    """The lake when maintenance looked last; None: it has not."""

    def add(self, since: "StorageStats", now: "StorageStats") -> None:
        """Add what was counted between two states of another process's counters."""
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


@dataclass
class Stats(StorageStats):
    """Counters since the start."""

    batches: int = 0
    duplicates: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    imported_rows: int = 0
    """Of them, those that were read from files."""
    left_out_rows: Counter[str] = field(default_factory=Counter)
    """Rows not stored because they are about a GPU of another node, by table."""
    over_quota_batches: int = 0
    """Batches that had to wait as their sender had sent too much in a day."""
    clock_apart_batches: int = 0
    """Batches stored of senders whose clocks are apart from the collector's."""
    body_bytes: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """By HTTP status."""
    unknown_columns: Counter[str] = field(default_factory=Counter)
    """Batches that had a column this collector does not know, by table."""
    commit_seconds: Histogram = field(default_factory=Histogram)
    commit_failures: int = 0
    acknowledge_seconds: Histogram = field(default_factory=Histogram)
    """From the first byte of a request to its answer 204."""
    ingest_lag_seconds: float | None = None
    """Age of the newest row of the last stored batch; None before the first."""
    lags: deque[float] = field(default_factory=lambda: deque(maxlen=_LAGS_MAX))
    """The same of the groups of batches stored since the collector's last sample of itself."""
    query_seconds: Histogram = field(default_factory=Histogram)
    query_errors: Counter[str] = field(default_factory=Counter)
    query_restarts: int = 0
    """Times that a query process had ended or did not answer when it was to take a query, and was replaced."""
    storage_restarts: int = 0
    """Times that the storage process has ended and was started again."""
    decode_hangs: int = 0
    """Times that a thread that decodes did not come back in time and was replaced."""
    request_failures: int = 0
    denied: Counter[str] = field(default_factory=Counter)
    """Requests that were not let in, by reason."""
    malformed_requests: int = 0
    """Requests that are not HTTP."""
    faults: Faults = field(default_factory=Faults)

    @property
    def rows_total(self) -> int:
        """Rows stored, all tables."""
        return self.rows.total()


@dataclass(frozen=True, slots=True)
class Levels:
    """What is read when someone asks, beside the counters."""

    queue_bytes: int
    body_bytes_in_flight: int
    database_bytes: int
    is_alive: bool
    is_failing: bool
    is_decoding: bool = True
    """Whether there are threads that decode."""
    disk: Usage | None = None
    storage_trouble: str | None = None
    """Why rows do not move to the lake, or are not rolled up."""
    rollup_lag_s: float | None = None
    """Age of the end of the newest minute that is rolled up."""
    late_jobs: tuple[str, ...] = ()
    """Jobs by the clock whose turn does not end."""
    over_quota: tuple[str, ...] = ()
    """Whose batches had to wait lately, as they have sent too much in a day."""
    clock_doubt: str | None = None
    """Why the collector's own clock is taken as wrong."""
    is_clock_confirmed: bool = True
    """Whether somebody says that it is right, so that rows may go by age."""
    disk_refusal: str | None = None
    """Why no batch is taken for want of room."""
    certificate_ends_at: datetime | None = None
    """Of the server; None: there is no TLS."""
    authority_ends_at: datetime | None = None
    """Of the authority that nodes are told to trust; None: there is none."""
    batch_s: int = 0
    """Seconds of samples that agents are asked to put into a batch; 0: they are not asked."""
