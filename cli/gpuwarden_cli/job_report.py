"""Reads how much CPU, memory and GPU a job used on each node, for the command, the Slurm comment and the mail.

`read` runs the queries; everything else is pure. A value that was not measured is None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gpuwarden.job_phases import JobPhase, missing_readings, phases_of
from gpuwarden.job_readings import read_job_readings
from gpuwarden.progress import JobProgress, read_progress
from gpuwarden.query import Querier
from gpuwarden.roofline import Roofline, read_rooflines

DETAIL = timedelta(minutes=30)
"""Jobs that ran longer are read from minutes, not from samples."""
LOOK_BACK = timedelta(days=30)
"""How far back a job is searched that Slurm's data does not have."""

_SLURM_JOB = "SELECT * FROM slurm_jobs WHERE job = $job"
_SEEN_JOB = """
SELECT $job AS job, max(username) AS username, min(since) AS started_at, max(ts) AS seen_at,
    if(max(ts) < $now::TIMESTAMP - INTERVAL 2 MINUTE, max(ts), NULL) AS ended_at,
    string_agg(DISTINCT node, ',') AS node_list, count(DISTINCT node) AS nodes, count(DISTINCT gpu_uuid) AS gpus,
    string_agg(DISTINCT gpu_uuid, ',') AS gpu_uuids, bool_or(simulated) AS simulated
FROM (
    SELECT ts, if(started_at BETWEEN ts AND ts + INTERVAL 1 MINUTE, started_at, ts) AS since, node, gpu_uuid, username, simulated
    FROM process_1m
    WHERE job = $job AND ts > $since::TIMESTAMP
    UNION ALL SELECT ts, ts, node, gpu_uuid, username, simulated FROM process_samples
    WHERE job = $job AND ts > now()::TIMESTAMP - INTERVAL 10 MINUTE
)
HAVING count(*) > 0
"""
_GPUS = """
SELECT coalesce(u.node, g.node) AS node, g.gpu, a.gpu_uuid, g.model, g.memory_total_bytes, u.util_percent,
    u.util_percent_max, u.memory_used_bytes, u.power_watts
FROM (SELECT unnest(string_split($uuids, ',')) AS gpu_uuid) a
LEFT JOIN gpus g USING (gpu_uuid)
LEFT JOIN (
    SELECT gpu_uuid, any_value(node) AS node, {figures}
    FROM {table} WHERE ts >= $begin::TIMESTAMP AND ts <= $end::TIMESTAMP GROUP BY gpu_uuid
) u USING (gpu_uuid)
ORDER BY ALL
"""
_FROM_SAMPLES = _GPUS.format(
    table="gpu_samples",
    figures="avg(util_percent) AS util_percent, max(util_percent) AS util_percent_max,"
    " max(memory_used_bytes) AS memory_used_bytes, avg(power_watts) AS power_watts",
)
_FROM_MINUTES = _GPUS.format(
    table="gpu_1m",
    figures="sum(util_percent_avg * samples) / sum(samples) FILTER (util_percent_avg IS NOT NULL) AS util_percent,"
    " max(util_percent_max) AS util_percent_max, max(memory_used_bytes_max) AS memory_used_bytes,"
    " avg(power_watts_avg) AS power_watts",
)
_NODES = """
SELECT node, max(cpus) AS cpus, max(cpu_seconds_total) AS cpu_seconds,
    max(greatest(memory_peak_bytes, memory_used_bytes)) AS memory_used_bytes, max(memory_limit_bytes) AS memory_limit_bytes
FROM slurm_job_samples
WHERE job = $job AND source = 'node' AND ts >= $begin::TIMESTAMP GROUP BY node ORDER BY node
"""
_TREES = """
SELECT node, sum(cores) / count(DISTINCT ts) AS cores, max(rss) AS memory_used_bytes
FROM (
    SELECT node, ts, sum(cpu) / 100 AS cores, sum(rss) AS rss FROM (
        SELECT node, ts, pid, max(cpu_percent) AS cpu, max(rss_bytes) AS rss FROM process_samples
        WHERE job = $job AND ts >= $begin::TIMESTAMP AND ts <= $end::TIMESTAMP
        GROUP BY node, ts, pid
    ) GROUP BY node, ts
)
GROUP BY node
"""
_MONEY = """
SELECT sum(gpu_hours) AS gpu_hours, sum(usd) AS usd, sum(usd) FILTER (is_waste) AS wasted_usd
FROM waste WHERE job = $job AND ts >= $begin::TIMESTAMP - INTERVAL 1 HOUR AND ts <= $end::TIMESTAMP
"""
_VERDICTS = """
SELECT bottleneck, arg_max(summary, seen_at) AS summary, arg_max(advice, seen_at) AS advice,
    sum(date_diff('second', began_at, coalesce(ended_at, seen_at))) AS seconds
FROM diagnoses
WHERE job = $job AND kind = 'job'
    AND seen_at >= $begin::TIMESTAMP AND began_at <= $end::TIMESTAMP
GROUP BY bottleneck ORDER BY seconds DESC, bottleneck LIMIT 3
"""


