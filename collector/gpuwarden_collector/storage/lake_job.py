"""The part that all jobs share that write the lake: they take turns, and a stop interrupts the step that runs."""

import asyncio

from gpuwarden.clock import Clock
from gpuwarden_collector.storage.database import Store
from gpuwarden_collector.storage.stats import StorageStats


class LakeJob:
    """Writes the lake in steps. An interrupted step changes nothing; the next start repeats it."""

    def __init__(self, store: Store, stats: StorageStats, clock: Clock, turn: asyncio.Lock) -> None:
        """`turn`: held while the lake is written."""
        self._store = store
        self._stats = stats
        self._clock = clock
        self.turn = turn
        self._is_stopping = False

    async def stop(self) -> None:
        """Interrupt the step that runs, and begin no other."""
        self._is_stopping = True
        if self.turn.locked():
            self._store.interrupt_maintenance()
        async with self.turn:
            pass
