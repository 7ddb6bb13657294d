"""Reads the probes at the ticks of the wall clock and adds their samples to the open batch."""

import asyncio
import contextlib
import logging
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuwarden.clock import Clock, to_ms
from gpuwarden.lifecycle import until
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.events.changes import NOTHING, observe
from gpuwarden_agent.events.kinds import span
from gpuwarden_agent.events.recorder import EventRecorder
from gpuwarden_agent.probe import Probe, Reading, Row, Value
from gpuwarden_agent.queue.batch import OpenBatch
from gpuwarden_agent.queue.flusher import Flusher
from gpuwarden_agent.queue.inventory import Inventory
from gpuwarden_agent.queue.rows import impossible_columns
from gpuwarden_agent.sampling.health import HealthEvent
from gpuwarden_agent.sampling.runner import ProbeRunner, wait_for_readings
from gpuwarden_agent.sampling.schedule import Schedule, TickPlan, next_tick, wait_s

log = logging.getLogger(__name__)

MINUTE_MS = 60_000
BACKFILL_CHUNK_TICKS = 20
BACKFILL_BATCH_TICKS = 300
BACKFILL_BATCH_ROWS = 5_000
MISSED_EVERY_S = 60.0
IMPOSSIBLE_EVERY_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """The sampler's times."""

    interval_ms: int
    batch_ms: int
    deadline_s: float


