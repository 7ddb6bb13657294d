"""Moves what is hot to the lake, generation by generation; may be killed at any point.

`next_step` decides, from what there is; a step that was interrupted is found undone and taken again.
The writer freezes and drops generations between two commits; sealing itself runs on a thread beside
it, so that batches go on being committed.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from gpuwarden.clock import Clock
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.store.database import Database
from gpuwarden_collector.store.errors import RowsRefusedError, StoreUnavailableError
from gpuwarden_collector.store.generations import hot_table
from gpuwarden_collector.store.lake import SEALED_TABLES, seal, sealed_generation
from gpuwarden_collector.writer import Writer, WriterStopped

log = logging.getLogger(__name__)


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
        self._turn = asyncio.Lock()
        self._is_stopping = False
        self._frozen_at_s = clock.monotonic()

    async def run_once(self, *, is_forced: bool = False) -> int:
        """Take all steps that are due; rows that were sealed. `is_forced`: whatever the policy says.

        Raises StoreUnavailableError, RowsRefusedError and WriterStopped: what is not done then is
        done by the next call.
        """
        sealed_rows = 0
        async with self._turn:
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
                        await self._writer.do(lambda: self._database.drop(step.generation))

    async def seal_due(self) -> None:
        """`run_once` for a scheduler: what fails is logged and counted, and tried again."""
        try:
            await self.run_once()
        except (StoreUnavailableError, RowsRefusedError) as error:
            self._stats.seal_failures += 1
            log.error("samples could not be moved to the lake", extra={"reason": str(error)})
        except WriterStopped:
            log.debug("sealing ends with the writer")

    async def stop(self) -> None:
        """End the step that runs: it is undone, and taken again at the next start."""
        self._is_stopping = True
        if self._turn.locked():
            self._database.interrupt_maintenance()
        async with self._turn:
            pass

    async def _next_step(self, *, is_forced: bool) -> Step:
        generations = list(self._database.generations)
        rows = await self._writer.do(lambda: self._database.count_rows(generations[-1]))
        sealed = await asyncio.to_thread(self._sealed)
        policy = Policy(0.0, 0) if is_forced else self._policy
        age_s = self._clock.monotonic() - self._frozen_at_s
        return next_step(generations, sealed, rows=rows, age_s=age_s, policy=policy)

    def _sealed(self) -> int:
        with self._database.maintaining() as cursor:
            return sealed_generation(cursor, self._database.collector)

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
        with self._database.maintaining() as cursor:
            return seal(cursor, self._database.collector, generation, sources)
