"""The daily digest: what the fleet wasted, at a time of day, from SQL.

It reads hours of `gpu_1h` with the prices of `gpus`, and `alerts`. When it is due is a pure function.
"""

from dataclasses import dataclass
from datetime import datetime, time, timedelta, tzinfo
from typing import Any

from gpuwarden.clock import to_ms
from gpuwarden.query import Querier
from gpuwarden_rules.notify.message import Digest, Kind, Message, Waster, message_id

SPAN = timedelta(days=1)
QUERY_TIMEOUT_S = 60.0

_HOURS = """
WITH hours AS (
    SELECT gpu_uuid, simulated, arg_max(node, ts) AS node, sum(idle_seconds) / 3600 AS idle,
        sum(coalesce(idle_seconds, 0) + coalesce(busy_seconds, 0) + coalesce(unknown_seconds, 0))
            / 3600 AS seen
    FROM gpu_1h
    WHERE ts >= $since::TIMESTAMP AND ts < $until::TIMESTAMP
    GROUP BY gpu_uuid, simulated
    -- Simulated GPUs count only where there are no others.
    QUALIFY simulated = bool_and(simulated) OVER ()
)
SELECT h.node, bool_or(h.simulated) AS simulated, sum(h.idle) AS idle, sum(h.seen) AS seen, sum(h.idle * g.usd_per_hour) AS usd
FROM hours h LEFT JOIN gpus g USING (gpu_uuid)
GROUP BY h.node
ORDER BY usd DESC NULLS LAST, idle DESC NULLS LAST, h.node
"""
_ALERTS = """
SELECT rule, sum(hours) AS hours, sum(hours * usd_per_hour) AS usd
FROM (
    SELECT rule, usd_per_hour, greatest(0, date_diff('millisecond',
        greatest(began_at, $since::TIMESTAMP),
        least(coalesce(resolved_at, $until::TIMESTAMP), $until::TIMESTAMP))) / 3.6e6 AS hours
    FROM alerts
    WHERE fired_at < $until::TIMESTAMP AND simulated = $simulated
        AND coalesce(resolved_at, $until::TIMESTAMP) > $since::TIMESTAMP
)
GROUP BY rule
HAVING usd > 0
ORDER BY usd DESC, rule
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestPlan:
    """When and to whom."""

    receivers: tuple[str, ...]
    at: time
    zone: tzinfo
    top: int

    @property
    def name(self) -> str:
        """Its identity from one run to the next."""
        return f"{self.at:%H:%M} {','.join(sorted(self.receivers))}"


def due_at(plan: DigestPlan, now: datetime) -> datetime:
    """The last instant at or before `now` at which it should be made; see `is_due`."""
    local = now.astimezone(plan.zone)
    today = datetime.combine(local.date(), plan.at, plan.zone)
    if today.astimezone(now.tzinfo) > now:
        today = datetime.combine(local.date() - SPAN, plan.at, plan.zone)
    return today.astimezone(now.tzinfo)


def is_due(plan: DigestPlan, done_ms: int | None, now: datetime) -> bool:
    """Whether it has not been made since it was due; the first comes at the first time of day."""
    return done_ms is not None and done_ms < to_ms(due_at(plan, now))


async def made(plan: DigestPlan, querier: Querier, now: datetime) -> list[Message]:
    """The digest of the day before it was due, for each receiver. Raises QueryError."""
    until = due_at(plan, now)
    digest = await read(querier, until - SPAN, until, plan.top)
    return [
        Message(
            id=message_id("digest", plan.name, receiver, str(to_ms(until))),
            receiver=receiver,
            kind=Kind.DIGEST,
            group=f"digest {plan.name}",
            made_at=now,
            digest=digest,
        )
        for receiver in plan.receivers
    ]


async def read(querier: Querier, since: datetime, until: datetime, top: int) -> Digest:
    """What was wasted between two instants. Raises QueryError."""
    params = {"since": since, "until": until}
    nodes = (await querier.query(_HOURS, params, timeout_s=QUERY_TIMEOUT_S)).records()
    simulated = any(row["simulated"] for row in nodes)
    params_of_alerts = {**params, "simulated": simulated}
    alerts = (await querier.query(_ALERTS, params_of_alerts, timeout_s=QUERY_TIMEOUT_S)).records()
    idle = [row for row in nodes if row["idle"]]
    known = [float(row["usd"]) for row in nodes if row["usd"] is not None]
    return Digest(
        since=since,
        until=until,
        simulated=simulated,
        idle_hours=sum(float(row["idle"] or 0) for row in nodes),
        gpu_hours=sum(float(row["seen"] or 0) for row in nodes),
        usd=sum(known) if known else None,
        wasters=tuple(_waster(r["node"], r["usd"], r["idle"]) for r in idle[:top]),
        alerts=tuple(_waster(r["rule"], r["usd"], r["hours"]) for r in alerts[:top]),
    )


def _waster(name: str, usd: Any, hours: Any) -> Waster:
    return Waster(name=name, usd=None if usd is None else float(usd), hours=float(hours))
