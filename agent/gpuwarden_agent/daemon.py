"""Runs the agent as one coroutine: probes, sampler, flusher, spool and shipper.

Sources run inside, the shipper outside: when the sources have stopped, what is left is sealed, the
shipper gets a bounded time to send it, and the rest stays in the spool for the next start.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpuwarden import __version__
from gpuwarden.clock import Clock
from gpuwarden.lifecycle import feed_watchdog, notify, until
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.events.kinds import span
from gpuwarden_agent.events.recorder import EventRecorder
from gpuwarden_agent.exporter.latest import Latest
from gpuwarden_agent.probe import Probe, Row
from gpuwarden_agent.queue.batch import OpenBatch
from gpuwarden_agent.queue.flusher import Flusher
from gpuwarden_agent.queue.inventory import AgentFacts, Inventory, backend_of, is_simulated
from gpuwarden_agent.queue.spool import LastRun, Spool, open_spool
from gpuwarden_agent.reload import Reload, Use, Way, keep_reloading
from gpuwarden_agent.sampling.rediscovery import Rediscovery, keep_rediscovering
from gpuwarden_agent.sampling.sampler import Cadence, Sampler
from gpuwarden_agent.settings import AgentSettings
from gpuwarden_agent.ship.shipper import Shipper
from gpuwarden_agent.ship.transport import Transport
from gpuwarden_agent.worker import Worker

log = logging.getLogger(__name__)

COUNTERS_LOGGED_EVERY_S = 3600.0
COUNTERS_REFRESHED_EVERY_S = 1.0
REFUSED_REPORTED_EVERY_S = 60.0
ALIVE_WITHIN_S = 15.0
CLOSE_TIMEOUT_S = 5.0
SEAL_TIMEOUT_S = 2.0
"""What a disk may take for a batch once the agent is to stop."""


@dataclass(frozen=True, slots=True)
class FleetShare:
    """What many agents in one process have in common; each is quiet in the log."""

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
) -> Counters:
    """Watch one node until `stop`; then seal and send what is there, within `stop_timeout_s`.

    Closes the probes; opens and closes `spool` and `transports` unless they are given. `fleet`: this is
    one of many simulated agents in the process. `backfill_from_ms`: simulated probes first produce
    the past since then, or since the last sealed tick. `rediscover` is called every few seconds, on
    a thread of its own, for probes of devices that came meanwhile. `on_ready` gets the counters,
    which stay live, once everything runs. `reload`: when settings are read anew. Raises StartError when the spool cannot be opened or the collector's address is no address.
    """
    _check_probes(probes)
    async with AsyncExitStack() as stack:
        way = Way(clock)
        stack.push_async_callback(way.close)
        if not transports:
            transports = await way.begin(settings)
        worker = fleet.spool_worker if fleet else Worker("spool")
        if fleet is None:
            stack.callback(worker.close)
        if spool is None:
            # A large spool takes seconds to check, in which the loop may have others to serve.
            spool = await worker.submit(
                open_spool, settings.state_dir, bytes_max=settings.spool_bytes_max, clock=clock
            )
            stack.push_async_callback(close_spool, spool, worker)
        agent = _Agent(settings, clock, probes, spool, worker, transports, fleet, rediscover)
        if agent.latest is not None:
            await stack.enter_async_context(
                _exporting(settings, agent.latest, agent.counters, agent.probes)
            )
        reloading = None if reload is None else partial(keep_reloading, reload, settings, way)
        await agent.run(
            stop, backfill_from_ms=backfill_from_ms, on_ready=on_ready, reloading=reloading
        )
        return agent.counters


@asynccontextmanager
async def _exporting(
    settings: AgentSettings, latest: Latest, counters: Counters, probes: Sequence[Probe]
) -> AsyncIterator[None]:
    # Imported where it is used: an HTTP server costs memory that most agents need not spend.
    from gpuwarden_agent.exporter.names import check_name_sets
    from gpuwarden_agent.exporter.page import metrics_page
    from gpuwarden_agent.exporter.server import serving

    check_name_sets(settings.exporter_names)

    def page() -> str:
        names, xid_probes = settings.exporter_names, _xid_probes(probes)
        return metrics_page(settings.node_name, latest, counters, names, xid_probes=xid_probes)

    async with serving(settings.exporter_host, settings.exporter_port or 0, page) as url:
        log.info("exporter listens", extra={"url": url})
        yield


def _xid_probes(probes: Sequence[Probe]) -> list[str]:
    """Probes that would tell of an Xid: those of a node's events; a simulator knows its GPUs."""
    return [p.name for p in probes if p.simulated or (p.gpu_uuid is None and "events" in p.tables)]


