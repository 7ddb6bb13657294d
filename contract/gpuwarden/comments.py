"""Comments of tables, views and columns: meaning, unit and source, as `duckdb_columns()` and `gpuwarden schema` have them."""

import re
from collections.abc import Mapping
from functools import cache

from gpuwarden.metrics import METRICS, Kind, Metric
from gpuwarden.rollups import ROLLUPS
from gpuwarden.schema import TABLES, public_views, stored_columns

_OF_VIEWS: Mapping[str, Mapping[str, str]] = {
    "": {
        "usd_so_far": "What it has cost so far.",
        "user": "Who held the GPU, else whose job it was given to.",
        "job": "Slurm job, or Kubernetes namespace/pod.",
    },
    "waste": {
        "is_waste": "Whether its label is one of waste.",
        "gpu_hours": "Time with that label and owner.",
    },
    "gpu_usage": {
        "rack": "Label `rack` of the node.",
        "labels": "Labels of the node: labels['zone'] is one of them.",
        "gpu_hours": "Time of the GPU that belongs to the owner.",
        "busy_hours": "Of these, hours in which a kernel ran.",
        "idle_hours": "Of these, hours in which nothing ran.",
        "wasted_hours": "Of these, hours with a label of waste.",
        "wasted_usd": "What those cost; NULL: no price, or none was wasted.",
    },
    "gpu_holders_now": {
        "scheduler": "The scheduler that has given the GPU out; NULL: none has.",
        "processes": "Processes of the holder on the GPU; 0: it was given out, and nothing runs.",
        "gpu_memory_bytes": "Device memory of those.",
        "started_at": "Start of the oldest of those.",
    },
    "link_errors": {
        "ts": "Start of the hour, UTC.",
        "error": "Counter of link_samples, without _total.",
        "errors": "What it gained, resets left out.",
    },
    "slurm_jobs": {
        "user": "Owner of the job.",
        "cpus": "CPUs of the job on all its nodes.",
        "gpus": "GPUs of the job on all its nodes.",
        "gpu_uuids": "GPUs of the job, separated by commas, as far as its nodes tell.",
        "state": "Slurm's own where the controller tells, else running or ended.",
        "cpu_seconds": "CPU time of the job on all its nodes, as far as they tell.",
        "memory_peak_bytes": "The most memory that it has used on one node.",
    },
    "slurm_nodes": {"told_by": "Node whose agent asked the controller."},
    "node_labels": {"label": "Name of the label.", "value": "Value of the label."},
    "incident_costs": {"incident": "Id of the incident."},
}
"""Meaning of columns that a view makes; "": of several."""
_FIELD = re.compile(r"\bFI(?= \d)")


def table_comments() -> Mapping[str, str]:
    """What each public view and table holds: views first, in the order in which people meet them."""
    views = {view.name: view.meaning for view in public_views()}
    return views | {
        name: f"One row per {table.row}. Key: {', '.join(table.key)}."
        for name, table in TABLES.items()
    }


@cache
def column_comments() -> Mapping[str, Mapping[str, str]]:
    """Meaning, unit and source of columns, by table or view. Of a view also of columns that it may not have."""
    found: dict[str, Mapping[str, str]] = {
        name: {c.name: _comment(name, c.name, c.meaning) for c in stored_columns(table)}
        for name, table in TABLES.items()
    }
    for view in public_views():
        # Those of what it reads, the one named first before others.
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
        said += ["Only differences mean something."] if metric.kind is Kind.COUNTER else []
    return " ".join(said)


@cache
def _metrics() -> Mapping[tuple[str, str], tuple[Metric, bool]]:
    """By table and column: the metric, and whether the column is its reading (else a summary of it)."""
    found = {(table, m.name): (m, True) for table, metrics in METRICS.items() for m in metrics}
    for rollup in ROLLUPS.values():
        for part in rollup.parts:
            for summary in part.summaries:
                metric, _ = found[part.table, summary.source]
                found[rollup.table.name, summary.column.name] = metric, False
    return found


def _metric_of(table: str, column: str) -> tuple[Metric | None, bool]:
    return _metrics().get((table, column), (None, False))
