"""Finds metrics of a query that have no readings as old as it asks for: those without rollups have samples alone."""

import re

from gpuwarden.clock import from_ms
from gpuwarden_prometheus.metrics import NamedMetric, named_metrics
from gpuwarden_prometheus.relations import QUOTED
from gpuwarden_prometheus.tiers import OF_INSTANTS

_UNITS_MS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
    "y": 31_536_000_000,
}
DURATION = re.compile(r"(?:(\d+)(ms|[smhdwy]))")
_REACH = re.compile(rf"(?:\[|\boffset\s)\s*((?:{DURATION.pattern})+)")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def retention_warnings(query: str, start_ms: int, samples_since_ms: int) -> list[str]:
    """A sentence for each metric without rollups whose samples of the query's begin are no longer kept."""
    bare = QUOTED.sub("", query)
    reach_ms = max((duration_ms(match[1]) for match in _REACH.finditer(bare)), default=0)
    if start_ms - reach_ms >= samples_since_ms:
        return []
    known = named_metrics()
    since = f"{from_ms(samples_since_ms):%Y-%m-%d %H:%M} UTC"
    return [
        f"{name} has no rollup: its samples are kept since {since}"
        for name in sorted(set(_NAME.findall(bare)) & known.keys())
        if all(_has_samples_alone(metric) for metric in known[name])
    ]


def _has_samples_alone(metric: NamedMetric) -> bool:
    is_rolled = any(rolled.one(*OF_INSTANTS, "delta") for rolled in metric.rolled)
    return metric.source.computed is None and not is_rolled


def duration_ms(duration: str) -> int:
    """Milliseconds of a duration of PromQL, such as 1h30m."""
    return sum(int(count) * _UNITS_MS[unit] for count, unit in DURATION.findall(duration))
