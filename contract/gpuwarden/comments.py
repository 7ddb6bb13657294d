"""Makes the comments of tables, views and columns: meaning, unit and source, for DuckDB."""

import re
from collections.abc import Mapping
from functools import cache

from gpuwarden.metrics import METRICS, Kind, Metric
from gpuwarden.rollups import ROLLUPS
from gpuwarden.schema import TABLES, public_views, stored_columns

_OF_VIEWS: Mapping[str, Mapping[str, str]] = {
    "": {
        "usd_so_far": "Cost so far.",
        "username": "Holder of the GPU, else owner of the job that it was allocated to.",
        "job": "Slurm job, or Kubernetes namespace/pod.",
    },
    "waste": {
        "is_waste": "Whether its category is one of waste.",
        "gpu_hours": "Time with that category and owner.",
    },
    "others_1h": {"gpu_hours": "Time of all GPUs with that category.", "usd": "Cost of that time."},
    "gpu_usage": {
        "rack": "Label `rack` of the node.",
        "labels": "Labels of the node: labels['zone'] is one of them.",
        "gpu_hours": "Time of the GPU that belongs to the owner.",
        "busy_hours": "Hours in which a kernel ran.",
        "idle_hours": "Hours in which nothing ran.",
        "wasted_hours": "Hours with a category of waste.",
        "wasted_usd": "Cost of the wasted hours; NULL: no price, or none was wasted.",
    },
    "racks": {
        "rack": "Label `rack` of its nodes: the chassis, or the NVLink domain, if nobody sets it.",
        "model": "Model of its GPUs.",
        "trays": "Compute trays that GPUs were seen in; NULL: unknown.",
        "nodes": "Nodes of its GPUs.",
        "gpus": "GPUs of the inventory, without boards that were replaced.",
        "gpus_reporting": "GPUs with a sample in the last minute.",
        "power_watts": "Power of all its GPUs that report. Unit: watts.",
        "temperature_max_celsius": "Core temperature of the hottest GPU. Unit: celsius.",
        "last_seen_at": "When the collector last received data of a GPU of it.",
    },
    "gpu_holders_now": {
        "scheduler": "The scheduler that allocated the GPU; NULL: not allocated.",
        "processes": "Processes of the holder on the GPU; 0: allocated, and nothing runs.",
        "gpu_memory_bytes": "Device memory of the processes.",
        "started_at": "Start of the oldest process.",
    },
    "policy_results": {
        "policy": "The policy.",
        "rule": "Rule whose alerts it is about.",
        "first_act_at": "When its first act was asked for; NULL: never.",
        "acts": "Acts that were done.",
        "failed": "Acts that failed, or were not reported.",
        "wrong": "GPUs on which the same user was busy within an hour after the act.",
        "reused_hours": "Hours in which others worked on the GPUs within a day after the act, without wrong ones.",
        "saved_usd": "Price of these hours; NULL: unknown.",
        "usd_a_week_before": "What alerts of the rule cost a week in the four weeks before the first act; NULL: no price, or less than a day is known.",
        "usd_a_week_since": "What they cost a week since then.",
    },
    "link_errors": {
        "ts": "Start of the hour, UTC.",
        "error": "Counter of link_samples, without _total.",
        "errors": "Increase of the counter, without resets.",
    },
    "slurm_jobs": {
        "username": "Owner of the job.",
        "cpus": "CPUs of the job on all its nodes.",
        "gpus": "GPUs of the job on all its nodes.",
        "gpu_uuids": "GPUs of the job, separated by commas, as far as its nodes tell.",
        "state": "Slurm's own where the controller tells, else running or ended.",
        "cpu_seconds": "CPU time of the job on all its nodes, as far as they tell.",
        "memory_peak_bytes": "The most memory that it has used on one node.",
    },
    "slurm_nodes": {"told_by": "Node whose agent read the controller."},
    "node_labels": {"name": "Name of the label.", "value": "Value of the label."},
    "incident_costs": {"incident": "Id of the incident."},
    "budgets_now": {
        "spent_usd": "Dollars of this month (UTC) until now; NULL: no price is known.",
        "forecast_usd": "Dollars of the whole month, if the hours that are left cost as those of the last seven days.",
        "used_up_at": "When the budget will be used up; NULL: it is, or not in this month.",
    },
}
"""Meaning of columns that views compute; "": of several views."""
_FIELD = re.compile(r"\bFI(?= \d)")


def table_comments() -> Mapping[str, str]:
    """Meaning of each public view and table, views first."""
    views = {view.name: view.meaning for view in public_views()}
    return views | {
        name: f"One row per {table.row}. Key: {', '.join(table.key)}."
        for name, table in TABLES.items()
    }


@cache
def column_comments() -> Mapping[str, Mapping[str, str]]:
    """Meaning, unit and source of columns, by table or view; a view may lack some of its columns."""
    found: dict[str, Mapping[str, str]] = {
        name: {c.name: _comment(name, c.name, c.meaning) for c in stored_columns(table)}
        for name, table in TABLES.items()
    }
    for view in public_views():
        # From the tables that it reads; the first one counts.
        inherited: dict[str, str] = {}
        for word in dict.fromkeys(re.findall(r"\w+", view.sql)):
            inherited = {**found.get(word, {}), **inherited}
        found[view.name] = {**inherited, **_OF_VIEWS[""], **_OF_VIEWS.get(view.name, {})}
    return found


def _comment(table: str, column: str, meaning: str) -> str:
    metric, is_reading = _metric_of(table, column)
    if metric is None:
        return meaning
    said = [meaning, f"Unit: {metric.unit.replace('_', ' ')}."]
    if is_reading:
        said += [f"Source: {_FIELD.sub('NVML field', metric.source)}."]
        said += ["Only differences are meaningful."] if metric.kind is Kind.COUNTER else []
    return " ".join(said)


@cache
def _metrics() -> Mapping[tuple[str, str], tuple[Metric, bool]]:
    """By table and column: the metric, and whether the column is its reading; else it is a summary."""
    found = {(table, m.name): (m, True) for table, metrics in METRICS.items() for m in metrics}
    for rollup in ROLLUPS.values():
        for part in rollup.parts:
            for summary in part.summaries:
                metric, _ = found[part.table, summary.source]
                found[rollup.table.name, summary.column.name] = metric, False
    return found


def _metric_of(table: str, column: str) -> tuple[Metric | None, bool]:
    return _metrics().get((table, column), (None, False))
