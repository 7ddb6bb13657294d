"""Wakes rules on their interval, by the wall clock; APScheduler is the timer and nothing else."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, timedelta

from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.interval import IntervalTrigger

from gpuwarden.clock import EPOCH

GOLDEN_RATIO = 0.618034


class EvaluationSchedule:
    """Calls functions on their interval, phases spread so that they do not fall together."""

    def __init__(self, scheduler: AsyncIOScheduler) -> None:
        self._scheduler = scheduler
        self._made = 0

    def every(self, name: str, interval_s: float, wake: Callable[[], None]) -> None:
        """Call `wake` on an interval; a call of the same name before is replaced."""
        phase_s = self._made * GOLDEN_RATIO % 1 * interval_s
        self._made += 1
        start = EPOCH + timedelta(seconds=phase_s)
        trigger = IntervalTrigger(seconds=interval_s, start_date=start, timezone=UTC)
        self._scheduler.add_job(wake, trigger, id=name, replace_existing=True)

    def forget(self, name: str) -> None:
        """Call it no longer."""
        self._scheduler.remove_job(name)


@asynccontextmanager
async def running() -> AsyncIterator[EvaluationSchedule]:
    """A timer for as long as the block runs."""
    scheduler = AsyncIOScheduler(
        timezone=UTC,
        # Jobs run inline: waking a task takes no time, and needs no pool and no task of its own.
        executors={"default": DebugExecutor()},
        job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
    )
    scheduler.start()
    try:
        yield EvaluationSchedule(scheduler)
    finally:
        scheduler.shutdown(wait=False)
        await asyncio.sleep(0)  # its timer is cancelled by a callback of the loop
