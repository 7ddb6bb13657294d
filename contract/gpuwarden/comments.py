"""Makes the comments of tables, views and columns: meaning, unit and source, for DuckDB."""

import re
from collections.abc import Mapping
from functools import cache

from gpuwarden.metrics import METRICS, Kind, Metric
from gpuwarden.rollups import ROLLUPS
from gpuwarden.schema import TABLES, public_views, stored_columns

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
    """Meaning, unit and source of columns, by table or view; a view has those of all that it reads, too."""
    found: dict[str, Mapping[str, str]] = {
        name: {c.name: _comment(name, c.name, c.meaning) for c in stored_columns(table)}
        for name, table in TABLES.items()
    }
    for view in public_views():
        inherited: dict[str, str] = {}
        for name in view.reads:
            inherited = {**found.get(name, {}), **inherited}
        found[view.name] = {**inherited, **view.columns}
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
