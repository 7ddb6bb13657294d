"""Moves rows of segments to the lake; a kill at any point loses nothing.

`next_step` decides what to do from what is stored, so an interrupted step is found and repeated. The
writer begins a new segment between two commits. Rows move on another thread, so the writer continues
storing batches meanwhile.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuwarden.clock import Clock
from gpuwarden_collector.storage.commit import Changes, UpkeepWriter, WriterStopped
from gpuwarden_collector.storage.database import Store
from gpuwarden_collector.storage.errors import RowsRefusedError, StoreUnavailableError
from gpuwarden_collector.storage.lake import damaged_file, seal
from gpuwarden_collector.storage.lake_job import LakeJob
from gpuwarden_collector.storage.resent import find_spans, note_doubtful, once_sql, seals_elsewhere
from gpuwarden_collector.storage.rollup import ROLLUP_TABLES, doubles
from gpuwarden_collector.storage.segment import TABLE_NAMES
from gpuwarden_collector.storage.stats import StorageStats
from gpuwarden_collector.storage.views import hot_table

log = logging.getLogger(__name__)

LOOK_S = 5.0
LATE_WAIT_S = 120.0
"""Age at which a segment is sealed early because late rows wait for windows that it holds."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """Begin a new segment: the current one is old enough, or large."""


@dataclass(frozen=True, slots=True)
class Save:
    """Save to the state file which batches frozen segments hold, before the segments are deleted."""


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
    """When the current segment is frozen."""

    interval_s: float = 3600.0
    """Its age; readers of the files and a lost disk lack what is younger."""
    bytes_max: int = 128 * 1024 * 1024


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
    """The next step; None: nothing is due.

    `frozen`: complete segments, oldest first; `sealed`: the newest that the lake holds; `saved`: the
    newest whose batches the state file has; `written_bytes`, `age_s`: of the current segment.
    `is_urgent`: a rollup waits for its rows to be in the lake.
    """
    if frozen:
        if saved < frozen[-1]:
            return Save()
        return DropSegments(min(sealed, frozen[-1])) if frozen[0] <= sealed else Seal(frozen[0])
    is_old = age_s >= (min(policy.interval_s, LATE_WAIT_S) if is_urgent else policy.interval_s)
    if written_bytes and (is_old or written_bytes >= policy.bytes_max):
        return Freeze()
    return None


class Sealer(LakeJob):
    """Seals one collector's segments."""

    def __init__(
        self,
        store: Store,
        writer: UpkeepWriter,
        stats: StorageStats,
        clock: Clock,
        policy: SealPolicy,
    ) -> None:
        super().__init__(store, stats, clock, asyncio.Lock())
        self._writer = writer
        self._policy = policy
        self.is_late_waiting = False
        """Whether rollups wait for hot rows to be in the lake."""
        self._seals_elsewhere = 0
        self._frozen_at_s = clock.monotonic()

    @property
    def look_s(self) -> float:
        """Interval between two checks for a step that is due."""
        return min(LOOK_S, self._policy.interval_s)

    async def run_once(self, *, is_forced: bool = False) -> int:
        """Take all steps that are due; the number of sealed rows. `is_forced`: ignore the policy.

        Rows that come meanwhile are sealed by the next call: maintenance and backups have their turn before.
        Raises StoreUnavailableError, RowsRefusedError and WriterStopped; the next call does the rest.
        """
        sealed_rows, has_frozen = 0, False
        async with self.turn:
            while True:
                if self._is_stopping:
                    return sealed_rows
                step = await self._next_step(is_forced=is_forced)
                self._stats.seal_looks += 1
                match step:
                    case None:
                        return sealed_rows
                    case Freeze() if has_frozen:
                        return sealed_rows
                    case Freeze():
                        await self._writer.freeze()
                        self._frozen_at_s = self._clock.monotonic()
                        is_forced, has_frozen = False, True
                    case Save():
                        await self._writer.save()
                    case Seal(segment):
                        sealed_rows += await self._seal(segment)
                    case DropSegments(until):
                        await asyncio.to_thread(self._keep_lost, until)
                        await self._note_doubles(until)
                        await asyncio.to_thread(self._store.drop, until)
                        self.is_late_waiting = False

    async def seal_due(self, *, is_forced: bool = False) -> None:
        """Run `run_once` for a scheduler: log and count failures, which the next call repeats."""
        try:
            await self.run_once(is_forced=is_forced)
        except (StoreUnavailableError, RowsRefusedError, OSError) as error:
            self._stats.seal_failures += 1
            log.error("samples could not be moved to the lake", extra={"reason": str(error)})
        except WriterStopped:
            log.debug("sealing ends with the writer")

    async def _next_step(self, *, is_forced: bool) -> Step | None:
        sealed, is_doubled = await asyncio.to_thread(self._look)
        policy = SealPolicy(0.0, 0) if is_forced or is_doubled else self._policy
        return next_step(
            self._store.frozen,
            sealed,
            int(self._store.state.meta("ledger_until")),
            written_bytes=self._store.segment_bytes,
            age_s=self._clock.monotonic() - self._frozen_at_s,
            policy=policy,
            is_urgent=self.is_late_waiting,
        )

    def _look(self) -> tuple[int, bool]:
        """The newest segment that the lake holds, and whether to seal now because another collector has
        sealed batches that this one may hold too."""
        with self._store.maintaining() as cursor:
            sealed = self._store.sealed(cursor)
            if not self._store.coordination.is_shared:
                return sealed, False
            seals = seals_elsewhere(cursor, self._store.collector)
            is_new = seals != self._seals_elsewhere
            self._seals_elsewhere = seals
            return sealed, is_new and bool(self._store.state.doubtful().num_rows)

    def _keep_lost(self, until: int) -> None:
        """Set segments aside, instead of deleting them, if the lake has lost their rows.

        The lake's files were on disk before its catalogue named them, but a disk or a person may have
        lost them since.
        """
        root, collector = self._store.lake_root, self._store.collector
        with self._store.maintaining() as cursor:
            damaged = damaged_file(cursor, root, collector, until)
        if damaged is None:
            return
        kept = self._store.set_aside(until)
        self._stats.seal_failures += 1
        log.error(
            "segments are kept because a file with their rows is missing or cut off: restore it from a backup",
            extra={"file": damaged.path, "segments": ", ".join(map(str, kept))},
        )

    async def _note_doubles(self, until: int) -> None:
        """Note windows that two collectors rolled up, to roll them up again. Runs before the segment is
        deleted, so that a kill loses none."""
        if not self._store.coordination.is_shared:
            return
        found = await asyncio.to_thread(self._doubles, until)
        if found is not None:
            await self._writer.write(Changes(late=found))

    def _doubles(self, until: int) -> Any | None:
        with self._store.maintaining(ROLLUP_TABLES, after=0, until=until) as cursor:
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
        coordination, collector = self._store.coordination, self._store.collector
        root = self._store.lake_root
        with self._store.maintaining() as cursor:
            tables = self._store.hot_rows(cursor, TABLE_NAMES, until=segment)
            self._count_damage()
            counts = {n: tables[n].num_rows for n in TABLE_NAMES}
            sources = {n: f"SELECT * FROM {hot_table(n)}" for n, rows in counts.items() if rows}
            if not coordination.is_shared:
                return seal(cursor, root, collector, segment, sources)
            doubtful = self._store.state.doubtful(segment)
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
        """First and last instant of the rows to seal; None: there are none."""
        if not sources:
            return None
        every = " UNION ALL ".join(f"SELECT ts FROM {hot_table(name)}" for name in sources)
        first, last = cursor.execute(f"SELECT min(ts), max(ts) FROM ({every})").fetchone()
        return None if first is None else (first, last)

    def _count_damage(self) -> None:
        """Log and count damaged parts of segments; the rest is sealed."""
        for damage in self._store.new_damage():
            self._stats.lost_segment_bytes += damage.end - damage.start
            log.error(
                "a part of a segment is damaged and its rows are lost; the rest moves to the lake",
                extra={"segment": damage.number, "from": damage.start, "to": damage.end},
            )

    def _count_doubles(self, rows: int) -> None:
        if rows:
            self._stats.doubled_rows += rows
            log.info("rows skipped because another collector has sealed them", extra={"rows": rows})
