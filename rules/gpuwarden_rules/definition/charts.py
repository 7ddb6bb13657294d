"""Chooses the metrics to draw on an alert's page.

`chart` of a rule names them, each with the parameter or result column that it is compared with. Without
`chart`, they are the metrics that the rule requires. Metrics of hosts have the prefix `host.`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuwarden.metrics import METRICS, Kind, Type
from gpuwarden.rollups import IDLE_BELOW_PERCENT, ROLLUPS
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.definition.yaml_positions import FileProblem

CHARTS_MAX = 3
_PREFIXES = {
    "gpu_samples": "",
    "gpu_detail_samples": "",
    "gpu_health_samples": "",
    "host_samples": "host.",
}
_DRAWN = frozenset(
    prefix + metric.name
    for table, prefix in _PREFIXES.items()
    for metric in METRICS[table]
    if metric.kind is not Kind.FLAGS and metric.type is not Type.BOOL
)
_SHOWN_BY = {
    "idle_seconds": ("util_percent", IDLE_BELOW_PERCENT),
    "busy_seconds": ("util_percent", IDLE_BELOW_PERCENT),
    "known_until": ("util_percent", IDLE_BELOW_PERCENT),
    "clocks_event_reasons": ("sm_clock_mhz", None),
}
"""Metric and threshold to draw for columns that cannot be drawn themselves."""


@dataclass(frozen=True, slots=True)
class RuleChart:
    """A metric to draw, and its threshold."""

    metric: str
    name: str | None = None
    """Parameter or column that has the threshold; None: there is no threshold, or a fixed one."""
    threshold: float | None = None


def charts_of(rule: Rule, values: Mapping[str, Any]) -> list[RuleChart]:
    """The metrics to draw; `values`: parameters and, if known, the row that the SQL returned."""
    if rule.chart:
        return [
            RuleChart(metric, name, _number(values.get(name)) if name else None)
            for metric, name in rule.chart.items()
        ]
    found = {metric: threshold for column in rule.requires for metric, threshold in _of(*column)}
    return [RuleChart(metric, None, found[metric]) for metric in list(found)[:CHARTS_MAX]]


def chart_problems(rule: Rule, columns: Mapping[str, str]) -> list[FileProblem]:
    """Problems of `chart`, given the columns of the SQL's result."""
    problems = []
    for metric, name in rule.chart.items():
        if metric not in _DRAWN:
            message = f"there is no metric {metric!r} to draw; see docs/metrics.md; metrics of hosts begin with host."
            problems.append(rule.problem("chart", message))
        if name is not None and name not in rule.params and name not in columns:
            message = f"{name!r} is neither a parameter nor a column of the SQL's result"
            problems.append(rule.problem("chart", message))
    return problems


def _of(table: str, column: str) -> Iterator[tuple[str, float | None]]:
    if column in _SHOWN_BY:
        yield _SHOWN_BY[column]
        return
    rollup = ROLLUPS.get(table)
    sources = {table: column}
    if rollup is not None:
        sources = {
            part.table: summary.source
            for part in rollup.parts
            for summary in part.summaries
            if summary.column.name == column
        }
    for source, name in sources.items():
        if (metric := _PREFIXES.get(source, "?") + name) in _DRAWN:
            yield metric, None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
