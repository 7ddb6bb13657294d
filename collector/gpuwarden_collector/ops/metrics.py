"""Counts what the collector does, and writes it as Prometheus text. Touched on the event loop only, but
for the faults, which any thread may note.
"""

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import partial

from gpuwarden_collector.ops.disk import Usage
from gpuwarden_collector.ops.faults import Faults
from gpuwarden_collector.storage.lake_maintenance import Lake
from gpuwarden_collector.storage.retention import oldest_days

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

    def lines(self, name: str) -> Iterator[str]:
        """Exposition lines, without HELP and TYPE."""
        running = 0
        for edge, count in zip((*map(str, _SECONDS), "+Inf"), self.buckets, strict=True):
            running += count
            yield f'{name}_bucket{{le="{edge}"}} {running}'
        yield f"{name}_sum {self.sum_s}"
        yield f"{name}_count {running}"


@dataclass
class StorageStats:
    """Counters of the storage process."""

    sealed_rows: Counter[str] = field(default_factory=Counter)
    """Rows moved to the lake, by table."""
    seal_seconds: Histogram = field(default_factory=Histogram)
    seal_failures: int = 0
    doubled_rows: int = 0
    """Rows removed because another collector of the lake has sealed them."""
    lost_segment_bytes: int = 0
    """Bytes of segments that were damaged when they were to move to the lake."""
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
    storage_restarts: int = 0
    """Times that the storage process has ended and was started again."""
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
    disk: Usage | None = None
    disk_refusal: str | None = None
    """Why no batch is taken for want of room."""
    certificate_ends_at: datetime | None = None
    """Of the server; None: there is no TLS."""
    authority_ends_at: datetime | None = None
    """Of the authority that nodes are told to trust; None: there is none."""
    batch_s: int = 0
    """Seconds of samples that agents are asked to put into a batch; 0: they are not asked."""


def exposition(stats: Stats, levels: Levels) -> str:
    """Prometheus text format 0.0.4."""
    return "\n".join(_lines(stats, levels)) + "\n"


def _lines(stats: Stats, levels: Levels) -> Iterator[str]:
    for name, meaning, value in (
        ("batches_total", "Batches stored.", stats.batches),
        ("duplicate_batches_total", "Batches that were stored already.", stats.duplicates),
        ("imported_rows_total", "Rows stored that were read from files.", stats.imported_rows),
        ("body_bytes_total", "Bytes of bodies of stored batches.", stats.body_bytes),
        ("commit_failures_total", "Group commits that failed.", stats.commit_failures),
        ("seal_failures_total", "Moves to the lake that failed.", stats.seal_failures),
        ("doubled_rows_total", "Rows that another collector has sealed.", stats.doubled_rows),
        ("lost_segment_bytes_total", "Bytes of damaged segments.", stats.lost_segment_bytes),
        ("rollup_failures_total", "Steps of rolling up that failed.", stats.rollup_failures),
        ("mended_windows_total", "Windows rolled up again.", stats.mended_windows),
        ("unmended_windows_total", "Late windows left as they are.", stats.unmended_windows),
        ("storage_restarts_total", "Storage processes replaced.", stats.storage_restarts),
        ("request_failures_total", "Requests answered 500.", stats.request_failures),
        ("malformed_requests_total", "Requests that are not HTTP.", stats.malformed_requests),
    ):
        yield from _family(name, "counter", meaning, [("", value)])
    for name, meaning, label, counter in (
        ("rows_total", "Rows stored.", "table", stats.rows),
        ("left_out_rows_total", "Rows about another node's GPU.", "table", stats.left_out_rows),
        ("refused_batches_total", "Batches not stored.", "status", stats.refused),
        ("unknown_columns_total", "Batches with unknown columns.", "table", stats.unknown_columns),
        ("query_errors_total", "Queries that failed.", "reason", stats.query_errors),
        ("denied_requests_total", "Requests not let in.", "reason", stats.denied),
        ("faults_total", "Unexpected exceptions.", "doing", stats.faults.counts),
        ("sealed_rows_total", "Rows moved to the lake.", "table", stats.sealed_rows),
        ("rolled_rows_total", "Rows of new windows.", "table", stats.rolled_rows),
        ("maintenance_tasks_total", "Tasks done.", "task", stats.maintenance_tasks),
        ("maintenance_seconds_total", "Time they took.", "task", stats.maintenance_seconds),
        ("maintenance_failures_total", "Tasks that failed.", "task", stats.maintenance_failures),
    ):
        samples = [(f'{{{label}="{key}"}}', n) for key, n in sorted(counter.copy().items())]
        yield from _family(name, "counter", meaning, samples)
    is_full = levels.disk_refusal is not None
    for name, meaning, level in (
        ("queue_bytes", "Decoded batches waiting for the writer.", levels.queue_bytes),
        ("body_in_flight_bytes", "Request bodies in memory.", levels.body_bytes_in_flight),
        ("database_bytes", "Segments and state file on disk.", levels.database_bytes),
        ("asked_batch_seconds", "Batch length asked of agents; 0: none.", levels.batch_s),
        ("store_failing", "1 while commits fail, as on a full disk.", int(levels.is_failing)),
        ("writer_alive", "1 while the writer makes progress.", int(levels.is_alive)),
        ("disk_full", "1 while batches are refused for want of room.", int(is_full)),
    ):
        yield from _family(name, "gauge", meaning, [("", level)])
    for name, meaning, ends_at in (
        ("certificate", "End of the TLS certificate.", levels.certificate_ends_at),
        ("authority", "End of the authority's certificate.", levels.authority_ends_at),
    ):
        if ends_at is not None:
            end = [("", ends_at.timestamp())]
            yield from _family(f"{name}_ends_timestamp_seconds", "gauge", meaning, end)
    yield from _room_lines(stats, levels.disk)
    if stats.ingest_lag_seconds is not None:
        meaning = "Age of the newest row of the last stored batch."
        yield from _family("ingest_lag_seconds", "gauge", meaning, [("", stats.ingest_lag_seconds)])
    for name, meaning, histogram in (
        ("commit_seconds", "Time of a group commit.", stats.commit_seconds),
        ("acknowledge_seconds", "Time from request to 204.", stats.acknowledge_seconds),
        ("query_seconds", "Time of a query.", stats.query_seconds),
        ("seal_seconds", "Time of a move to the lake.", stats.seal_seconds),
        ("rollup_seconds", "Time of a step of rolling up.", stats.rollup_seconds),
    ):
        yield from _head(name, "histogram", meaning)
        yield from histogram.lines(f"gpuwarden_collector_{name}")


