"""Does things every so many seconds, whatever happens to the wall clock (APScheduler).

APScheduler goes by wall time: set back by an hour, the clock would stop every job for an hour; set
forward by a year, its interval trigger counts through each turn of that year. So a job is next due
an interval after it began, and a look by the loop's own clock finds those that are due too late.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger

from gpuwarden.clock import SystemClock

HEAL_S = 30.0
"""How often it is looked for jobs that a clock set back has stopped."""

Job = Callable[[], Awaitable[None]]


class Every(BaseTrigger):  # type: ignore[misc]
    """An interval from now, however long ago the last turn was."""

    def __init__(self, seconds: float) -> None:
        self.interval = timedelta(seconds=seconds)

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime:
        """When it is due next."""
        return now + self.interval


class Timetable:
    """Jobs, each of which runs at most once at a time."""

    def __init__(self) -> None:
        self._scheduler = AsyncIOScheduler(timezone="UTC")
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def every(self, seconds: float, job: Job) -> None:
        """Do `job` so often, first after that time; a turn that comes while it runs is left out."""
        is_running = False

        async def turn() -> None:
            nonlocal is_running
            if is_running:
                return
            is_running = True
            self._busy += 1
            self._idle.clear()
            try:
                await job()
            finally:
                is_running = False
                self._busy -= 1
                if not self._busy:
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

    def heal(self) -> None:
        """Make due what would come later than an interval from now."""
        now = SystemClock().now()  # as APScheduler does
        job: Any
        for job in self._scheduler.get_jobs():
            if job.next_run_time and job.next_run_time > now + 2 * job.trigger.interval:
                job.modify(next_run_time=now)
