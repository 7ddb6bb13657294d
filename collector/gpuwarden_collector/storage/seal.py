"""Moves rows of segments to the lake; may be killed at any point.

`next_step` decides, from what there is; a step that was interrupted is found undone and taken again.
The writer begins a new segment between two commits; sealing itself runs on a thread beside it, so
that batches go on being stored.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuwarden.clock import Clock
from gpuwarden_collector.storage.commit import Changes, UpkeepWriter, WriterStopped
from gpuwarden_collector.storage.database import Store
from gpuwarden_collector.storage.engine import hot_table
from gpuwarden_collector.storage.errors import RowsRefusedError, StoreUnavailableError
from gpuwarden_collector.storage.lake import damaged_file, seal
from gpuwarden_collector.storage.resent import find_spans, note_doubtful, once_sql, seals_elsewhere
from gpuwarden_collector.storage.rollup import ROLLUP_TABLES, doubles
from gpuwarden_collector.storage.segment import TABLE_NAMES
from gpuwarden_collector.storage.stats import StorageStats

log = logging.getLogger(__name__)

LOOK_S = 5.0
LATE_WAIT_S = 120.0
"""Age of a segment at which it is sealed because rows came late for windows that it holds."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """Begin a new segment: the one that is written has waited long enough or is large."""


@dataclass(frozen=True, slots=True)
class Save:
    """Have the state file know what frozen segments have stored: with a segment goes its knowledge."""


@dataclass(frozen=True, slots=True)
class Seal:
    """Copy the rows of a frozen segment into the lake."""

    segment: int


@dataclass(frozen=True, slots=True)
class DropSegments:
    """Delete the segments that the lake holds."""

    until: int


Step = Freeze | Save | Seal | DropSegments


@dataclass(frozen=True, slots=True)
class SealPolicy:
    """When the segment that is written is frozen."""

    interval_s: float
    bytes_max: int


def next_step(
    frozen: Sequence[int],
    sealed: int,
    saved: int,
    *,
    written_bytes: int,
    age_s: float,
    policy: SealPolicy,
    is_urgent: bool = False,
) -> Step | None:
    """What to do next; None: nothing.

    `frozen`: segments that are not written any more, oldest first; `sealed`: the newest that the lake
    holds, `saved`: that the state file knows of; `written_bytes`, `age_s`: of the one that is written.
    `is_urgent`: something waits for its rows to be in the lake.
    """
    if frozen:
        if saved < frozen[-1]:
            return Save()
        return DropSegments(min(sealed, frozen[-1])) if frozen[0] <= sealed else Seal(frozen[0])
    is_old = age_s >= (min(policy.interval_s, LATE_WAIT_S) if is_urgent else policy.interval_s)
    if written_bytes and (is_old or written_bytes >= policy.bytes_max):
        return Freeze()
    return None


class Sealer:
    """Seals one collector's segments."""

    def __init__(
        self,
        database: Store,
        writer: UpkeepWriter,
        stats: StorageStats,
        clock: Clock,
        policy: SealPolicy,
    ) -> None:
        self._database = database
        self._writer = writer
        self._stats = stats
        self._clock = clock
        self._policy = policy
        self.turn = asyncio.Lock()
        """Held while the lake is written; what else writes it takes its turn."""
        self.is_late_waiting = False
        """Whether rollups wait for hot rows to be in the lake."""
        self._seals_elsewhere = 0
        self._is_stopping = False
        self._frozen_at_s = clock.monotonic()

    @property
    def look_s(self) -> float:
        """How often to look whether samples are to move to the lake."""
        return min(LOOK_S, self._policy.interval_s)

    async def run_once(self, *, is_forced: bool = False) -> int:
        """Take all steps that are due; rows that were sealed. `is_forced`: whatever the policy says.

        Raises StoreUnavailableError, RowsRefusedError and WriterStopped: what is not done then is
        done by the next call.
        """
        sealed_rows = 0
        async with self.turn:
            while True:
                if self._is_stopping:
                    return sealed_rows
                step = await self._next_step(is_forced=is_forced)
                self._stats.seal_looks += 1
                match step:
                    case None:
                        return sealed_rows
                    case Freeze():
                        await self._writer.freeze()
                        self._frozen_at_s = self._clock.monotonic()
                        is_forced = False
                    case Save():
                        await self._writer.save()
                    case Seal(segment):
                        sealed_rows += await self._seal(segment)
                    case DropSegments(until):
                        await asyncio.to_thread(self._keep_lost, until)
                        await self._note_doubles(until)
                        await asyncio.to_thread(self._database.drop, until)
                        self.is_late_waiting = False

    async def seal_due(self, *, is_forced: bool = False) -> None:
        """`run_once` for a scheduler: what fails is logged and counted, and tried again."""
        try:
            await self.run_once(is_forced=is_forced)
        except (StoreUnavailableError, RowsRefusedError, OSError) as error:
            self._stats.seal_failures += 1
            log.error("samples could not be moved to the lake", extra={"reason": str(error)})
        except WriterStopped:
            log.debug("sealing ends with the writer")

    async def stop(self) -> None:
        """End the step that runs: it is undone, and taken again at the next start."""
        self._is_stopping = True
        if self.turn.locked():
            self._database.interrupt_maintenance()
        async with self.turn:
            pass

    async def _next_step(self, *, is_forced: bool) -> Step | None:
        sealed, is_doubled = await asyncio.to_thread(self._look)
        policy = SealPolicy(0.0, 0) if is_forced or is_doubled else self._policy
        return next_step(
            self._database.frozen,
            sealed,
            int(self._database.state.meta("ledger_until")),
            written_bytes=self._database.segment_bytes,
            age_s=self._clock.monotonic() - self._frozen_at_s,
            policy=policy,
            is_urgent=self.is_late_waiting,
        )

    def _look(self) -> tuple[int, bool]:
        """The newest segment that the lake holds, and whether another collector has sealed what may
        stand twice until this one has sealed it as well."""
        with self._database.maintaining() as cursor:
            sealed = self._database.sealed(cursor)
            if not self._database.coordination.is_shared:
                return sealed, False
            seals = seals_elsewhere(cursor, self._database.collector)
            is_news = seals != self._seals_elsewhere
            self._seals_elsewhere = seals
            return sealed, is_news and bool(self._database.state.doubtful().num_rows)

    def _keep_lost(self, until: int) -> None:
        """Set aside segments whose rows are not in the lake any more, instead of deleting them.

        The lake's files are on disk before it names them; a disk may lose them, or a person, all the same.
        """
        root, collector = self._database.lake_root, self._database.collector
        with self._database.maintaining() as cursor:
            damaged = damaged_file(cursor, root, collector, until)
        if damaged is None:
            return
        kept = self._database.set_aside(until)
        self._stats.seal_failures += 1
        log.error(
            "segments are kept, as a file with their rows is missing or cut off: restore it from a backup",
            extra={"file": damaged.path, "segments": ", ".join(map(str, kept))},
        )

    async def _note_doubles(self, until: int) -> None:
        """Have what two collectors rolled up be rolled up again. Before its segment goes, so that a kill
        does not forget it."""
        if not self._database.coordination.is_shared:
            return
        found = await asyncio.to_thread(self._doubles, until)
        if found is not None:
            await self._writer.write(Changes(late=found))

    def _doubles(self, until: int) -> Any | None:
        with self._database.maintaining(ROLLUP_TABLES, after=0, until=until) as cursor:
            return doubles(cursor)

    async def _seal(self, segment: int) -> int:
        began_s = self._clock.monotonic()
        rows = await asyncio.to_thread(self._copy, segment)
        seconds = self._clock.monotonic() - began_s
        self._stats.sealed_rows.update(rows)
        self._stats.seal_seconds.observe(seconds)
        log.info(
            "samples moved to the lake",
            extra={"segment": segment, "rows": sum(rows.values()), "s": round(seconds, 1)},
        )
        return sum(rows.values())

    def _copy(self, segment: int) -> dict[str, int]:
        coordination, collector = self._database.coordination, self._database.collector
        root = self._database.lake_root
        with self._database.maintaining() as cursor:
            tables = self._database.hot_rows(cursor, TABLE_NAMES, until=segment)
            self._count_damage()
            counts = {n: tables[n].num_rows for n in TABLE_NAMES}
            sources = {n: f"SELECT * FROM {hot_table(n)}" for n, rows in counts.items() if rows}
            if not coordination.is_shared:
                return seal(cursor, root, collector, segment, sources)
            doubtful = self._database.state.doubtful(segment)
            with coordination.sealing(is_exclusive=bool(doubtful.num_rows)) as turn:
                bounds = self._bounds(cursor, sources)
                if bounds and find_spans(cursor, collector, doubtful, *bounds):
                    sources = {n: once_sql(n, hot_table(n)) for n in sources}

                def note() -> None:
                    note_doubtful(cursor, collector, segment, doubtful)
                    turn.check()

                sealed = seal(cursor, root, collector, segment, sources, note)
            self._count_doubles(sum(counts.values()) - sum(sealed.values()) if sealed else 0)
            return sealed

    def _bounds(
        self, cursor: Any, sources: Sequence[str] | dict[str, str]
    ) -> tuple[Any, Any] | None:
        """First and last instant of the rows to be sealed; None: there are none."""
        if not sources:
            return None
        every = " UNION ALL ".join(f"SELECT ts FROM {hot_table(name)}" for name in sources)
        first, last = cursor.execute(f"SELECT min(ts), max(ts) FROM ({every})").fetchone()
        return None if first is None else (first, last)

    def _count_damage(self) -> None:
        """Say what of a segment cannot be read; the rest of it is sealed."""
        for damage in self._database.new_damage():
            self._stats.lost_segment_bytes += damage.end - damage.start
            log.error(
                "a part of a segment is damaged and lost; the rest moves to the lake",
                extra={"segment": damage.number, "from": damage.start, "to": damage.end},
            )

    def _count_doubles(self, rows: int) -> None:
        if rows:
            self._stats.doubled_rows += rows
            log.info("rows left out that another collector has sealed", extra={"rows": rows})
