"""Says what acts led to: whether others used the GPUs that they freed, and whether their users came back at once.

Saved is what was measured: hours in which the GPU was busy with other work within `REUSED_WITHIN` after the act, at the
alert's price. A GPU that nobody takes saves nothing. An act after which the same user was busy on the GPU within
`WRONG_WITHIN` was a wrong one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from gpuwarden.query import Querier, query_all
from gpuwarden_rules.policies.cases import CaseState, PolicyCase
from gpuwarden_rules.policies.dry_run import (
    ASKED,
    BUSY_AGAIN_SQL,
    BUSY_SECONDS_MIN,
    OF_ASKED_GPUS,
    rows_by_key,
)
from gpuwarden_rules.policies.language import ON_NODES

REUSED_WITHIN = timedelta(hours=24)
JUDGED_AFTER = timedelta(minutes=10)
"""Rows of minutes come this late at most."""
_REUSED = f"""
WITH {ASKED},
working AS (SELECT gpu_uuid, ts FROM gpu_1m WHERE busy_seconds >= {BUSY_SECONDS_MIN} AND {OF_ASKED_GPUS}),
own AS (SELECT DISTINCT gpu_uuid, ts, job FROM process_1m WHERE {OF_ASKED_GPUS})
SELECT a.key, count(*) AS minutes
FROM asked a
JOIN working w ON w.gpu_uuid = a.gpu_uuid AND w.ts >= a.at
    AND w.ts < a.at + INTERVAL {int(REUSED_WITHIN.total_seconds())} SECOND
LEFT JOIN own o ON o.gpu_uuid = w.gpu_uuid AND o.ts = w.ts AND o.job = a.job
WHERE o.job IS NULL
GROUP BY a.key
"""

_RESULTS = "FROM policy_results ORDER BY policy"
_TEAMS = """
SELECT policy, team, count(*) FILTER (state = 'done') AS acts, count(busy_again_at) AS wrong,
    sum(reused_hours) FILTER (busy_again_at IS NULL) AS reused_hours, sum(saved_usd) AS saved_usd
FROM policy_cases WHERE act_at IS NOT NULL OR state = 'with_others' GROUP BY ALL ORDER BY policy, team NULLS LAST
"""


def to_judge(cases: Mapping[str, PolicyCase], now: datetime) -> list[PolicyCase]:
    """Cases whose job was ended, and of whose time after it more is known now than when they were last judged."""
    return [
        case
        for case in cases.values()
        if _was_done(case, cases) and (case.judged_until or _begin(case)) < _known_until(case, now)
    ]


def _was_done(case: PolicyCase, cases: Mapping[str, PolicyCase]) -> bool:
    if case.act in ON_NODES or not case.gpu_uuid or case.ended_at is None:
        return False
    if case.state is CaseState.WITH_OTHERS:
        first = cases.get(case.with_case)
        return first is not None and first.state is CaseState.DONE
    return case.state is CaseState.DONE


def _begin(case: PolicyCase) -> datetime:
    assert case.ended_at is not None
    return case.ended_at


def _known_until(case: PolicyCase, now: datetime) -> datetime:
    return min(now - JUDGED_AFTER, _begin(case) + REUSED_WITHIN)


async def judged(cases: Sequence[PolicyCase], querier: Querier, now: datetime) -> list[PolicyCase]:
    """The cases with what followed their acts, as far as it is known at `now`. Raises QueryError."""
    asked = [
        {
            "key": key, "gpu_uuid": case.gpu_uuid, "at": _begin(case), "job": case.job, "username": case.username,
        }
        for key, case in enumerate(cases)
    ]  # fmt: skip
    reused = await rows_by_key(querier, _REUSED, asked, REUSED_WITHIN)
    # The job is over: its user's next one is looked for. Without a user nothing can be said.
    of_users = [{**one, "job": ""} for one in asked if one["username"]]
    again = await rows_by_key(querier, BUSY_AGAIN_SQL, of_users)
    return [
        replace(
            case,
            reused_hours=reused[key]["minutes"] / 60 if key in reused else 0.0,
            busy_again_at=again[key]["busy_at"] if key in again else None,
            judged_until=_known_until(case, now),
        )
        for key, case in enumerate(cases)
    ]


def record_of(case: PolicyCase) -> dict[str, Any]:
    """The case as a row of `policy_cases`."""
    names = (
        "id",
        "policy",
        "rule",
        "fingerprint",
        "summary",
        "began_at",
        "active_at",
        "act_at",
        "ended_at",
    )
    judged_names = ("usd_per_hour", "reused_hours", "saved_usd", "busy_again_at", "judged_until")
    known = {name: getattr(case, name) for name in (*names, *judged_names)}
    texts = {
        name: getattr(case, name) or None for name in ("node", "gpu_uuid", "job", "team", "note")
    }
    return {
        **known, **texts, "username": case.username or None, "act": case.act.value, "state": case.state.value
    }  # fmt: skip


async def results_of(querier: Querier) -> list[dict[str, Any]]:
    """Rows of `policy_results`, each with its acts by team. Raises QueryError."""
    found, teams = await query_all(querier, [(_RESULTS, None), (_TEAMS, None)])
    return [
        {
            **row,
            "teams": [
                {name: value for name, value in team.items() if name != "policy"}
                for team in teams.records()
                if team["policy"] == row["policy"]
            ],
        }
        for row in found.records()
    ]
