"""Runs one probe: a blocking probe on its own thread, with a deadline for every call.

One call of a probe runs at a time, so a driver call that hangs loses the samples of this probe only.
A reading that comes after the deadline is dropped, because it says nothing about its tick.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from gpuwarden.clock import Clock
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.probe import Probe, ProbeError, Reading
from gpuwarden_agent.sampling.coverage import Coverage
from gpuwarden_agent.sampling.health import (
    HealthEvent,
    Outcome,
    Overdue,
    ProbeFailed,
    ProbeHealth,
    Read,
    observe,
)
from gpuwarden_agent.worker import Worker

log = logging.getLogger(__name__)

DESCRIBE_EVERY_S = 60.0
CLOSE_TIMEOUT_S = 1.0

Accept = Callable[[Probe, int, Reading], None]
"""Takes a reading of the tick; may raise RowError for a row that does not fit its table."""
Report = Callable[[Probe, HealthEvent], None]


class ProbeRunner:
    """A probe with its thread, its health and its due tables."""

    def __init__(
        self,
        probe: Probe,
        *,
        deadline_s: float,
        interval_ms: int,
        clock: Clock,
        counters: Counters,
        accept: Accept,
        describe: Callable[[Probe, Reading], None],
        report: Report,
    ) -> None:
        self.probe = probe
        self.is_idle = asyncio.Event()
        """Set while no call of the current tick runs; a stuck call counts as ended."""
        self.is_idle.set()
        self._deadline_s = deadline_s
        self._clock = clock
        self._counters = counters
        self._accept = accept
        self._describe = describe
        self._report = report
        self._worker = Worker(f"probe-{probe.name}")
        self._asked = asyncio.Event()
        self._is_busy = False
        self._is_overdue = False
        """The call that runs is past its deadline."""
        self._ts_ms = 0
        self._due: frozenset[str] = frozenset()
        self.coverage = Coverage(probe.tables, interval_ms)
        """How many of the due readings were made."""
        self._described_at_s: float | None = None
        self._read_health = ProbeHealth()
        self._describe_health = ProbeHealth()

    def tick(self, ts_ms: int, missed: int = 0) -> None:
        """Read the due tables: at once, or on the probe's thread when it may block. `missed`: ticks that
        the agent missed since the last one.
        """
        self.coverage.tick(ts_ms, missed)
        if not self.coverage.pending:
            return
        if not self.probe.blocking:
            self._read_inline(ts_ms)
        elif self._is_busy:
            self._counters.readings_skipped[self.probe.name] += 1
        else:
            self._is_busy = True
            self._ts_ms = ts_ms
            self._due = self.coverage.take()
            self.is_idle.clear()
            self._asked.set()

    async def run(self) -> None:
        """Serve a blocking probe until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            await self._read_on_thread(self._ts_ms, self._due)
            self.is_idle.set()
            if self._is_describe_due():
                await self._call(
                    self.probe.describe, lambda reading: self._describe(self.probe, reading), None
                )
            self._is_busy = False

    async def _read_on_thread(self, ts_ms: int, due: frozenset[str]) -> None:
        await self._call(
            lambda: self.probe.read(ts_ms, due),
            lambda reading: self._accept(self.probe, ts_ms, reading),
            due,
        )

    async def close(self) -> None:
        """Close the probe, after the call that may still run; not if that call is stuck."""
        if not self.probe.blocking:
            self.probe.close()
            return
        if not self._is_overdue:
            # On the probe's thread, so after a call whose task was cancelled.
            closing = self._worker.submit(self.probe.close)
            done, _ = await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT_S)
            for future in done:
                if error := future.exception():
                    log.warning(
                        "probe did not close", extra={"probe": self.probe.name, "why": str(error)}
                    )
        self._worker.close()

    def _read_inline(self, ts_ms: int) -> None:
        due = self.coverage.take()
        outcome, reading = _outcome(lambda: self.probe.read(ts_ms, due))
        self._settle(outcome, reading, lambda r: self._accept(self.probe, ts_ms, r), due)
        if self._is_describe_due():
            outcome, reading = _outcome(self.probe.describe)
            self._settle(outcome, reading, lambda r: self._describe(self.probe, r), None)

    async def _call(
        self,
        call: Callable[[], Reading],
        take: Callable[[Reading], None],
        due: frozenset[str] | None,
    ) -> None:
        """`due`: the tables that a read fills; None: not a read."""
        began_s = self._clock.monotonic()
        future = self._worker.submit(_outcome, call)
        done, _ = await asyncio.wait({future}, timeout=self._deadline_s)
        if done:
            outcome, reading = future.result()
            self._settle(outcome, reading, take, due)
            return
        self._is_overdue = True
        self._settle(Overdue(self._deadline_s), None, take, due)
        self.is_idle.set()
        while not done:
            done, _ = await asyncio.wait({future}, timeout=DESCRIBE_EVERY_S)
        self._is_overdue = False
        if due is not None:
            self._counters.readings_late[self.probe.name] += 1
        log.info(
            "stuck call returned",
            extra={
                "probe": self.probe.name,
                "after_s": round(self._clock.monotonic() - began_s, 1),
            },
        )
        outcome, reading = future.result()
        # Too late for a sample, but it shows whether the source answers.
        self._settle(outcome, reading, lambda _: None, None if due is None else frozenset())

    def _settle(
        self,
        outcome: Outcome,
        reading: Reading | None,
        take: Callable[[Reading], None],
        due: frozenset[str] | None,
    ) -> None:
        if reading is not None:
            try:
                take(reading)
            except Exception as error:  # noqa: BLE001  # only this probe's rows fail
                outcome = ProbeFailed("probe_failed", f"{type(error).__name__}: {error}", error)
        if not isinstance(outcome, Read):
            self._counters.probe_errors[self.probe.name] += 1
        if due is None:
            self._describe_health = self._observe(
                self._describe_health, f"{self.probe.name} inventory", outcome
            )
            return
        self.coverage.settle(due, outcome, reading or {})
        self._read_health = self._observe(self._read_health, self.probe.name, outcome)

    def _observe(self, health: ProbeHealth, name: str, outcome: Outcome) -> ProbeHealth:
        health, report = observe(health, name, outcome, self._clock.monotonic())
        if report is None:
            return health
        if isinstance(outcome, ProbeFailed) and outcome.cause is not None:
            log.warning("probe raised", extra={"probe": self.probe.name}, exc_info=outcome.cause)
        if health.trouble is not None:
            self._counters.last_error = report.message
        self._report(self.probe, report)
        return health

    def _is_describe_due(self) -> bool:
        """Once a minute, and not while the source fails: one event is enough."""
        if self._read_health.trouble is not None:
            return False
        now_s = self._clock.monotonic()
        if self._described_at_s is not None and now_s - self._described_at_s < DESCRIBE_EVERY_S:
            return False
        self._described_at_s = now_s
        return True


async def wait_for_readings(runners: Iterable[ProbeRunner], until_next_tick_s: float) -> bool:
    """Wait until no call of this tick runs, so that its readings go into its own batch, but never
    into the next tick. False: some calls still run.
    """
    try:
        async with asyncio.timeout(0.8 * until_next_tick_s):
            for runner in runners:
                await runner.is_idle.wait()
    except TimeoutError:
        return False
    return True


def _outcome(call: Callable[[], Reading]) -> tuple[Outcome, Reading | None]:
    """Call a probe; a source that fails must not stop the others."""
    try:
        return Read(), call()
    except ProbeError as error:
        return ProbeFailed(error.kind, str(error)), None
    except Exception as error:  # noqa: BLE001  # only this probe fails, by name
        return ProbeFailed("probe_failed", f"{type(error).__name__}: {error}", error), None