@dataclass(frozen=True, slots=True)
class JobGpu:
    """A GPU of the job, during the job."""

    gpu: int | None
    gpu_uuid: str
    model: str | None = None
    util_percent: float | None = None
    util_percent_max: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None


@dataclass(frozen=True, slots=True)
class JobNode:
    """A node of the job."""

    node: str
    gpus: tuple[JobGpu, ...] = ()
    cpus: int | None = None
    cpu_seconds: float | None = None
    memory_used_bytes: int | None = None
    """Peak of the job's memory."""
    memory_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class JobVerdict:
    """Why the job was slow, and for how long."""

    bottleneck: str
    summary: str
    advice: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class JobReport:
    """A job and its resource usage."""

    job: str
    facts: Mapping[str, Any]
    """Columns of `slurm_jobs`; fewer if Slurm's data does not have the job."""
    begin: datetime
    end: datetime
    """End of the job; for a running one the time of the report."""
    nodes: tuple[JobNode, ...]
    verdicts: tuple[JobVerdict, ...] = ()
    gpu_hours: float | None = None
    usd: float | None = None
    wasted_usd: float | None = None
    phases: tuple[JobPhase, ...] = ()
    missing: tuple[str, ...] = ()
    progress: tuple[JobProgress, ...] = ()
    """What it reported: tokens, steps."""
    rooflines: tuple[Roofline, ...] = ()
    """What bounds it, by model."""
    """Readings that phases need, and no reading had."""

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return max(0.0, (self.end - self.begin).total_seconds())

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.facts.get("ended_at") is not None

    @property
    def gpus(self) -> tuple[JobGpu, ...]:
        """GPUs of all nodes."""
        return tuple(gpu for node in self.nodes for gpu in node.gpus)

    @property
    def cpu_share(self) -> float | None:
        """CPU time used, as a share of its CPUs; None: not measured on some node."""
        used = [node.cpu_seconds for node in self.nodes]
        cpus = [node.cpus for node in self.nodes]
        if not self.nodes or not self.seconds or None in used or None in cpus:
            return None
        had = sum(c for c in cpus if c is not None) * self.seconds
        return sum(u for u in used if u is not None) / had if had else None

    @property
    def memory_share(self) -> float | None:
        """Peak of the memory, as a share of its limit; None: not measured on some node."""
        pairs = [(node.memory_used_bytes, node.memory_limit_bytes) for node in self.nodes]
        known = [(used, limit) for used, limit in pairs if used is not None and limit]
        return sum(u for u, _ in known) / sum(limit for _, limit in known) if known else None

    @property
    def gpu_share(self) -> float | None:
        """Mean utilization of the measured GPUs, 0 to 1."""
        known = [gpu.util_percent for gpu in self.gpus if gpu.util_percent is not None]
        return sum(known) / len(known) / 100 if known else None

    @property
    def gpu_memory_share(self) -> float | None:
        """Peak of the GPU memory, as a share of its size."""
        known = [
            (gpu.memory_used_bytes, gpu.memory_total_bytes)
            for gpu in self.gpus
            if gpu.memory_used_bytes is not None and gpu.memory_total_bytes
        ]
        return sum(u for u, _ in known) / sum(t for _, t in known) if known else None


