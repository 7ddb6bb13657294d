"""Admits what senders store: every endpoint of scope ingest passes here, and nothing of theirs reaches the store another way.

Each sender has a quota (`quota.py`). Rows become a batch, which the writer checks against the owners of nodes and GPUs
(`commit_plan.py`). Call it on the event loop only.
"""

from collections.abc import Callable, Iterable
from typing import Any

from gpuwarden.gpu_test import GPU_TESTS
from gpuwarden.wire import BatchId
from gpuwarden_collector.ingest.commit_plan import Batch, Outcome, RetryLater, Stored
from gpuwarden_collector.ingest.decode import Decoded
from gpuwarden_collector.ingest.quota import SenderQuota
from gpuwarden_collector.ingest.writer import QueueFull, Writer
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.commit import WriterStopped
from gpuwarden_collector.storage.disk import NO_ROOM_RETRY_AFTER_S

_STOPPED_RETRY_AFTER_S = 5

Charge = tuple[str, int]
"""An agent, and the size of its rows in memory."""


class Admission:
    """Admits rows of senders; a collector has one instance."""

    def __init__(
        self, writer: Writer, quota: SenderQuota, stats: Stats, no_room: Callable[[], str | None]
    ) -> None:
        """`no_room`: why the disk has no room, or None."""
        self._writer = writer
        self._quota = quota
        self._stats = stats
        self._no_room = no_room

    def no_room(self) -> RetryLater | None:
        """Why nothing can be stored now; None: the disk has room."""
        reason = self._no_room()
        return None if reason is None else RetryLater(reason, NO_ROOM_RETRY_AFTER_S)

    def charge(self, sender: str, charges: Iterable[Charge]) -> RetryLater | None:
        """Charge the sender's quota, all charges or none; returns why it is refused."""
        taken: list[Charge] = []
        for charge in charges:
            if over := self._quota.take(sender, *charge):
                self.give_back(sender, taken)
                self._stats.over_quota_batches += 1
                return RetryLater(*over, 429)
            taken.append(charge)
        return None

    def give_back(self, sender: str, charges: Iterable[Charge]) -> None:
        """Take back charges of what is not stored."""
        for charge in charges:
            self._quota.give_back(sender, *charge)

    async def store(self, batch: Batch) -> Outcome:
        """Charge the sender of a batch and store it; `Stored`: it is durable."""
        charges = [(batch.id.agent_id, batch.decoded.memory_bytes)]
        if refused := self.no_room() or self.charge(batch.sender, charges):
            return refused
        outcome = await self.deliver(batch)
        if not isinstance(outcome, Stored):
            self.give_back(batch.sender, charges)
        return outcome

    async def deliver(self, batch: Batch) -> Outcome:
        """Store a batch whose sender was charged when its rows were received."""
        try:
            return await self._writer.store(batch)
        except QueueFull as error:
            return RetryLater(f"the queue is full: {error}", 1, 429)
        except WriterStopped as error:
            return RetryLater(str(error), _STOPPED_RETRY_AFTER_S)


def gpu_test_batch(rows: Any, node: str, run: str, sender: str, body_bytes: int | None) -> Batch:
    """The batch of a run's rows of `gpu_tests`: a run that is sent again is stored once."""
    decoded = Decoded.of({GPU_TESTS.name: rows}, rows.nbytes)
    return Batch(BatchId(f"gpu-tests {node}", run, 1), decoded, body_bytes or 0, sender)
