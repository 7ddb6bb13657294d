"""Rolls samples up by minute and hour as windows close; a kill at any point loses nothing.

`next_step` decides from the stored progress: which windows are closed, which are rolled up, which have
late rows. A window is closed before it is computed, and rows that come after that are late. So each row
is either in the computation or noted as late. Rollups take turns with the other writers of the lake, and
run on another thread than the batch writer.
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
from gpuwarden_collector.storage.idle_minutes import States, states_at
from gpuwarden_collector.storage.lake_job import LakeJob
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
"""How long a minute stays open after its end: until the batches of a healthy fleet have come."""

LATE_FIRST, LATE_LEAST, LATE_MAX = 500, 60, 60_000
"""Late windows that one step computes again: at first, and the limits after that."""
_FORGET_ROWS = 4_000
MEND_S = 3.0
"""Wanted duration of such a step: other writers of the lake wait for it."""


@dataclass(frozen=True, slots=True)
class Close:
    """Treat rows from before that instant as late from now on."""

    until: datetime


@dataclass(frozen=True, slots=True)
class RollMinutes:
    """Roll up closed minutes, as many as fit into one step."""


@dataclass(frozen=True, slots=True)
class RollHour:
    """Roll up an hour whose minutes are all rolled up."""


@dataclass(frozen=True, slots=True)
class Mend:
    """Compute windows with late rows again: those noted up to this number."""

    number: int


Step = Close | RollMinutes | RollHour | Mend


def closed_until(now: datetime) -> datetime:
    """The end of the last minute that ended at least `GRACE` ago; naive UTC."""
    end = now.astimezone(UTC) - GRACE
    return end.replace(second=0, microsecond=0, tzinfo=None)


def next_step(
    progress: Progress, announced: datetime | None, mend_number: int, now: datetime
) -> Step | None:
    """The next step; None: nothing is due.

    `announced`: until when the running writer knows that windows are closed; None: it knows nothing yet.
    `mend_number`: late windows with a higher number wait, so that a window that still gets rows is not
    computed again for each of them.
    """
    due = closed_until(now)
    if announced is None or announced < due:
        # It never goes back: closed windows are computed already.
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
    """Number of late windows for the next step, after `taken` of `count` took `took_s`."""
    if took_s > MEND_S:
        count = int(taken * MEND_S / took_s)
    elif taken == count and took_s < MEND_S / 2:
        count *= 2
    return min(max(count, LATE_LEAST), LATE_MAX)


class Roller(LakeJob):
    """Rolls up one collector's samples."""

    def __init__(
        self,
        store: Store,
        writer: UpkeepWriter,
        stats: StorageStats,
        clock: Clock,
        sealer: Sealer,
    ) -> None:
        super().__init__(store, stats, clock, sealer.turn)
        self._writer = writer
        self._sealer = sealer
        self._announced: datetime | None = None
        self._rolled_until: dict[str, datetime | None] | None = None
        """End of the last minute and hour that are rolled up; None: not read yet."""
        self._mend_number = 0
        self._late_count = LATE_FIRST
        self._readings: Readings | None = None
        self._states: States | None = None
        """Idleness after the minutes that are rolled up; None: not read yet."""

    async def run_once(self) -> None:
        """Take all steps that are due.

        Raises StoreUnavailableError, RowsRefusedError and WriterStopped; the next call does the rest.
        """
        while not self._is_stopping:
            # Sealing may take its turn between two steps.
            async with self.turn:
                if self._is_stopping or not await self._step():
                    return

    async def roll_due(self) -> None:
        """Run `run_once` for a scheduler: log and count failures, which the next call repeats."""
        try:
            await self.run_once()
        except (StoreUnavailableError, RowsRefusedError) as error:
            if not self._is_stopping:
                self._stats.rollup_failures += 1
                log.error("samples could not be rolled up", extra={"reason": str(error)})
        except WriterStopped:
            log.debug("rolling up ends with the writer")

    async def _step(self) -> bool:
        """Take a step; False: none is due."""
        progress = await asyncio.to_thread(self._progress)
        self._stats.rolled_until = progress.minutes_until
        self._stats.hours_rolled_until = progress.hours_until
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
                self._states = rolled.states
                if not self._store.coordination.is_shared:
                    self._readings = rolled.readings
            case RollHour():
                await self._append(await self._in_thread(lambda c: roll_hour(c, progress)))
            case Mend(number):
                mended = await self._in_thread(lambda c: self._mend(c, progress, number))
                if mended is None:
                    # Only rows in the lake can be replaced.
                    self._sealer.is_late_waiting = True
                    return False
                # The next minutes look back at the readings, which now lack the late rows.
                self._readings = None
                self._states = {**(self._states or {}), **mended.states}
                self._count_mended(mended)
            case None:
                return False
        self._stats.rollup_seconds.observe(self._clock.monotonic() - began_s)
        return True

    def _progress(self) -> Progress:
        newest, oldest = self._store.state.late_numbers()
        until = self._rolled_until = self._rolled_until or dict(self._store.start_progress())
        return Progress(
            self._store.state.progress()["closed_until"],
            until["minutes_until"],
            until["hours_until"],
            newest,
            oldest,
        )

    async def _append(self, rolled: Rolled) -> None:
        tables = {name: rows for name, rows in rolled.tables.items() if rows.num_rows}
        await self._writer.write(Changes(appended=tables, progress=rolled.progress))
        self._rolled_until = {**(self._rolled_until or {}), **rolled.progress}
        self._stats.rolled_rows.update({name: rows.num_rows for name, rows in tables.items()})

    def _minutes(self, progress: Progress, readings: Readings | None) -> Rolled:
        with self._store.maintaining() as cursor:
            hot = self._store.hot_rows(cursor, SOURCES)
            rolled = roll_minutes(cursor, hot, progress, readings, self._states)
        free_memory()
        return rolled

    def _mend(self, cursor: Any, progress: Progress, number: int) -> Mended | None:
        """None: no late window may be computed again yet."""
        state, count = self._store.state, self._late_count
        began_s = self._clock.monotonic()
        late = state.late(number, mendable_before(cursor), count)
        if not late.num_rows:
            return None
        if self._states is None and progress.minutes_until is not None:
            self._states = states_at(cursor, progress.minutes_until)
        # If this step fails for memory or time, a smaller one may succeed.
        self._late_count = max(count // 2, LATE_LEAST)
        # Rows that come meanwhile are noted again, with a higher number.
        mended = mend(cursor, late, progress, self._store.lake_root, self._note_late)
        for start in range(0, late.num_rows, _FORGET_ROWS):
            # In pieces, so that a commit waits for one of them at most.
            with state.writing() as writing:
                writing.forget_late(number, late.slice(start, _FORGET_ROWS))
        took_s = self._clock.monotonic() - began_s
        self._late_count = next_late_count(count, late.num_rows, took_s)
        free_memory()
        return mended

    def _note_late(self, windows: Any) -> None:
        with self._store.state.writing() as writing:
            writing.add_late(windows)

    async def _in_thread(self, work: Callable[[Any], T]) -> T:
        """Run work in a thread, on a cursor that sees the sources of rollups."""

        def done() -> T:
            with self._store.maintaining(SOURCES) as cursor:
                return work(cursor)

        return await asyncio.to_thread(done)

    def _count_mended(self, mended: Mended) -> None:
        self._stats.mended_windows += mended.windows
        self._stats.unmended_windows += mended.left
        if mended.left:
            log.warning(
                "late rows came for windows whose samples were dropped: their rollups do not change",
                extra={"windows": mended.left},
            )
