"""Serves rules and alerts as Prometheus' HTTP API does, beside its endpoints for queries.

Source: https://prometheus.io/docs/prometheus/latest/querying/api/, "Rules" and "Alerts". The expression of a rule is its
SQL. All rules are one group.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiohttp import web

from gpuwarden.alert import Alert, AlertState
from gpuwarden_rules.definition.language import Rule
from gpuwarden_rules.evaluation.engine import RuleEngine
from gpuwarden_rules.evaluation.reload import RuleReloader
from gpuwarden_rules.http.answers import Guarded, answer, instant

GROUP = "gpuwarden"
_NO_TIME = "0001-01-01T00:00:00Z"
"""Prometheus' text for a time that has not come."""


def routes(guarded: Guarded) -> Iterable[web.AbstractRouteDef]:
    """The routes for the application."""

    async def alerts(_request: web.Request, reloader: RuleReloader) -> web.Response:
        return _success({"alerts": [described(alert) for alert in reloader.engine.alerts]})

    async def rules(request: web.Request, reloader: RuleReloader) -> web.Response:
        found = _success({"groups": groups(reloader.engine, _asked(request))})
        found.enable_compression()
        return found

    return [
        web.get("/prometheus/api/v1/alerts", guarded(alerts)),
        web.get("/prometheus/api/v1/rules", guarded(rules)),
    ]


def _asked(request: web.Request) -> Mapping[str, Sequence[str]]:
    return {name: request.query.getall(name) for name in request.query}


def _success(data: Mapping[str, Any]) -> web.Response:
    return answer({"status": "success", "data": data})


def described(alert: Alert) -> dict[str, Any]:
    """One alert. Its labels have the rule's name as `alertname`."""
    labels = {
        **alert.labels,
        "alertname": alert.rule,
        "severity": alert.severity.value,
        "consequence": alert.consequence.value,
    }
    if alert.simulated:
        labels["simulated"] = "true"
    return {
        "labels": dict(sorted(labels.items())),
        "annotations": {"summary": alert.summary, "remedy": alert.remedy},
        "state": alert.state.value,
        "activeAt": instant(alert.active_at),
        "value": "" if alert.value is None else f"{alert.value:e}",
    }


def groups(engine: RuleEngine, asked: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """The group of all rules, or of those that `rule_name[]`, `rule_group[]`, `file[]` and `type` ask for."""
    names, files = asked.get("rule_name[]", ()), asked.get("file[]", ())
    if GROUP not in asked.get("rule_group[]", (GROUP,)) or "record" in asked.get("type", ()):
        return []
    alerts: dict[str, list[Alert]] = {}
    for alert in engine.alerts:
        alerts.setdefault(alert.rule, []).append(alert)
    without_alerts = "true" in asked.get("exclude_alerts", ())
    rules = [
        _rule(engine, rule, alerts.get(rule.name, ()), without_alerts=without_alerts)
        for rule in engine.rules
        if (not names or rule.name in names) and (not files or rule.path in files)
    ]
    if not rules:
        return []
    seconds = [rule["evaluationTime"] for rule in rules]
    latest = max(rule["lastEvaluation"] for rule in rules)
    return [
        {
            "name": GROUP,
            "file": "",
            "interval": min(rule.interval_s for rule in engine.rules),
            "limit": 0,
            "rules": rules,
            "evaluationTime": sum(seconds),
            "lastEvaluation": latest,
        }
    ]


def _rule(
    engine: RuleEngine, rule: Rule, alerts: Sequence[Alert], *, without_alerts: bool
) -> dict[str, Any]:
    figures = engine.stats[rule.name]
    error = figures.cannot_run or figures.last_error
    states = {alert.state for alert in alerts}
    state = next(
        (s.value for s in (AlertState.FIRING, AlertState.PENDING) if s in states), "inactive"
    )
    health = "err" if error else "ok" if figures.last_success_at else "unknown"
    found = {
        "name": rule.name,
        "query": rule.sql,
        "duration": rule.for_s,
        "keepFiringFor": rule.keep_firing_for_s,
        "labels": {"severity": rule.severity.value, "consequence": rule.consequence.value},
        "annotations": {"summary": str(rule.summary), "remedy": str(rule.remedy)},
        "state": state,
        "health": health,
        "evaluationTime": figures.last_seconds or 0.0,
        "lastEvaluation": instant(figures.last_success_at) or _NO_TIME,
        "type": "alerting",
    }
    if error:
        found["lastError"] = error
    if not without_alerts:
        found["alerts"] = [described(alert) for alert in alerts]
    return found
