"""Does things every so many seconds, whatever happens to the wall clock (APScheduler).

APScheduler goes by wall time: set back by an hour, the clock would stop every job for an hour; set
forward by a year, its interval trigger counts through each turn of that year. So a job is next due
an interval after it began, and a look by the loop's own clock finds those that are due too late.
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
"""How often it is looked for jobs that a clock set back has stopped, or that are late."""
LATE_S = 300.0
"""Most time of a turn: longer than whatever it waits for, which has limits of its own."""

Job = Callable[[], Awaitable[None]]


class Every(BaseTrigger):  # type: ignore[misc]
    """An interval from now, however long ago the last turn was."""

    def __init__(self, seconds: float) -> None:
        self.interval = timedelta(seconds=seconds)

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime:
        """When it is due next."""
        return now + self.interval


@dataclass(slots=True)
class _RunningJob:
    began_s: float
    late_s: float | None
    is_told: bool = False

    def is_late(self, now_s: float) -> bool:
        return self.late_s is not None and now_s - self.began_s >= self.late_s


class Timetable:
    """Jobs, each of which runs at most once at a time.

    One that does not end is not begun again: `late` has its name, and the log.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, _RunningJob] = {}
        """Those that run now."""
        self._scheduler = AsyncIOScheduler(timezone="UTC")
        self._idle = asyncio.Event()
        self._idle.set()

    def every(self, name: str, seconds: float, job: Job, *, late_s: float | None = LATE_S) -> None:
        """Do `job` so often, first after that time; a turn that comes while it runs is left out.

        `late_s`: from when on a turn is late; None: it may take any time, and others see to it.
        """

        async def turn() -> None:
            if name in self._jobs:
                return
            self._jobs[name] = _RunningJob(asyncio.get_running_loop().time(), late_s)
            self._idle.clear()
            try:
                await job()
            finally:
                if self._jobs.pop(name).is_told:
                    log.warning("a job has ended after all", extra={"job": name})
                if not self._jobs:
                    self._idle.set()

        # Two at once, of which one returns: APScheduler would warn of every turn that is left out.
        self._scheduler.add_job(
            turn, Every(seconds), max_instances=2, coalesce=True, misfire_grace_time=None
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Do the jobs for as long as the block runs; what runs at its end is waited for."""
        loop = asyncio.get_running_loop()
        self._scheduler.start()
        timer = loop.call_later(HEAL_S, lambda: None)

        def look() -> None:
            nonlocal timer
            self.heal()
            timer = loop.call_later(HEAL_S, look)

        look()
        try:
            yield
        finally:
            timer.cancel()
            self._scheduler.pause()
            await self._idle.wait()
            self._scheduler.shutdown(wait=False)

    @property
    def late(self) -> tuple[str, ...]:
        """Names of the jobs whose turn is late."""
        now_s = asyncio.get_running_loop().time()
        return tuple(sorted(name for name, job in self._jobs.items() if job.is_late(now_s)))

    def heal(self) -> None:
        """Make due what would come later than an interval from now, and tell of what is late."""
        for name in self.late:
            if not self._jobs[name].is_told:
                self._jobs[name].is_told = True
                log.error(
                    "a job does not end, and is not done again until it has", extra={"job": name}
                )
        now = SystemClock().now()  # as APScheduler does
        job: Any
        for job in self._scheduler.get_jobs():
            if job.next_run_time and job.next_run_time > now + 2 * job.trigger.interval:
                job.modify(next_run_time=now)
