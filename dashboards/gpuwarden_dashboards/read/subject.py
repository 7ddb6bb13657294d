"""Reads a job or user over a time range: GPUs, verdicts with their evidence, cost, what to change."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuwarden.diagnosis import HEALTHY, Bottleneck
from gpuwarden.job_readings import ENDS, MINUTES_UP_TO
from gpuwarden.models import TensorRate, tensor_rate
from gpuwarden.query import Querier, Record, query_all
from gpuwarden_dashboards.read.series import GPUS_MAX
from gpuwarden_dashboards.read.usage import RUNNING, GpuUsage, summed, usage_sql, usages_of

_SEARCHED = timedelta(days=90)
"""How far back a job is searched without a given time."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A job or a user, over a time range."""

    kind: str
    """job or user"""
    name: str
    begin: datetime
    end: datetime
    usage: GpuUsage | None
    gpus: Sequence[Record]
    """For a job with means over the time that it held them; for a user the last ones. `gpus_total` counts all."""
    jobs: Sequence[GpuUsage]
    """Jobs of a user."""
    users: Sequence[str]
    """Users of a job."""
    verdicts: Sequence[Record]
    changes: Sequence[Record]
    """What to change, by job and class, largest loss first."""
    alerts: Sequence[Record]
    is_running: bool
    """Whether a job has processes on GPUs now."""

    @property
    def held(self) -> tuple[datetime, datetime]:
        """When a job held its GPUs, within the range."""
        if not self.gpus:
            return self.begin, self.end
        last = max(gpu["last_at"] for gpu in self.gpus) + timedelta(minutes=1)
        return min(gpu["first_at"] for gpu in self.gpus), min(last, self.end)

    @property
    def gpus_total(self) -> int:
        """Number of its GPUs, also of those that `gpus` leaves out."""
        return self.gpus[0]["gpus_total"] if self.gpus else 0

    @property
    def tensor_rate(self) -> TensorRate | None:
        """Mean over the GPUs of a job; None: of one of them it is not known, or they are of several models."""
        rates = [
            tensor_rate(one.get("catalogue_model"), one.get("tensor_percent_mhz"))
            for one in self.gpus
        ]
        known = [rate for rate in rates if rate is not None]
        if (
            not known
            or len(known) < len(rates)
            or len({rate.tflops_of_data_sheet for rate in known}) > 1
        ):
            return None
        return TensorRate(
            sum(rate.tflops_at_most for rate in known) / len(known), known[0].tflops_of_data_sheet
        )

    @property
    def nodes(self) -> Sequence[str]:
        """Nodes of its GPUs."""
        return sorted({gpu["node"] for gpu in self.gpus})


async def read_extent(
    querier: Querier, job: str, now: datetime
) -> tuple[datetime, datetime] | None:
    """Begin and end of the time in which a job held GPUs; None: unknown job. Raises QueryError."""
    found = await querier.query(
        """
        SELECT min(ts) AS begin, max(until) AS until FROM (
            SELECT ts, ts + INTERVAL 1 HOUR AS until FROM waste_1h WHERE job = $job AND ts >= $searched
            UNION ALL
            SELECT ts, ts + INTERVAL 1 MINUTE FROM process_1m WHERE job = $job AND ts >= $recent
            UNION ALL
            SELECT ts, ts FROM process_samples WHERE job = $job AND ts >= $recent
        )
        """,
        {"job": job, "searched": now - _SEARCHED, "recent": now - timedelta(hours=3)},
    )
    begin, until = found.rows[0]
    if begin is None:
        return None
    until = min(until, now)
    # Waste is known by the hour; where minutes are kept they have the ends.
    ends = await querier.query(
        """
        SELECT min(greatest(ts, coalesce(started_at, ts))) FILTER (ts < $early) AS begin,
            max(ts) + INTERVAL 1 MINUTE AS until
        FROM process_1m
        WHERE job = $job AND (ts >= $begin AND ts < $early OR ts >= $late AND ts < $until)
        """,
        {
            "job": job, "begin": begin, "early": begin + timedelta(hours=1),
            "late": until - timedelta(hours=1), "until": until,
        },
    )  # fmt: skip
    first, last = ends.rows[0]
    is_recent = now - until < timedelta(minutes=5)
    return first or begin, until if is_recent or last is None else min(last, until)


