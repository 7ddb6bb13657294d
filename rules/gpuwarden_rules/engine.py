"""Evaluates rules on their interval, keeps their alerts in the store, and tells what changed.

APScheduler is the timer and nothing else: its jobs only wake the rule's own task. Evaluations run
in one TaskGroup, so that stopping means they have ended, and a wake-up during an evaluation
coalesces into one. APScheduler lives on the wall clock; a rule that it has not woken for two
intervals (the clock was set back) wakes by itself.

An evaluation that fails (SQL error, time-out, two rows with the same labels) changes nothing:
its alerts neither fire nor clear, and the other rules go on.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from apscheduler.executors.debug import DebugExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.interval import IntervalTrigger

from gpuwarden.alert import Alert, AlertState, AlertStore
from gpuwarden.clock import EPOCH, Clock, from_ms, to_ms
from gpuwarden.query import Querier
from gpuwarden_rules.language import Rule
from gpuwarden_rules.state import RowsError, Transition, step

log = logging.getLogger(__name__)

QUERY_TIMEOUT_S = 30.0
"""Longest that one evaluation's SQL may run."""
ROWS_MAX = 100_000
"""A rule that returns more rows has failed: a part of the rows would resolve the other alerts."""
INLINE_ROWS_MAX = 1_000
"""With more rows, a step (20 us a row) leaves the event loop for a thread."""
CONCURRENT_MAX = 2
"""Evaluations at once; the rest wait, so that rules never crowd out ingest and people."""
REFRESH_S = 60.0
"""An alert whose state did not change is saved again at most this often."""
WARM_UP_EVALUATIONS_MAX = 60
WARM_UP_S_MAX = 30.0
SAVE_TIMEOUT_S = 10.0
"""Longest wait for the alert store."""
UNSAVED_MAX = 10_000
"""Alerts of a rule that wait for a store that fails; above it the oldest episodes are not recorded."""
GOLDEN_RATIO = 0.618034
STOP_TIMEOUT_S = 5.0
"""Evaluations that still run this long after the stop are cut off; saving gets as long again."""


@dataclass(slots=True)
class RuleStats:
    """What a rule's evaluations came to since the engine was made."""

    evaluations: int = 0
    failures: int = 0
    seconds_total: float = 0.0
    last_seconds: float | None = None
    last_at: datetime | None = None
    last_error: str | None = None
    """Why the last evaluation failed; None: it succeeded."""
    last_success_at: datetime | None = None
    dropped: int = 0
    """Alerts that were never recorded, because the store failed for too long."""
    pending: int = 0
    firing: int = 0


@dataclass(slots=True)
class _Watch:
    """A rule with all that the engine knows about it."""

    rule: Rule
    stats: RuleStats = field(default_factory=RuleStats)
    state: dict[str, Alert] = field(default_factory=dict)
    unsaved: dict[tuple[str, datetime], Alert] = field(default_factory=dict)
    saved_at: dict[str, datetime] = field(default_factory=dict)
    untold: list[Alert] = field(default_factory=list)
    due: asyncio.Event = field(default_factory=asyncio.Event)


