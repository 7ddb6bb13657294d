"""Computes the cost of alerts from `waste`, so that alerts, reports and SQL have the same amounts.

An alert of a rule in `waste.COSTS` costs what the time of its GPU of certain categories costs, from the begin
of the alert until the view `waste` ends. A young alert, or one for which an hour was rolled up meanwhile, is
computed from its begin, because late data changes categories. For others only the new time is added. If the
rule's SQL looked back as far as it can, the begin is searched in `waste`.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuwarden.alert import Alert
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
from gpuwarden_rules.evaluation.state import Account, found_rows, instant_of

log = logging.getLogger(__name__)

YOUNG = timedelta(minutes=15)
RESETTLED = timedelta(hours=4)
"""An alert that is younger is computed again from its begin when an hour was rolled up."""
LOOKBACK_SLACK = timedelta(minutes=6)
"""A begin this close to the limit of the SQL may be earlier: rollups are up to four minutes late."""
QUERY_TIMEOUT_S = 60.0
ROWS_MAX = 100_000
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class _Span:
    """The time of an alert to be counted, from `since` on; `before`: dollars counted already."""

    key: str
    node: str
    gpu_uuid: str | None
    categories: Sequence[str]
    since: datetime
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
        }


async def accounts_of(
    rule: Rule,
    rows: Sequence[Mapping[str, Any]],
    state: Mapping[str, Alert],
    querier: Querier,
    now: datetime,
) -> dict[str, Account]:
    """Costs of the alerts that a rule has, or gets from these rows, by fingerprint; unknown costs are left out.
    Raises RowsError as `step` does."""
    if rule.name not in COSTS:
        return {}
    found = found_rows(rows, rule, now)
    if not found and not state:
        return {}
    try:
        bounds = (await querier.query(bounds_sql(), timeout_s=QUERY_TIMEOUT_S)).records()[0]
        begin, end = bounds["begin_at"], bounds["end_at"]
        spans = [
            span
            for key in {**found, **state}
            if not _is_complete(state.get(key), end)
            and (span := _span(rule, key, found.get(key), state.get(key), begin, now)) is not None
        ]
        return await _accounts(querier, spans, begin, end)
    except QueryError as error:
        # An alert does not wait for its cost.
        log.warning(
            "costs of alerts are not computed", extra={"rule": rule.name, "reason": str(error)}
        )
        return {}


def _is_complete(alert: Alert | None, end: datetime) -> bool:
    """Whether the alert is counted up to `end`."""
    return alert is not None and alert.accounted_until == end


def _span(
    rule: Rule,
    key: str,
    found: tuple[Mapping[str, str], Mapping[str, Any]] | None,
    before: Alert | None,
    rolled_until: datetime,
    now: datetime,
) -> _Span | None:
    labels = found[0] if found else before.labels if before else {}
    if "node" not in labels:
        return None
    if before is None:
        began_at = min((found and instant_of(found[1], "began_at")) or now, now)
        looked_back = rule.params.get("lookback", rule.params.get("window"))
        is_limit = isinstance(looked_back, int | float) and (
            began_at <= now - timedelta(seconds=looked_back) + LOOKBACK_SLACK
        )
        whole = _whole(rule, key, labels, began_at)
        return replace(whole, may_begin_earlier=is_limit and whole.gpu_uuid is not None)
    usd, until = before.accounted_usd, before.accounted_until
    is_young = now - before.active_at < YOUNG
    is_rolled = until is not None and until < rolled_until and now - before.began_at < RESETTLED
    whole = _whole(rule, key, labels, before.began_at)
    if usd is None or until is None or is_young or is_rolled:
        return whole
    return replace(whole, since=until, before=usd)


def _whole(rule: Rule, key: str, labels: Mapping[str, str], since: datetime) -> _Span:
    return _Span(key, labels.get("node", ""), labels.get("gpu_uuid"), COSTS[rule.name], since)


async def _accounts(
    querier: Querier, spans: Sequence[_Span], begin: datetime, end: datetime
) -> dict[str, Account]:
    """`begin`: end of the hours that are rolled up; `end`: end of the minutes that are counted."""
    earlier = await _by_key(querier, run_begin_sql(), [s for s in spans if s.may_begin_earlier])
    spans = [
        replace(s, since=earlier[s.key].replace(tzinfo=UTC)) if s.key in earlier else s
        for s in spans
    ]
    usd: dict[str, float] = {}

    async def add(sql: str, of: Sequence[_Span]) -> None:
        for key, spent in (await _by_key(querier, sql, of)).items():
            usd[key] = usd.get(key, 0.0) + spent

    if spans:
        since = max(begin, min(_minute(span.since) for span in spans))
        if since < end:
            await add(spent_sql(_naive(since), _naive(end)), spans)
    rolled = [span for span in spans if span.since < begin]
    if rolled:
        first = min(_hour(span.since) for span in rolled)
        await add(spent_hours_sql(_naive(first), _naive(begin)), rolled)
    # The hour in which a span begins is counted by minutes.
    within = [span for span in rolled if _minute(span.since) != _hour(span.since)]
    for hour in sorted({_hour(span.since) for span in within}):
        heads = [span for span in within if _hour(span.since) == hour]
        since = min(_minute(span.since) for span in heads)
        await add(spent_sql(_naive(since), _naive(hour + HOUR)), heads)
    found = {}
    for span in spans:
        if span.key in usd:
            found[span.key] = Account(span.before + usd[span.key], end, span.since)
        elif span.before:
            found[span.key] = Account(span.before, end, span.since)
    return found


async def _by_key(querier: Querier, sql: str, spans: Sequence[_Span]) -> dict[str, Any]:
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
