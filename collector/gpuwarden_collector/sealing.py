"""Moves what is hot to the lake, generation by generation; may be killed at any point.

`next_step` decides, from what there is; a step that was interrupted is found undone and taken again.
The writer freezes and drops generations between two commits; sealing itself runs on a thread beside
it, so that batches go on being committed.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuwarden.clock import Clock
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.store.commit import Changes
from gpuwarden_collector.store.database import Database
from gpuwarden_collector.store.doubt import has_doubtful, news_of_doubles, remove_doubles
from gpuwarden_collector.store.errors import RowsRefusedError, StoreUnavailableError
from gpuwarden_collector.store.files import sync_files
from gpuwarden_collector.store.generations import hot_table
from gpuwarden_collector.store.lake import SEALED_TABLES, seal, sealed_generation
from gpuwarden_collector.store.rollup import doubles
from gpuwarden_collector.writer import Writer, WriterStopped

log = logging.getLogger(__name__)

LOOK_S = 5.0


@dataclass(frozen=True, slots=True)
class Freeze:
    """Begin a new generation: the one that is written has waited long enough or is large."""


@dataclass(frozen=True, slots=True)
class Seal:
    """Copy a frozen generation into the lake."""

    generation: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Let go of a generation that the lake holds."""

    generation: int


@dataclass(frozen=True, slots=True)
class Wait:
    """There is nothing to do."""


Step = Freeze | Seal | Drop | Wait


@dataclass(frozen=True, slots=True)
class Policy:
    """When the generation that is written is frozen."""

    interval_s: float
    rows_max: int


def next_step(
    generations: Sequence[int], sealed: int, *, rows: int, age_s: float, policy: Policy
) -> Step:
    """What to do next. `generations`: the hot ones, oldest first, the last of which is written and
    has `rows` rows and is `age_s` old; `sealed`: the newest that the lake holds.
    """
    oldest = generations[0]
    if len(generations) > 1:
        return Drop(oldest) if oldest <= sealed else Seal(oldest)
    if rows and (age_s >= policy.interval_s or rows >= policy.rows_max):
        return Freeze()
    return Wait()


class Sealer:
    """Seals one collector's generations."""

    def __init__(
        self, database: Database, writer: Writer, stats: Stats, clock: Clock, policy: Policy
    ) -> None:
        self._database = database
        self._writer = writer
        self._stats = stats
        self._clock = clock
        self._policy = policy
        self.turn = asyncio.Lock()
        """Held while the lake is written; what else writes it takes its turn."""
        self._synced = -1
        self._news = (0, 0)
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
                match step := await self._next_step(is_forced=is_forced):
                    case Wait():
                        return sealed_rows
                    case Freeze():
                        await self._writer.do(self._database.roll)
                        self._frozen_at_s = self._clock.monotonic()
                        is_forced = False
                    case Seal(generation):
                        sealed_rows += await self._seal(generation)
                    case Drop(generation):
                        await asyncio.to_thread(self._sync)
                        await self._note_doubles(generation)
                        await self._writer.do(lambda: self._database.drop(step.generation))

    async def seal_due(self, *, is_forced: bool = False) -> None:
        """`run_once` for a scheduler: what fails is logged and counted, and tried again."""
        try:
            await self.run_once(is_forced=is_forced)
        except (StoreUnavailableError, RowsRefusedError) as error:
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

    async def _next_step(self, *, is_forced: bool) -> Step:
        generations = list(self._database.generations)
        rows = await self._writer.do(lambda: self._database.count_rows(generations[-1]))
        sealed = await asyncio.to_thread(self._sealed)
        policy = Policy(0.0, 0) if is_forced else self._policy
        age_s = self._clock.monotonic() - self._frozen_at_s
        return next_step(generations, sealed, rows=rows, age_s=age_s, policy=policy)

    def _sealed(self) -> int:
        collector = self._database.collector
        with self._database.maintaining() as cursor:
            sealed = sealed_generation(cursor, collector)
            if self._database.coordination.is_shared:
                # Before sealing it is done again, in turn; here it is for who reads meanwhile.
                news = news_of_doubles(cursor, collector)
                if news != self._news:
                    for generation in self._database.generations:
                        if generation > sealed:
                            self._count_doubles(remove_doubles(cursor, collector, generation))
                    self._news = news
            return sealed

    def _sync(self) -> None:
        # Until the files are on disk for good, the rows must not go from the database.
        with self._database.maintaining() as cursor:
            self._synced = sync_files(cursor, self._database.lake_root, self._synced)

    async def _note_doubles(self, generation: int) -> None:
        """Have what two collectors rolled up be rolled up again. Before its rows go, so that a kill
        does not forget it."""
        if not self._database.coordination.is_shared:
            return
        found = await asyncio.to_thread(self._doubles, generation)
        if found is not None:
            await self._writer.write(Changes(late=found))

    def _doubles(self, generation: int) -> Any | None:
        with self._database.maintaining() as cursor:
            return doubles(cursor, generation)

    async def _seal(self, generation: int) -> int:
        began_s = self._clock.monotonic()
        rows = await asyncio.to_thread(self._copy, generation)
        seconds = self._clock.monotonic() - began_s
        self._stats.sealed_rows.update(rows)
        self._stats.seal_seconds.observe(seconds)
        log.info(
            "samples moved to the lake",
            extra={"generation": generation, "rows": sum(rows.values()), "s": round(seconds, 1)},
        )
        return sum(rows.values())

    def _copy(self, generation: int) -> dict[str, int]:
        sources = {name: hot_table(name, generation) for name in SEALED_TABLES}
        coordination, collector = self._database.coordination, self._database.collector
        with self._database.maintaining() as cursor:
            if not coordination.is_shared:
                return seal(cursor, collector, generation, sources)
            is_doubtful = has_doubtful(cursor, generation)
            with coordination.sealing(is_exclusive=is_doubtful) as turn:
                self._count_doubles(remove_doubles(cursor, collector, generation))
                return seal(cursor, collector, generation, sources, turn.check)

    def _count_doubles(self, rows: int) -> None:
        if rows:
            self._stats.doubled_rows += rows
            log.info("rows removed that another collector has sealed", extra={"rows": rows})