class _Agent:
    """The parts of one agent, wired."""

    def __init__(
        self,
        settings: AgentSettings,
        clock: Clock,
        probes: Sequence[Probe],
        spool: Spool,
        worker: Worker,
        transports: Sequence[Transport],
        fleet: FleetShare | None,
        rediscover: Rediscovery | None,
    ) -> None:
        node = settings.node_name
        self.counters = Counters()
        self._settings, self._clock, self._probes = settings, clock, list(probes)
        self._rediscover = rediscover
        self._spool = spool
        self._last_run: LastRun = spool.last_run
        self._set_aside = spool.set_aside
        self._node = node
        self._fleet = fleet
        has_page = settings.exporter_port is not None and fleet is None
        self.latest = Latest(clock, interval_s=settings.interval_s) if has_page else None
        self._batch = OpenBatch(on_rows=self.latest.take if self.latest else None)
        self._recorder = EventRecorder(
            node,
            clock,
            self._write_event,
            simulated=is_simulated(probes),
            is_quiet=fleet is not None,
        )
        inventory = Inventory(_facts(settings, spool), self._probes)
        sealed = asyncio.Event()
        self._flusher = Flusher(
            node,
            spool,
            worker,
            clock=clock,
            counters=self.counters,
            batch=self._batch,
            inventory=inventory,
            recorder=self._recorder,
            sealed=sealed,
        )
        self._sampler = Sampler(
            node,
            probes,
            _cadence(settings),
            clock=clock,
            counters=self.counters,
            batch=self._batch,
            inventory=inventory,
            recorder=self._recorder,
            flusher=self._flusher,
            last_ts_ms=spool.last_run.last_ts_ms,
        )
        self._shipper = Shipper(
            spool,
            worker,
            transports,
            clock=clock,
            counters=self.counters,
            sealed=sealed,
            on_refused=self._refused,
            on_batch_seconds=self._sampler.batch_at_least,
            request_timeout_s=settings.request_timeout_s,
            backoff_max_s=settings.backoff_max_s,
            is_quiet=fleet is not None,
        )

    @property
    def probes(self) -> Sequence[Probe]:
        """Its sources; more may come."""
        return self._probes

    async def run(
        self,
        stop: asyncio.Event,
        *,
        backfill_from_ms: int | None,
        on_ready: Callable[[Counters], None] | None,
        reloading: Callable[[Use], Coroutine[Any, Any, None]] | None,
    ) -> None:
        began_s = self._clock.monotonic()
        self._record_start()
        is_all_backfilled = backfill_from_ms is not None and is_simulated(self._probes)
        async with asyncio.TaskGroup() as parts:
            shipping = parts.create_task(self._shipper.run(), name="ship")
            others = [shipping]
            if reloading is not None:
                others.append(parts.create_task(reloading(self._shipper.redirect), name="reload"))
            async with asyncio.TaskGroup() as sources:
                sources.create_task(
                    self._sampler.run(
                        stop,
                        backfill_from_ms=backfill_from_ms,
                        backfill_turn=self._fleet.backfill_turn if self._fleet else None,
                        on_first_tick=None if is_all_backfilled else self._record_gap,
                    ),
                    name="sample",
                )
                sealing = sources.create_task(self._flusher.run(stop), name="seal")
                sources.create_task(_end_in_time(stop, sealing), name="end of sealing")
                sources.create_task(self._count(stop), name="count")
                if self._rediscover is not None:
                    sources.create_task(
                        keep_rediscovering(stop, self._rediscover, self._take_in), name="look again"
                    )
                if self._fleet is None:
                    sources.create_task(feed_watchdog(stop, self._is_alive), name="watchdog")
                    notify("READY=1")
                if on_ready is not None:
                    on_ready(self.counters)
            if self._fleet is None:
                notify("STOPPING=1")
            await self._leave(self._clock.monotonic() - began_s)
            for task in others:
                task.cancel()
        self._refresh()

    async def _leave(self, ran_s: float) -> None:
        self._recorder.flush(is_last=True)
        self._recorder.record(
            "agent_stopped", f"the agent stopped after {span(ran_s)}", duration_seconds=ran_s
        )
        try:
            async with asyncio.timeout(SEAL_TIMEOUT_S):
                await self._flusher.seal(is_last=True)
                if self._batch.count and not self._flusher.is_failing:
                    await self._flusher.seal(is_last=True)  # the event that the first had to drop
        except TimeoutError:
            log.error(
                "the disk of the spool does not answer; the last rows may be lost",
                extra={"node": self._node, "after_s": SEAL_TIMEOUT_S},
            )
        if self._batch.count:
            self.counters.rows_dropped += self._batch.count
            log.error(
                "the spool took no last batch; its rows are lost",
                extra={"node": self._node, "rows": self._batch.count},
            )
        is_drained = False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.stop_timeout_s):
                is_drained = await self._shipper.drain()
        self._refresh()
        if self._fleet is None:
            self._log_counters()
        if not is_drained and self._fleet is None:
            log.warning(
                "stopped before the collector had everything; the rest waits in the spool",
                extra={"node": self._node, "batches_waiting": self._spool.count},
            )

    def _record_start(self) -> None:
        names = ", ".join(probe.name for probe in self._probes) or "none"
        self._recorder.record(
            "agent_started",
            f"the agent {__version__} started; probes: {names}",
            details={
                "backend": backend_of(self._probes),
                "interval_s": self._settings.interval_s,
                "probes": [probe.name for probe in self._probes],
                "version": __version__,
            },
        )
        if self._set_aside is not None:
            self._recorder.record(
                "spool_set_aside",
                f"the spool could not be read; it is kept as {self._set_aside.name} and a new one"
                " was begun: batches in it were not sent",
            )

    def _record_gap(self, first_ts_ms: int) -> None:
        last_ts_ms, interval_ms = self._last_run.last_ts_ms, self._settings.interval_ms
        if last_ts_ms is None or first_ts_ms - last_ts_ms <= 2 * interval_ms:
            return
        seconds = (first_ts_ms - last_ts_ms) / 1000
        severity, why = _gap_reason(self._last_run)
        self._recorder.record(
            "agent_gap",
            f"no samples for {span(seconds)}: the agent was not running ({why})",
            severity=severity,
            duration_seconds=seconds,
            details={
                "last_ts_ms": last_ts_ms,
                "first_ts_ms": first_ts_ms,
                "rebooted": not self._last_run.same_boot,
            },
        )

    def _write_event(self, row: Row) -> None:
        lost = self._batch.add("events", row)
        self.counters.rows["events"] += 1
        self.counters.rows_dropped += lost
        self._flusher.seal_soon()

    def _refused(self, reason: str) -> None:
        def write(number: int) -> None:
            self._recorder.record(
                "batches_refused",
                f"the collector refused {number} batches, the last one with {reason};"
                " `gpuwarden agent refused` lists them and sends them again",
                details={"batches": number, "deleted": self.counters.refused_dropped},
            )

        self._recorder.count("refused", 1, every_s=REFUSED_REPORTED_EVERY_S, write=write)

    def _take_in(self, probe: Probe) -> None:
        self._probes.append(probe)
        _check_probes(self._probes)
        self._sampler.add(probe)
        log.info("new source", extra={"node": self._node, "probe": probe.name})
        if "gpu_samples" in probe.tables:
            self._recorder.record(
                "gpu_appeared",
                f"{probe.name} is there now and is watched",
                gpu_uuid=probe.gpu_uuid,
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
        log.info("counters", extra={"node": self._node, **self.counters.log_fields()})

    def _refresh(self) -> None:
        self.counters.spool_batches = self._spool.count
        self.counters.spool_bytes = self._spool.size_bytes

    def _is_alive(self) -> bool:
        slack_s = max(ALIVE_WITHIN_S, 3 * self._settings.interval_s)
        return self._clock.monotonic() - self._sampler.progress_at_s < slack_s


async def close_spool(spool: Spool, worker: Worker) -> None:
    """Close the spool after the calls that run; one that a dead disk holds is left behind."""
    done, _ = await asyncio.wait({worker.submit(spool.close)}, timeout=CLOSE_TIMEOUT_S)
    if not done:
        log.warning("spool did not close", extra={"after_s": CLOSE_TIMEOUT_S})


async def _end_in_time(stop: asyncio.Event, sealing: asyncio.Task[None]) -> None:
    """A disk that hangs must not keep the agent from stopping; what becomes of a batch that it
    holds only the next start will see."""
    await stop.wait()
    await asyncio.wait({sealing}, timeout=SEAL_TIMEOUT_S)
    if not sealing.done():
        log.error("the disk of the spool does not answer", extra={"after_s": SEAL_TIMEOUT_S})
        sealing.cancel()


def _facts(settings: AgentSettings, spool: Spool) -> AgentFacts:
    return AgentFacts(
        node=settings.node_name,
        agent_id=spool.agent_id,
        boot_id=spool.boot_id,
        agent_version=__version__,
        labels=settings.labels,
    )


def _cadence(settings: AgentSettings) -> Cadence:
    return Cadence(
        interval_ms=settings.interval_ms,
        batch_ms=settings.batch_ms,
        deadline_s=settings.probe_deadline_s,
    )


def _gap_reason(last_run: LastRun) -> tuple[str, str]:
    if last_run.stopped_cleanly:
        return "info", "it had been stopped"
    if not last_run.same_boot:
        return "warning", "the machine restarted without stopping it"
    return "warning", "it was killed or crashed"


def _check_probes(probes: Sequence[Probe]) -> None:
    names = [probe.name for probe in probes]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, f"probes share a name: {sorted(twice)}"
