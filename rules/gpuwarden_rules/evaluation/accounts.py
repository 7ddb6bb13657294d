"""Computes the cost of alerts from `waste`, so that alerts, backtests, reports and SQL have the same amounts.

An alert of a rule in `waste.COSTS` costs what the time of its GPU of certain categories costs, from the begin
of the alert to its end: an alert that goes on, until the view `waste` ends; one that ends, to the last minute that is rolled up.
A young alert, or one for which an hour was rolled up meanwhile, is computed from its begin, because late data changes
categories. For others only the new time is added. If the rule's SQL looked back as far as it can, the begin is searched in
`waste`.
"""

import asyncio
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuwarden.alert import Alert
from gpuwarden.clock import Clock
from gpuwarden.idleness import IDLE_1M
from gpuwarden.query import Querier, QueryError
from gpuwarden.waste import (
    COSTS,
    bounds_sql,
    run_begin_sql,
    spent_hours_sql,
    spent_sql,
)
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.definition.sql_text import timestamp_text
from gpuwarden_rules.evaluation.state import Account, holding_and_unknown, instant_of

log = logging.getLogger(__name__)

YOUNG = timedelta(minutes=15)
RESETTLED = timedelta(hours=4)
"""An alert that is younger is computed again from its begin when an hour was rolled up."""
LOOKBACK_SLACK = timedelta(minutes=6)
"""A begin this close to the limit of the SQL may be earlier: rollups are up to four minutes late."""
QUERY_TIMEOUT_S = 60.0
ROWS_MAX = 100_000
HOUR = timedelta(hours=1)
ENDED_WITHIN = timedelta(days=2)
"""An idle time outlives a gap of a day in the data."""
_ENDED_AT = (
    "SELECT fingerprint, max(resolved_at) FROM alerts WHERE rule = $rule AND resolved_at > $since::TIMESTAMP "
    "AND fired_at IS NOT NULL GROUP BY fingerprint"
)
BOUNDS_KEPT_S = 20.0
HOURS_AT_ONCE = 6
"""Hours whose minutes one query reads."""


@dataclass(frozen=True, slots=True)
class CostBounds:
    """The times of `waste`: rolled-up hours end at `rolled_until`, the view at `counted_until`, minutes at `closed_until`."""

    rolled_until: datetime
    counted_until: datetime
    closed_until: datetime


class CostBoundsReader:
    """Reads the times of `waste` once for all rules that ask within BOUNDS_KEPT_S: they move once a minute."""

    def __init__(self, querier: Querier, clock: Clock) -> None:
        self._querier = querier
        self._clock = clock
        self._bounds: CostBounds | None = None
        self._read_s = -math.inf
        self._reading = asyncio.Lock()

    async def read(self) -> CostBounds:
        """The times as they are. Raises QueryError."""
        async with self._reading:
            now_s = self._clock.monotonic()
            if self._bounds is None or now_s - self._read_s >= BOUNDS_KEPT_S:
                self._bounds, self._read_s = await _bounds(self._querier), now_s
            return self._bounds


@dataclass(frozen=True, slots=True)
class CostSpan:
    """The time of an alert to be counted, from `since` to `until`; `before`: dollars counted already."""

    key: str
    node: str
    gpu_uuid: str | None
    categories: Sequence[str]
    since: datetime
    until: datetime
    before: float = 0.0
    may_begin_earlier: bool = False

    def document(self) -> dict[str, Any]:
        """The entry of the parameter `$spans`."""
        return {
            "key": self.key,
            "node": self.node,
            "gpu_uuid": self.gpu_uuid,
            "categories": list(self.categories),
            "since": timestamp_text(self.since),
            "until": timestamp_text(self.until),
        }


