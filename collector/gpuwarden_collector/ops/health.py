"""Writes a row of `collector_samples` each minute, and answers the doctor's questions about a running collector.

`duties` reports the state of rules and notifications, which this part does not know.
"""

import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from gpuwarden import __version__
from gpuwarden.clock import Clock
from gpuwarden.collector_samples import COLLECTOR_SAMPLES
from gpuwarden.query import Querier, QueryError
from gpuwarden_collector.ingest.writer import WRITE_ERRORS, Writer
from gpuwarden_collector.ops.readiness import ReadyState, RulesProgress, not_ready
from gpuwarden_collector.stats import Levels, Stats
from gpuwarden_collector.storage.commit import Changes, naive
from gpuwarden_collector.storage.disk import Budget
from gpuwarden_collector.storage.schemas import arrow_schema
from gpuwarden_collector.storage.state import SCHEMA_VERSION

log = logging.getLogger(__name__)

SAMPLE_S = 60.0
_SCHEMA = arrow_schema(COLLECTOR_SAMPLES.columns)
_COUNTS = ("batches", "refused_batches", "commit_failures", "task_failures")

QUESTIONS: Mapping[str, str] = {
    "nodes": """
        SELECT
            count(*) AS nodes,
            count_if(last_seen_at < $now::TIMESTAMP - INTERVAL 1 MINUTE) AS silent,
            (array_agg(node ORDER BY last_seen_at)
                FILTER (last_seen_at < $now::TIMESTAMP - INTERVAL 1 MINUTE))[:5] AS silent_names
        FROM nodes WHERE last_seen_at > $now::TIMESTAMP - INTERVAL 7 DAY""",
    "versions": """
        SELECT coalesce(agent_version, 'unknown') AS version, count(*) AS nodes, min(node) AS example
        FROM nodes WHERE last_seen_at > $now::TIMESTAMP - INTERVAL 1 HOUR GROUP BY 1 ORDER BY 1""",
    "coverage": """
        SELECT
            100.0 * sum(taken) / nullif(sum(expected), 0) AS percent,
            count(DISTINCT node) AS nodes, min_by(node, share) AS worst, 100.0 * min(share) AS worst_percent
        FROM (
            SELECT node, sum(taken) AS taken, sum(expected) AS expected, sum(taken) / nullif(sum(expected), 0) AS share
            FROM coverage
            WHERE ts > $now::TIMESTAMP - INTERVAL 10 MINUTE AND ts <= $now::TIMESTAMP GROUP BY node
        )""",
    "clocks": """
        SELECT
            count(*) AS nodes, count_if(ahead_s > 2) AS ahead, max(ahead_s) AS ahead_s,
            max_by(node, ahead_s) AS example
        FROM (
            SELECT node, epoch(max(ts) - $now::TIMESTAMP) AS ahead_s FROM host_samples
            WHERE ts > $now::TIMESTAMP - INTERVAL 1 MINUTE GROUP BY node
        )""",
}
"""The doctor's queries, with the parameter `$now`."""


@dataclass(frozen=True, slots=True)
class Duties:
    """The state of the process's other duties: rules and notifications."""

    rules: int | None = None
    """Number of rules; None: the process evaluates none."""
    rules_failing: tuple[str, ...] = ()
    receivers_failing: tuple[str, ...] = ()
    """Receivers whose last message failed."""
    messages_waiting: int | None = None
    """Messages in the queue; None: there are no notifications."""
    unjudged: str | None = None
    """Why the rules have not evaluated the whole fleet, in a sentence; None: they have."""
    progress: RulesProgress | None = None
    """How far the rules are; None: the process evaluates none."""
    rules_slow: tuple[tuple[float, float], ...] = ()
    """Time and interval, in seconds, of each rule whose last evaluation took longer than its interval."""


