"""Defines the metrics that only the collector knows: waste, verdicts, incidents, coverage, and its own state.

Each source is a SELECT over public tables and views. PromQL reads it, and `docs/metrics.md` lists it. Labels that a row lacks are empty texts in the SELECT, and no labels of the series.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuwarden.prometheus_names import SLURM_JOB, SLURM_JOB_SQL
from gpuwarden.waste import CATEGORIES

MINUTE_MS = 60_000

LABEL_NAMES = {"table_name": "table"}
"""Names of labels that differ from their columns."""


@dataclass(frozen=True, slots=True)
class CollectorMetric:
    """One metric of a source."""

    name: str
    column: str
    """The column of the source's SELECT."""
    help: str


@dataclass(frozen=True, slots=True)
class MetricSource:
    """Samples as a SELECT: `ts`, a column for each label, and the values."""

    labels: tuple[str, ...]
    """They tell series apart."""
    sql: str
    """May have {after} and {until}, TIMESTAMP literals of the time span that is read."""
    keep_ms: int
    """How long a value stays the newest."""
    metrics: tuple[CollectorMetric, ...]
    series_max: str
    """What bounds the number of series."""

    def between(self, after: str, until: str) -> str:
        """The SELECT for a time span, whose ends are SQL literals."""
        return self.sql.replace("{after}", after).replace("{until}", until)


def _texts(*columns: str) -> str:
    return ", ".join(f"coalesce(CAST({column} AS VARCHAR), '') AS {column}" for column in columns)


_SIMULATED = "CASE WHEN simulated THEN 'true' ELSE '' END AS simulated"


def _minutes(began: str, ended: str) -> str:
    """A timestamp for the begin of a state, and for each whole minute of it within the time span."""
    return (
        "unnest(list_filter(list_concat("
        f"[{began}], range(date_trunc('minute', greatest({began}, {{after}})) + INTERVAL 1 MINUTE, "
        f"least(coalesce({ended}, now()::TIMESTAMP), {{until}} + INTERVAL 1 SECOND), INTERVAL 1 MINUTE)"
        f"), lambda t: t > {{after}} AND t <= {{until}})) AS ts"
    )


def _during(began: str, ended: str) -> str:
    return f"{began} <= {{until}} AND ({ended} IS NULL OR {ended} > {{after}})"


_WASTE_LABELS = (
    "node", "gpu", "gpu_uuid", "model", "category", "is_waste", "username", "job", "team", "simulated",
)  # fmt: skip
_WASTE = "SELECT *, sum(gpu_hours) OVER (PARTITION BY ts, node, gpu_uuid) AS hours FROM waste"
_INCIDENT_LABELS = (
    "id", "rule", "severity", "consequence", "place", "owner", "muted", "simulated",
)  # fmt: skip
_ALERT_LABELS = (
    "alertname", "alertstate", "severity", "consequence", "node", "gpu", "gpu_uuid", "owner", "simulated",
)  # fmt: skip
_DIAGNOSIS_LABELS = (
    "kind", "bottleneck", "node", "gpu", "gpu_uuid", "job", "username", "simulated",
)  # fmt: skip
_ALLOCATION_LABELS = (
    "node", "gpu", "gpu_uuid", "scheduler", "username", SLURM_JOB, "namespace", "pod", "container", "team",
    "simulated",
)  # fmt: skip


def _alert(state: str, began: str, ended: str) -> str:
    return (
        f"SELECT {_minutes(began, ended)}, rule AS alertname, '{state}' AS alertstate, "
        f"{_texts('severity', 'consequence', 'node', 'gpu', 'gpu_uuid', 'owner')}, {_SIMULATED}, 1 AS one "
        f"FROM alerts WHERE {began} IS NOT NULL AND {_during(began, ended)}"
    )


