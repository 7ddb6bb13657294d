"""Looks every few seconds for devices that were added while the agent runs."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from gpuwarden.lifecycle import until
from gpuwarden_agent.probe import Probe
from gpuwarden_agent.worker import Worker

log = logging.getLogger(__name__)

LOOK_EVERY_S = 3.0
STOP_SEEN_S = 0.5

Rediscovery = Callable[[], Sequence[Probe]]
"""Returns the probes of devices that are new since the last call; may block."""


async def keep_rediscovering(
    stop: asyncio.Event,
    rediscover: Rediscovery,
    take_in: Callable[[Probe], None],
    *,
    every_s: float = LOOK_EVERY_S,
) -> None:
    """Call `rediscover` on its own thread until `stop`, and `take_in` each probe that it returns.

    A call that raises is logged, once for each reason. A call that does not return blocks nothing
    else.
    """
    worker = Worker("rediscover")
    failed: set[str] = set()
    try:
        while not await until(stop, every_s):
            looking = worker.submit(rediscover)
            while not looking.done():
                await asyncio.wait({looking}, timeout=STOP_SEEN_S)
                if stop.is_set():
                    return
            if error := looking.exception():
                reason = f"{type(error).__name__}: {error}"
                if reason not in failed:
                    failed.add(reason)
                    log.error("looking for new devices failed", exc_info=error)
                continue
            for probe in looking.result():
                take_in(probe)
    finally:
        worker.close()
