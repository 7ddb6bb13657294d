"""Runs jobs at intervals with APScheduler, also when the wall clock is set.

APScheduler uses wall time: if the clock is set back by an hour, no job runs for an hour; if it is set forward by a
year, the interval trigger counts each run of that year. So a job is next due an interval after it began, and a timer
with the loop's monotonic clock finds jobs that are due too late.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger

from gpuwarden.clock import SystemClock

log = logging.getLogger(__name__)

HEAL_S = 30.0
"""Interval of the search for jobs that a clock set back has stopped, or that are late."""
LATE_S = 300.0
"""A run that takes longer is late. Everything that a job waits for has a shorter limit."""

Job = Callable[[], Awaitable[None]]


class Every(BaseTrigger):  # type: ignore[misc]
    """Triggers an interval from now, independent of the last run."""

    def __init__(self, seconds: float) -> None:
        self.interval = timedelta(seconds=seconds)

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime:
        """The time of the next run."""
        return now + self.interval


@dataclass(slots=True)
class _RunningJob:
    began_s: float
    late_s: float | None
    is_logged: bool = False

    def is_late(self, now_s: float) -> bool:
        return self.late_s is not None and now_s - self.began_s >= self.late_s


class Timetable:
    """Runs jobs at intervals, each at most once at a time.

    A job that does not end is not started again; `late` and the log have its name.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, _RunningJob] = {}
        """Jobs that run now."""
        self._scheduler = AsyncIOScheduler(timezone="UTC")
        self._idle = asyncio.Event()
        self._idle.set()

    def every(self, name: str, seconds: float, job: Job, *, late_s: float | None = LATE_S) -> None:
        """Run `job` every `seconds`, first after that time; skip a run while the job still runs.

        `late_s`: a longer run is late; None: a run may take any time.
        """

        async def run() -> None:
            if name in self._jobs:
                return
            self._jobs[name] = _RunningJob(asyncio.get_running_loop().time(), late_s)
            self._idle.clear()
            try:
                await job()
            finally:
                if self._jobs.pop(name).is_logged:
                    log.warning("a late job has ended", extra={"job": name})
                if not self._jobs:
                    self._idle.set()

        # Two instances, of which one returns at once: APScheduler would log a warning for each skipped run.
        self._scheduler.add_job(
            run, Every(seconds), max_instances=2, coalesce=True, misfire_grace_time=None
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the jobs during the block, and wait at its end for those that still run."""
        loop = asyncio.get_running_loop()
        self._scheduler.start()
        timer = loop.call_later(HEAL_S, lambda: None)

        def heal() -> None:
            nonlocal timer
            self.heal()
            timer = loop.call_later(HEAL_S, heal)

        heal()
        try:
            yield
        finally:
            timer.cancel()
            self._scheduler.pause()
            await self._idle.wait()
            self._scheduler.shutdown(wait=False)

    @property
    def late(self) -> tuple[str, ...]:
        """Names of the jobs whose current run is late."""
        now_s = asyncio.get_running_loop().time()
        return tuple(sorted(name for name, job in self._jobs.items() if job.is_late(now_s)))

    def heal(self) -> None:
        """Run jobs now that are due later than they should be, and log jobs that are late."""
        for name in self.late:
            if not self._jobs[name].is_logged:
                self._jobs[name].is_logged = True
                log.error(
                    "a job does not end, and does not run again until it has", extra={"job": name}
                )
        now = SystemClock().now()  # as APScheduler does
        job: Any
        for job in self._scheduler.get_jobs():
            if job.next_run_time and job.next_run_time > now + 2 * job.trigger.interval:
                job.modify(next_run_time=now)