def of_users(owner: str) -> str:
    """SQL condition on alerts: of a user in `$users`, or of nobody. It holds for all where no user is known."""
    return f"({owner} IS NULL OR len($users) = 0 OR {owner} IN (SELECT unnest($users)))"


def _held(mine: str, when: str, *, is_long: bool) -> str:
    """CTE of the GPUs held: the last ones, and how many there are in all."""
    rows = f"""
        SELECT node, gpu, gpu_uuid, ts, username FROM process_1m WHERE {mine} AND {when}
        UNION ALL
        SELECT node, gpu, gpu_uuid, ts, username FROM process_samples
        WHERE {mine} AND ts >= greatest($begin, $end - INTERVAL 10 MINUTE) AND ts < $end
    """
    if is_long:
        ends = f"(ts < $begin + INTERVAL {ENDS.seconds} SECOND OR ts >= $end - INTERVAL {ENDS.seconds} SECOND)"
        rows = f"""
            {rows.replace(f"process_1m WHERE {mine}", f"process_1m WHERE {mine} AND {ends}")}
            UNION ALL
            SELECT node, gpu, gpu_uuid, unnest([ts, ts + INTERVAL 59 MINUTE]), username FROM waste_1h
            WHERE {mine} AND {when} AND NOT {ends}
        """
    return f"""
        WITH held AS (
            SELECT node, gpu, gpu_uuid, min(ts) AS first_at, max(ts) AS last_at, list(DISTINCT username) AS users,
                count(*) OVER () AS gpus_total
            FROM ({rows}) GROUP BY node, gpu, gpu_uuid ORDER BY last_at DESC, node, gpu LIMIT {GPUS_MAX}
        )
    """


def _queries(name: str, *, is_job: bool, is_long: bool) -> list[str]:
    """GPUs held, diagnoses, what to change, usage, and what runs. Parameters: name, begin, end; `is_long`: read
    hours instead of minutes."""
    mine = "job = $name" if is_job else "username = $name"
    when = "ts >= $begin AND ts < $end"
    held = _held(mine, when, is_long=is_long and is_job)
    table = "gpu_1h" if is_long else "gpu_1m"
    # For a job the diagnosis of the whole, for a user those of all their GPUs.
    judged = "job = $name" if is_job else "username = $name"
    healthy = tuple(str(one) for one in sorted((*HEALTHY, Bottleneck.UNKNOWN)))
    hours = (
        "date_diff('ms', greatest(began_at, $begin), least(coalesce(ended_at, $end), $end)) / 3.6e6"
    )
    holds = f"{judged} AND began_at < $end AND coalesce(ended_at, $end) >= $begin"
    return [
        f"{held} SELECT * FROM held ORDER BY node, gpu" if not is_job else f"""
        {held} SELECT h.*, m.* EXCLUDE (of_gpu), i.catalogue_model FROM held h LEFT JOIN gpus i ON i.gpu_uuid = h.gpu_uuid LEFT JOIN (
            SELECT g.gpu_uuid AS of_gpu, avg(util_percent_avg) AS util_percent, avg(sm_active_percent_avg) AS sm_percent,
                max(memory_used_bytes_max) AS memory_bytes, avg(power_watts_avg) AS power_watts,
                max(temperature_celsius_max) AS temperature_celsius, avg(sm_clock_mhz_avg) AS sm_clock_mhz,
                avg(tensor_half_active_percent_avg * sm_clock_mhz_avg) AS tensor_percent_mhz, sum(energy_joules_delta) / 3.6e6 AS kwh
            FROM {table} g JOIN held h ON g.gpu_uuid = h.gpu_uuid AND g.ts >= h.first_at AND g.ts <= h.last_at
            WHERE g.{when} GROUP BY g.gpu_uuid
        ) m ON m.of_gpu = h.gpu_uuid ORDER BY h.node, h.gpu
        """,
        f"""
        SELECT kind, node, gpu, job, bottleneck, confidence, summary, advice, evidence, misses, usd_per_hour,
            began_at, ended_at
        FROM diagnoses WHERE {holds}
        ORDER BY kind DESC, ended_at IS NOT NULL, began_at DESC LIMIT 40
        """,
        f"""
        SELECT job, bottleneck, arg_max(summary, began_at) AS summary, arg_max(advice, began_at) AS advice,
            sum({hours}) AS hours, sum(usd_per_hour * ({hours})) AS usd, bool_or(ended_at IS NULL) AS is_open,
            count(DISTINCT subject) AS gpus
        FROM diagnoses WHERE kind = 'gpu' AND {holds} AND advice IS NOT NULL AND bottleneck NOT IN {healthy}
        GROUP BY job, bottleneck ORDER BY usd DESC NULLS LAST, hours DESC LIMIT 12
        """,
        _whole_hours(usage_sql("job", "job = $name")) if is_job else usage_sql("job", 'username = $name'),
        RUNNING,
    ]  # fmt: skip


