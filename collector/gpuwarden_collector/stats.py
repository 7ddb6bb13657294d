"""Counts what the collector does. Touched on the event loop only, but for the faults, which any thread may
note.
"""

import logging
import threading
import traceback
from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from gpuwarden_collector.storage.disk import Usage
from gpuwarden_collector.storage.stats import Histogram, StorageStats

_LAGS_MAX = 1_000
log = logging.getLogger(__name__)

_PLACES_MAX = 100
"""Places that are told apart; what comes from others is told as one."""
_PACKAGE = __name__.partition(".")[0]


class Faults:
    """Counts them; for all threads."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By what was being done."""
        self._lock = threading.Lock()
        self._places: Counter[tuple[str, str]] = Counter()

    def note(self, doing: str, error: BaseException) -> None:
        """Count an exception that was kept, and tell of it if it is its turn."""
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
            "an unexpected exception was kept to the batch that it came from",
            extra={
                "doing": doing,
                "exception": f"{place[0]} at {place[1]}",
                "reason": str(error).partition("\n")[0][:300],
                "times": times,
            },
            exc_info=error if times == 1 else None,
        )


def _place(error: BaseException) -> str:
    """The innermost line of the collector that the exception went through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _PACKAGE in Path(frame.filename).parts]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "elsewhere"


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