SOURCES: Mapping[str, MetricSource] = {
    "waste_metrics": MetricSource(
        _WASTE_LABELS,
        f"SELECT ts, {_texts('node', 'gpu', 'gpu_uuid', 'model', 'category', 'is_waste', 'username', 'job', 'team')}, "
        f"{_SIMULATED}, usd / hours AS usd_per_hour, gpu_hours / hours AS share FROM ({_WASTE})",
        65 * MINUTE_MS,
        (
            CollectorMetric(
                "gpuwarden_waste_usd_per_hour",
                "usd_per_hour",
                "Cost of the time of a GPU with a category (see docs/money.md) and an owner, as the mean of an hour; of the "
                "hour that runs, the mean so far.",
            ),
            CollectorMetric(
                "gpuwarden_waste_time_ratio",
                "share",
                "Share of that hour with this category and owner. The shares of a GPU add up to 1.",
            ),
        ),
        f"GPUs times their owners in an hour times {len(CATEGORIES)} categories",
    ),
    "jobs_metrics": MetricSource(
        ("job", "username", "team", "simulated"),
        f"SELECT ts, {_texts('job', 'username', 'team')}, {_SIMULATED}, "
        "coalesce(sum(gpu_hours) FILTER (category IN ('productive', 'busy')), 0) / sum(gpu_hours) AS efficiency, "
        "sum(gpu_hours) AS gpu_hours FROM waste WHERE job IS NOT NULL "
        "GROUP BY ts, job, username, team, simulated",
        65 * MINUTE_MS,
        (
            CollectorMetric(
                "gpuwarden_job_efficiency_ratio",
                "efficiency",
                "Share of a job's GPU time of an hour in which its GPUs worked (categories productive and busy).",
            ),
            CollectorMetric(
                "gpuwarden_job_gpu_hours",
                "gpu_hours",
                "GPU hours that a job held in an hour, or so far in the hour that runs.",
            ),
        ),
        "jobs that ran in an hour",
    ),
    "gpu_minutes_metrics": MetricSource(
        ("node", "gpu", "gpu_uuid", "mig_instance", "simulated"),
        f"SELECT ts, {_texts('node', 'gpu', 'gpu_uuid', 'mig_instance')}, {_SIMULATED}, idle_seconds, busy_seconds, "
        "unknown_seconds FROM gpu_1m",
        4 * MINUTE_MS,
        (
            CollectorMetric(
                "gpuwarden_gpu_idle_seconds",
                "idle_seconds",
                "Time in a minute in which no kernel ran.",
            ),
            CollectorMetric(
                "gpuwarden_gpu_busy_seconds",
                "busy_seconds",
                "Time in a minute in which a kernel ran.",
            ),
            CollectorMetric(
                "gpuwarden_gpu_unknown_seconds",
                "unknown_seconds",
                "Time in a minute without samples of utilization.",
            ),
        ),
        "GPUs",
    ),
    "allocations_metrics": MetricSource(
        _ALLOCATION_LABELS,
        f"SELECT ts, {_texts(*_ALLOCATION_LABELS[:-1])}, {_SIMULATED}, 1 AS one "
        f"FROM (SELECT *, {SLURM_JOB_SQL.format('')} AS {SLURM_JOB} FROM allocation_samples)",
        MINUTE_MS,
        (
            CollectorMetric(
                "gpuwarden_gpu_allocated",
                "one",
                "1 for each owner that a scheduler has given a GPU to. Join it by gpu_uuid to give other metrics owners.",
            ),
        ),
        "GPUs times the owners that share them",
    ),
    "diagnoses_metrics": MetricSource(
        _DIAGNOSIS_LABELS,
        f"SELECT {_minutes('began_at', 'ended_at')}, {_texts('kind', 'bottleneck', 'node', 'gpu', 'job')}, "
        "CASE WHEN kind = 'gpu' THEN subject ELSE '' END AS gpu_uuid, coalesce(username, '') AS username, "
        f"{_SIMULATED}, 1 AS one, stall, usd_per_hour, confidence FROM diagnoses "
        f"WHERE {_during('began_at', 'ended_at')}",
        MINUTE_MS,
        (
            CollectorMetric(
                "gpuwarden_diagnosis",
                "one",
                "1 for the verdict on a GPU or job: its bottleneck, a class of docs/diagnosis.md.",
            ),
            CollectorMetric(
                "gpuwarden_diagnosis_stall_ratio",
                "stall",
                "Share of the time in which a GPU or job did nothing, by its diagnosis.",
            ),
            CollectorMetric(
                "gpuwarden_diagnosis_usd_per_hour", "usd_per_hour", "Loss by that bottleneck."
            ),
            CollectorMetric(
                "gpuwarden_diagnosis_confidence_ratio",
                "confidence",
                "How sure the verdict is; below 0.5 it is only likely.",
            ),
        ),
        "GPUs and jobs times the verdicts that they had",
    ),
    "incidents_metrics": MetricSource(
        _INCIDENT_LABELS,
        f"SELECT {_minutes('opened_at', 'resolved_at')}, {_texts(*_INCIDENT_LABELS[:-2])}, "
        f"CASE WHEN muted IS NULL THEN '' ELSE 'true' END AS muted, {_SIMULATED}, "
        f"1 AS one, usd_per_hour FROM incidents WHERE {_during('opened_at', 'resolved_at')}",
        MINUTE_MS,
        (
            CollectorMetric("gpuwarden_incident_open", "one", "1 while an incident is open."),
            CollectorMetric(
                "gpuwarden_incident_usd_per_hour", "usd_per_hour", "Loss by an open incident."
            ),
        ),
        "incidents of the time span",
    ),
    "alerts_metrics": MetricSource(
        _ALERT_LABELS,
        f"{_alert('pending', 'active_at', 'coalesce(fired_at, resolved_at)')} UNION ALL "
        f"{_alert('firing', 'fired_at', 'resolved_at')}",
        MINUTE_MS,
        (
            CollectorMetric(
                "ALERTS",
                "one",
                "1 while an alert of a rule is pending or firing, as in Prometheus.",
            ),
        ),
        "alerts of the time span",
    ),
    "coverage_metrics": MetricSource(
        ("node", "gpu", "gpu_uuid", "probe", "table_name", "simulated"),
        f"SELECT ts, {_texts('node', 'gpu', 'gpu_uuid', 'probe', 'table_name')}, {_SIMULATED}, expected, taken, missed, "
        "skipped, late, failed FROM coverage",
        3 * MINUTE_MS,
        tuple(
            CollectorMetric(f"gpuwarden_coverage_{column}", column, f"Samples {what} in a minute.")
            for column, what in (
                ("expected", "that were due"),
                ("taken", "that were taken"),
                ("missed", "that were missed"),
                ("skipped", "that were left out while a call hung"),
                ("late", "that were late"),
                ("failed", "that failed"),
            )
        ),
        "probes of each node",
    ),
    "collector_metrics": MetricSource(
        ("collector", "host", "version"),
        "SELECT *, cpu_pressure_percent / 100 AS cpu_pressure_ratio FROM collector_samples",
        3 * MINUTE_MS,
        (
            CollectorMetric(
                "gpuwarden_collector_minute_batches",
                "batches",
                "Batches stored in the last minute.",
            ),
            CollectorMetric(
                "gpuwarden_collector_minute_refused_batches",
                "refused_batches",
                "Batches not stored in the last minute.",
            ),
            CollectorMetric(
                "gpuwarden_collector_minute_commit_failures",
                "commit_failures",
                "Failed commits in the last minute.",
            ),
            CollectorMetric(
                "gpuwarden_collector_minute_task_failures",
                "task_failures",
                "Failed moves to the lake, rollups and maintenance tasks in the last minute.",
            ),
            CollectorMetric(
                "gpuwarden_collector_ingest_lag_seconds",
                "ingest_lag_seconds",
                "Age of the newest row when it was stored.",
            ),
            CollectorMetric(
                "gpuwarden_collector_queue_bytes",
                "queue_bytes",
                "Size of batches that wait for the writer.",
            ),
            CollectorMetric(
                "gpuwarden_collector_disk_free_bytes",
                "disk_free_bytes",
                "Free space of the data folder's file system.",
            ),
            CollectorMetric(
                "gpuwarden_collector_disk_used_bytes", "disk_used_bytes", "Size of the data folder."
            ),
            CollectorMetric(
                "gpuwarden_collector_rollup_lag_seconds",
                "rollup_lag_seconds",
                "Age of the newest minute that is rolled up.",
            ),
            CollectorMetric("gpuwarden_collector_rules", "rules", "Rules that are evaluated."),
            CollectorMetric(
                "gpuwarden_collector_rules_slow",
                "rules_slow",
                "Rules that took longer than their interval.",
            ),
            CollectorMetric(
                "gpuwarden_collector_messages_waiting",
                "messages_waiting",
                "Notifications in the queue.",
            ),
            CollectorMetric(
                "gpuwarden_collector_cpu_pressure_ratio",
                "cpu_pressure_ratio",
                "Share of the minute in which something on the host waited for a CPU.",
            ),
        ),
        "collectors",
    ),
}
"""Sources by name, which no table has."""