async def read(
    querier: Querier, job: str, now: datetime, *, short_s: float = 0
) -> JobReport | None:
    """The job of that name (a Slurm job's id, or namespace/pod); None where there is none. Raises QueryError.

    Of one that ran for less than `short_s` no figures are read.
    """
    found = (await querier.query(_SLURM_JOB, {"job": job})).records()
    if not found or found[0]["started_at"] is None:
        since = {"job": job, "since": now - LOOK_BACK, "now": now}
        found = (await querier.query(_SEEN_JOB, since)).records()
    if not found:
        return None
    facts = found[0]
    begin = facts["started_at"]
    end = max(begin, facts.get("ended_at") or facts.get("seen_at") or now)
    if (end - begin).total_seconds() < short_s:
        return JobReport(job, facts, begin, end, ())
    params = {"job": job, "begin": begin, "end": end}
    uuids = {"begin": begin, "end": end, "uuids": facts["gpu_uuids"] or ""}
    tables = [_FROM_MINUTES] if end - begin > DETAIL else [_FROM_SAMPLES, _FROM_MINUTES]
    gpus: list[dict[str, Any]] = []
    for sql in tables if facts["gpu_uuids"] else ():
        gpus = (await querier.query(sql, uuids)).records()
        if any(row["util_percent"] is not None for row in gpus):
            break
    noted = (await querier.query(_NODES, {"job": job, "begin": begin})).records()
    trees = (await querier.query(_TREES, params)).records()
    money = (await querier.query(_MONEY, params)).records()
    verdicts = (await querier.query(_VERDICTS, params)).records()
    phases, missing = await _read_phases(querier, job, facts, begin, end)
    nodes = nodes_of(gpus, noted, trees, (end - begin).total_seconds())
    names = [name for name in (facts["gpu_uuids"] or "").split(",") if name]
    users = [facts["username"]] if facts["username"] else []
    progress = await read_progress(querier, job, users, names, begin, end)
    bounds = await read_rooflines(querier, job, names, [one.node for one in nodes], begin, end)
    return JobReport(
        job, facts, begin, end, nodes,
        tuple(JobVerdict(r["bottleneck"], r["summary"], r["advice"], r["seconds"]) for r in verdicts),
        phases=phases, missing=missing, progress=tuple(progress), rooflines=tuple(bounds), **money[0],
    )  # fmt: skip


async def _read_phases(
    querier: Querier, job: str, facts: Mapping[str, Any], begin: datetime, end: datetime
) -> tuple[tuple[JobPhase, ...], tuple[str, ...]]:
    """Its phases, and the readings that no GPU or process of it had; nothing without any reading."""
    gpus = [name for name in (facts["gpu_uuids"] or "").split(",") if name]
    found = (await read_job_readings(querier, job, gpus, begin, end)).readings
    if not found:
        return (), ()
    is_over = facts.get("ended_at") is not None
    phases = phases_of(found, begin, end, submitted=facts.get("submitted_at"), is_over=is_over)
    return tuple(phases), tuple(missing_readings(found))


def nodes_of(
    gpus: Sequence[Mapping[str, Any]],
    noted: Sequence[Mapping[str, Any]],
    trees: Sequence[Mapping[str, Any]],
    seconds: float,
) -> tuple[JobNode, ...]:
    """Usage by node. The values of the job's cgroup take precedence over the sum of its GPU processes."""
    cgroups = {row["node"]: row for row in noted}
    processes = {row["node"]: row for row in trees}
    names = {row["node"] for row in gpus if row["node"] is not None}
    made = []
    for name in sorted(names | set(cgroups) | set(processes)):
        own, tree = cgroups.get(name, {}), processes.get(name, {})
        cores = tree.get("cores")
        cpu_seconds = own.get("cpu_seconds")
        memory = own.get("memory_used_bytes")
        made.append(
            JobNode(
                name,
                tuple(
                    JobGpu(**{f: row[f] for f in JobGpu.__dataclass_fields__})
                    for row in gpus
                    if row["node"] == name
                ),
                own.get("cpus"),
                cores * seconds if cpu_seconds is None and cores is not None else cpu_seconds,
                tree.get("memory_used_bytes") if memory is None else memory,
                own.get("memory_limit_bytes"),
            )
        )
    return tuple(made)