async def accounts_of(
    rule: Rule,
    rows: Sequence[Mapping[str, Any]],
    state: Mapping[str, Alert],
    querier: Querier,
    bounds_reader: CostBoundsReader,
    now: datetime,
) -> dict[str, Account]:
    """Costs of the alerts that a rule has, or gets from these rows, by fingerprint; unknown costs are left out.
    Raises RowsError as `step` does."""
    if rule.name not in COSTS:
        return {}
    holding, unknown = holding_and_unknown(rows, rule, now)
    if not holding and not state:
        return {}
    try:
        bounds = await bounds_reader.read()
        spans = []
        for key in {**holding, **state}:
            goes_on = key in holding or key in unknown
            until = bounds.counted_until if goes_on else bounds.closed_until
            before = state.get(key)
            span = _span(rule, key, holding.get(key), before, bounds.rolled_until, until, now)
            is_counted = before is not None and before.accounted_until == until
            if span is not None and not is_counted:
                spans.append(span)
        if not spans:
            return {}
        ended_at = await _ended_at(rule, querier, now)
        spans = [_after(span, ended_at.get(span.key, span.since)) for span in spans]
        return await accounts_of_spans(querier, spans, bounds.rolled_until)
    except QueryError as error:
        # An alert does not wait for its cost.
        log.warning(
            "costs of alerts are not computed", extra={"rule": rule.name, "reason": str(error)}
        )
        return {}


async def _ended_at(rule: Rule, querier: Querier, now: datetime) -> dict[str, datetime]:
    """When the last alert of each fingerprint ended: what it cost is counted."""
    params = {"rule": rule.name, "since": now - ENDED_WITHIN}
    result = await querier.query(_ENDED_AT, params, timeout_s=QUERY_TIMEOUT_S, row_limit=ROWS_MAX)
    return {row[0]: row[1] for row in result.rows}


def _after(span: CostSpan, ended_at: datetime) -> CostSpan:
    """The span without what the alert before it cost."""
    if ended_at <= span.since:
        return span
    return replace(span, since=ended_at, may_begin_earlier=False)


async def billed(
    rule: Rule, episodes: Sequence[Alert], querier: Querier, until: datetime
) -> Sequence[Alert]:
    """Alerts of the past with their cost, from their begin until they were resolved, or `until`; one that began before the
    one before it ended, as after a gap in the data, costs what came after that. Raises QueryError."""
    if rule.name not in COSTS or not episodes:
        return episodes
    bounds = await _bounds(querier)
    spans = []
    ended_at: dict[str, datetime] = {}
    for number, alert in enumerate(episodes):
        if alert.resolved_at is not None:
            ends_at = min(alert.resolved_at, bounds.closed_until)
        else:
            ends_at = min(until, bounds.counted_until)
        if "node" in alert.labels:
            span = _whole(rule, str(number), alert.labels, alert.began_at, ends_at)
            spans.append(_after(span, ended_at.get(alert.fingerprint, span.since)))
        ended_at[alert.fingerprint] = ends_at
    accounts = await accounts_of_spans(querier, spans, bounds.rolled_until)
    return [
        replace(alert, accounted_usd=account.usd, accounted_until=account.until)
        if (account := accounts.get(str(number)))
        else alert
        for number, alert in enumerate(episodes)
    ]


async def _bounds(querier: Querier) -> CostBounds:
    row = (await querier.query(bounds_sql(), timeout_s=QUERY_TIMEOUT_S)).records()[0]
    return CostBounds(row["begin_at"], row["end_at"], row["closed_at"])


def _span(
    rule: Rule,
    key: str,
    holding: tuple[Mapping[str, str], Mapping[str, Any]] | None,
    before: Alert | None,
    rolled_until: datetime,
    until: datetime,
    now: datetime,
) -> CostSpan | None:
    labels = holding[0] if holding else before.labels if before else {}
    if "node" not in labels:
        return None
    if before is None:
        began_at = min((holding and instant_of(holding[1], "began_at")) or now, now)
        looked_back = rule.params.get("lookback", rule.params.get("window"))
        # Since when a GPU is idle is a fact; other rules look back as far as their window.
        is_fact = any(table == IDLE_1M.name for table, _ in rule.requires)
        is_limit = (
            not is_fact
            and isinstance(looked_back, int | float)
            and (began_at <= now - timedelta(seconds=looked_back) + LOOKBACK_SLACK)
        )
        whole = _whole(rule, key, labels, began_at, until)
        return replace(whole, may_begin_earlier=is_limit and whole.gpu_uuid is not None)
    usd, counted_until = before.accounted_usd, before.accounted_until
    is_young = now - before.active_at < YOUNG
    is_rolled = (
        counted_until is not None
        and counted_until < rolled_until
        and now - before.began_at < RESETTLED
    )
    whole = _whole(rule, key, labels, before.began_at, until)
    if usd is None or counted_until is None or is_young or is_rolled:
        return whole
    return replace(whole, since=counted_until, before=usd)