class Sampler:
    """Reads the probes of one node. `run` is the loop; `schedule.py` has its decisions."""

    def __init__(
        self,
        node: str,
        probes: Sequence[Probe],
        cadence: Cadence,
        *,
        clock: Clock,
        counters: Counters,
        batch: OpenBatch,
        inventory: Inventory,
        recorder: EventRecorder,
        flusher: Flusher,
        last_ts_ms: int | None,
    ) -> None:
        self._node = node
        self._cadence = cadence
        self._clock = clock
        self._counters = counters
        self._batch = batch
        self._inventory = inventory
        self._recorder = recorder
        self._flusher = flusher
        self._schedule = Schedule(cadence.interval_ms, last_ts_ms)
        # Spreads the batches of a fleet over the seconds.
        self._phase = zlib.crc32(node.encode()) / 2**32
        self._batch_ms = cadence.batch_ms
        self._window: int | None = None
        self._seen = NOTHING
        self._runners = [self._runner(probe) for probe in probes]
        self._serving: list[asyncio.Task[None]] = []
        self._group: asyncio.TaskGroup | None = None
        self.progress_at_s = clock.monotonic()
        """Monotonic time of the last tick, for the watchdog."""

    def add(self, probe: Probe) -> None:
        """Read one more probe from the next tick on. Only while `run` runs."""
        assert self._group is not None, "nothing runs"
        runner = self._runner(probe)
        self._runners.append(runner)
        self._serve(runner, self._group)

    def batch_at_least(self, seconds: int) -> None:
        """Seal batches of at least so many seconds of samples; 0: as the settings say. Events are still
        sealed at once."""
        batch_ms = max(self._cadence.batch_ms, seconds * 1000)
        if batch_ms != self._batch_ms:
            extra = {"node": self._node, "batch_s": batch_ms / 1000}
            log.debug("the collector asks for batches of another length", extra=extra)
            self._batch_ms, self._window = batch_ms, None

    def _runner(self, probe: Probe) -> ProbeRunner:
        return ProbeRunner(
            probe,
            deadline_s=self._cadence.deadline_s,
            interval_ms=self._cadence.interval_ms,
            clock=self._clock,
            counters=self._counters,
            accept=self._accept,
            describe=self._describe,
            report=self._report_health,
        )

    def _serve(self, runner: ProbeRunner, group: asyncio.TaskGroup) -> None:
        if runner.probe.blocking:
            name = f"probe {runner.probe.name}"
            self._serving.append(group.create_task(runner.run(), name=name))

    async def run(
        self,
        stop: asyncio.Event,
        *,
        backfill_from_ms: int | None = None,
        backfill_turn: asyncio.Semaphore | None = None,
        on_first_tick: Callable[[int], None] | None = None,
    ) -> None:
        """Tick until `stop`. Simulated probes first produce the past since `backfill_from_ms`;
        `backfill_turn` limits how many nodes of one process do so at the same time.
        """
        try:
            async with asyncio.TaskGroup() as self._group:
                for runner in self._runners:
                    self._serve(runner, self._group)
                if backfill_from_ms is not None:
                    async with backfill_turn or contextlib.nullcontext():
                        await self._backfill(stop, backfill_from_ms)
                else:
                    await self._next_boundary(stop)  # a first tick within a second would be late
                await self._live(stop, on_first_tick)
                if self._batch.last_ts_ms is not None:
                    self._report_coverage(self._batch.last_ts_ms + self._cadence.interval_ms)
                self._group = None
                for task in self._serving:
                    task.cancel()
        finally:
            self._group = None
            self._flusher.seal_soon()  # also wakes the flusher, which then sees `stop`
            for runner in self._runners:
                await runner.close()

    async def _live(self, stop: asyncio.Event, on_first_tick: Callable[[int], None] | None) -> None:
        while not stop.is_set():
            wall_ms = to_ms(self._clock.now())
            self._schedule, plan = next_tick(self._schedule, wall_ms, self._clock.monotonic())
            self._report(plan)
            self.progress_at_s = self._clock.monotonic()
            if plan.ts_ms is not None:
                self._counters.tick_delays.add((wall_ms - plan.ts_ms) / 1000)
                if on_first_tick is not None:
                    on_first_tick(plan.ts_ms)
                    on_first_tick = None
                await self._tick(plan.ts_ms, plan.missed)
            await self._next_boundary(stop)

    async def _next_boundary(self, stop: asyncio.Event) -> None:
        await until(stop, wait_s(self._cadence.interval_ms, to_ms(self._clock.now())))

    async def _tick(self, ts_ms: int, missed: int = 0) -> None:
        self._read(ts_ms, self._runners, missed)
        left_s = wait_s(self._cadence.interval_ms, to_ms(self._clock.now()))
        if not await wait_for_readings(self._runners, left_s):
            log.debug("tick continues without a slow probe", extra={"node": self._node})
        self._recorder.flush()
        if self._ends_window(ts_ms):
            self._flusher.seal_soon()

    async def _backfill(self, stop: asyncio.Event, from_ms: int) -> None:
        """Produce past ticks as fast as the spool stores them, up to the present."""
        runners = [r for r in self._runners if r.probe.simulated and not r.probe.blocking]
        interval_ms, last = self._cadence.interval_ms, self._schedule.last_ts_ms
        ts_ms = from_ms // interval_ms * interval_ms
        if last is not None:
            ts_ms = max(ts_ms, last + interval_ms)
        ticks = 0
        while not stop.is_set() and ts_ms <= to_ms(self._clock.now()) - interval_ms:
            self._read(ts_ms, runners, 0)
            self._schedule = Schedule(interval_ms, ts_ms)
            ts_ms += interval_ms
            ticks += 1
            if ticks >= BACKFILL_BATCH_TICKS or self._batch.count >= BACKFILL_BATCH_ROWS:
                ticks = 0
                await self._flusher.seal_in_turn(stop)
            if ticks % BACKFILL_CHUNK_TICKS == 0:
                self.progress_at_s = self._clock.monotonic()
                await asyncio.sleep(0)
        # Does not wait: the present tick must follow the last one of the past.
        self._flusher.seal_soon()

    def _read(self, ts_ms: int, runners: Sequence[ProbeRunner], missed: int) -> None:
        self._counters.ticks += 1
        last_ts_ms, self._batch.last_ts_ms = self._batch.last_ts_ms, ts_ms
        minute_ms = ts_ms // MINUTE_MS * MINUTE_MS
        if last_ts_ms is not None and last_ts_ms < minute_ms:
            self._report_coverage(minute_ms)
        for runner in runners:
            runner.tick(ts_ms, missed)

    def _report_coverage(self, ts_ms: int) -> None:
        """Add rows of `coverage` for what was counted since the last ones."""
        for runner in self._runners:
            probe = runner.probe
            identity: Row = {
                "gpu": self._inventory.gpu_index(probe.gpu_uuid),
                "gpu_uuid": probe.gpu_uuid,
                "probe": probe.name,
            }
            for row in runner.coverage.rows():
                self._add("coverage", self._stamped(probe, "coverage", identity | row, ts_ms))

    def _ends_window(self, ts_ms: int) -> bool:
        """Whether the next tick belongs to another batch."""
        next_ms = ts_ms + self._cadence.interval_ms
        window = (next_ms - int(self._phase * self._batch_ms)) // self._batch_ms
        is_end = self._window is not None and window != self._window
        self._window = window
        return is_end

    def _accept(self, probe: Probe, ts_ms: int, reading: Reading) -> None:
        """Add a reading to the batch; all rows are checked before the first is added."""
        stamped = {
            table: [self._checked(table, self._stamped(probe, table, row, ts_ms)) for row in rows]
            for table, rows in reading.items()
        }
        is_urgent = bool(reading.get("events"))
        for table, rows in stamped.items():
            for row in rows:
                self._add(table, row)
            reported = getattr(probe, "reported_kinds", ())
            self._seen, edges = observe(self._seen, table, rows, reported)
            for row in edges:
                self._add("events", self._recorder.stamp(row, ts_ms, simulated=probe.simulated))
            is_urgent = is_urgent or bool(edges)
        if is_urgent:
            self._flusher.seal_soon()
        self._counters.readings[probe.name] += 1

    def _add(self, table: str, row: Row) -> None:
        self._counters.rows[table] += 1
        if lost := self._batch.add(table, row):
            self._lose(lost)

    def _stamped(self, probe: Probe, table: str, row: Row, ts_ms: int) -> Row:
        if table == "events":
            # An event may have its own time.
            at_ms = row.get("ts", ts_ms)
            assert isinstance(at_ms, int)
            return self._recorder.stamp(row, at_ms, simulated=probe.simulated)
        return {**row, "ts": ts_ms, "node": self._node, "simulated": probe.simulated}

    def _describe(self, probe: Probe, reading: Reading) -> None:
        stamp: Row = {"node": self._node, "simulated": probe.simulated}
        agent = {
            "agent_id": "",
            "boot_id": "",
        }  # the inventory adds them, and the check requires them
        rows = {table: [{**row, **stamp} for row in several] for table, several in reading.items()}
        for table, several in rows.items():
            for row in several:
                impossible_columns(table, agent | row if table == "nodes" else row)
        self._inventory.described(probe.name, rows)
        if self._inventory.is_changed:
            self._flusher.seal_soon()

    def _checked(self, table: str, row: Row) -> Row:
        """The row without impossible values, for which the collector would refuse the batch."""
        for column in impossible_columns(table, row):
            self._report_impossible(table, column, row.pop(column), row.get("gpu_uuid"))
        return row

    def _report_impossible(self, table: str, column: str, value: Value, gpu_uuid: Value) -> None:
        name = f"{table}.{column}"
        self._counters.values_impossible[name] += 1

        def write(number: int) -> None:
            self._recorder.record(
                "values_impossible",
                f"{number} values of {name} were left out: the source said {value!r}",
                gpu_uuid=gpu_uuid,
                gpu=self._inventory.gpu_index(gpu_uuid),
            )

        self._recorder.count(f"{name} {gpu_uuid}", 1, every_s=IMPOSSIBLE_EVERY_S, write=write)

    def _lose(self, rows: int) -> None:
        self._counters.rows_dropped += rows
        self._flusher.report_lost_rows(rows)

    def _report_health(self, probe: Probe, report: HealthEvent) -> None:
        self._recorder.record(
            report.kind,
            report.message,
            simulated=probe.simulated,
            gpu_uuid=probe.gpu_uuid,
            gpu=self._inventory.gpu_index(probe.gpu_uuid),
            duration_seconds=report.duration_seconds,
        )

    def _report(self, plan: TickPlan) -> None:
        if plan.stepped_ms:
            step = span(abs(plan.stepped_ms) / 1000)
            direction = "forward" if plan.stepped_ms > 0 else "back"
            pause = f"; samples pause for {span(plan.waits_ms / 1000)}" if plan.waits_ms else ""
            self._recorder.record(
                "clock_stepped",
                f"the wall clock went {direction} by {step}{pause}",
                duration_seconds=abs(plan.stepped_ms) / 1000,
                details={"stepped_ms": plan.stepped_ms, "pause_ms": plan.waits_ms},
            )
        if plan.missed:
            self._counters.ticks_missed += plan.missed
            self._recorder.count("missed", plan.missed, every_s=MISSED_EVERY_S, write=self._missed)

    def _missed(self, ticks: int) -> None:
        seconds = ticks * self._cadence.interval_ms / 1000
        self._recorder.record(
            "ticks_missed",
            f"{ticks} ticks were missed: the node was too busy for the agent, or paused",
            duration_seconds=seconds,
            details={"ticks": ticks},
        )