class Engine:
    """Rules and their alerts. `run` it, or call `start` and `evaluate` by hand (tests, tools)."""

    def __init__(
        self,
        rules: Sequence[Rule],
        querier: Querier,
        store: AlertStore,
        clock: Clock,
        *,
        on_change: Callable[[Alert], None] | None = None,
    ) -> None:
        self._watches = {rule.name: _Watch(rule) for rule in rules}
        self._querier = querier
        self._store = store
        self._clock = clock
        self._on_change = on_change
        self._slots = asyncio.Semaphore(CONCURRENT_MAX)
        self._threads = ThreadPoolExecutor(CONCURRENT_MAX, thread_name_prefix="rules")

    @property
    def stats(self) -> Mapping[str, RuleStats]:
        """Figures by rule, for /metrics."""
        return {name: watch.stats for name, watch in self._watches.items()}

    @property
    def alerts(self) -> list[Alert]:
        """Pending and firing alerts of all rules, as of their last evaluation."""
        return [alert for watch in self._watches.values() for alert in watch.state.values()]

    async def run(self, stop: asyncio.Event) -> None:
        """Evaluate until asked to stop; everything that changed is saved when it returns."""
        await self.start()
        async with asyncio.TaskGroup() as tasks, _timer(self._watches.values()):
            running = [
                tasks.create_task(self._watch(watch, stop), name=f"rule {name}")
                for name, watch in self._watches.items()
            ]
            await stop.wait()
            for watch in self._watches.values():
                watch.due.set()
            if running:
                _, late = await asyncio.wait(running, timeout=STOP_TIMEOUT_S)
                for task in late:
                    task.cancel()
        self._threads.shutdown(wait=False)
        await self.close()

    async def start(self) -> None:
        """Take up the alerts of the store: pending goes on pending, firing does not fire twice."""
        async with asyncio.timeout(SAVE_TIMEOUT_S):
            stored = await self._store.active()
        orphans = []
        for alert in stored:
            watch = self._watches.get(alert.rule)
            if watch is None:
                over = replace(alert, state=AlertState.RESOLVED, resolved_at=self._now())
                orphans.append(over)
            else:
                watch.state[alert.fingerprint] = alert
                watch.saved_at[alert.fingerprint] = self._clock.now()
        if orphans:
            names = ", ".join(sorted({alert.rule for alert in orphans}))
            log.info("alerts of rules that are gone resolved", extra={"rules": names})
            async with asyncio.timeout(SAVE_TIMEOUT_S):
                await self._store.save(orphans)
        for watch in self._watches.values():
            _count(watch)

    async def evaluate(self, name: str) -> list[Transition]:
        """Evaluate one rule now; failures are counted and logged, never raised."""
        watch = self._watches[name]
        started = self._clock.monotonic()
        transitions: list[Transition] = []
        try:
            now = self._now()
            transitions = await self._advance(watch, now)
            self._mark(watch, transitions, now)
            try:
                await self._save(watch)
            finally:
                self._tell(watch)  # a store that is full must not silence an alert
        except Exception as error:  # noqa: BLE001 - one rule's failure must not stop the others
            _failed(watch, error)
        else:
            _succeeded(watch)
            watch.stats.last_success_at = self._clock.now()
        watch.stats.evaluations += 1
        watch.stats.last_at = self._clock.now()
        watch.stats.last_seconds = self._clock.monotonic() - started
        watch.stats.seconds_total += watch.stats.last_seconds
        return transitions

    async def warm_up(self, name: str) -> None:
        """Replay a rule over its last `for` and `keep_firing_for`, so that what has held all along
        fires at the first evaluation. What the store knows is left as it is.

        What it finds is told and saved by the next `evaluate`.
        """
        rule = self._watches[name].rule
        watch = _Watch(rule)
        span_s = rule.for_s + rule.keep_firing_for_s
        if rule.for_s <= 0:
            return
        count = min(WARM_UP_EVALUATIONS_MAX, math.ceil(span_s / rule.interval_s))
        now = self._now()
        try:
            async with asyncio.timeout(WARM_UP_S_MAX):
                for back in range(count, 0, -1):
                    await self._advance(watch, now - timedelta(seconds=span_s * back / count))
        except Exception as error:  # noqa: BLE001 - a rule without a past is a rule that starts now
            reason = str(error) or type(error).__name__
            log.warning("rule not replayed", extra={"rule": name, "reason": reason})
            return
        known = self._watches[name]
        fresh = {key: alert for key, alert in watch.state.items() if key not in known.state}
        known.state |= fresh
        transitions = [Transition(alert, None) for alert in fresh.values()]
        self._mark(known, transitions, now)

    def _now(self) -> datetime:
        """Now, to the millisecond that the store keeps: a restored alert equals the one saved."""
        return from_ms(to_ms(self._clock.now()))

    async def _watch(self, watch: _Watch, stop: asyncio.Event) -> None:
        async with self._slots:
            await self.warm_up(watch.rule.name)
        while not stop.is_set():
            async with self._slots:
                await self.evaluate(watch.rule.name)
            try:
                async with asyncio.timeout(2 * watch.rule.interval_s):
                    await watch.due.wait()
            except TimeoutError:
                pass
            watch.due.clear()

    async def _advance(self, watch: _Watch, now: datetime) -> list[Transition]:
        """One step of a rule's state. Raises what the query or the rows raise."""
        rule = watch.rule
        async with asyncio.timeout(QUERY_TIMEOUT_S + 5):
            result = await self._querier.query(
                rule.sql, rule.bindings(now), timeout_s=QUERY_TIMEOUT_S, row_limit=ROWS_MAX
            )
        if result.truncated:
            raise RowsError(f"more than {ROWS_MAX} rows; narrow the rule's SQL")
        if len(result.rows) <= INLINE_ROWS_MAX:
            watch.state, transitions = step(watch.state, result.records(), rule, now)
        else:
            loop = asyncio.get_running_loop()
            watch.state, transitions = await loop.run_in_executor(
                self._threads, lambda: step(watch.state, result.records(), rule, now)
            )
        return transitions

    def _mark(self, watch: _Watch, transitions: Sequence[Transition], now: datetime) -> None:
        """Mark what has to be told and saved: every change of state, and saves long ago."""
        for transition in transitions:
            alert = transition.alert
            watch.untold.append(alert)
            watch.unsaved[alert.fingerprint, alert.active_at] = alert
            if alert.state is AlertState.RESOLVED:
                watch.saved_at.pop(alert.fingerprint, None)
        for key, alert in watch.state.items():
            saved_at = watch.saved_at.get(key)
            # An interval that is negative: the clock went back.
            if saved_at and alert.seen_at == now and not 0 <= _since(saved_at, now) < REFRESH_S:
                watch.unsaved[key, alert.active_at] = alert
        _drop(watch)
        _count(watch)

    def _tell(self, watch: _Watch) -> None:
        while watch.untold:
            alert = watch.untold.pop(0)
            if self._on_change:
                self._on_change(alert)

    async def _save(self, watch: _Watch) -> None:
        """Save what changed; what cannot be saved now is tried again at the next evaluation."""
        if not watch.unsaved:
            return
        alerts = dict(watch.unsaved)
        async with asyncio.timeout(SAVE_TIMEOUT_S):
            await self._store.save(list(alerts.values()))
        now = self._clock.now()
        for key, alert in alerts.items():
            if watch.unsaved.get(key) is alert:
                del watch.unsaved[key]
            if alert.state is not AlertState.RESOLVED:
                watch.saved_at[alert.fingerprint] = now

    async def close(self) -> None:
        """Save all alerts as they are, so that whoever takes them up goes on from here."""
        unsaved = [
            alert
            for watch in self._watches.values()
            for alert in (
                {(a.fingerprint, a.active_at): a for a in watch.state.values()} | watch.unsaved
            ).values()
        ]
        if not unsaved:
            return
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._store.save(unsaved)
        except Exception as error:  # noqa: BLE001 - a store that fails must not turn a stop into a crash
            reason = str(error) or type(error).__name__
            log.error("alerts not saved at stop", extra={"alerts": len(unsaved), "reason": reason})


