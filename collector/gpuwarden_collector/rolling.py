"""Rolls samples up by minute and hour as windows close; may be killed at any point.

`next_step` decides, from how far it is: what is closed, what is rolled up, which windows rows came
late for. A window is closed, from then on rows of it are late, before it is computed; so a row is
either seen by the computation or noted as late, whatever comes between. Computing takes turns with
what else writes the lake, and runs on a thread beside the writer.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from gpuwarden.clock import Clock
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.store.database import Database
from gpuwarden_collector.store.errors import RowsRefusedError, StoreUnavailableError
from gpuwarden_collector.store.rollup import (
    Mended,
    Progress,
    mend,
    read_progress,
    roll_hour,
    roll_minutes,
)
from gpuwarden_collector.writer import Writer, WriterStopped

log = logging.getLogger(__name__)
T = TypeVar("T")

GRACE = timedelta(seconds=90)
"""How long after its end a minute stays open: until the batches of a healthy fleet are in."""


@dataclass(frozen=True, slots=True)
class Close:
    """Take rows from before that as late from now on."""

    until: datetime


@dataclass(frozen=True, slots=True)
class RollMinutes:
    """Roll up closed minutes, as many as are to be done at once."""


@dataclass(frozen=True, slots=True)
class RollHour:
    """Roll up an hour all of whose minutes are."""


@dataclass(frozen=True, slots=True)
class Mend:
    """Compute windows again that rows came late for: those noted up to this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Wait:
    """There is nothing to do."""


Step = Close | RollMinutes | RollHour | Mend | Wait


def closed_until(now: datetime) -> datetime:
    """The end of the last minute that is over for long enough; naive UTC."""
    end = now.astimezone(UTC) - GRACE
    return end.replace(second=0, microsecond=0, tzinfo=None)


def next_step(
    progress: Progress, announced: datetime | None, mend_number: int, now: datetime
) -> Step:
    """What to do next.

    `announced`: until when the writer that runs was told that windows are closed; None: it was not.
    `mend_number`: late windows above it are left for later, so that one that rows still come for is
    not computed for each of them.
    """
    due = closed_until(now)
    if announced is None or announced < due:
        # It never goes back: what was closed has been computed, or is being.
        return Close(max(due, progress.closed_until or due))
    if progress.minutes_until is None or progress.minutes_until < announced:
        return RollMinutes()
    hour = progress.minutes_until.replace(minute=0)
    if progress.hours_until is not None and progress.hours_until < hour:
        return RollHour()
    if 0 < progress.oldest_late_number <= mend_number:
        return Mend(mend_number)
    return Wait()


class Roller:
    """Rolls up one collector's samples."""

    def __init__(
        self, database: Database, writer: Writer, stats: Stats, clock: Clock, turn: asyncio.Lock
    ) -> None:
        """`turn`: held by whoever writes the lake or begins a generation."""
        self._database = database
        self._writer = writer
        self._stats = stats
        self._clock = clock
        self._turn = turn
        self._announced: datetime | None = None
        self._mend_number = 0
        self._is_stopping = False

    async def run_once(self) -> None:
        """Take all steps that are due.

        Raises StoreUnavailableError, RowsRefusedError and WriterStopped: what is not done then is
        done by the next call.
        """
        while not self._is_stopping:
            # The turn is given up between two steps, so that sealing does not wait for them all.
            async with self._turn:
                if self._is_stopping or not await self._step():
                    return

    async def roll_due(self) -> None:
        """`run_once` for a scheduler: what fails is logged and counted, and tried again."""
        try:
            await self.run_once()
        except (StoreUnavailableError, RowsRefusedError) as error:
            if not self._is_stopping:
                self._stats.rollup_failures += 1
                log.error("samples could not be rolled up", extra={"reason": str(error)})
        except WriterStopped:
            log.debug("rolling up ends with the writer")

    async def stop(self) -> None:
        """End the step that runs: it is undone, and taken again after the next start."""
        self._is_stopping = True
        if self._turn.locked():
            self._database.interrupt_maintenance()
        async with self._turn:
            pass

    async def _step(self) -> bool:
        """Take a step; False when there is none to take."""
        progress = await self._beside(read_progress)
        step = next_step(progress, self._announced, self._mend_number, self._clock.now())
        generation = self._database.generations[-1]
        began_s = self._clock.monotonic()
        match step:
            case Close(until):
                await self._writer.close_windows(until)
                self._announced = until
                self._mend_number = progress.late_number
                return True
            case RollMinutes():
                rows = await self._beside(lambda c: roll_minutes(c, generation, progress))
                self._stats.rolled_rows.update(rows)
            case RollHour():
                rows = await self._beside(lambda c: roll_hour(c, generation, progress))
                self._stats.rolled_rows.update(rows)
            case Mend(number):
                # What a frozen generation holds can be replaced when the lake has it.
                if len(self._database.generations) > 1:
                    return False
                lake_root = self._database.lake_root
                mended = await self._beside(
                    lambda c: mend(c, generation, progress, number, lake_root)
                )
                self._tell(mended)
            case Wait():
                return False
        self._stats.rollup_seconds.observe(self._clock.monotonic() - began_s)
        return True

    async def _beside(self, work: Callable[[Any], T]) -> T:
        """Do work on a cursor beside the writer's, in a thread."""

        def done() -> T:
            with self._database.maintaining() as cursor:
                return work(cursor)

        return await asyncio.to_thread(done)

    def _tell(self, mended: Mended) -> None:
        self._stats.mended_windows += mended.windows
        self._stats.unmended_windows += mended.left
        if mended.left:
            log.warning(
                "rows came for windows whose samples were dropped; their rollups stay as they are",
                extra={"windows": mended.left},
            )
