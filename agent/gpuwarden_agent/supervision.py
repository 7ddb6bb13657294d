"""Runs the stages of an agent, watches them, and stops them in order.

Sources run inside, the shipper outside: when the sources have stopped, the remaining rows are
sealed, the shipper gets `stop_timeout_s` to send them, and the rest stays in the spool for the next
start. A disk that hangs delays the stop by a few seconds, never for ever.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from gpuwarden.clock import Clock
from gpuwarden.lifecycle import feed_watchdog, notify, until
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.queue.batch import OpenBatch
from gpuwarden_agent.queue.flusher import Flusher
from gpuwarden_agent.queue.spool import Spool
from gpuwarden_agent.run_events import RunEvents
from gpuwarden_agent.sampling.sampler import Sampler
from gpuwarden_agent.settings import AgentSettings
from gpuwarden_agent.ship.shipper import Shipper

log = logging.getLogger(__name__)

COUNTERS_LOGGED_EVERY_S = 3600.0
COUNTERS_REFRESHED_EVERY_S = 1.0
ALIVE_WITHIN_S = 15.0
SEAL_TIMEOUT_S = 2.0
"""How long the disk may take for a batch once the agent is to stop."""
SEAL_TIMEOUT_PER_NODE_S = 0.1
"""How much longer for each node of a fleet: their last batches come at once, and one thread stores them."""

Job = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of one agent, in the order in which rows pass them."""

    sampler: Sampler
    batch: OpenBatch
    flusher: Flusher
    spool: Spool
    shipper: Shipper
    events: RunEvents
    counters: Counters


class Supervisor:
    """Runs the stages of one agent."""

    def __init__(
        self,
        stages: Stages,
        settings: AgentSettings,
        clock: Clock,
        *,
        fleet_nodes: int | None,
        stop_timeout_s: float,
    ) -> None:
        """`fleet_nodes`: how many agents the process has, if several; these are silent towards log and systemd."""
        self._stages = stages
        self._settings = settings
        self._stop_timeout_s = stop_timeout_s
        self._clock = clock
        self._is_in_fleet = fleet_nodes is not None
        self._seal_timeout_s = SEAL_TIMEOUT_S + SEAL_TIMEOUT_PER_NODE_S * (fleet_nodes or 0)
        self._node = settings.node_name

    async def run(
        self,
        stop: asyncio.Event,
        sampling: Job,
        *,
        rediscovering: Job | None,
        reloading: Job | None,
        on_ready: Callable[[Counters], None] | None,
    ) -> None:
        """Run until `stop`; then seal, and send what the collector takes within `stop_timeout_s`."""
        stages, began_s = self._stages, self._clock.monotonic()
        stages.events.started()
        async with asyncio.TaskGroup() as outer:
            until_drained = [outer.create_task(stages.shipper.run(), name="ship")]
            if reloading is not None:
                until_drained.append(outer.create_task(reloading(), name="reload"))
            async with asyncio.TaskGroup() as sources:
                sources.create_task(sampling(), name="sample")
                sealing = sources.create_task(stages.flusher.run(stop), name="seal")
                sources.create_task(
                    _end_in_time(stop, sealing, self._seal_timeout_s), name="end of sealing"
                )
                sources.create_task(self._count(stop), name="count")
                if rediscovering is not None:
                    sources.create_task(rediscovering(), name="rediscover")
                if not self._is_in_fleet:
                    sources.create_task(feed_watchdog(stop, self._is_alive), name="watchdog")
                    notify("READY=1")
                if on_ready is not None:
                    on_ready(stages.counters)
            if not self._is_in_fleet:
                notify("STOPPING=1")
            stages.events.stopped(self._clock.monotonic() - began_s)
            await self._seal_rest()
            await self._drain()
            for task in until_drained:
                task.cancel()
        self._refresh()

    async def _seal_rest(self) -> None:
        flusher, batch = self._stages.flusher, self._stages.batch
        try:
            async with asyncio.timeout(self._seal_timeout_s):
                await flusher.seal(is_last=True)
                if batch.count and not flusher.is_failing:
                    await flusher.seal(is_last=True)  # the event of batches that the first dropped
        except TimeoutError:
            log.error(
                "the disk of the spool does not answer; the last rows may be lost",
                extra={"node": self._node, "after_s": self._seal_timeout_s},
            )
        if batch.count:
            self._stages.counters.rows_dropped += batch.count
            log.error(
                "the spool took no last batch; its rows are lost",
                extra={"node": self._node, "rows": batch.count},
            )

    async def _drain(self) -> None:
        is_drained = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._stop_timeout_s):
                is_drained = await self._stages.shipper.drain()
        self._refresh()
        if self._is_in_fleet:
            return
        self._log_counters()
        if not is_drained:
            log.warning(
                "stopped before the collector had everything; the rest waits in the spool",
                extra={"node": self._node, "batches_waiting": self._stages.spool.count},
            )

    async def _count(self, stop: asyncio.Event) -> None:
        logged_at_s = self._clock.monotonic()
        while not await until(stop, COUNTERS_REFRESHED_EVERY_S):
            self._refresh()
            now_s = self._clock.monotonic()
            if now_s - logged_at_s >= COUNTERS_LOGGED_EVERY_S:
                logged_at_s = now_s
                self._log_counters()

    def _log_counters(self) -> None:
        log.info("counters", extra={"node": self._node, **self._stages.counters.log_fields()})

    def _refresh(self) -> None:
        self._stages.counters.spool_batches = self._stages.spool.count
        self._stages.counters.spool_bytes = self._stages.spool.size_bytes

    def _is_alive(self) -> bool:
        slack_s = max(ALIVE_WITHIN_S, 3 * self._settings.interval_s)
        return self._clock.monotonic() - self._stages.sampler.progress_at_s < slack_s


async def _end_in_time(stop: asyncio.Event, sealing: asyncio.Task[None], timeout_s: float) -> None:
    """Cancel the sealing when the disk hangs; the next start shows whether its batch was stored."""
    await stop.wait()
    await asyncio.wait({sealing}, timeout=timeout_s)
    if not sealing.done():
        log.error("the disk of the spool does not answer", extra={"after_s": timeout_s})
        sealing.cancel()
