"""Runs many simulated or replayed agents in one process, each with the real sampler, spool and
shipper.

They share one pool of connections and one thread for the spools. Unlike in a real fleet, their clocks
are exactly the same.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from gpuwarden.clock import Clock, to_ms
from gpuwarden.lifecycle import until
from gpuwarden_agent.counters import Counters, total
from gpuwarden_agent.daemon import FleetShare, close_spool, run
from gpuwarden_agent.probe import Probe
from gpuwarden_agent.queue.spool import Spool, open_spool
from gpuwarden_agent.settings import TIMING, AgentSettings, Timing
from gpuwarden_agent.ship.credentials import Access
from gpuwarden_agent.ship.transport import open_transport
from gpuwarden_agent.worker import Worker

log = logging.getLogger(__name__)

MEMORY_SPOOLS_BYTES_MAX = 512 * 1024**2
"""Total bytes of all spools in memory."""
CONNECTIONS_MAX = 100
BACKFILLS_MAX = 4
"""Nodes that produce their past at the same time; each holds thousands of rows."""
LOOK_EVERY_S = 1.0
MISSED_EVERY_S = 60.0
MISSED_SHARE_MAX = 0.05
"""Share of the ticks that may be missed before the log says so."""


async def run_fleet(
    nodes: Sequence[tuple[str, Probe | Sequence[Probe]]],
    *,
    collector_url: str,
    clock: Clock,
    stop: asyncio.Event,
    duration_s: float | None = None,
    state_dir: Path | None = None,
    history_s: float = 0,
    settings: AgentSettings | None = None,
    timing: Timing = TIMING,
    on_counters: Callable[[Counters], None] = lambda counters: None,
) -> Counters:
    """Run one agent for each (name, its probe or probes) until `stop`, or for `duration_s`. Returns the sum
    of their counters.

    `state_dir`: folder of the nodes' spools, one folder each; None: spools in memory, whose batches are
    lost if the collector does not take them within the stop timeout. `history_s`: seconds of past that
    each node produces first. `settings`: all settings except node and address, which are set here.
    `on_counters`: gets the sum of the counters every second. Raises StartError.
    """
    settings = settings or AgentSettings(backend="simulator")
    backfill_from_ms = to_ms(clock.now()) - round(history_s * 1000) if history_s else None
    running: list[Counters] = []

    async with AsyncExitStack() as stack:
        access = Access(settings.token_file, settings.tls_ca)
        opening = open_transport(collector_url, connections=CONNECTIONS_MAX, access=access)
        transport = await stack.enter_async_context(opening)
        worker = Worker("spools", calls_max=max(64, 8 * len(nodes)))
        stack.callback(worker.close)
        spools = []
        for name, _ in nodes:
            # In the thread, as hundreds of files take seconds and the loop may serve others meanwhile.
            opening_spool = worker.submit(_opened, name, state_dir, settings, clock, len(nodes))
            spools.append(await opening_spool)
            stack.push_async_callback(close_spool, spools[-1], worker)
        fleet = FleetShare(len(nodes), worker, asyncio.Semaphore(BACKFILLS_MAX))
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as watch:
            watch.create_task(_watch(ended, clock, stop, duration_s, running, on_counters))
            async with asyncio.TaskGroup() as agents:
                for (name, probe), spool in zip(nodes, spools, strict=True):
                    agents.create_task(
                        run(
                            replace(settings, node=name, collector_url=(collector_url,)),
                            clock,
                            stop,
                            probes=list(probe) if isinstance(probe, Sequence) else [probe],
                            spool=spool,
                            transports=[transport],
                            fleet=fleet,
                            backfill_from_ms=backfill_from_ms,
                            on_ready=running.append,
                            timing=timing,
                        ),
                        name=f"agent {name}",
                    )
            ended.set()
    return total(running)


async def _watch(
    ended: asyncio.Event,
    clock: Clock,
    stop: asyncio.Event,
    duration_s: float | None,
    running: Sequence[Counters],
    on_counters: Callable[[Counters], None],
) -> None:
    """Stop the fleet when its time is over, and log when the collector is away or ticks are missed."""
    before, counted_at_s = Counters(), clock.monotonic()
    ends_at_s = None if duration_s is None else clock.monotonic() + duration_s
    is_away = False
    while True:
        pause_s = LOOK_EVERY_S
        if ends_at_s is not None and not stop.is_set():
            pause_s = min(pause_s, ends_at_s - clock.monotonic())
        if await until(ended, pause_s):
            return
        if ends_at_s is not None and clock.monotonic() >= ends_at_s:
            stop.set()
        now = total(running)
        on_counters(now)
        if clock.monotonic() - counted_at_s >= MISSED_EVERY_S:
            if (share := missed_share(before, now)) > MISSED_SHARE_MAX:
                log.warning(
                    "simulated nodes miss ticks: this machine is too slow for their number",
                    extra={"missed_percent": round(100 * share), "nodes": len(running)},
                )
            before, counted_at_s = now, clock.monotonic()
        if is_away != bool(now.tries_failed):
            is_away = not is_away
            log.warning(
                "collector takes no batches" if is_away else "collector is back",
                extra={"why": now.last_error, "waiting": now.spool_batches},
            )


def missed_share(before: Counters, now: Counters) -> float:
    """Share of the ticks between two moments that the nodes came too late for."""
    missed = now.ticks_missed - before.ticks_missed
    due = now.ticks - before.ticks + missed
    return missed / due if due else 0.0


def _opened(
    name: str, state_dir: Path | None, settings: AgentSettings, clock: Clock, nodes: int
) -> Spool:
    if state_dir is not None:
        return open_spool(state_dir / name, bytes_max=settings.spool_bytes_max, clock=clock)
    share = min(settings.spool_bytes_max, MEMORY_SPOOLS_BYTES_MAX // max(1, nodes))
    return Spool(None, bytes_max=share, clock=clock)
