"""Reads who used GPUs over a time, how well, and at what cost: by user, team, job, node or model, and for one job or user."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpuwarden.query import Querier, query_all
from gpuwarden_dashboards.read.fleet import Record

BY = {"user": '"user"', "team": "team", "job": "job", "node": "node", "model": "model"}
"""What usage can be grouped by, as columns of `waste`."""
SINCE = {"24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30), "365d": timedelta(days=365)}  # fmt: skip
ROWS_MAX = 200
_JOB = "coalesce(slurm_job_id, pod)"


@dataclass(frozen=True, slots=True)
class GpuUsage:
    """GPU hours and dollars of one user, job or the like; `labels` adds up to both."""

    name: str | None
    gpu_hours: float
    usd: float | None
    wasted_hours: float
    wasted_usd: float | None
    labels: Mapping[str, tuple[float, float | None]]
    """Hours and dollars by label."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A job or a user, over a time."""

    kind: str
    """job or user"""
    name: str
    begin: datetime
    end: datetime
    usage: GpuUsage | None
    gpus: Sequence[Record]
    """node, gpu, gpu_uuid and when it was held."""
    jobs: Sequence[GpuUsage]
    """Of a user."""
    users: Sequence[str]
    """Of a job."""
    verdicts: Sequence[Record]
    alerts: Sequence[Record]


async def read_usage(
    querier: Querier, by: str, begin: datetime, end: datetime
) -> Sequence[GpuUsage]:
    """The largest first. Raises QueryError."""
    return await _usage(querier, BY[by], "true", {"begin": begin, "end": end})


async def _usage(
    querier: Querier, column: str, where: str, params: Mapping[str, Any]
) -> Sequence[GpuUsage]:
    found = await querier.query(
        f"""
        SELECT {column} AS name, label, is_waste, sum(gpu_hours) AS gpu_hours, sum(usd) AS usd
        FROM waste WHERE ts >= $begin AND ts < $end AND {where} GROUP BY ALL
        """,
        params,
    )
    by_name: dict[str | None, list[Record]] = {}
    for record in found.records():
        by_name.setdefault(record["name"], []).append(record)
    usages = [_summed(name, records) for name, records in by_name.items()]
    return sorted(usages, key=lambda one: (-(one.usd or 0.0), -one.gpu_hours))[:ROWS_MAX]


def _summed(name: str | None, records: Sequence[Record]) -> GpuUsage:
    wasted = [record for record in records if record["is_waste"]]
    return GpuUsage(
        name,
        sum(record["gpu_hours"] for record in records),
        _usd(records),
        sum(record["gpu_hours"] for record in wasted),
        _usd(wasted),
        {record["label"]: (record["gpu_hours"], record["usd"]) for record in records},
    )


def _usd(records: Sequence[Record]) -> float | None:
    """None: no price is known of any."""
    known = [record["usd"] for record in records if record["usd"] is not None]
    return sum(known) if known or not records else None


async def read_subject(
    querier: Querier, kind: str, name: str, begin: datetime, end: datetime
) -> Subject | None:
    """A job or a user; None: nothing is known of it in that time. Raises QueryError."""
    is_job = kind == "job"
    params = {"name": name, "begin": begin, "end": end}
    held = f"{_JOB} = $name" if is_job else "username = $name"
    # Of a job what was said of it as a whole, of a user what holds of any of their GPUs.
    judged = "job IN ('Slurm job ' || $name, 'pod ' || $name)" if is_job else "owner = $name"
    mine = "owner = $name" if not is_job else (
        "gpu_uuid IN (SELECT DISTINCT gpu_uuid FROM process_1m "
        f"WHERE {held} AND ts >= $begin AND ts < $end)"
    )  # fmt: skip
    queries = (
        f"""
        SELECT node, gpu, gpu_uuid, min(ts) AS first_at, max(ts) AS last_at,
            list(DISTINCT username) AS users
        FROM (
            SELECT node, gpu, gpu_uuid, ts, username FROM process_1m
            WHERE {held} AND ts >= $begin AND ts < $end
            UNION ALL
            SELECT node, gpu, gpu_uuid, ts, username FROM process_samples
            WHERE {held} AND ts >= greatest($begin, $end - INTERVAL 10 MINUTE) AND ts < $end
        ) GROUP BY node, gpu, gpu_uuid ORDER BY node, gpu LIMIT 256
        """,
        f"""
        SELECT kind, node, gpu, job, summary, advice, usd_per_hour, began_at, ended_at FROM diagnoses
        WHERE {judged} AND began_at < $end AND coalesce(ended_at, $end) >= $begin
        ORDER BY kind DESC, ended_at IS NOT NULL, began_at DESC LIMIT 40
        """,
        f"SELECT * FROM alerts_now WHERE state = 'firing' AND {mine} ORDER BY fired_at LIMIT 50",
    )
    asked = [(sql, {n: v for n, v in params.items() if f"${n}" in sql}) for sql in queries]
    gpus, verdicts, alerts = (result.records() for result in await query_all(querier, asked))
    column = "job" if is_job else '"user"'
    usage = await _usage(querier, column, f"{column} = $name", params)
    if not gpus and not usage and not verdicts:
        return None
    jobs = [] if is_job else await _usage(querier, "job", '"user" = $name', params)
    users = sorted({user for gpu in gpus for user in gpu["users"] if user})
    return Subject(
        kind, name, begin, end, usage[0] if usage else None, gpus, jobs, users, verdicts, alerts
    )


def span_of_job(subject: Subject) -> tuple[datetime, datetime]:
    """When a job held its GPUs, as far as the time that was asked about says."""
    if not subject.gpus:
        return subject.begin, subject.end
    begin = min(gpu["first_at"] for gpu in subject.gpus)
    return begin, max(gpu["last_at"] for gpu in subject.gpus) + timedelta(minutes=1)
