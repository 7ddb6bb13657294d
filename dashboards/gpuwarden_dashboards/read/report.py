"""Reads the report of a time: money, budgets, what policies did, incidents and sick GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuwarden.query import Querier, Record, query_all, timestamp_sql
from gpuwarden_dashboards.read.money import Money, MoneyQuestion, read_money

ROWS_MAX = 15
"""Most incidents, and most GPUs, that a report lists; the others are counted."""

_INCIDENTS = """
SELECT i.id, i.severity, i.summary, i.owner, i.opened_at, i.resolved_at, c.usd_so_far, count(*) OVER () AS found
FROM incidents i LEFT JOIN incident_costs c ON c.incident = i.id
WHERE state <> 'merged' AND opened_at < {end} AND coalesce(resolved_at, {end}) >= {begin} AND i.simulated = {simulated}
ORDER BY list_position(['critical', 'warning', 'info'], i.severity), c.usd_so_far DESC NULLS LAST, i.opened_at, i.id
LIMIT {most}
"""
_SICK = """
SELECT node, gpu, arg_max(summary, fired_at) AS summary, arg_max(remedy, fired_at) AS remedy,
    bool_or(state = 'firing') AS is_sick_now, count(*) OVER () AS found
FROM alerts
WHERE consequence = 'failing_hardware' AND gpu_uuid IS NOT NULL AND simulated = {simulated}
    AND fired_at < {end} AND coalesce(resolved_at, {end}) >= {begin}
GROUP BY node, gpu, gpu_uuid ORDER BY is_sick_now DESC, node, gpu LIMIT {most}
"""
_POLICIES = """
SELECT c.policy, c.team, count(*) FILTER (c.state = 'done') AS acts, count(c.busy_again_at) AS wrong,
    sum(c.saved_usd) AS saved_usd, any_value(r.usd_a_week_before) AS usd_a_week_before,
    any_value(r.usd_a_week_since) AS usd_a_week_since, count(*) OVER () AS found
FROM policy_cases c JOIN policy_results r USING (policy)
WHERE c.ended_at >= {begin} AND c.ended_at < {end} AND c.state IN ('done', 'with_others')
GROUP BY c.policy, c.team ORDER BY saved_usd DESC NULLS LAST, c.policy, c.team NULLS LAST LIMIT {most}
"""


@dataclass(frozen=True, slots=True)
class ReportIncident:
    """An incident that was open in the time."""

    id: str
    severity: str
    summary: str
    owner: str | None
    opened_at: datetime
    resolved_at: datetime | None
    usd_so_far: float | None


@dataclass(frozen=True, slots=True)
class SickGpu:
    """A GPU whose hardware failed in the time."""

    node: str | None
    gpu: int | None
    summary: str
    remedy: str
    is_sick_now: bool

    @property
    def place(self) -> str:
        """Its node and index."""
        index = "?" if self.gpu is None else self.gpu
        return f"{self.node or 'unknown node'}, GPU {index}"


@dataclass(frozen=True, slots=True)
class PolicyLine:
    """What a policy did for a team in the time."""

    policy: str
    team: str | None
    acts: int
    wrong: int
    """Acts whose user was busy there again at once."""
    saved_usd: float | None
    usd_a_week_before: float | None
    """Cost of its rule's alerts, of all teams, before its first act."""
    usd_a_week_since: float | None


@dataclass(frozen=True, slots=True)
class MoneyReport:
    """All that a report says."""

    question: MoneyQuestion
    made_at: datetime
    money: Money
    incidents: Sequence[ReportIncident]
    incidents_found: int
    sick: Sequence[SickGpu]
    sick_found: int
    policies: Sequence[PolicyLine]


async def read_report(querier: Querier, question: MoneyQuestion, now: datetime) -> MoneyReport:
    """The report of a time; a filter leaves out incidents, sick GPUs and policies. Raises QueryError."""
    money = await read_money(querier, question, now)
    values = {
        "begin": timestamp_sql(question.begin),
        "end": timestamp_sql(question.end),
        "simulated": money.is_simulated,
        "most": ROWS_MAX,
    }
    incidents: list[Record] = []
    sick: list[Record] = []
    policies: list[Record] = []
    if not question.only:
        asked = [(sql.format(**values), None) for sql in (_INCIDENTS, _SICK, _POLICIES)]
        incidents, sick, policies = (found.records() for found in await query_all(querier, asked))
    return MoneyReport(
        question,
        now,
        money,
        [ReportIncident(**_without_found(row)) for row in incidents],
        incidents[0]["found"] if incidents else 0,
        [SickGpu(**_without_found(row)) for row in sick],
        sick[0]["found"] if sick else 0,
        [PolicyLine(**_without_found(row)) for row in policies],
    )


def _without_found(row: Record) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "found"}
