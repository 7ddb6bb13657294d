"""Replays a rule over stored history: when it would have fired, for whom, and what that cost.

The rule is evaluated every few minutes. If two evaluations find the same alerts, the alerts held for all the
time between. If they differ, the time between is halved until the change is known to within the rule's
interval or a minute. Steps are those of live evaluation, with `for` and `keep_firing_for` to the second. A
condition that begins and ends between two evaluations is missed. So evaluations are not further apart than the
rule's shortest window, or than `for`, without which nothing fires.

Instants are queried many at a time (`query.py`): first those of a stretch, then those halfway between any two
that differ, and so on.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

from gpuwarden.alert import Alert, AlertState
from gpuwarden.clock import Clock
from gpuwarden.query import Querier
from gpuwarden_rules.backtest.inventory_history import NodeOutage, inventory_history_of
from gpuwarden_rules.backtest.query import BacktestQuery, Evaluation, Rows
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.definition.overrides import OverridePlan
from gpuwarden_rules.evaluation.accounts import billed
from gpuwarden_rules.evaluation.holders import rows_with_holders
from gpuwarden_rules.evaluation.state import RuleState, Transition, step

STEP_S = 300.0
"""Longest time between two evaluations."""
RESOLUTION_S = 60.0
"""Precision of the time of a change, where the rule's interval is shorter."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The alerts that a rule would have made."""

    rule: Rule
    since: datetime
    until: datetime
    step_s: float
    resolution_s: float
    evaluations: int
    queries: int
    """How many queries the evaluations took."""
    episodes: tuple[Alert, ...]
    """Alerts that fired, by the time they did; those that still fire at `until` are not resolved."""

    def usd(self) -> float | None:
        """What all conditions cost; None where no price is known."""
        costs = [c for alert in self.episodes if (c := alert.usd_so_far(self.until)) is not None]
        return sum(costs) if costs else None


async def replay(
    rule: Rule,
    querier: Querier,
    since: datetime,
    until: datetime,
    clock: Clock,
    *,
    plan: OverridePlan | None = None,
    outages: Sequence[NodeOutage] = (),
    step_s: float | None = None,
    timeout_s: float | None = None,
    on_progress: Callable[[datetime], None] = lambda at: None,
) -> Replay:
    """Replay a rule over the time from `since` to `until`; `on_progress` is told how far it is.

    `plan`: the overrides of the rule, for the fleet as it is today; None: there are none.
    `outages`: alerts of nodes that sent nothing are stale, as live ones are.
    `step_s`: longest time between two evaluations. `clock` tells how long queries take. Raises QueryError and RowsError.
    """
    variants = [replace(rule, params=dict(v.params)) for v in plan.variants] if plan else [rule]
    step_s = step_s or min(map(step_s_of, variants), default=step_s_of(rule))
    resolution_s = min(step_s, max(RESOLUTION_S, rule.interval_s))
    history = await inventory_history_of(rule, querier, since, until)
    query = BacktestQuery(rule, querier, clock, plan=plan, history=history, timeout_s=timeout_s)
    state, began = RuleState(), []
    silent = _Silent(outages)
    over: dict[tuple[str, datetime], Alert] = {}
    previous: Evaluation | None = None
    async for found in evaluations(
        query.at, since, until, step_s, resolution_s, lambda: query.at_once
    ):
        for at, rows in [*between(state, previous, found.at, rule), (found.at, found.rows)]:
            rows = await rows_with_holders(rule, rows, state, querier, at)
            state, transitions = step(state, rows, rule, at, silent.at(at))
            began += [t.alert for t in transitions if t.alert.state is AlertState.FIRING]
            over |= _resolved(transitions)
        previous = found
        on_progress(found.at)
    episodes = [
        over.get(_key(alert)) or _still_open(state, alert) or alert
        for alert in sorted(began, key=lambda a: (a.fired_at or a.active_at, a.fingerprint))
    ]
    bill = tuple(await billed(rule, episodes, querier, until))
    return Replay(rule, since, until, step_s, resolution_s, query.evaluations, query.queries, bill)


