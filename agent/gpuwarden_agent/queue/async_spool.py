"""Calls the spool on a worker's thread, for the event loop."""

import asyncio
import logging
from collections.abc import Collection

from gpuwarden_agent.queue.spool import Put, SealedBatch, Spool
from gpuwarden_agent.worker import Worker

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0


class AsyncSpool:
    """A spool whose calls do not block the loop. Several spools may share one worker."""

    def __init__(self, spool: Spool, worker: Worker) -> None:
        self._spool = spool
        self._worker = worker

    @property
    def agent_id(self) -> str:
        """Identity of the agent's installation."""
        return self._spool.agent_id

    @property
    def boot_id(self) -> str:
        """The boot id that batches sealed now carry."""
        return self._spool.boot_id

    @property
    def last_sequence(self) -> int:
        """See Spool.last_sequence."""
        return self._spool.last_sequence

    @property
    def count(self) -> int:
        """Batches that wait."""
        return self._spool.count

    @property
    def size_bytes(self) -> int:
        """Bytes of the bodies that wait."""
        return self._spool.size_bytes

    @property
    def bytes_max(self) -> int:
        """Bytes that may wait."""
        return self._spool.bytes_max

    async def put(
        self, body: bytes, rows: int, *, last_ts_ms: int | None, is_last: bool = False
    ) -> Put:
        """See Spool.put."""
        return await self._worker.submit(
            self._spool.put, body, rows, last_ts_ms=last_ts_ms, is_last=is_last
        )

    async def oldest(self, skip: Collection[int]) -> SealedBatch | None:
        """The oldest batch that is not in `skip`."""
        found = await self._worker.submit(self._spool.oldest, 1, skip=tuple(skip))
        return found[0] if found else None

    async def newest(self, skip: Collection[int]) -> SealedBatch | None:
        """The newest batch that is not in `skip`."""
        found = await self._worker.submit(self._spool.newest, 1, skip=tuple(skip))
        return found[0] if found else None

    async def acknowledge(self, sequence: int) -> bool:
        """See Spool.acknowledge."""
        return await self._worker.submit(self._spool.acknowledge, sequence)

    async def refuse(self, sequence: int, reason: str) -> bool:
        """See Spool.refuse."""
        return await self._worker.submit(self._spool.refuse, sequence, reason)

    async def close(self) -> None:
        """Close the spool after the calls that run; one that a dead disk holds is left behind."""
        closing = self._worker.submit(self._spool.close)
        done, _ = await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT_S)
        if not done:
            log.warning("spool did not close", extra={"after_s": CLOSE_TIMEOUT_S})
