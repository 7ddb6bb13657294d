"""Gives Prometheus what the notifier counts, for the collector's /metrics.

To be imported when someone asks: prometheus_client holds 0.9 MiB.
"""

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from gpuwarden_rules.exposition import text_of
from gpuwarden_rules.notify.notifier import Notifier


def exposition(notifier: Notifier) -> str:
    """Text format 0.0.4 of the figures now."""
    stats = notifier.stats
    sent = {name: of.sent for name, of in stats.items()}
    failures = {name: of.failures for name, of in stats.items()}
    refused = {name: of.refused for name, of in stats.items()}
    expired = {name: of.expired for name, of in stats.items()}
    failing = {name: of.failing for name, of in stats.items()}
    dropped, waiting = notifier.dropped, notifier.waiting
    families = []
    for kind, name, meaning, values in (
        (CounterMetricFamily, "sent", "Messages that the receiver took.", sent),
        (CounterMetricFamily, "failures", "Attempts that failed and are made again.", failures),
        (CounterMetricFamily, "refused", "Messages that the receiver refused for good.", refused),
        (CounterMetricFamily, "expired", "Messages that nobody took for a week.", expired),
        (CounterMetricFamily, "dropped", "Messages given up, too many waiting.", dropped),
        (GaugeMetricFamily, "waiting", "Messages that wait for the receiver.", waiting),
        (GaugeMetricFamily, "failing", "1 while the last attempt failed.", failing),
    ):
        family = kind(f"gpuwarden_notify_{name}", meaning, labels=["receiver"])
        for receiver in sorted(stats):
            family.add_metric([receiver], values.get(receiver, 0))
        families.append(family)
    for name, meaning, value in (
        ("unrouted", "Open incidents that match no route.", notifier.unrouted),
        ("muted", "Open incidents that notify nobody.", notifier.muted),
    ):
        families.append(GaugeMetricFamily(f"gpuwarden_notify_{name}_incidents", meaning, value))
    return text_of(families)