async def run(
    rules: Sequence[Rule],
    querier: Querier,
    store: AlertStore,
    clock: Clock,
    stop: asyncio.Event,
    *,
    on_change: Callable[[Alert], None] | None = None,
) -> None:
    """Evaluate rules until `stop` is set. `on_change` is called for every change of state.

    Make an `Engine` instead where its figures are wanted.
    """
    await Engine(rules, querier, store, clock, on_change=on_change).run(stop)


@asynccontextmanager
async def _timer(watches: Iterable[_Watch]) -> AsyncIterator[None]:
    """Wake each rule on its interval, their phases spread so that they do not fall together."""
    scheduler = AsyncIOScheduler(
        timezone=UTC,
        # Jobs run inline: waking a task takes no time, and needs no pool and no task of its own.
        executors={"default": DebugExecutor()},
        job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
    )
    for position, watch in enumerate(watches):
        phase_s = position * GOLDEN_RATIO % 1 * watch.rule.interval_s
        start = EPOCH + timedelta(seconds=phase_s)
        trigger = IntervalTrigger(seconds=watch.rule.interval_s, start_date=start, timezone=UTC)
        scheduler.add_job(watch.due.set, trigger, id=watch.rule.name)
    scheduler.start()
    try:
        yield
    finally:
        scheduler.shutdown(wait=False)
        await asyncio.sleep(0)  # its timer is cancelled by a callback of the loop


def _since(instant: datetime, now: datetime) -> float:
    return (now - instant).total_seconds()


def _drop(watch: _Watch) -> None:
    """Keep what waits for the store within bounds: episodes that are over go first, oldest first."""
    excess = len(watch.unsaved) - max(UNSAVED_MAX, len(watch.state))
    over = [k for k, a in watch.unsaved.items() if a.state is AlertState.RESOLVED]
    dropped = over[: max(0, excess)]
    for key in dropped:
        del watch.unsaved[key]
    if dropped and not watch.stats.dropped:
        log.error("alerts that are over are not recorded", extra={"rule": watch.rule.name})
    watch.stats.dropped += len(dropped)


def _count(watch: _Watch) -> None:
    states = [alert.state for alert in watch.state.values()]
    watch.stats.pending = states.count(AlertState.PENDING)
    watch.stats.firing = states.count(AlertState.FIRING)


def _failed(watch: _Watch, error: Exception) -> None:
    reason = str(error).partition("\n")[0] or type(error).__name__
    if watch.stats.last_error is None:
        log.warning("rule fails", extra={"rule": watch.rule.name, "reason": reason})
    watch.stats.failures += 1
    watch.stats.last_error = reason


def _succeeded(watch: _Watch) -> None:
    if watch.stats.last_error is not None:
        log.info("rule works again", extra={"rule": watch.rule.name})
    watch.stats.last_error = None
