"""Puts an agent together: probes, sampler, open batch, flusher, spool, shipper, exporter.

`run` opens the resources, builds the stages in the order in which they need each other, and hands
them to the supervisor.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from gpuwarden import __version__
from gpuwarden.clock import Clock
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.events.recorder import EventRecorder
from gpuwarden_agent.exporter.latest import Latest
from gpuwarden_agent.probe import Probe, Row
from gpuwarden_agent.queue.batch import OpenBatch
from gpuwarden_agent.queue.flusher import Flusher
from gpuwarden_agent.queue.inventory import AgentFacts, Inventory, is_simulated
from gpuwarden_agent.queue.spool import Spool, open_spool
from gpuwarden_agent.reload import CollectorTransports, Reload, keep_reloading
from gpuwarden_agent.run_events import RunEvents
from gpuwarden_agent.sampling.rediscovery import Rediscovery, keep_rediscovering
from gpuwarden_agent.sampling.sampler import Cadence, Sampler
from gpuwarden_agent.settings import TIMING, AgentSettings, Timing
from gpuwarden_agent.ship.shipper import Shipper
from gpuwarden_agent.ship.transport import Transport
from gpuwarden_agent.supervision import Stages, Supervisor
from gpuwarden_agent.worker import Worker

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class FleetShare:
    """What many agents in one process share; each logs at level debug only."""

    nodes: int
    spool_worker: Worker
    backfill_turn: asyncio.Semaphore


async def run(
    settings: AgentSettings,
    clock: Clock,
    stop: asyncio.Event,
    *,
    probes: Sequence[Probe],
    spool: Spool | None = None,
    transports: Sequence[Transport] = (),
    fleet: FleetShare | None = None,
    backfill_from_ms: int | None = None,
    rediscover: Rediscovery | None = None,
    on_ready: Callable[[Counters], None] | None = None,
    reload: Reload | None = None,
    timing: Timing = TIMING,
) -> Counters:
    """Watch one node until `stop`; then seal and send the rest, within `timing.stop_timeout_s`.

    Closes the probes; opens and closes `spool` and `transports` unless they are given. `fleet`: this
    is one of many simulated agents in the process. `backfill_from_ms`: simulated probes first
    produce the past since then, or since the last sealed tick. `rediscover` is called every few
    seconds, on a thread of its own, and returns probes of new devices. `on_ready` gets the counters,
    which stay live, once everything runs. `reload`: when to read the settings again. Raises
    StartError when the spool cannot be opened or an address of a collector is not valid.
    """
    probes = list(probes)
    _check_names(probes)
    async with AsyncExitStack() as stack:
        connections = CollectorTransports()
        stack.push_async_callback(connections.close)
        if not transports:
            transports = await connections.open(settings)
        worker = fleet.spool_worker if fleet else Worker("spool")
        if fleet is None:
            stack.callback(worker.close)
        if spool is None:
            # It takes seconds to check a large spool; the loop may serve others meanwhile.
            spool = await worker.submit(
                open_spool, settings.state_dir, bytes_max=settings.spool_bytes_max, clock=clock
            )
            stack.push_async_callback(close_spool, spool, worker)
        has_page = settings.exporter_listen is not None and fleet is None
        latest = Latest(clock, interval_s=settings.interval_s) if has_page else None
        stages = _stages(settings, timing, clock, probes, spool, worker, transports, latest, fleet)
        if latest is not None:
            # Imported here: the HTTP server costs memory that most agents need not spend.
            from gpuwarden_agent.exporter.server import exporting

            await stack.enter_async_context(exporting(settings, latest, stages.counters, probes))
        is_all_backfilled = backfill_from_ms is not None and is_simulated(probes)
        sampling = partial(
            stages.sampler.run,
            stop,
            backfill_from_ms=backfill_from_ms,
            backfill_turn=fleet.backfill_turn if fleet else None,
            on_first_tick=None if is_all_backfilled else stages.events.first_tick,
        )
        add = partial(_add_probe, settings.node_name, probes, stages)
        rediscovering = partial(keep_rediscovering, stop, rediscover, add) if rediscover else None
        reloading = None
        if reload is not None:
            redirect = stages.shipper.redirect
            reloading = partial(keep_reloading, reload, settings, connections, redirect)
        fleet_nodes = fleet.nodes if fleet else None
        await Supervisor(
            stages, settings, clock, fleet_nodes=fleet_nodes, stop_timeout_s=timing.stop_timeout_s
        ).run(
            stop,
            sampling,
            rediscovering=rediscovering,
            reloading=reloading,
            on_ready=on_ready,
        )
        return stages.counters


def _stages(
    settings: AgentSettings,
    timing: Timing,
    clock: Clock,
    probes: list[Probe],
    spool: Spool,
    worker: Worker,
    transports: Sequence[Transport],
    latest: Latest | None,
    fleet: FleetShare | None,
) -> Stages:
    node, is_quiet = settings.node_name, fleet is not None
    counters = Counters()
    batch = OpenBatch(on_rows=latest.take if latest else None)
    recorder = EventRecorder(
        node,
        clock,
        partial(_write_event, batch, counters),
        simulated=is_simulated(probes),
        is_quiet=is_quiet,
    )
    events = RunEvents(settings, probes, spool, recorder, counters)
    inventory = Inventory(_facts(settings, spool), probes)
    sealed = asyncio.Event()
    flusher = Flusher(
        node,
        spool,
        worker,
        clock=clock,
        counters=counters,
        batch=batch,
        inventory=inventory,
        recorder=recorder,
        sealed=sealed,
    )
    sampler = Sampler(
        node,
        probes,
        Cadence(
            interval_ms=settings.interval_ms,
            batch_ms=settings.batch_ms,
            deadline_s=timing.probe_deadline_s,
        ),
        clock=clock,
        counters=counters,
        batch=batch,
        inventory=inventory,
        recorder=recorder,
        flusher=flusher,
        last_ts_ms=spool.last_run.last_ts_ms,
    )
    shipper = Shipper(
        spool,
        worker,
        transports,
        clock=clock,
        counters=counters,
        sealed=sealed,
        on_refused=events.batch_refused,
        on_batch_seconds=sampler.batch_at_least,
        request_timeout_s=timing.request_timeout_s,
        backoff_max_s=timing.backoff_max_s,
        is_quiet=is_quiet,
    )
    return Stages(sampler, batch, flusher, spool, shipper, events, counters)


def _write_event(batch: OpenBatch, counters: Counters, row: Row) -> None:
    counters.rows["events"] += 1
    counters.rows_dropped += batch.add("events", row)
    batch.seal_requested.set()


def _add_probe(node: str, probes: list[Probe], stages: Stages, probe: Probe) -> None:
    """Read a probe that came while the agent runs."""
    probes.append(probe)
    _check_names(probes)
    stages.sampler.add(probe)
    log.info("new source", extra={"node": node, "probe": probe.name})
    stages.events.probe_added(probe)


def _facts(settings: AgentSettings, spool: Spool) -> AgentFacts:
    return AgentFacts(
        node=settings.node_name,
        agent_id=spool.agent_id,
        boot_id=spool.boot_id,
        agent_version=__version__,
        labels=settings.labels,
    )


def _check_names(probes: Sequence[Probe]) -> None:
    names = [probe.name for probe in probes]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"probes share a name: {sorted(twice)}"


async def close_spool(spool: Spool, worker: Worker) -> None:
    """Close the spool after the calls that run; a call that a dead disk holds is left behind."""
    done, _ = await asyncio.wait({worker.submit(spool.close)}, timeout=CLOSE_TIMEOUT_S)
    if not done:
        log.warning("spool did not close", extra={"after_s": CLOSE_TIMEOUT_S})