class _Silent:
    """Nodes that send nothing at an instant; instants must be in order of time."""

    def __init__(self, outages: Sequence[NodeOutage]) -> None:
        self._coming = sorted(outages, key=lambda outage: outage.from_at, reverse=True)
        self._now: list[NodeOutage] = []

    def at(self, now: datetime) -> frozenset[str]:
        while self._coming and self._coming[-1].from_at <= now:
            self._now.append(self._coming.pop())
        self._now = [outage for outage in self._now if now < outage.until_at]
        return frozenset(outage.node for outage in self._now)


def step_s_of(rule: Rule) -> float:
    """Longest time between evaluations at which no alert is missed.

    A condition stays in the rule's window for the length of the window, and one that is shorter than `for`
    does not fire. Without a window a condition may be short.
    """
    windows = [
        float(value)
        for name, value in rule.params.items()
        if name.endswith("window")
        and isinstance(value, int | float)
        and value > 0
        # What is expected ends at once where it is heard of again.
        and not (rule.form is not None and rule.form.expected and name == "window")
    ]
    lasts_s = max(min(windows, default=RESOLUTION_S), rule.for_s)
    return max(rule.interval_s, min(STEP_S, lasts_s))


async def first_sample_at(querier: Querier) -> datetime | None:
    """When stored history begins; None: there is none. Raises QueryError."""
    tables = ("gpu_samples", "host_samples", "events")
    oldest = ", ".join(f"(SELECT min(ts) FROM {table})" for table in tables)
    result = await querier.query(f"SELECT least({oldest}) AS first_at")
    first: datetime | None = result.rows[0][0]
    return first


async def evaluations(
    evaluation: Callable[[Sequence[datetime]], Awaitable[Sequence[Evaluation]]],
    since: datetime,
    until: datetime,
    step_s: float,
    resolution_s: float,
    at_once: Callable[[], int],
) -> AsyncIterator[Evaluation]:
    """Evaluations in order of time, closer together around each change; `at_once` of them are queried
    at a time, and more where there are changes."""
    last: Evaluation | None = None
    while last is None or last.at < until:
        first = since if last is None else last.at + timedelta(seconds=step_s)
        count = at_once()
        instants = [first + timedelta(seconds=step_s * number) for number in range(count)]
        instants = [at for at in instants if at < until]
        if len(instants) < count:
            instants.append(until)
        known = [*([last] if last else []), *await evaluation(instants)]
        while middles := _middles(known, resolution_s):
            known = sorted([*known, *await evaluation(middles)], key=lambda found: found.at)
        for found in known[1:] if last else known:
            yield found
        last = known[-1]


def _middles(known: Sequence[Evaluation], resolution_s: float) -> list[datetime]:
    """Halfway between evaluations that differ and are further apart than changes must be known."""
    return [
        before.at + (after.at - before.at) / 2
        for before, after in pairwise(known)
        if before.fingerprints != after.fingerprints
        and (after.at - before.at).total_seconds() > resolution_s
    ]


def between(
    state: RuleState, previous: Evaluation | None, until: datetime, rule: Rule
) -> list[tuple[datetime, Rows]]:
    """Steps before the evaluation at which only time passes: `for` or `keep_firing_for` ends. The rows are
    those of the evaluation before."""
    if previous is None:
        return []
    due = set()
    for alert in state.values():
        if alert.state is AlertState.PENDING:
            due.add(alert.active_at + timedelta(seconds=rule.for_s))
        elif alert.fingerprint not in previous.fingerprints[0]:
            due.add(alert.seen_at + timedelta(seconds=rule.keep_firing_for_s))
    return [(at, previous.rows) for at in sorted(due) if previous.at < at < until]


def _key(alert: Alert) -> tuple[str, datetime]:
    return alert.fingerprint, alert.active_at


def _resolved(transitions: Sequence[Transition]) -> dict[tuple[str, datetime], Alert]:
    return {_key(t.alert): t.alert for t in transitions if t.alert.state is AlertState.RESOLVED}


def _still_open(state: RuleState, alert: Alert) -> Alert | None:
    found = state.get(alert.fingerprint)
    return found if found is not None and found.active_at == alert.active_at else None