def _room_lines(stats: Stats, disk: Usage | None) -> Iterator[str]:
    """What is kept, what went and what room there is."""
    dropped = [
        (f'{{table="{table}",reason="{reason}"}}', rows)
        for (table, reason), rows in sorted(stats.dropped_rows.items())
    ]
    yield from _family("dropped_rows_total", "counter", "Rows let go by retention.", dropped)
    if disk is not None:
        meaning = "Free space of the data folder's file system."
        yield from _family("disk_free_bytes", "gauge", meaning, [("", disk.free_bytes)])
        yield from _family("disk_used_bytes", "gauge", "Data folder.", [("", disk.used_bytes)])
        meaning = "What queries spill to the data folder's file system."
        yield from _family("disk_spill_bytes", "gauge", meaning, [("", disk.spill_bytes)])
    if stats.lake is None:
        return
    oldest = oldest_days(stats.lake.parts)
    for name, meaning in (
        ("files", "Files in the lake."),
        ("rows", "Rows in the lake."),
        ("bytes", "Bytes of the lake's files."),
    ):
        sums: Counter[str] = Counter()
        for part in stats.lake.parts:
            sums[part.table] += getattr(part, name)
        samples = [(f'{{table="{table}"}}', n) for table, n in sorted(sums.items())]
        yield from _family(f"lake_{name}", "gauge", meaning, samples)
    leaving = stats.lake.leaving.bytes
    yield from _family("lake_leaving_bytes", "gauge", "Dropped, still on disk.", [("", leaving)])
    starts = [
        (f'{{table="{table}"}}', datetime(d.year, d.month, d.day, tzinfo=UTC).timestamp())
        for table, d in sorted(oldest.items())
    ]
    meaning = "Start of the oldest day in the lake."
    yield from _family("lake_oldest_timestamp_seconds", "gauge", meaning, starts)


def _head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP gpuwarden_collector_{name} {meaning}"
    yield f"# TYPE gpuwarden_collector_{name} {kind}"


def _family(
    name: str, kind: str, meaning: str, samples: Iterable[tuple[str, float]]
) -> Iterator[str]:
    yield from _head(name, kind, meaning)
    for labels, value in samples:
        yield f"gpuwarden_collector_{name}{labels} {value}"
