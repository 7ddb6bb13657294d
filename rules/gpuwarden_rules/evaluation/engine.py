"""Evaluates rules on their interval, saves their alerts, and reports changes.

Invariants
- Evaluations run in one TaskGroup: after a stop none runs. Wake-ups during an evaluation coalesce into one.
- An evaluation that fails (SQL error, timeout, two rows with the same labels) changes no alert and stops no
  other rule. After a minute the failure is an alert itself.
- Rules about events that found nothing are not evaluated before one of their events is stored. Any other rule is, also
  where no row came: time alone moves its window, and absence is what some are about.
- A rule that needs rows of the lake is not judged while the lake cannot be read. One alert names all of these.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from gpuwarden.alert import Alert, AlertState, AlertStore, Severity, Silence
from gpuwarden.clock import Clock, from_ms, to_ms
from gpuwarden.judgement import Judgement
from gpuwarden.query import ExpectedQuery, LakeAwayError, Querier, QueryError
from gpuwarden.wire import AHEAD_S_MAX
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.definition.overrides import Locations, Override
from gpuwarden_rules.evaluation import fleet, schedule
from gpuwarden_rules.evaluation.accounts import CostBoundsReader, accounts_of
from gpuwarden_rules.evaluation.group import Query, Rows, RuleGroup, groups_of, rows_alone
from gpuwarden_rules.evaluation.holders import rows_with_holders
from gpuwarden_rules.evaluation.rule_failing import (
    failing_rows,
    failing_rule,
    lake_away_rows,
    lake_away_rule,
)
from gpuwarden_rules.evaluation.runtime import RuleRuntime, mute_reasons
from gpuwarden_rules.evaluation.state import (
    FLAP_WINDOW,
    RowsError,
    RuleState,
    Transition,
    restored,
    step,
)
from gpuwarden_rules.evaluation.statistics import RuleRun, RuleStatistics, is_fresh, judgement_of

log = logging.getLogger(__name__)

QUERY_TIMEOUT_S = 30.0
"""Longest that one evaluation's SQL may run."""
ROWS_MAX = 100_000
"""More rows are a failure: with a part of the rows, alerts of the others would resolve."""
INLINE_ROWS_MAX = 1_000
"""With more rows, a step (20 us a row) runs in a thread instead of the event loop."""
EVENT_REST_S = 1.0
"""Shortest rest of a rule that events wake: a storm of events is judged once a second."""
FLEET_REFRESH_S = 60.0
"""How often the columns that the fleet reports, and the locations of GPUs, are read."""
SILENCE_REFRESH_S = 5.0
"""How often silent nodes are read: agents send as often."""
WARM_UP_EVALUATIONS_MAX = 12
WARM_UP_S_MAX = 30.0
"""Longest replay of a rule's past; after that the rule starts without it."""
SAVE_TIMEOUT_S = 10.0
START_TRIES = 12
START_RETRY_S = 2.0
"""Attempts to read the stored alerts at a start, each for SAVE_TIMEOUT_S, and the pause between them."""
ADOPTED_FOR = timedelta(hours=2)
"""Longer than another collector takes to seal the rows from which the condition followed."""
STOP_TIMEOUT_S = 5.0
"""Evaluations that still run this long after the stop are cancelled; saving gets the same time again."""


