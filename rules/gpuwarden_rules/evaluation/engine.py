"""Evaluates rules on their interval, keeps their alerts in the store, and tells what changed.

Evaluations run in one TaskGroup, so that stopping means they have ended, and a wake-up during an
evaluation coalesces into one. The timer lives on the wall clock; a rule that it has not woken for
two intervals (the clock was set back) wakes by itself.

An evaluation that fails (SQL error, time-out, two rows with the same labels) changes nothing: its
alerts neither fire nor clear, the other rules go on, and after a minute it is an alert of its own.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from gpuwarden.alert import Alert, AlertState, AlertStore, Severity
from gpuwarden.clock import Clock, from_ms, to_ms
from gpuwarden.query import Querier
from gpuwarden.silence import Silence
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.definition.overrides import Override, Places
from gpuwarden_rules.evaluation import fleet, schedule
from gpuwarden_rules.evaluation.concurrency import CONCURRENT_MAX, Lanes
from gpuwarden_rules.evaluation.muting import reasons
from gpuwarden_rules.evaluation.rule_failing import failing_rows, failing_rule
from gpuwarden_rules.evaluation.runtime import Watch
from gpuwarden_rules.evaluation.state import FLAP_WINDOW, RowsError, Transition, restored, step
from gpuwarden_rules.evaluation.statistics import RuleStats

log = logging.getLogger(__name__)

QUERY_TIMEOUT_S = 30.0
"""Longest that one evaluation's SQL may run."""
ROWS_MAX = 100_000
"""A rule that returns more rows has failed: a part of the rows would resolve the other alerts."""
INLINE_ROWS_MAX = 1_000
"""With more rows, a step (20 us a row) leaves the event loop for a thread."""
REST_FACTOR = 4.0
"""A rule rests this many times as long as it took: the slow ones must not crowd out the others."""
FLEET_S = 60.0
"""How often it is asked what the fleet reports and where its GPUs are."""
WARM_UP_EVALUATIONS_MAX = 12
WARM_UP_S_MAX = 30.0
WARM_UP_WAIT_S_MAX = 60.0
"""Longest that a rule waits for its turn to be replayed; then it starts without its past."""
SAVE_TIMEOUT_S = 10.0
"""Longest wait for the alert store."""
STOP_TIMEOUT_S = 5.0
"""Evaluations that still run this long after the stop are cut off; saving gets as long again."""


