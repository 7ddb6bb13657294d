"""A shipper between a spool and real servers."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from gpuwarden.clock import SystemClock
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.queue.encode import encode
from gpuwarden_agent.queue.spool import Spool
from gpuwarden_agent.ship.shipper import Shipper
from gpuwarden_agent.ship.transport import Transport, open_transport
from gpuwarden_agent.worker import Worker


class Rig:
    """The shipper and what it was given; the spool is one in memory unless a test has its own."""

    def __init__(
        self, transports: list[Transport], spool: Spool | None = None, **more: Any
    ) -> None:
        self.spool = spool or Spool(None, bytes_max=10**9, clock=SystemClock(), boot="boot-1")
        self.counters, self.sealed, self.refused = Counters(), asyncio.Event(), list[str]()
        self.sealed.set()
        self.shipper = Shipper(
            self.spool,
            Worker("spool"),
            transports,
            clock=SystemClock(),
            counters=self.counters,
            sealed=self.sealed,
            on_refused=self.refused.append,
            rng=random.Random(1),
            **{"request_timeout_s": 5.0, "backoff_max_s": 0.2} | more,
        )

    def is_done(self) -> bool:
        return self.spool.count == 0 and not self.shipper._in_flight

    def put(self, number: int = 1) -> None:
        for _ in range(number):
            row = {"ts": self.spool.count + 1, "node": "n", "simulated": False}
            self.spool.put(encode({"host_samples": [row]}), 1)
        self.sealed.set()


@asynccontextmanager
async def shipping(*urls: str, **more: Any) -> AsyncIterator[Rig]:
    """A shipper that runs, to collectors at these addresses."""
    async with AsyncExitStack() as opened, asyncio.TaskGroup() as group:
        transports = [await opened.enter_async_context(open_transport(url)) for url in urls]
        rig = Rig(transports, **more)
        task = group.create_task(rig.shipper.run())
        yield rig
        task.cancel()