class RuleEngine:
    """Rules and their alerts. `run` it, or call `start` and `evaluate` by hand (tests, tools)."""

    def __init__(
        self,
        rules: Sequence[Rule],
        querier: Querier,
        store: AlertStore,
        clock: Clock,
        *,
        background: Querier | None = None,
        lag_s: Callable[[], float | None] = lambda: 0.0,
        overrides: Sequence[Override] = (),
        on_change: Callable[[Alert], None] | None = None,
        expect: Callable[[Sequence[ExpectedQuery]], None] = lambda queries: None,
    ) -> None:
        """`background`: runs replays, for which no evaluation waits; None: `querier`. `lag_s`: age of the newest row
        when it was stored; None: no row was stored since the start. `expect`: gets the queries that will recur."""
        self._expect = expect
        self._lag_s = lag_s
        self._background = background or querier
        self._runtimes = {rule.name: _runtime_of(rule, overrides) for rule in rules}
        self._groups = groups_of(self._runtimes.values())
        self._failing = RuleRuntime(failing_rule())
        self._lake_away = RuleRuntime(lake_away_rule())
        self._querier = querier
        self._cost_bounds = CostBoundsReader(querier, clock)
        self._store = store
        self._clock = clock
        self._on_change = on_change
        self._silences: tuple[Silence, ...] = ()
        self._muted_until: datetime | None = None
        self._slots = schedule.EvaluationSlots()
        self._threads = ThreadPoolExecutor(schedule.CONCURRENT_MAX, thread_name_prefix="rules")
        self._tasks: asyncio.TaskGroup | None = None
        self._timer: schedule.EvaluationSchedule | None = None
        self._changing = asyncio.Lock()
        self._refreshing = asyncio.Lock()
        self._unreplayed: asyncio.Queue[tuple[RuleRuntime, RuleGroup, datetime]] = asyncio.Queue()
        self._locations = Locations()
        self._absent: Mapping[fleet.Required, str] = {}
        self._refreshed_at: float | None = None
        self._silent: frozenset[str] = frozenset()
        self._silent_at: float | None = None
        self._started_at = clock.now()
        self._elsewhere: frozenset[str] = frozenset()
        self._adopted: dict[str, datetime] = {}
        """Until when alerts of other collectors stay unknown without a row, by fingerprint."""

    @property
    def rules(self) -> list[Rule]:
        """Rules that run, in order."""
        return [runtime.rule for runtime in self._runtimes.values()]

    @property
    def groups(self) -> Sequence[RuleGroup]:
        """The rules as they are evaluated together."""
        return self._groups

    @property
    def all_rules(self) -> list[Rule]:
        """These and the engine's own rules."""
        return [runtime.rule for runtime in self._all]

    @property
    def overrides(self) -> Mapping[str, Sequence[Override]]:
        """Overrides by the rule that they concern."""
        return {name: runtime.overrides for name, runtime in self._runtimes.items()}

    @property
    def stats(self) -> Mapping[str, RuleStatistics]:
        """Figures by rule, for /metrics."""
        return {name: runtime.stats for name, runtime in self._runtimes.items()}

    @property
    def all_stats(self) -> Mapping[str, RuleStatistics]:
        """These and those of the engine's own rules."""
        own = {runtime.rule.name: runtime.stats for runtime in (self._failing, self._lake_away)}
        return {**own, **self.stats}

    @property
    def alerts(self) -> list[Alert]:
        """Pending and firing alerts of all rules, as of their last evaluation."""
        return [alert for runtime in self._all for alert in runtime.state.values()]

    @property
    def is_running(self) -> bool:
        """Whether `alerts` is complete: the stored alerts are loaded, and the engine has not stopped."""
        return self._tasks is not None

    @property
    def judgement(self) -> Judgement:
        """How far the rules have judged the fleet."""
        runs = {
            name: RuleRun(
                runtime.rule.interval_s,
                runtime.begun_at or self._started_at,
                runtime.stats.judged_at,
            )
            for name, runtime in self._runtimes.items()
        }
        return judgement_of(runs, self._clock.now())

    @property
    def silences(self) -> Sequence[Silence]:
        """Silences that have not ended."""
        return [s for s in self._silences if s.ends_at > self._clock.now()]

    async def recent_silences(self, since: datetime) -> Sequence[Silence]:
        """Silences that end after an instant, also those that have ended. Raises QueryError and TimeoutError."""
        async with asyncio.timeout(SAVE_TIMEOUT_S):
            stored = await self._store.silences_since(since)
        # What was just saved may not be read yet.
        known = {silence.id: silence for silence in (*stored, *self._silences)}
        return [silence for silence in known.values() if silence.ends_at > since]

    @property
    def _all(self) -> list[RuleRuntime]:
        return [*self._runtimes.values(), self._failing, self._lake_away]

    async def run(self, stop: asyncio.Event) -> None:
        """Evaluate until asked to stop; everything that changed is saved when it returns."""
        await self.start()
        async with asyncio.TaskGroup() as tasks, schedule.running() as running:
            self._tasks, self._timer = tasks, running
            replaying = tasks.create_task(self._replay_all(), name="replay of rules")
            self._begin_groups()
            await stop.wait()
            replaying.cancel()
            async with self._changing:
                self._tasks = self._timer = None
                await self._end_groups()
        self._threads.shutdown(wait=False)
        await self.close()

    async def start(self) -> None:
        """Load the stored alerts: pending ones stay pending, firing ones do not fire again."""
        self._expect(self._expected())
        self._started_at = self._clock.now()
        stored = await self._stored()
        by_rule: dict[str, list[Alert]] = {}
        for alert in stored:
            by_rule.setdefault(alert.rule, []).append(alert)
        for runtime in self._all:
            runtime.state = restored(by_rule.pop(runtime.rule.name, ()))
            runtime.saved_at = dict.fromkeys(runtime.state, self._clock.now())
        active = [a for found in by_rule.values() for a in found]
        await self._save_over([a for a in active if a.state is not AlertState.RESOLVED])
        self._mute(self._now())
        for runtime in self._all:
            runtime.count()
        await self.leave(self._elsewhere)

    async def _stored(self) -> list[Alert]:
        """Read stored alerts and silences, with several attempts, for a busy machine or a catalog that is away.
        Raises TimeoutError, QueryError."""
        for left in reversed(range(START_TRIES)):
            try:
                async with asyncio.timeout(SAVE_TIMEOUT_S):
                    stored = {one.id: one for one in await self._store.silences()}
                    # One that was made while these were read holds too.
                    made_since = {one.id: one for one in self._silences}
                    self._silences = tuple((stored | made_since).values())
                    return [
                        *await self._store.active(),
                        *await self._store.resolved_since(self._now() - FLAP_WINDOW),
                    ]
            except (TimeoutError, QueryError) as error:
                if not left:
                    raise
                said = str(error) or f"not within {SAVE_TIMEOUT_S:g} s"
                log.warning(
                    "stored alerts are not read yet", extra={"tries_left": left, "reason": said}
                )
            await asyncio.sleep(START_RETRY_S)
        raise AssertionError

    async def reload(self, rules: Sequence[Rule], overrides: Sequence[Override] = ()) -> None:
        """Replace the rules. Rules that stay keep their alerts; alerts of deleted rules resolve."""
        async with self._changing:
            named = {rule.name: rule for rule in rules}
            deleted = [w for name, w in self._runtimes.items() if name not in named]
            await self._end_groups()
            before, self._runtimes = self._runtimes, {}
            for name, rule in named.items():
                runtime = before.get(name) or _runtime_of(rule, overrides)
                is_new = name not in before
                runtime.begun_at = runtime.begun_at or (self._clock.now() if is_new else None)
                runtime.become(rule, _concerning(rule, overrides))
                self._runtimes[name] = runtime
            self._groups = groups_of(self._runtimes.values())
            self._begin_groups()
            self._refreshed_at = self._muted_until = None
            self._expect(self._expected())
            over = [alert for runtime in deleted for alert in runtime.state.values()]
            await self._save_over(over)

    def _expected(self) -> list[ExpectedQuery]:
        """Queries that will recur."""
        now = self._now()
        required = [key for runtime in self._runtimes.values() for key in runtime.rule.requires]
        return [
            *(
                ExpectedQuery(
                    group.plain_sql, group.bindings(now), max(map(_replayed_s, group.runtimes))
                )
                for group in self._groups
            ),
            *fleet.expected(required, now),
        ]

    def wake(self, kinds: Collection[str]) -> None:
        """Evaluate the rules that wait for events of these kinds, which are now stored."""
        for group in self._groups:
            if not group.on_events.isdisjoint(kinds):
                self._unsettle(group)
                group.due.set()

    async def silence(self, silence: Silence) -> None:
        """Add a silence, or replace that of the same id; it is saved when this returns."""
        known = next((s.changes for s in self._silences if s.id == silence.id), -1)
        await self.take_silences([replace(silence, changes=known + 1)])

    async def take_silences(self, silences: Sequence[Silence]) -> None:
        """Add silences or replace those of the same ids, as they are; they are saved when this returns."""
        async with asyncio.timeout(SAVE_TIMEOUT_S):
            await self._store.save_silences(silences)
        taken = {silence.id for silence in silences}
        self._silences = (*(s for s in self._silences if s.id not in taken), *silences)
        self._muted_until = None
        self._mute(self._now())
        for runtime in self._all:
            runtime.count()
            await self._save(runtime)

    async def leave(self, nodes: frozenset[str]) -> None:
        """Stop judging these nodes, which send to another collector, and end their alerts."""
        self._elsewhere = nodes
        for group in self._groups:
            self._unsettle(group)
        for runtime in self._all:
            if nodes and runtime.leave(nodes, self._now()):
                runtime.count()
                await self._save(runtime)

    async def adopt(self, alerts: Sequence[Alert]) -> None:
        """Continue firing alerts of nodes that came from another collector: their conditions are unknown until rows have
        them, at most ADOPTED_FOR."""
        now = self._now()
        for group in self._groups:
            self._unsettle(group)
        for alert in alerts:
            runtime = self._runtimes.get(alert.rule)
            if runtime is not None:
                runtime.adopt(alert, now)
                self._adopted[alert.fingerprint] = now + ADOPTED_FOR
        self._muted_until = None
        self._mute(now)
        for runtime in self._all:
            if runtime.unnotified:
                runtime.count()
                await self._save(runtime)
                self._notify(runtime)

    async def evaluate(self, name: str) -> list[Transition]:
        """Evaluate one rule now; failures are counted and logged, never raised."""
        return await self.evaluate_group(RuleGroup([self._runtimes[name]]))

    async def turn(self, group: RuleGroup) -> list[Transition]:
        """Evaluate the rules of a group, unless none of their events was stored since they found nothing."""
        if not group.is_settled or group.has_alerts:
            return await self.evaluate_group(group)
        now = self._clock.now()
        for runtime in group.runtimes:
            runtime.stats.skipped += 1
            if is_fresh(self._lag_s(), now - self._started_at):
                runtime.stats.judged_at = now
        return []

    def _unsettle(self, group: RuleGroup) -> None:
        """Evaluate a group at each of its turns again."""
        group.woken_s, group.is_settled = self._clock.monotonic(), False

    async def evaluate_group(self, group: RuleGroup) -> list[Transition]:
        """Evaluate the rules of a group now, by one query where they can be one."""
        started, began_at = self._clock.monotonic(), self._clock.now()
        tells_of_now = is_fresh(self._lag_s(), began_at - self._started_at)
        transitions: list[Transition] = []
        now = self._now()
        ready, failure = await self._ready(group, now)
        rows: Mapping[str, Rows | Exception] = {}
        if failure is None and ready:
            try:
                rows = await group.rows(ready, self._locations, self._query_at(now, self._querier))
            except Exception as error:  # noqa: BLE001 - it is counted for each rule below
                failure = error
        for runtime in ready:
            found = failure or rows[runtime.rule.name]
            transitions += await self._judge(runtime, found, now, began_at, tells_of_now)
        # An event may be ahead of this clock: until then time alone can begin its alert.
        is_late = started - group.woken_s >= AHEAD_S_MAX
        is_silent = failure is None and not any(rows.values()) and not group.has_alerts
        group.is_settled = group.is_of_events and is_late and is_silent
        group.last_seconds = self._clock.monotonic() - started
        is_slow = group.last_seconds > group.interval_s
        for runtime in group.runtimes:
            if runtime.stats.cannot_run:
                runtime.stats.judged_at = began_at if tells_of_now else runtime.stats.judged_at
            else:
                seconds = group.last_seconds / len(group.runtimes)
                runtime.stats.count(seconds, began_at, is_slow=is_slow)
        await self._evaluate_failing_rules()
        return transitions

    async def _ready(
        self, group: RuleGroup, now: datetime
    ) -> tuple[list[RuleRuntime], Exception | None]:
        """The rules of a group that can run, or why nobody knows."""
        try:
            for runtime in group.runtimes:
                await self._refresh_fleet(runtime)
                runtime.stats.cannot_run = fleet.cannot_run(runtime.rule, self._absent)
            for runtime in group.runtimes:
                await self._refresh_silent(runtime, now)
        except Exception as error:  # noqa: BLE001 - it is counted for each rule
            return [*group.runtimes], error
        return [one for one in group.runtimes if not one.stats.cannot_run], None

    async def _judge(
        self,
        runtime: RuleRuntime,
        found: Rows | Exception,
        now: datetime,
        began_at: datetime,
        tells_of_now: bool,
    ) -> list[Transition]:
        """Advance a rule by its rows; a failure is counted."""
        try:
            if runtime.past is not None:
                runtime.take_past(runtime.past, now)
            try:
                if isinstance(found, Exception):
                    raise found
                transitions = await self._step(runtime, found, now, self._silent, self._querier)
            except LakeAwayError:
                raise
            except Exception:
                runtime.stats.failing_since = runtime.stats.failing_since or began_at
                raise
            runtime.stats.failing_since = runtime.stats.unjudged_since = None
            runtime.stats.judged_at = began_at if tells_of_now else runtime.stats.judged_at
            await self._publish(runtime, transitions, now)
        except LakeAwayError as error:
            runtime.stats.failing_since = None
            runtime.unjudged(error, began_at)
        except Exception as error:  # noqa: BLE001 - one rule's failure must not stop the others
            runtime.failed(error)
        else:
            runtime.succeeded(self._clock.now())
            return transitions
        return []

    async def rows_at(self, name: str, at: datetime) -> list[dict[str, Any]]:
        """The rows of a rule's SQL at an instant, with overrides. Raises what the query raises."""
        runtime = self._runtimes[name]
        await self._refresh_fleet(runtime)
        return await rows_alone(runtime, self._locations, self._query_at(at, self._querier))

    async def warm_up(self, name: str) -> None:
        """Replay a rule over its last `for` and `keep_firing_for`, so that a condition that held all the time
        fires at the next evaluation. Alerts that the store has do not change.
        """
        runtime = self._runtimes[name]
        if runtime.rule.for_s > 0:
            runtime.take_past(await self._replayed(runtime), self._now())

    async def _replayed(self, known: RuleRuntime) -> RuleState:
        """The state after a replay of a rule's past; empty where the replay fails."""
        rule = known.rule
        runtime = RuleRuntime(rule, known.overrides)
        span_s = _replayed_s(runtime)
        count = min(WARM_UP_EVALUATIONS_MAX, math.ceil(span_s / rule.interval_s))
        now = self._now()
        try:
            async with asyncio.timeout(WARM_UP_S_MAX):
                await self._refresh_fleet(runtime)
                if fleet.cannot_run(rule, self._absent):
                    return RuleState()
                for back in range(count, 0, -1):
                    at = now - timedelta(seconds=span_s * back / count)
                    query = self._query_at(at, self._background)
                    rows = await rows_alone(runtime, self._locations, query)
                    await self._step(runtime, rows, at, frozenset(), self._background)
        except Exception as error:  # noqa: BLE001 - without its past the rule starts now
            reason = str(error).partition("\n")[0] or type(error).__name__
            log.info("rule starts without its history", extra={"rule": rule.name, "reason": reason})
            return RuleState()
        return runtime.state

    async def close(self) -> None:
        """Save all alerts, so that the next engine continues from here."""
        unsaved = [
            alert
            for runtime in self._all
            for alert in (
                {(a.fingerprint, a.active_at): a for a in runtime.state.values()} | runtime.unsaved
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

    def _begin_groups(self) -> None:
        if self._tasks is None or self._timer is None:
            return
        for group in sorted(self._groups, key=_urgency):
            self._unsettle(group)
            group.task = self._tasks.create_task(
                self._keep_evaluating(group), name=f"rule {group.name}"
            )
            self._timer.every(group.name, group.interval_s, group.due.set)

    async def _end_groups(self) -> None:
        """Wait until evaluations end, and cancel those that do not."""
        for group in self._groups:
            group.is_over = True
            group.due.set()
            if self._timer:
                self._timer.forget(group.name)
        running = [group.task for group in self._groups if group.task]
        if running:
            _, late = await asyncio.wait(running, timeout=STOP_TIMEOUT_S)
            for task in late:
                task.cancel()

    async def _keep_evaluating(self, group: RuleGroup) -> None:
        new = [runtime for runtime in group.runtimes if not runtime.is_begun]
        for runtime in new:
            runtime.is_begun, runtime.is_replayed = True, runtime.rule.for_s <= 0
        while not group.is_over:
            group.due.clear()
            async with self._slots.of(group):
                if not group.is_over:
                    await self.turn(group)
            for runtime in new:
                if not runtime.is_replayed:
                    self._unreplayed.put_nowait((runtime, group, self._now()))
            new = []
            rest_s = schedule.REST_FACTOR * (group.last_seconds or 0.0)
            if group.on_events:
                rest_s = max(rest_s, EVENT_REST_S)
            is_slow = rest_s > group.interval_s
            if is_slow or group.on_events:
                was_due = await _until(group, rest_s)
                if was_due and not is_slow:
                    continue
            await group.due.wait()

    async def _replay_all(self) -> None:
        """Replay rules one after the other, each after its first evaluation, which matters more."""
        while True:
            runtime, group, evaluated_at = await self._unreplayed.get()
            waited = self._now() - evaluated_at
            is_late = waited >= timedelta(seconds=runtime.rule.for_s)  # it fires without a replay
            is_gone = self._runtimes.get(runtime.rule.name) is not runtime
            is_wanted = not (is_gone or is_late)
            runtime.past = await self._replayed(runtime) if is_wanted else RuleState()
            group.due.set()

    async def _refresh_fleet(self, runtime: RuleRuntime) -> None:
        """Read the columns that the fleet reports, and locations of GPUs, if the rule needs them and they are old."""
        if not (runtime.overrides or fleet.is_needed(runtime.rule)):
            return
        if self._refreshing.locked() and self._refreshed_at is not None:
            return  # another rule reads them now; the previous result serves until then
        async with self._refreshing:
            now_s = self._clock.monotonic()
            if self._refreshed_at is not None and now_s - self._refreshed_at < FLEET_REFRESH_S:
                return
            required = [key for runtime in self._runtimes.values() for key in runtime.rule.requires]
            try:
                self._absent = await fleet.absent_columns(self._querier, required, self._now())
            except LakeAwayError:
                # The previous result stays valid; without one, each rule tries again.
                log.debug("columns that the fleet reports are not read while the lake is away")
            if any(runtime.overrides for runtime in self._runtimes.values()):
                self._locations = await fleet.locations(self._querier)
            self._refreshed_at = now_s

    async def _refresh_silent(self, runtime: RuleRuntime, now: datetime) -> None:
        """Read the silent nodes, if the rule's alerts have a node and the list is old."""
        if "node" not in runtime.rule.labels or runtime.rule.judges_silent_nodes:
            return
        if self._refreshing.locked() and self._silent_at is not None:
            return
        async with self._refreshing:
            now_s = self._clock.monotonic()
            if self._silent_at is not None and now_s - self._silent_at < SILENCE_REFRESH_S:
                return
            # After a start, nodes had no time to send yet: none counts as silent.
            has_listened = now - self._started_at >= fleet.SILENT_AFTER
            self._silent = (
                await fleet.silent_nodes(self._querier, now) if has_listened else frozenset()
            )
            self._silent_at = now_s

    async def _step(
        self,
        runtime: RuleRuntime,
        rows: Rows,
        now: datetime,
        silent: frozenset[str],
        querier: Querier,
    ) -> list[Transition]:
        """One step of a rule's state. Raises what the rows raise."""
        rule = runtime.rule
        if self._elsewhere:
            rows = [row for row in rows if row.get("node") not in self._elsewhere]
        held = await rows_with_holders(rule, rows, runtime.state, querier, now)
        accounts = await accounts_of(rule, rows, runtime.state, querier, self._cost_bounds, now)
        unread = self._unread(runtime, now)
        advance = partial(step, runtime.state, held, rule, now, silent, accounts, unread)
        if len(rows) <= INLINE_ROWS_MAX:
            runtime.state, transitions = advance()
        else:
            loop = asyncio.get_running_loop()
            runtime.state, transitions = await loop.run_in_executor(self._threads, advance)
        # Save new costs at once, so that pages and reports agree.
        known = (
            alert
            for key in accounts
            if key not in runtime.held and (alert := runtime.state.get(key))
        )
        runtime.unsaved |= {(alert.fingerprint, alert.active_at): alert for alert in known}
        return transitions

    def _unread(self, runtime: RuleRuntime, now: datetime) -> frozenset[str]:
        """Adopted alerts of a rule that no row has had yet."""
        if not self._adopted:
            return frozenset()
        for key, alert in runtime.state.items():
            if key in self._adopted and (alert.unknown_since is None or self._adopted[key] <= now):
                del self._adopted[key]
        return frozenset(key for key in runtime.state if key in self._adopted)

    def _query_at(self, now: datetime, querier: Querier) -> Query:
        """How the rows of an instant are queried."""

        async def query(sql: str, params: Mapping[str, Any]) -> Rows:
            async with asyncio.timeout(QUERY_TIMEOUT_S + 5):
                result = await querier.query(
                    sql, {**params, "now": now}, timeout_s=QUERY_TIMEOUT_S, row_limit=ROWS_MAX
                )
            if result.truncated:
                raise RowsError(f"more than {ROWS_MAX} rows; narrow the rule's SQL")
            return result.records()

        return query

    async def _evaluate_failing_rules(self) -> None:
        """Update the alerts about rules that fail, are slow or cannot be judged."""
        await self._evaluate_own(self._failing, failing_rows(self.stats))
        await self._evaluate_own(self._lake_away, lake_away_rows(self.stats))

    async def _evaluate_own(self, runtime: RuleRuntime, rows: Sequence[Mapping[str, Any]]) -> None:
        now = self._now()
        runtime.stats.evaluations += 1
        try:
            runtime.state, transitions = step(runtime.state, rows, runtime.rule, now)
            await self._publish(runtime, transitions, now)
        except Exception as error:  # noqa: BLE001 - as with any rule
            runtime.failed(error)
        else:
            runtime.succeeded(self._clock.now())

    async def _publish(
        self, runtime: RuleRuntime, transitions: Sequence[Transition], now: datetime
    ) -> None:
        """Mute, save and report the result of an evaluation."""
        runtime.mark(transitions, now)
        if transitions:
            self._muted_until = None
        self._mute(now)
        runtime.count()
        try:
            await self._save(runtime)
        finally:
            self._notify(runtime)  # also when the store fails

    def _mute(self, now: datetime) -> None:
        """Set why alerts are muted, if that can have changed."""
        if self._muted_until is not None and now < self._muted_until:
            return
        found = mute_reasons(self.alerts, self._silences, now)
        for runtime in self._all:
            runtime.mute(found)
        self._silences = tuple(s for s in self._silences if s.ends_at > now)
        edges = [at for s in self._silences for at in (s.starts_at, s.ends_at) if at > now]
        self._muted_until = min([*edges, now + timedelta(seconds=FLEET_REFRESH_S)])

    def _notify(self, runtime: RuleRuntime) -> None:
        while runtime.unnotified:
            alert = runtime.unnotified.pop(0)
            if self._on_change:
                self._on_change(alert)

    async def _save(self, runtime: RuleRuntime) -> None:
        """Save changed alerts; after a failure they are saved at the next evaluation."""
        if not runtime.unsaved:
            return
        alerts = dict(runtime.unsaved)
        async with asyncio.timeout(SAVE_TIMEOUT_S):
            await self._store.save(list(alerts.values()))
        runtime.saved(alerts, self._clock.now())

    async def _save_over(self, alerts: Sequence[Alert]) -> None:
        """Resolve alerts of deleted rules."""
        if not alerts:
            return
        now = self._now()
        over = [replace(a, state=AlertState.RESOLVED, resolved_at=now) for a in alerts]
        names = ", ".join(sorted({alert.rule for alert in alerts}))
        log.info("alerts of deleted rules resolved", extra={"rules": names})
        try:
            async with asyncio.timeout(SAVE_TIMEOUT_S):
                await self._store.save(over)
        except Exception as error:  # noqa: BLE001 - the next start finds them and tries again
            log.error("alerts not saved", extra={"rules": names, "reason": str(error)})
        for alert in over:
            if self._on_change and alert.fired_at:
                self._on_change(alert)


def _concerning(rule: Rule, overrides: Sequence[Override]) -> tuple[Override, ...]:
    return tuple(override for override in overrides if override.concerns(rule))


def _runtime_of(rule: Rule, overrides: Sequence[Override]) -> RuleRuntime:
    return RuleRuntime(rule, _concerning(rule, overrides))


def _replayed_s(runtime: RuleRuntime) -> float:
    """Length of the replay of a rule's past at a start."""
    rule = runtime.rule
    return rule.for_s + rule.keep_firing_for_s if rule.for_s > 0 else 0.0


def _urgency(group: RuleGroup) -> int:
    """Sort key: groups with a critical rule first."""
    order = list(Severity)
    return -max(order.index(runtime.rule.severity) for runtime in group.runtimes)


async def _until(group: RuleGroup, seconds: float) -> bool:
    """Rest, or stop early when the group ends; whether it was woken meanwhile."""
    deadline = asyncio.get_running_loop().time() + seconds
    was_due = False
    while not group.is_over:
        was_due = was_due or group.due.is_set()
        group.due.clear()
        try:
            async with asyncio.timeout_at(deadline):
                await group.due.wait()
        except TimeoutError:
            break
    return was_due
