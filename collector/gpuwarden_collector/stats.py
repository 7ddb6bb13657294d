"""Counts what the collector does. Only the event loop may use it, except for `Faults`, which is thread-safe."""

import logging
import threading
import traceback
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from gpuwarden_collector.storage.disk import Usage
from gpuwarden_collector.storage.stats import Histogram, StorageStats

_LAGS_MAX = 1_000
log = logging.getLogger(__name__)

_PLACES_MAX = 100
"""Places that are counted by themselves; further ones share one count."""
_PACKAGE = __name__.partition(".")[0]


class Faults:
    """Counts and logs unexpected exceptions. Thread-safe."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By the work that raised them."""
        self._lock = threading.Lock()
        self._places: Counter[tuple[str, str]] = Counter()

    def note(self, doing: str, error: BaseException) -> None:
        """Count an exception that was caught; log the first, second, fourth, eighth ... one of a place."""
        with self._lock:
            self.counts[doing] += 1
            place = (type(error).__name__, _place(error))
            if place not in self._places and len(self._places) >= _PLACES_MAX:
                place = ("other", "elsewhere")
            self._places[place] += 1
            times = self._places[place]
        if times & (times - 1):
            return
        log.error(
            "unexpected exception; only its own batch is affected",
            extra={
                "doing": doing,
                "exception": f"{place[0]} at {place[1]}",
                "reason": str(error).partition("\n")[0][:300],
                "times": times,
            },
            exc_info=error if times == 1 else None,
        )


def _place(error: BaseException) -> str:
    """File and line of the innermost frame of the collector."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _PACKAGE in Path(frame.filename).parts]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "elsewhere"


@dataclass(frozen=True, slots=True)
class QueryHealth:
    """Whether queries are answered, by the monotonic clock."""

    answered_s: float | None = None
    """Time of the newest answer; None: there is none yet."""
    asked_s: float | None = None
    """Begin of the newest query that only readiness needed."""
    problem: str | None = None
    """Why that one failed; None: it did not, or another was answered since."""
    is_doubtful: bool = False
    """Whether a client's query failed since, which may be the client's fault."""

    def answered(self, now_s: float) -> "QueryHealth":
        """The state after an answer."""
        return QueryHealth(now_s, self.asked_s)

    def doubted(self) -> "QueryHealth":
        """The state after a client's query that failed."""
        return replace(self, is_doubtful=True)

    def failed(self, problem: str) -> "QueryHealth":
        """The state after a query of readiness that failed; an answer that came since counts more."""
        is_over = self.answered_s is not None and self.answered_s >= (self.asked_s or 0.0)
        return self if is_over else replace(self, problem=problem, is_doubtful=False)


@dataclass
class Stats(StorageStats):
    """Counters since the start."""

    batches: int = 0
    duplicates: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    imported_rows: int = 0
    """Rows of imported batches, which `rows` counts as well."""
    left_out_rows: Counter[str] = field(default_factory=Counter)
    """By table: rows that were not stored because they are about a GPU of another node."""
    over_quota_batches: int = 0
    """Batches that were refused because their sender was over its quota."""
    clock_apart_batches: int = 0
    """Stored batches of agents whose clocks are wrong."""
    body_bytes: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """By HTTP status."""
    unknown_columns: Counter[str] = field(default_factory=Counter)
    """By table: batches with a column that this collector does not know."""
    received_samples: Counter[str] = field(default_factory=Counter)
    """Samples of senders that are not agents, by outcome."""
    commit_seconds: Histogram = field(default_factory=Histogram)
    commit_failures: int = 0
    acknowledge_seconds: Histogram = field(default_factory=Histogram)
    """From the first byte of a request to its answer 204."""
    ingest_lag_seconds: float | None = None
    """Age of the newest row of the last stored batch; None: no batch yet."""
    lags: deque[float] = field(default_factory=lambda: deque(maxlen=_LAGS_MAX))
    """The same for each commit since the collector's last sample of itself."""
    query_seconds: Histogram = field(default_factory=Histogram)
    query_errors: Counter[str] = field(default_factory=Counter)
    queries: QueryHealth = QueryHealth()
    query_restarts: int = 0
    """Query processes that had ended, or did not accept a query, and were replaced."""
    decode_hangs: int = 0
    """Decoding threads that hung and were replaced."""
    request_failures: int = 0
    denied: Counter[str] = field(default_factory=Counter)
    """Denied requests, by reason."""
    malformed_requests: int = 0
    """Requests that were not valid HTTP."""
    faults: Faults = field(default_factory=Faults)

    @property
    def rows_total(self) -> int:
        """Stored rows of all tables."""
        return self.rows.total()


@dataclass(frozen=True, slots=True)
class Levels:
    """Current values, read on request."""

    queue_bytes: int
    body_bytes_in_flight: int
    database_bytes: int
    is_alive: bool
    is_failing: bool
    is_decoding: bool = True
    """Whether threads decode batches."""
    disk: Usage | None = None
    storage_trouble: str | None = None
    """Why rows do not move to the lake, or are not rolled up."""
    rollup_lag_s: float | None = None
    """Age of the end of the newest minute that is rolled up."""
    late_jobs: tuple[str, ...] = ()
    """Scheduled jobs whose current run does not end."""
    over_quota: tuple[str, ...] = ()
    """Senders whose batches were refused lately because of the quota."""
    clock_doubt: str | None = None
    """Why the collector doubts its own clock."""
    is_clock_confirmed: bool = True
    """Whether agents or the kernel confirm the clock, so that rows may be dropped by age."""
    disk_refusal: str | None = None
    """Why batches are refused because the disk is full."""
    certificate_ends_at: datetime | None = None
    """End of the server's certificate; None: no TLS."""
    authority_ends_at: datetime | None = None
    """End of the certificate of the authority that nodes trust; None: there is none."""
    batch_s: int = 0
    """Seconds of samples that agents are asked to put into a batch; 0: agents decide."""
