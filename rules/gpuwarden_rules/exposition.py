"""Exposes the metrics of rules, diagnosis and notifications for the collector's /metrics.

What has not happened yet has no series: a rule that was never evaluated has no seconds, one that never
succeeded no time since success. Import this module on the first scrape: prometheus_client takes 0.9 MiB.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuwarden.incident import Incident, IncidentState
from gpuwarden_rules.diagnosis.service import Diagnoser
from gpuwarden_rules.evaluation.statistics import RuleStatistics

if TYPE_CHECKING:
    from gpuwarden_rules.notify.notifier import Notifier

_Value = Callable[[RuleStatistics], float | None]

_COUNTERS: tuple[tuple[str, str, _Value], ...] = (
    ("evaluations", "Evaluations, failed ones included.", lambda s: s.evaluations),
    (
        "evaluations_skipped",
        "Turns without an evaluation, because no event of the rule had come since it found nothing.",
        lambda s: s.skipped,
    ),
    ("evaluation_failures", "Evaluations that failed.", lambda s: s.failures),
    ("evaluation_seconds", "Time spent evaluating.", lambda s: s.seconds_total),
    ("alerts_dropped", "Alerts that were not saved because the store failed.", lambda s: s.dropped),
)
_GAUGES: tuple[tuple[str, str, _Value], ...] = (
    ("last_evaluation_seconds", "How long the last evaluation took.", lambda s: s.last_seconds),
    ("alerts_muted", "Alerts that are muted.", lambda s: s.muted),
    (
        "cannot_run",
        "1 if the fleet does not report a column that the rule requires.",
        lambda s: s.cannot_run is not None,
    ),
)
_STATES = ("pending", "firing", "unknown")


def rules_exposition(
    stats: Mapping[str, RuleStatistics],
    now: datetime,
    diagnoser: Diagnoser | None = None,
    incidents: Iterable[Incident] = (),
) -> str:
    """Text format 0.0.4 of `RuleEngine.stats`, of the diagnosis and of open incidents at `now` (aware)."""
    families = [
        *_rule_families(stats, now),
        *(_diagnosis_families(diagnoser) if diagnoser else ()),
        *_incident_families(incidents),
    ]
    return _text_of(families)


def notifier_exposition(notifier: "Notifier") -> str:
    """Text format 0.0.4 of what the notifier has sent, and what waits."""
    stats = notifier.stats
    sent = {name: of.sent for name, of in stats.items()}
    failures = {name: of.failures for name, of in stats.items()}
    refused = {name: of.refused for name, of in stats.items()}
    expired = {name: of.expired for name, of in stats.items()}
    failing = {name: of.failing for name, of in stats.items()}
    dropped, waiting = notifier.outbox.dropped, notifier.outbox.waiting
    families = []
    for kind, name, meaning, values in (
        (CounterMetricFamily, "sent", "Messages that the receiver accepted.", sent),
        (CounterMetricFamily, "failures", "Attempts that failed and are repeated.", failures),
        (CounterMetricFamily, "refused", "Messages that the receiver refused.", refused),
        (CounterMetricFamily, "expired", "Messages that were not delivered for a week.", expired),
        (
            CounterMetricFamily,
            "dropped",
            "Messages that were dropped because too many waited.",
            dropped,
        ),
        (GaugeMetricFamily, "waiting", "Messages that wait for the receiver.", waiting),
        (GaugeMetricFamily, "failing", "1 if the last attempt failed.", failing),
    ):
        family = kind(f"gpuwarden_notify_{name}", meaning, labels=["receiver"])
        for receiver in sorted(stats):
            family.add_metric([receiver], values.get(receiver, 0))
        families.append(family)
    for name, meaning, value in (
        ("unrouted", "Open incidents that match no route.", notifier.unrouted),
        ("muted", "Open incidents that are muted.", notifier.muted),
    ):
        families.append(GaugeMetricFamily(f"gpuwarden_notify_{name}_incidents", meaning, value))
    return _text_of(families)


def _text_of(families: Sequence[Metric]) -> str:
    """Text format 0.0.4 of the families that have series."""
    return generate_latest(_Families(families)).decode()


def _rule_families(stats: Mapping[str, RuleStatistics], now: datetime) -> list[Metric]:

    def since_success(figures: RuleStatistics) -> float | None:
        at = figures.last_success_at
        return None if at is None else max(0.0, (now - at).total_seconds())

    since = ("since_success_seconds", "Time since an evaluation last succeeded.", since_success)
    by_rule = sorted(stats.items())
    families: list[Metric] = []
    for kind, values in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, (*_GAUGES, since))):
        for name, meaning, value in values:
            family = kind(f"gpuwarden_rules_{name}", meaning, labels=["rule"])
            for rule, figures in by_rule:
                if (number := value(figures)) is not None:
                    family.add_metric([rule], number)
            families.append(family)
    alerts = GaugeMetricFamily(
        "gpuwarden_rules_alerts", "Alerts as of the last evaluation.", labels=["rule", "state"]
    )
    for rule, figures in by_rule:
        for state in _STATES:
            alerts.add_metric([rule, state], getattr(figures, state))
    return [*families, alerts]


def _diagnosis_families(diagnoser: Diagnoser) -> list[Metric]:
    families: list[Metric] = [
        CounterMetricFamily(f"gpuwarden_diagnosis_{name}", meaning, value=value)
        for name, meaning, value in (
            ("looks", "Diagnoses of the fleet, failed ones included.", diagnoser.looks),
            ("failures", "Diagnoses, and saves of their results, that failed.", diagnoser.failures),
            (
                "dropped",
                "Diagnoses that were not saved because the store failed.",
                diagnoser.dropped,
            ),
        )
    ]
    if diagnoser.last_seconds is not None:
        families.append(
            GaugeMetricFamily(
                "gpuwarden_diagnosis_last_seconds",
                "How long the last diagnosis of the fleet took.",
                value=diagnoser.last_seconds,
            )
        )
    gpus = GaugeMetricFamily(
        "gpuwarden_diagnosis_gpus", "GPUs by bottleneck.", labels=["bottleneck"]
    )
    held = Counter(d.bottleneck.value for d in diagnoser.open if d.kind == "gpu")
    for bottleneck, count in sorted(held.items()):
        gpus.add_metric([bottleneck], count)
    return [*families, gpus]


def _incident_families(incidents: Iterable[Incident]) -> list[Metric]:
    labels = ["severity", "consequence"]
    count = GaugeMetricFamily("gpuwarden_incidents_open", "Open incidents.", labels=labels)
    meaning = "Loss by open incidents whose cost is known."
    usd = GaugeMetricFamily("gpuwarden_incidents_usd_per_hour", meaning, labels=labels)
    found: Counter[tuple[str, str]] = Counter()
    lost: dict[tuple[str, str], float] = {}
    for incident in incidents:
        if incident.state is IncidentState.OPEN:
            key = (incident.severity.value, incident.consequence.value)
            found[key] += 1
            if incident.usd_per_hour is not None:
                lost[key] = lost.get(key, 0.0) + incident.usd_per_hour
    for key in sorted(found):
        count.add_metric(key, found[key])
        if key in lost:
            usd.add_metric(key, lost[key])
    return [count, usd]


class _Families(Collector):
    """Families that have series."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from (family for family in self._families if family.samples)
