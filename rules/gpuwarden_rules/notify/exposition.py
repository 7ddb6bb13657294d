"""The notifier's figures in Prometheus's text format, for the collector's /metrics."""

from collections.abc import Callable, Mapping

from gpuwarden_rules.notify.notifier import Notifier, ReceiverStats

_COUNTERS: tuple[tuple[str, str, Callable[[ReceiverStats], int]], ...] = (
    ("sent_total", "Messages that the receiver took.", lambda s: s.sent),
    ("failures_total", "Attempts that failed and are made again.", lambda s: s.failures),
    ("refused_total", "Messages that the receiver refused for good.", lambda s: s.refused),
    ("expired_total", "Messages that nobody took for a week.", lambda s: s.expired),
)


def exposition(notifier: Notifier) -> str:
    """The figures now; ends with a newline."""
    stats = notifier.stats
    lines: list[str] = []
    for name, meaning, value in _COUNTERS:
        lines += _by_receiver(name, "counter", meaning, {r: value(s) for r, s in stats.items()})
    dropped = {name: notifier.dropped.get(name, 0) for name in stats}
    lines += _by_receiver(
        "dropped_total", "counter", "Messages given up, too many waiting.", dropped
    )
    waiting = {name: notifier.waiting.get(name, 0) for name in stats}
    lines += _by_receiver("waiting", "gauge", "Messages that wait for the receiver.", waiting)
    failing = {name: int(s.failing) for name, s in stats.items()}
    lines += _by_receiver("failing", "gauge", "1 while the last attempt failed.", failing)
    lines += _headed("unrouted_incidents", "gauge", "Open incidents that match no route.")
    lines.append(f"gpuwarden_notify_unrouted_incidents {notifier.unrouted}")
    lines += _headed("muted_incidents", "gauge", "Open incidents that notify nobody.")
    lines.append(f"gpuwarden_notify_muted_incidents {notifier.muted}")
    return "".join(f"{line}\n" for line in lines)


def _by_receiver(name: str, kind: str, meaning: str, values: Mapping[str, int]) -> list[str]:
    samples = [
        f'gpuwarden_notify_{name}{{receiver="{receiver}"}} {value}'
        for receiver, value in sorted(values.items())
    ]
    return [*_headed(name, kind, meaning), *samples]


def _headed(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP gpuwarden_notify_{name} {meaning}", f"# TYPE gpuwarden_notify_{name} {kind}"]