class Engine:
    """Rules and their alerts. `run` it, or call `start` and `evaluate` by hand (tests, tools)."""

    def __init__(
        self,
        rules: Sequence[Rule],
        querier: Querier,
        store: AlertStore,
        clock: Clock,
        *,
        overrides: Sequence[Override] = (),
        on_change: Callable[[Alert], None] | None = None,
    ) -> None:
        self._watches = {rule.name: _watch(rule, overrides) for rule in rules}
        self._failing = Watch(failing_rule())
        self._querier = querier
        self._store = store
        self._clock = clock
        self._on_change = on_change
        self._silences: tuple[Silence, ...] = ()
        self._muted_until: datetime | None = None
        self._lanes = Lanes()
        self._threads = ThreadPoolExecutor(CONCURRENT_MAX, thread_name_prefix="rules")
        self._tasks: asyncio.TaskGroup | None = None
        self._timer: schedule.Timer | None = None
        self._changing = asyncio.Lock()
        self._asking = asyncio.Lock()
        self._warming = asyncio.Lock()
        self._places = Places()
        self._absent: Mapping[fleet.Required, str] = {}
        self._asked_at: float | None = None

    @property
    def rules(self) -> list[Rule]:
        """Rules that run, in order."""
        return [watch.rule for watch in self._watches.values()]

    @property
    def overrides(self) -> Mapping[str, Sequence[Override]]:
        """Overrides by the rule that they concern."""
        return {name: watch.overrides for name, watch in self._watches.items()}

    @property
    def stats(self) -> Mapping[str, RuleStats]:
        """Figures by rule, for /metrics."""
        return {name: watch.stats for name, watch in self._watches.items()}

    @property
    def alerts(self) -> list[Alert]:
        """Pending and firing alerts of all rules, as of their last evaluation."""
        return [alert for watch in self._all for alert in watch.state.values()]

    @property
    def is_running(self) -> bool:
        """Whether `alerts` is true: those of the store have been taken up, and it has not stopped."""
        return self._tasks is not None

    @property
    def silences(self) -> Sequence[Silence]:
        """Silences that hold now or will."""
        return [s for s in self._silences if s.ends_at > self._clock.now()]

    @property
    def _all(self) -> list[Watch]:
        return [*self._watches.values(), self._failing]

    async def run(self, stop: asyncio.Event) -> None:
        """Evaluate until asked to stop; everything that changed is saved when it returns."""
        await self.start()
        async with asyncio.TaskGroup() as tasks, schedule.running() as running:
            self._tasks, self._timer = tasks, running
            for watch in sorted(self._watches.values(), key=_urgency):
                self._begin(watch)
            await stop.wait()
            async with self._changing:
                self._tasks = self._timer = None
                await self._end(list(self._watches.values()))
        self._threads.shutdown(wait=False)
        await self.close()

    async def start(self) -> None:
        """Take up the alerts of the store: pending goes on pending, firing does not fire twice."""
        async with asyncio.timeout(SAVE_TIMEOUT_S):
            stored = [
                *await self._store.active(),
                *await self._store.resolved_since(self._now() - FLAP_WINDOW),
            ]
            self._silences = tuple(await self._store.silences())
        by_rule: dict[str, list[Alert]] = {}
        for alert in stored:
            by_rule.setdefault(alert.rule, []).append(alert)
        for watch in self._all:
            watch.state = restored(by_rule.pop(watch.rule.name, ()))
            watch.saved_at = dict.fromkeys(watch.state, self._clock.now())
        active = [a for found in by_rule.values() for a in found]
        await self._save_over([a for a in active if a.state is not AlertState.RESOLVED])
        self._mute(self._now())
        for watch in self._all:
            watch.count()

    async def reload(self, rules: Sequence[Rule], overrides: Sequence[Override] = ()) -> None:
        """Go on with other rules. Those that stay keep their alerts, those of others are over."""
        async with self._changing:
            named = {rule.name: rule for rule in rules}
            gone = [w for name, w in self._watches.items() if name not in named]
            for watch in gone:
                del self._watches[watch.rule.name]
                if self._timer:
                    self._timer.forget(watch.rule.name)
            await self._end(gone)
            before, self._watches = self._watches, {}
            for name, rule in named.items():
                watch = before.get(name) or _watch(rule, overrides)
                is_new = name not in before
                interval_s = watch.rule.interval_s
                watch.become(rule, _concerning(rule, overrides))
                self._watches[name] = watch
                if is_new:
                    self._begin(watch)
                elif interval_s != rule.interval_s:
                    self._wake(watch)
                watch.due.set()
            self._asked_at = self._muted_until = None
            over = [alert for watch in gone for alert in watch.state.values()]
            await self._save_over(over)

    async def silence(self, silence: Silence) -> None:
        """Add a silence, or replace that of the same id; it is saved when this returns."""
        async with asyncio.timeout(SAVE_TIMEOUT_S):
            await self._store.save_silences([silence])
        others = (s for s in self._silences if s.id != silence.id)
        self._silences = (*others, silence)
        self._muted_until = None
        self._mute(self._now())
        for watch in self._all:
            watch.count()
            await self._save(watch)

    async def evaluate(self, name: str) -> list[Transition]:
        """Evaluate one rule now; failures are counted and logged, never raised."""
        watch = self._watches[name]
        started, began_at = self._clock.monotonic(), self._clock.now()
        transitions: list[Transition] = []
        try:
            await self._ask_fleet(watch)
            watch.stats.cannot_run = fleet.cannot_run(watch.rule, self._absent)
            if watch.stats.cannot_run:
                return []
            now = self._now()
            try:
                transitions = await self._advance(watch, now)
            except Exception:
                watch.stats.failing_since = watch.stats.failing_since or began_at
                raise
            watch.stats.failing_since = None
            await self._publish(watch, transitions, now)
        except Exception as error:  # noqa: BLE001 - one rule's failure must not stop the others
            watch.failed(error)
        else:
            watch.succeeded(self._clock.now())
        self._time(watch, began_at, self._clock.monotonic() - started)
        await self._judge_rules()
        return transitions

    async def rows_at(self, name: str, at: datetime) -> list[dict[str, Any]]:
        """What a rule's SQL returns at an instant, overrides applied. Raises as the query does."""
        watch = self._watches[name]
        await self._ask_fleet(watch)
        return await self._rows(watch, at)

    async def warm_up(self, name: str) -> None:
        """Replay a rule over its last `for` and `keep_firing_for`, so that what has held all along
        fires at the first evaluation. What the store knows is left as it is.

        What it finds is told and saved by the next `evaluate`.
        """
        known = self._watches[name]
        rule = known.rule
        watch = Watch(rule, known.overrides)
        span_s = rule.for_s + rule.keep_firing_for_s
        if rule.for_s <= 0:
            return
        count = min(WARM_UP_EVALUATIONS_MAX, math.ceil(span_s / rule.interval_s))
        now = self._now()
        try:
            async with asyncio.timeout(WARM_UP_S_MAX):
                await self._ask_fleet(watch)
                if fleet.cannot_run(rule, self._absent):
                    return
                for back in range(count, 0, -1):
                    await self._advance(watch, now - timedelta(seconds=span_s * back / count))
        except Exception as error:  # noqa: BLE001 - a rule without a past is a rule that starts now
            reason = str(error).partition("\n")[0] or type(error).__name__
            log.info("rule starts without its past", extra={"rule": name, "reason": reason})
            return
        fresh = {key: alert for key, alert in watch.state.items() if key not in known.state}
        known.state = replace(known.state, alerts={**known.state.alerts, **fresh})
        known.mark([Transition(alert, None) for alert in fresh.values()], now)

    async def close(self) -> None:
        """Save all alerts as they are, so that whoever takes them up goes on from here."""
        unsaved = [
            alert
            for watch in self._all
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

    def _now(self) -> datetime:
        """Now, to the millisecond that the store keeps: a restored alert equals the one saved."""
        return from_ms(to_ms(self._clock.now()))

    def _begin(self, watch: Watch) -> None:
        if self._tasks:
            name = f"rule {watch.rule.name}"
            watch.task = self._tasks.create_task(self._keep_evaluating(watch), name=name)
            self._wake(watch)

    def _wake(self, watch: Watch) -> None:
        if self._timer:
            self._timer.every(watch.rule.name, watch.rule.interval_s, watch.due.set)

    async def _end(self, watches: Sequence[Watch]) -> None:
        """Let evaluations end, and cut off those that do not."""
        for watch in watches:
            watch.is_over = True
            watch.due.set()
        running = [watch.task for watch in watches if watch.task]
        if running:
            _, late = await asyncio.wait(running, timeout=STOP_TIMEOUT_S)
            for task in late:
                task.cancel()

    async def _keep_evaluating(self, watch: Watch) -> None:
        await self._replay(watch)
        while not watch.is_over:
            watch.due.clear()
            async with self._lanes.of(watch):
                if not watch.is_over:
                    await self.evaluate(watch.rule.name)
            rest_s = REST_FACTOR * (watch.stats.last_seconds or 0.0)
            if rest_s > watch.rule.interval_s:
                await _until(watch, rest_s)
            try:
                async with asyncio.timeout(2 * watch.rule.interval_s):
                    await watch.due.wait()
            except TimeoutError:
                pass

    async def _replay(self, watch: Watch) -> None:
        """Warm a rule up in its turn: a start with many rules leaves a slot for those without a past."""
        if watch.rule.for_s <= 0:
            return
        try:
            async with asyncio.timeout(WARM_UP_WAIT_S_MAX):
                await self._warming.acquire()
        except TimeoutError:
            log.info("rule starts without its past", extra={"rule": watch.rule.name})
            return
        try:
            async with self._lanes.slow:
                if not watch.is_over:
                    await self.warm_up(watch.rule.name)
        finally:
            self._warming.release()

    async def _ask_fleet(self, watch: Watch) -> None:
        """Learn what the fleet reports and where its GPUs are, where the rule needs it and that was
        long ago."""
        if not (watch.overrides or fleet.is_needed(watch.rule)):
            return
        if self._asking.locked() and self._asked_at is not None:
            return  # what another rule asks just now; the answer before serves until then
        async with self._asking:
            now_s = self._clock.monotonic()
            if self._asked_at is not None and now_s - self._asked_at < FLEET_S:
                return
            required = [key for watch in self._watches.values() for key in watch.rule.requires]
            self._absent = await fleet.absent_columns(self._querier, required, self._now())
            if any(watch.overrides for watch in self._watches.values()):
                self._places = await fleet.places(self._querier)
            self._asked_at = now_s

    async def _advance(self, watch: Watch, now: datetime) -> list[Transition]:
        """One step of a rule's state. Raises what the query or the rows raise."""
        rule = watch.rule
        rows = await self._rows(watch, now)
        if len(rows) <= INLINE_ROWS_MAX:
            watch.state, transitions = step(watch.state, rows, rule, now)
        else:
            loop = asyncio.get_running_loop()
            watch.state, transitions = await loop.run_in_executor(
                self._threads, lambda: step(watch.state, rows, rule, now)
            )
        return transitions

    async def _rows(self, watch: Watch, now: datetime) -> list[dict[str, Any]]:
        """What the rule's SQL returns, each part of the fleet with the parameters it has."""
        if not watch.overrides:
            return await self._query(watch.rule, now)
        plan = watch.plan(self._places)
        return await plan.rows(lambda rule: self._query(rule, now))

    async def _query(self, rule: Rule, now: datetime) -> list[dict[str, Any]]:
        async with asyncio.timeout(QUERY_TIMEOUT_S + 5):
            result = await self._querier.query(
                rule.sql, rule.bindings(now), timeout_s=QUERY_TIMEOUT_S, row_limit=ROWS_MAX
            )
        if result.truncated:
            raise RowsError(f"more than {ROWS_MAX} rows; narrow the rule's SQL")
        return result.records()

    async def _judge_rules(self) -> None:
        """Make alerts of the rules that fail or are slow."""
        watch, now = self._failing, self._now()
        try:
            watch.state, transitions = step(watch.state, failing_rows(self.stats), watch.rule, now)
            await self._publish(watch, transitions, now)
        except Exception as error:  # noqa: BLE001 - as with any rule
            watch.failed(error)
        else:
            watch.succeeded(self._clock.now())

    async def _publish(
        self, watch: Watch, transitions: Sequence[Transition], now: datetime
    ) -> None:
        """Say, save and tell what an evaluation found."""
        watch.mark(transitions, now)
        if transitions:
            self._muted_until = None
        self._mute(now)
        watch.count()
        try:
            await self._save(watch)
        finally:
            self._tell(watch)  # a store that is full must not silence an alert

    def _mute(self, now: datetime) -> None:
        """Say of all alerts why they notify nobody, where that can have changed."""
        if self._muted_until is not None and now < self._muted_until:
            return
        rules = {watch.rule.name: watch.rule for watch in self._all}
        found = reasons(self.alerts, rules, self._silences, now)
        for watch in self._all:
            watch.mute(found)
        self._silences = tuple(s for s in self._silences if s.ends_at > now)
        edges = [at for s in self._silences for at in (s.starts_at, s.ends_at) if at > now]
        self._muted_until = min([*edges, now + timedelta(seconds=FLEET_S)])

    def _time(self, watch: Watch, began_at: datetime, seconds: float) -> None:
        stats = watch.stats
        stats.evaluations += 1
        stats.last_at = self._clock.now()
        stats.last_seconds = seconds
        stats.seconds_total += seconds
        is_slow = seconds > watch.rule.interval_s
        stats.slow_since = (stats.slow_since or began_at) if is_slow else None

    def _tell(self, watch: Watch) -> None:
        while watch.untold:
            alert = watch.untold.pop(0)
            if self._on_change:
                self._on_change(alert)

    async def _save(self, watch: Watch) -> None:
        """Save what changed; what cannot be saved now is tried again at the next evaluation."""
        if not watch.unsaved:
            return
        alerts = dict(watch.unsaved)
        async with asyncio.timeout(SAVE_TIMEOUT_S):
            await self._store.save(list(alerts.values()))
        watch.saved(alerts, self._clock.now())

    async def _save_over(self, alerts: Sequence[Alert]) -> None:
        """Resolve alerts of rules that are gone."""
        if not alerts:
            return
        now = self._now()
        over = [replace(a, state=AlertState.RESOLVED, resolved_at=now) for a in alerts]
        names = ", ".join(sorted({alert.rule for alert in alerts}))
        log.info("alerts of rules that are gone resolved", extra={"rules": names})
        try:
            async with asyncio.timeout(SAVE_TIMEOUT_S):
                await self._store.save(over)
        except Exception as error:  # noqa: BLE001 - the next start finds them and tries again
            log.error("alerts not saved", extra={"rules": names, "reason": str(error)})
        for alert in over:
            if self._on_change and alert.fired_at:
                self._on_change(alert)


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


def _concerning(rule: Rule, overrides: Sequence[Override]) -> tuple[Override, ...]:
    return tuple(override for override in overrides if override.concerns(rule))


def _watch(rule: Rule, overrides: Sequence[Override]) -> Watch:
    return Watch(rule, _concerning(rule, overrides))


def _urgency(watch: Watch) -> int:
    """Rules that page come first."""
    return -list(Severity).index(watch.rule.severity)


async def _until(watch: Watch, seconds: float) -> None:
    """Rest so long, or until the rule is over."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not watch.is_over:
        watch.due.clear()
        try:
            async with asyncio.timeout_at(deadline):
                await watch.due.wait()
        except TimeoutError:
            return
