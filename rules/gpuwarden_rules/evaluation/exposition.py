"""The engine's figures in Prometheus's text format, for the collector's /metrics.

Every rule has every series but those of what has not happened yet: an evaluation that never took
place has no seconds, a rule that never succeeded no time since.
"""

from collections.abc import Callable, Mapping
from datetime import datetime

from gpuwarden_rules.evaluation.statistics import RuleStatistics

Value = Callable[[RuleStatistics], float | None]

_COUNTERS: tuple[tuple[str, str, Value], ...] = (
    ("evaluations_total", "Evaluations, failed ones included.", lambda s: s.evaluations),
    ("evaluation_failures_total", "Evaluations that failed.", lambda s: s.failures),
    ("evaluation_seconds_total", "Time spent evaluating.", lambda s: s.seconds_total),
    ("alerts_dropped_total", "Alerts never recorded, the store failing.", lambda s: s.dropped),
)


def exposition(stats: Mapping[str, RuleStatistics], now: datetime) -> str:
    """The figures of `Engine.stats` at `now` (aware); ends with a newline, empty without rules."""

    def since_success(figures: RuleStatistics) -> float | None:
        at = figures.last_success_at
        return None if at is None else max(0.0, (now - at).total_seconds())

    lines: list[str] = []
    for name, meaning, value in _COUNTERS:
        lines += _family(name, "counter", meaning, stats, value)
    lines += _family(
        "last_evaluation_seconds",
        "gauge",
        "How long the last evaluation took.",
        stats,
        lambda s: s.last_seconds,
    )
    lines += _family(
        "since_success_seconds",
        "gauge",
        "Time since an evaluation last succeeded.",
        stats,
        since_success,
    )
    alerts = [
        f'gpuwarden_rules_alerts{{rule="{rule}",state="{state}"}} {count}'
        for rule, figures in sorted(stats.items())
        for state, count in (
            ("pending", figures.pending),
            ("firing", figures.firing),
            ("unknown", figures.unknown),
        )
    ]
    lines += _headed("alerts", "gauge", "Alerts as of the last evaluation.", alerts)
    lines += _family(
        "alerts_muted", "gauge", "Alerts that notify nobody.", stats, lambda s: s.muted
    )
    lines += _family(
        "cannot_run",
        "gauge",
        "1 where the fleet lacks what the rule requires.",
        stats,
        lambda s: int(s.cannot_run is not None),
    )
    return "".join(f"{line}\n" for line in lines)


def _family(
    name: str, kind: str, meaning: str, stats: Mapping[str, RuleStatistics], value: Value
) -> list[str]:
    samples = [
        f'gpuwarden_rules_{name}{{rule="{rule}"}} {number:.10g}'
        for rule, figures in sorted(stats.items())
        if (number := value(figures)) is not None
    ]
    return _headed(name, kind, meaning, samples)


def _headed(name: str, kind: str, meaning: str, samples: list[str]) -> list[str]:
    """The samples of a family after their HELP and TYPE; nothing where there are none."""
    if not samples:
        return []
    head = [f"# HELP gpuwarden_rules_{name} {meaning}", f"# TYPE gpuwarden_rules_{name} {kind}"]
    return head + samples