def _whole(
    rule: Rule, key: str, labels: Mapping[str, str], since: datetime, until: datetime
) -> CostSpan:
    return CostSpan(
        key, labels.get("node", ""), labels.get("gpu_uuid"), COSTS[rule.name], since, until
    )


async def accounts_of_spans(
    querier: Querier, spans: Sequence[CostSpan], rolled_until: datetime
) -> dict[str, Account]:
    """The cost of spans by key; those of whose GPUs nothing is known are left out. `rolled_until`: end of the hours in `waste_1h`,
    a whole hour. Raises QueryError."""
    earlier = await _by_key(querier, run_begin_sql(), [s for s in spans if s.may_begin_earlier])
    spans = [
        replace(s, since=earlier[s.key].replace(tzinfo=UTC)) if s.key in earlier else s
        for s in spans
    ]
    usd: dict[str, float] = {}

    async def add(sql: str, of: Sequence[CostSpan]) -> None:
        for key, spent in (await _by_key(querier, sql, of)).items():
            usd[key] = usd.get(key, 0.0) + spent

    rolled = [span for span in spans if span.since < rolled_until]
    if rolled:
        first = min(_hour(span.since) for span in rolled)
        await add(spent_hours_sql(_naive(first), _naive(rolled_until)), rolled)
    for read in minute_reads(spans, rolled_until):
        await add(spent_sql(_naive(read.begin), _naive(read.end)), read.parts)
    return {
        span.key: Account(span.before + usd.get(span.key, 0.0), span.until, span.since)
        for span in spans
        if span.key in usd or span.before
    }


@dataclass(frozen=True, slots=True)
class MinuteRead:
    """One query of minutes: the time that it reads, and the parts of spans that lie in it."""

    begin: datetime
    end: datetime
    parts: Sequence[CostSpan]


def minute_reads(spans: Sequence[CostSpan], rolled_until: datetime) -> Iterator[MinuteRead]:
    """The queries of what whole hours that are rolled up do not have: hours in which spans begin or end, and the time since
    `rolled_until`."""
    by_hour: dict[datetime, list[CostSpan]] = {}
    running = []
    for whole in spans:
        span = replace(whole, since=_minute(whole.since))
        if span.until <= span.since:
            continue
        first, last = _hour(span.since), _hour(span.until)
        if span.since != first and first < rolled_until:
            by_hour.setdefault(first, []).append(replace(span, until=min(span.until, first + HOUR)))
        if span.until != last and last < rolled_until and (last != first or span.since == first):
            by_hour.setdefault(last, []).append(replace(span, since=last))
        if span.until > rolled_until:
            running.append(replace(span, since=max(span.since, rolled_until)))
    hours = sorted(by_hour)
    while hours:
        count = 1
        while count < min(len(hours), HOURS_AT_ONCE) and hours[count] == hours[0] + count * HOUR:
            count += 1
        parts = [part for hour in hours[:count] for part in by_hour[hour]]
        yield MinuteRead(hours[0], hours[count - 1] + HOUR, parts)
        hours = hours[count:]
    if running:
        begin = min(part.since for part in running)
        yield MinuteRead(begin, max(part.until for part in running), running)


async def _by_key(querier: Querier, sql: str, spans: Sequence[CostSpan]) -> dict[str, Any]:
    if not spans:
        return {}
    params = {"spans": json.dumps([span.document() for span in spans])}
    result = await querier.query(sql, params, timeout_s=QUERY_TIMEOUT_S, row_limit=ROWS_MAX)
    return {row[0]: row[1] for row in result.rows}


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def _minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)


def _naive(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(tzinfo=None)
