"""Firing alerts and their incidents, for the tests of notification."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from gpuwarden.alert import Alert, AlertState, Severity, fingerprint
from gpuwarden.incident import Incident
from gpuwarden_rules.incidents.graph import CauseGraph, NodeLabels
from gpuwarden_rules.incidents.state import IncidentView, step
from gpuwarden_rules.notify.message import Notification
from gpuwarden_rules.notify.planner import plan
from gpuwarden_rules.notify.routing import Recipient, Route, RoutingPolicy

START = datetime(2026, 3, 2, 14, 3, tzinfo=UTC)


def make_alert(
    rule: str = "gpu_hot",
    *,
    gpu: int = 0,
    node: str = "dgx-07",
    severity: Severity = Severity.CRITICAL,
    at: datetime = START,
    usd_per_hour: float | None = 2.95,
    owner: str | None = None,
    muted: str | None = None,
    simulated: bool = False,
) -> Alert:
    labels = {"node": node, "gpu": str(gpu), "gpu_uuid": f"GPU-{gpu}"}
    return Alert(
        fingerprint=fingerprint(rule, labels),
        rule=rule,
        severity=severity,
        state=AlertState.FIRING,
        labels=labels,
        summary=f"GPU {gpu} of {node} slows down at 92 °C; the limit is 87 °C.",
        remedy=f"Check the fans and the inlet of {node}; move the job if it stays hot.",
        value=92.0,
        usd_per_hour=usd_per_hour,
        began_at=at - timedelta(minutes=12),
        active_at=at,
        fired_at=at,
        seen_at=at,
        owner=owner,
        muted=muted,
        simulated=simulated,
    )


GRAPH = CauseGraph(
    {"gpu_idle": {"gpu_hot": ("gpu_uuid",)}, "gpu_hot": {"gpu_lost": ("gpu_uuid",)}},
    gather_s=dict.fromkeys(("gpu_hot", "gpu_lost", "gpu_idle"), 0.0),
)
"""A lost GPU is hot, a hot one idle; nobody waits."""


class Incidents:
    """Steps of the incidents of these alerts, one after another."""

    def __init__(self) -> None:
        self.incidents: dict[str, Incident] = {}
        self.graph = GRAPH
        self.nodes: NodeLabels = {}

    def view(self, alerts: Iterable[Alert], now: datetime) -> IncidentView:
        active = {alert.fingerprint: alert for alert in alerts}
        self.incidents = step(
            self.incidents, active.values(), self.graph, self.nodes, now
        ).incidents
        return IncidentView(list(self.incidents.values()), active)


def message_of(*alerts: Alert, receiver: str = "chat", at: datetime = START) -> Notification:
    """The message of the incident that these alerts are."""
    policy = RoutingPolicy({receiver: Recipient()}, [Route(receivers=(receiver,))])
    (message,) = plan({}, Incidents().view(alerts, at), policy, at).messages
    return message