def _whole_hours(sql: str) -> str:
    """The same of all hours that the time touches: a job begins within one."""
    return sql.replace("ts >= $begin", "ts >= date_trunc('hour', $begin::TIMESTAMP)")


async def read_subject(
    querier: Querier, kind: str, name: str, begin: datetime, end: datetime, sort: str = "usd"
) -> Subject | None:
    """A job or a user; None: no data in that time. Raises QueryError."""
    is_job = kind == "job"
    params = {"name": name, "begin": begin, "end": end}
    queries = _queries(name, is_job=is_job, is_long=end - begin > MINUTES_UP_TO)
    asked = [(sql, {n: v for n, v in params.items() if f"${n}" in sql}) for sql in queries]
    found = await query_all(querier, asked)
    gpus, verdicts, changes, used, running = (result.records() for result in found)
    if not gpus and not used and not verdicts:
        return None
    users = sorted({user for gpu in gpus for user in gpu["users"] if user})
    concerned = "owner = $of"
    asked_of: dict[str, object] = {"of": name}
    if is_job:
        # What began after it left its GPUs, or has another owner, is not its own.
        concerned = (
            f"gpu_uuid IN (SELECT unnest($of)) AND began_at <= $left AND {of_users('owner')}"
        )
        asked_of = {
            "of": [gpu["gpu_uuid"] for gpu in gpus],
            "left": max((gpu["last_at"] for gpu in gpus), default=end),
            "users": users,
        }
    alerts = await querier.query(
        f"SELECT * FROM alerts_now WHERE state = 'firing' AND {concerned} ORDER BY fired_at LIMIT 50",
        asked_of,
    )
    is_running = is_job and name in {one["job"] for one in running}
    usage = summed(name, used, is_running) if used else None
    jobs = [] if is_job else usages_of(used, running, sort)
    return Subject(
        kind, name, begin, end, usage, gpus, jobs, users,
        [_with_evidence(verdict) for verdict in verdicts], changes, alerts.records(), is_running,
    )  # fmt: skip


def _with_evidence(verdict: Record) -> Record:
    """The verdict with `evidence` for the template: text, and the length of its bar."""
    lines = [
        {"text": line["text"], "share": evidence_share(line["value"], line["threshold"])}
        for line in json.loads(verdict["evidence"] or "[]")
    ]
    return {**verdict, "evidence": lines, "misses": json.loads(verdict["misses"] or "[]")}


def evidence_share(value: float, threshold: float) -> float:
    """Length of the bar, 0 to 1; the threshold is at the middle."""
    if threshold <= 0:
        return 0.0 if value <= 0 else 1.0
    return min(1.0, max(0.0, value / (2 * threshold)))
