"""Makes the daily digest of the fleet's waste.

It reads whole hours of the view `waste`, as reports do, and `alerts`. Pure functions decide
when it is due.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, time, timedelta, tzinfo
from typing import Any

from gpuwarden.clock import to_ms
from gpuwarden.query import Querier
from gpuwarden_rules.notify.message import Digest, MessageKind, Notification, Waster, message_id

SPAN = timedelta(days=1)
QUERY_TIMEOUT_S = 60.0

SETTLED_AFTER = timedelta(minutes=5)
"""The last hour is labelled about two minutes after its end; a digest waits for it."""

_HOURS = """
SELECT {by} AS name, bool_or(simulated) AS simulated, sum(gpu_hours) AS seen,
    sum(gpu_hours) FILTER (is_waste) AS wasted, sum(usd) FILTER (is_waste) AS usd
FROM (
    SELECT * FROM waste
    WHERE ts >= $since::TIMESTAMP AND ts < $until::TIMESTAMP
    -- Simulated GPUs count only where there are no others.
    QUALIFY simulated = bool_and(simulated) OVER ()
)
GROUP BY ALL
ORDER BY usd DESC NULLS LAST, wasted DESC NULLS LAST, name
"""
_ALERTS = """
SELECT rule, sum(hours) AS hours, sum(hours * usd_per_hour) AS usd
FROM (
    SELECT rule, greatest(0, date_diff('millisecond',
        greatest(began_at, $since::TIMESTAMP), least(until, $until::TIMESTAMP))) / 3.6e6 AS hours,
        -- The part of this day, for an alert that lasts several days.
        coalesce(accounted_usd / (nullif(date_diff('millisecond', began_at, until), 0) / 3.6e6), usd_per_hour)
            AS usd_per_hour
    FROM (SELECT *, coalesce(resolved_at, accounted_until, $until::TIMESTAMP) AS until FROM alerts)
    WHERE fired_at < $until::TIMESTAMP AND simulated = $simulated AND until > $since::TIMESTAMP
)
GROUP BY rule
HAVING usd > 0
ORDER BY usd DESC, rule
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestPlan:
    """Time, time zone and receivers of a digest."""

    receivers: tuple[str, ...]
    at: time
    zone: tzinfo
    top: int

    @property
    def name(self) -> str:
        """Identity of the digest, also after a restart."""
        return f"{self.at:%H:%M} {','.join(sorted(self.receivers))}"


def due_at(plan: DigestPlan, now: datetime) -> datetime:
    """The last instant at or before `now` at which the digest was due; see `is_due`."""
    local = now.astimezone(plan.zone)
    today = datetime.combine(local.date(), plan.at, plan.zone)
    if today.astimezone(now.tzinfo) > now:
        today = datetime.combine(local.date() - SPAN, plan.at, plan.zone)
    return today.astimezone(now.tzinfo)


def settled_due_at(plan: DigestPlan, now: datetime) -> datetime:
    """The last instant at which the digest was due and all its hours are labelled."""
    return due_at(plan, now - SETTLED_AFTER)


def is_due(plan: DigestPlan, done_ms: int | None, now: datetime) -> bool:
    """Whether the digest was not made since it was due. Without `done_ms` it waits for the next day's time."""
    return done_ms is not None and done_ms < to_ms(settled_due_at(plan, now))


async def made(plan: DigestPlan, querier: Querier, now: datetime) -> list[Notification]:
    """Messages with the digest of the last 24 hours, one for each receiver. Raises QueryError."""
    due = settled_due_at(plan, now)
    until = due.replace(minute=0, second=0, microsecond=0)
    digest = await read(querier, until - SPAN, until, plan.top)
    return [
        Notification(
            id=message_id("digest", plan.name, receiver, str(to_ms(due))),
            receiver=receiver,
            kind=MessageKind.DIGEST,
            group=f"digest {plan.name}",
            made_at=now,
            digest=digest,
        )
        for receiver in plan.receivers
    ]


async def read(querier: Querier, since: datetime, until: datetime, top: int) -> Digest:
    """The digest of the time between two instants. Raises QueryError."""
    params = {"since": since, "until": until}
    nodes = await _hours(querier, "node", params)
    categories = await _hours(querier, "category", params)
    simulated = any(row["simulated"] for row in nodes)
    params_of_alerts = {**params, "simulated": simulated}
    alerts = (await querier.query(_ALERTS, params_of_alerts, timeout_s=QUERY_TIMEOUT_S)).records()
    known = [float(row["usd"]) for row in categories if row["usd"] is not None]
    return Digest(
        since=since,
        until=until,
        simulated=simulated,
        wasted_hours=sum(float(row["wasted"] or 0) for row in categories),
        gpu_hours=sum(float(row["seen"] or 0) for row in categories),
        usd=sum(known) if known else None,
        categories=tuple(
            _waster(r["name"], r["usd"], r["wasted"]) for r in categories if r["wasted"]
        ),
        wasters=tuple(_waster(r["name"], r["usd"], r["wasted"]) for r in nodes if r["wasted"])[
            :top
        ],
        alerts=tuple(_waster(r["rule"], r["usd"], r["hours"]) for r in alerts[:top]),
    )


async def _hours(querier: Querier, by: str, params: Mapping[str, Any]) -> list[dict[str, Any]]:
    sql = _HOURS.format(by=by)
    return (await querier.query(sql, params, timeout_s=QUERY_TIMEOUT_S)).records()


def _waster(name: str, usd: Any, hours: Any) -> Waster:
    return Waster(name=name, usd=None if usd is None else float(usd), hours=float(hours))