class Health:
    """Samples the collector. Call `sample` every SAMPLE_S seconds; `document` answers the doctor."""

    def __init__(
        self,
        identity: str,
        writer: Writer,
        stats: Stats,
        clock: Clock,
        querier: Querier,
        levels: Callable[[], Levels],
        budget: Budget,
        duties: Callable[[], Duties],
        ready: Callable[[], Awaitable[ReadyState]],
    ) -> None:
        """`identity`: the id of the collector's store. `ready`: looks at readiness."""
        self._identity = identity
        self._writer = writer
        self._stats = stats
        self._clock = clock
        self._querier = querier
        self._levels = levels
        self._budget = budget
        self._duties = duties
        self._ready = ready
        self._before = dict.fromkeys(_COUNTS, 0)
        self.url: str | None = None
        """Its URL; None: it does not listen yet."""

    async def sample(self) -> None:
        """Write a row; if that fails, the next row counts both minutes."""
        counts, row = self._counts(), self.row(self._clock.now())
        table = pa.Table.from_pylist([row], schema=_SCHEMA)
        try:
            await self._writer.write(Changes(appended={COLLECTOR_SAMPLES.name: table}))
        except WRITE_ERRORS as error:
            log.debug("the collector's own sample was not written", extra={"reason": str(error)})
            return
        self._before = counts
        self._stats.lags.clear()

    def row(self, now: datetime) -> dict[str, Any]:
        """The current state of the collector, with counts since the last sample."""
        levels, duties, counts = self._levels(), self._duties(), self._counts()
        disk = levels.disk
        return {
            "ts": now.replace(tzinfo=None),
            "collector": self._identity,
            "host": socket.gethostname(),
            "version": __version__,
            **{name: counts[name] - self._before[name] for name in _COUNTS},
            "ingest_lag_seconds": median(self._stats.lags) if self._stats.lags else None,
            "queue_bytes": levels.queue_bytes,
            "disk_free_bytes": disk.free_bytes + disk.spill_bytes if disk else None,
            "disk_free_bytes_min": self._budget.free_bytes_min,
            "disk_used_bytes": disk.used_bytes if disk else None,
            "refusal": levels.disk_refusal,
            "storage_trouble": levels.storage_trouble,
            "rollup_lag_seconds": levels.rollup_lag_s,
            "clock_doubt": levels.clock_doubt,
            "clock_confirmed": levels.is_clock_confirmed,
            "late_jobs": ", ".join(levels.late_jobs) or None,
            "over_quota": "; ".join(levels.over_quota) or None,
            "certificate_ends_at": naive(levels.certificate_ends_at),
            "authority_ends_at": naive(levels.authority_ends_at),
            "rules": duties.rules,
            "rules_failing": ", ".join(duties.rules_failing) or None,
            "rules_slow": None if duties.rules is None else len(duties.rules_slow),
            "rules_slow_seconds": _sum(took_s for took_s, _ in duties.rules_slow),
            "rules_slow_intervals_seconds": _sum(every_s for _, every_s in duties.rules_slow),
            "cpu_pressure_percent": pressure_percent(),
            "receivers_failing": ", ".join(duties.receivers_failing) or None,
            "messages_waiting": duties.messages_waiting,
        }

    async def document(self) -> dict[str, Any]:
        """The answer to the doctor, with values that JSON has."""
        now, ready = self._clock.now(), await self._ready()
        return {
            "version": __version__,
            "url": self.url,
            "schema_version": SCHEMA_VERSION,
            "not_ready": {check.name: reason for check, reason in not_ready(ready).items()},
            "unjudged": self._duties().unjudged,
            "sample": {name: _plain(value) for name, value in self.row(now).items()},
            **{name: await self._asked(sql, now) for name, sql in QUESTIONS.items()},
        }

    async def _asked(self, sql: str, now: datetime) -> list[dict[str, Any]] | str:
        """The rows of a query; if it fails, the error text."""
        try:
            result = await self._querier.query(sql, {"now": now}, timeout_s=10.0)
        except QueryError as error:
            return str(error)
        return [{k: _plain(v) for k, v in row.items()} for row in result.records()]

    def _counts(self) -> dict[str, int]:
        stats = self._stats
        tasks = stats.seal_failures + stats.rollup_failures + stats.maintenance_failures.total()
        totals = (stats.batches, stats.refused.total(), stats.commit_failures, tasks)
        return dict(zip(_COUNTS, totals, strict=True))


def _sum(seconds: Iterable[float]) -> float | None:
    return sum(seconds) or None


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


PRESSURE = Path("/proc/pressure/cpu")


def pressure_percent(path: Path = PRESSURE) -> float | None:
    """Share of the last minute in which tasks waited for a CPU; None: the kernel does not report it."""
    try:
        words = path.read_text().split()
        # some avg10=1.20 avg60=0.85 avg300=0.60 total=1234
        return next(float(w.removeprefix("avg60=")) for w in words if w.startswith("avg60="))
    except (OSError, ValueError, StopIteration):
        return None
