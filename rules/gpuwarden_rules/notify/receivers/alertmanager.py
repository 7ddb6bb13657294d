"""Sends alerts to Prometheus's Alertmanager: POST /api/v2/alerts.

Alertmanager groups, silences and repeats by itself, so it gets every alert at once and again every five
minutes (`planner.STATE_KEEPER_PACE`). `endsAt` is three times as far ahead: without gpuwarden, alerts end by
themselves. Group by the label `incident`.
"""

import json
from datetime import timedelta
from typing import Any

from gpuwarden.alert import Alert
from gpuwarden.clock import iso_text
from gpuwarden_rules.notify.message import MessageKind, Notification
from gpuwarden_rules.notify.planner import STATE_KEEPER_PACE
from gpuwarden_rules.notify.receivers.http_receiver import HttpReceiver
from gpuwarden_rules.notify.receivers.receiver import Outcome
from gpuwarden_rules.notify.sentences import Style, rendered

HOLDS = timedelta(seconds=3 * STATE_KEEPER_PACE.repeat_s)
TEST_HOLDS = timedelta(minutes=5)
PATH = "/api/v2/alerts"


class Alertmanager(HttpReceiver):
    """A Receiver that posts to one Alertmanager."""

    def __init__(self, url: str, style: Style) -> None:
        self._url = url.rstrip("/") + PATH
        self._style = style

    async def send(self, message: Notification) -> Outcome:
        return await self.post(self._url, json.dumps(alerts_of(message, self._style)).encode(), {})


def alerts_of(message: Notification, style: Style) -> list[dict[str, Any]]:
    """The message as Alertmanager's postableAlerts; a test or digest is an alert that ends soon."""
    if message.kind is not MessageKind.INCIDENT:
        words = rendered(message, "text", style)
        return [
            {
                "labels": {"alertname": f"gpuwarden_{message.kind.value}", "severity": "info"},
                "annotations": {"summary": words.title, "description": words.body},
                "startsAt": iso_text(message.made_at),
                "endsAt": iso_text(message.made_at + TEST_HOLDS),
            }
        ]
    until = message.made_at + HOLDS
    assert message.incident is not None
    incident = message.incident.id
    firing = [
        _alert(alert, incident, style) | {"endsAt": iso_text(until)} for alert in message.firing
    ]
    over = [
        _alert(alert, incident, style) | {"endsAt": iso_text(alert.resolved_at or message.made_at)}
        for alert in message.resolved
    ]
    return firing + over


def _alert(alert: Alert, incident: str, style: Style) -> dict[str, Any]:
    labels = {
        **alert.labels,
        "incident": incident,
        "alertname": alert.rule,
        "severity": alert.severity.value,
        **({"simulated": "true"} if alert.simulated else {}),
    }
    annotations = {"summary": alert.summary, "remedy": alert.remedy}
    if alert.usd_per_hour is not None:
        annotations["usd_per_hour"] = f"{alert.usd_per_hour:.2f}"
    if alert.owner:
        annotations["owner"] = alert.owner
    posted = {"labels": labels, "annotations": annotations, "startsAt": iso_text(alert.began_at)}
    return posted | ({"generatorURL": style.link} if style.link else {})
