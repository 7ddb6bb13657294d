"""Replays a rule over stored history: when it would have fired, for whom, and what that cost.

The rule is looked at every few minutes. Where two looks find the same label sets, it is taken to have
found them all along; where they differ, the time between is halved until the change is known to
within the rule's interval or a minute. The steps are those of live evaluation, `for` and
`keep_firing_for` to the second. What begins and ends between two looks is not seen, so looks are not
further apart than the rule's shortest window.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from gpuwarden.alert import Alert, AlertState
from gpuwarden.query import Querier
from gpuwarden_rules.language import Rule
from gpuwarden_rules.overrides import Plan
from gpuwarden_rules.state import RowsError, State, Transition, sighted, step

LOOK_S = 300.0
"""Longest time between two looks."""
RESOLUTION_S = 60.0
"""How well the time of a change is known, where the rule's interval is shorter."""
ROWS_MAX = 100_000

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Look:
    """What the rule's SQL returned at an instant."""

    at: datetime
    rows: Rows
    sighted: tuple[frozenset[str], frozenset[str]]
    """Label sets that hold, and those of which nobody can say."""


@dataclass(frozen=True, slots=True)
class Replay:
    """How a rule would have fared."""

    rule: Rule
    since: datetime
    until: datetime
    look_s: float
    resolution_s: float
    queries: int
    episodes: tuple[Alert, ...]
    """Alerts that fired, by the time they did; those that still fire at `until` are not resolved."""

    def usd(self) -> float | None:
        """What the conditions cost together; None where none has a price."""
        costs = [c for alert in self.episodes if (c := alert.usd_so_far(self.until)) is not None]
        return sum(costs) if costs else None


async def replay(
    rule: Rule,
    querier: Querier,
    since: datetime,
    until: datetime,
    *,
    plan: Plan | None = None,
    look_s: float | None = None,
    timeout_s: float | None = None,
) -> Replay:
    """Replay a rule over the time from `since` to `until`.

    `plan`: what overrides make of the rule, over the fleet as it is today; None: there are none.
    `look_s`: longest time between two looks. Raises QueryError and RowsError.
    """
    queries = 0

    async def rows_of(variant: Rule, at: datetime) -> list[dict[str, Any]]:
        nonlocal queries
        queries += 1
        result = await querier.query(
            variant.sql, variant.bindings(at), timeout_s=timeout_s, row_limit=ROWS_MAX
        )
        if result.truncated:
            raise RowsError(f"more than {ROWS_MAX} rows; narrow the rule's SQL")
        return result.records()

    async def look(at: datetime) -> Look:
        if plan is None:
            rows = await rows_of(rule, at)
        else:
            rows = await plan.rows(lambda variant: rows_of(variant, at))
        return Look(at, rows, sighted(rows, rule, at))

    variants = [replace(rule, params=dict(v.params)) for v in plan.variants] if plan else [rule]
    look_s = look_s or min(map(look_s_of, variants), default=look_s_of(rule))
    resolution_s = min(look_s, max(RESOLUTION_S, rule.interval_s))
    state, began = State(), []
    over: dict[tuple[str, datetime], Alert] = {}
    previous: Look | None = None
    async for found in looks(look, since, until, look_s, resolution_s):
        for at, rows in [*between(state, previous, found.at, rule), (found.at, found.rows)]:
            state, transitions = step(state, rows, rule, at)
            began += [t.alert for t in transitions if t.alert.state is AlertState.FIRING]
            over |= _resolved(transitions)
        previous = found
    episodes = tuple(
        over.get(_key(alert)) or _going_on(state, alert) or alert
        for alert in sorted(began, key=lambda a: (a.fired_at or a.active_at, a.fingerprint))
    )
    return Replay(rule, since, until, look_s, resolution_s, queries, episodes)


def look_s_of(rule: Rule) -> float:
    """How far looks may be apart so that nothing falls between them: the shortest window."""
    windows = [
        float(value)
        for name, value in rule.params.items()
        if name.endswith("window") and isinstance(value, int | float) and value > 0
    ]
    return max(rule.interval_s, min([LOOK_S, *windows]))


async def first_sample_at(querier: Querier) -> datetime | None:
    """Where history begins; None where there is none. Raises QueryError."""
    tables = ("gpu_samples", "host_samples", "events")
    oldest = ", ".join(f"(SELECT min(ts) FROM {table})" for table in tables)
    result = await querier.query(f"SELECT least({oldest}) AS first_at")
    first: datetime | None = result.rows[0][0]
    return first


async def looks(
    look: Callable[[datetime], Any],
    since: datetime,
    until: datetime,
    look_s: float,
    resolution_s: float,
) -> AsyncIterator[Look]:
    """Looks in order of time, closer together around each change."""
    last: Look = await look(since)
    yield last
    while last.at < until:
        following = await look(min(until, last.at + timedelta(seconds=look_s)))
        # A stack of looks to come, the nearest on top: a change is halved until it is near.
        ahead = [following]
        while ahead:
            near = ahead[-1]
            gap = near.at - last.at
            if near.sighted == last.sighted or gap.total_seconds() <= resolution_s:
                last = ahead.pop()
                yield last
            else:
                ahead.append(await look(last.at + gap / 2))


def between(
    state: State, previous: Look | None, until: datetime, rule: Rule
) -> list[tuple[datetime, Rows]]:
    """Steps before the look at which something is due by the clock alone: `for` or
    `keep_firing_for` is over. The rows are those of the look before."""
    if previous is None:
        return []
    due = set()
    for alert in state.values():
        if alert.state is AlertState.PENDING:
            due.add(alert.active_at + timedelta(seconds=rule.for_s))
        elif alert.fingerprint not in previous.sighted[0]:
            due.add(alert.seen_at + timedelta(seconds=rule.keep_firing_for_s))
    return [(at, previous.rows) for at in sorted(due) if previous.at < at < until]


def _key(alert: Alert) -> tuple[str, datetime]:
    return alert.fingerprint, alert.active_at


def _resolved(transitions: Sequence[Transition]) -> dict[tuple[str, datetime], Alert]:
    return {_key(t.alert): t.alert for t in transitions if t.alert.state is AlertState.RESOLVED}


def _going_on(state: State, alert: Alert) -> Alert | None:
    found = state.get(alert.fingerprint)
    return found if found is not None and found.active_at == alert.active_at else None
