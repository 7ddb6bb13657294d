"""Makes the JSON of a message for webhooks and files; docs/notifications.md describes every key."""

import json
from datetime import datetime
from typing import Any

from gpuwarden.alert import Alert
from gpuwarden.clock import iso_text
from gpuwarden.incident import Incident
from gpuwarden_rules.notify.message import Digest, MailedReport, Notification
from gpuwarden_rules.notify.sentences import Style, rendered

VERSION = 1


def body_of(message: Notification, style: Style) -> dict[str, Any]:
    """The documented keys. Instants are RFC 3339 in UTC; unknown values are null."""
    words = rendered(message, "text", style)
    return {
        "version": VERSION,
        "id": message.id,
        "kind": message.kind.value,
        "status": message.incident.state.value if message.incident else None,
        "reason": message.reason.value if message.reason else None,
        "severity": message.severity.value if message.severity else None,
        "made_at": iso_text(message.made_at),
        "incident": _incident(message.incident) if message.incident else None,
        "title": words.title,
        "text": words.body,
        "usd_per_hour": message.usd_per_hour,
        "usd_so_far": message.usd_so_far,
        "address": message.address,
        "roots": message.roots,
        "firing_total": message.firing_total,
        "resolved_total": message.resolved_total,
        "firing": [_alert(alert, message.made_at) for alert in message.firing],
        "resolved": [_alert(alert, message.made_at) for alert in message.resolved],
        "digest": _digest(message.digest) if message.digest else None,
        "report": _report(message.report) if message.report else None,
    }


def line_of(message: Notification, style: Style) -> str:
    """The body as one line, without a newline."""
    return json.dumps(body_of(message, style), ensure_ascii=False, separators=(",", ":"))


def _incident(incident: Incident) -> dict[str, Any]:
    return {
        "id": incident.id,
        "state": incident.state.value,
        "merged_into": incident.merged_into,
        "rule": incident.rule,
        "root": incident.root,
        "consequence": incident.consequence.value,
        "place": incident.place,
        "labels": dict(incident.labels),
        "nodes": incident.nodes,
        "roots": incident.roots,
        "summary": incident.summary,
        "remedy": incident.remedy,
        "owner": incident.owner,
        "began_at": iso_text(incident.began_at),
        "opened_at": iso_text(incident.opened_at),
        "resolved_at": iso_text(incident.resolved_at) if incident.resolved_at else None,
        "unknown_since": iso_text(incident.unknown_since) if incident.unknown_since else None,
        "simulated": incident.simulated,
    }


def _alert(alert: Alert, now: datetime) -> dict[str, Any]:
    return {
        "fingerprint": alert.fingerprint,
        "rule": alert.rule,
        "severity": alert.severity.value,
        "consequence": alert.consequence.value,
        "muted": alert.muted,
        "state": alert.state.value,
        "labels": dict(alert.labels),
        "summary": alert.summary,
        "remedy": alert.remedy,
        "value": alert.value,
        "usd_per_hour": alert.usd_per_hour,
        "usd_so_far": alert.usd_so_far(max(now, alert.began_at)),
        "owner": alert.owner,
        "job": alert.job,
        "began_at": iso_text(alert.began_at),
        "fired_at": iso_text(alert.fired_at) if alert.fired_at else None,
        "resolved_at": iso_text(alert.resolved_at) if alert.resolved_at else None,
        "simulated": alert.simulated,
    }


def _report(report: MailedReport) -> dict[str, Any]:
    return {
        "since": iso_text(report.since),
        "until": iso_text(report.until),
        "html": report.html,
    }


def _digest(digest: Digest) -> dict[str, Any]:
    def lines(wasters: Any) -> list[dict[str, Any]]:
        return [{"name": w.name, "usd": w.usd, "hours": w.hours} for w in wasters]

    return {
        "since": iso_text(digest.since),
        "until": iso_text(digest.until),
        "wasted_hours": digest.wasted_hours,
        "gpu_hours": digest.gpu_hours,
        "usd": digest.usd,
        "categories": lines(digest.categories),
        "wasters": lines(digest.wasters),
        "alerts": lines(digest.alerts),
    }
