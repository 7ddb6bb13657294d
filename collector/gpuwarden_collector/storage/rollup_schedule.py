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
from gpuwarden_collector.processes.footprint import free_memory
from gpuwarden_collector.storage.commit import Changes, UpkeepWriter, WriterStopped
from gpuwarden_collector.storage.database import Store
from gpuwarden_collector.storage.errors import RowsRefusedError, StoreUnavailableError
from gpuwarden_collector.storage.rollup import (
    SOURCES,
    Mended,
    Progress,
    Readings,
    Rolled,
    mend,
    mendable_before,
    roll_hour,
    roll_minutes,
)
from gpuwarden_collector.storage.seal import Sealer
from gpuwarden_collector.storage.stats import StorageStats

log = logging.getLogger(__name__)
T = TypeVar("T")

GRACE = timedelta(seconds=90)
"""How long after its end a minute stays open: until the batches of a healthy fleet are in."""

LATE_FIRST, LATE_LEAST, LATE_MAX = 500, 60, 60_000
"""Late windows that are computed again at once: at first, and the least and the most after that."""
_FORGET_ROWS = 4_000
MEND_S = 3.0
"""How long that takes: what else writes the lake waits for it."""


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


Step = Close | RollMinutes | RollHour | Mend


def closed_until(now: datetime) -> datetime:
    """The end of the last minute that is over for long enough; naive UTC."""
    end = now.astimezone(UTC) - GRACE
    return end.replace(second=0, microsecond=0, tzinfo=None)


def next_step(
    progress: Progress, announced: datetime | None, mend_number: int, now: datetime
) -> Step | None:
    """What to do next; None: nothing.

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
    return None


def next_late_count(count: int, taken: int, took_s: float) -> int:
    """How many late windows to compute next, when `taken` of `count` took so long."""
    if took_s > MEND_S:
        count = int(taken * MEND_S / took_s)
    elif taken == count and took_s < MEND_S / 2:
        count *= 2
    return min(max(count, LATE_LEAST), LATE_MAX)


class Roller:
    """Rolls up one collector's samples."""

    def __init__(
        self,
        database: Store,
        writer: UpkeepWriter,
        stats: StorageStats,
        clock: Clock,
        sealer: Sealer,
    ) -> None:
        self._database = database
        self._writer = writer
        self._stats = stats
        self._clock = clock
        self._sealer = sealer
        self._turn = sealer.turn
        self._announced: datetime | None = None
        self._said: dict[str, datetime | None] | None = None
        """How far rollups are; None: it was not read yet."""
        self._mend_number = 0
        self._late_count = LATE_FIRST
        self._readings: Readings | None = None
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
        progress = await asyncio.to_thread(self._progress)
        self._stats.rolled_until = progress.minutes_until
        step = next_step(progress, self._announced, self._mend_number, self._clock.now())
        began_s = self._clock.monotonic()
        match step:
            case Close(until):
                await self._writer.close_windows(until)
                self._announced = until
                self._mend_number = progress.late_number
                return True
            case RollMinutes():
                known, self._readings = self._readings, None
                rolled = await asyncio.to_thread(self._minutes, progress, known)
                await self._append(rolled)
                if not self._database.coordination.is_shared:
                    self._readings = rolled.readings
            case RollHour():
                await self._append(await self._beside(lambda c: roll_hour(c, progress)))
            case Mend(number):
                mended = await self._beside(lambda c: self._mend(c, progress, number))
                if mended is None:
                    # What is hot can be replaced when the lake has it.
                    self._sealer.is_late_waiting = True
                    return False
                # The late rows are in minutes that those which follow look back at. Until now these were
                # to be computed again.
                self._readings = None
                self._tell(mended)
            case None:
                return False
        self._stats.rollup_seconds.observe(self._clock.monotonic() - began_s)
        return True

    def _progress(self) -> Progress:
        newest, oldest = self._database.state.late_numbers()
        said = self._said = self._said or dict(self._database.start_progress())
        return Progress(
            self._database.state.progress()["closed_until"],
            said["minutes_until"],
            said["hours_until"],
            newest,
            oldest,
        )

    async def _append(self, rolled: Rolled) -> None:
        tables = {name: rows for name, rows in rolled.tables.items() if rows.num_rows}
        await self._writer.write(Changes(appended=tables, progress=rolled.progress))
        self._said = {**(self._said or {}), **rolled.progress}
        self._stats.rolled_rows.update({name: rows.num_rows for name, rows in tables.items()})

    def _minutes(self, progress: Progress, readings: Readings | None) -> Rolled:
        with self._database.maintaining() as cursor, self._database.reading_plainly():
            hot = self._database.hot_rows(cursor, SOURCES)
            rolled = roll_minutes(cursor, hot, progress, readings)
        free_memory()
        return rolled

    def _mend(self, cursor: Any, progress: Progress, number: int) -> Mended | None:
        """None: nothing that may be computed again yet."""
        state, count = self._database.state, self._late_count
        began_s = self._clock.monotonic()
        late = state.late(number, mendable_before(cursor), count)
        if not late.num_rows:
            return None
        # What needs too much memory or time may succeed in smaller steps.
        self._late_count = max(count // 2, LATE_LEAST)
        # Rows that come meanwhile are noted anew, with a higher number.
        mended = mend(cursor, late, progress, self._database.lake_root)
        for start in range(0, late.num_rows, _FORGET_ROWS):
            # In pieces: a commit that changes the state file waits for one of them at most.
            with state.writing() as writing:
                writing.forget_late(number, late.slice(start, _FORGET_ROWS))
        took_s = self._clock.monotonic() - began_s
        self._late_count = next_late_count(count, late.num_rows, took_s)
        free_memory()
        return mended

    async def _beside(self, work: Callable[[Any], T]) -> T:
        """Do work on a cursor beside the writer's, in a thread."""

        def done() -> T:
            with self._database.maintaining(SOURCES) as cursor:
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
