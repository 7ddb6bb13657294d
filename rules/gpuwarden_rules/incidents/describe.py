"""Describes an incident: its root alert, place, size and cost. Pure functions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from gpuwarden.alert import Alert, Consequence, Severity
from gpuwarden.incident import Incident, IncidentAlert, IncidentState
from gpuwarden_rules.incidents.graph import CauseGraph, NodeLabels

URGENCY = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}
GRAVITY = {consequence: number for number, consequence in enumerate(Consequence)}


def urgency(alert: Alert) -> tuple[bool, int, int, float, str, list[tuple[str, str]]]:
    """Sort key of alerts: critical ones first, then by consequence, severity, cost and name."""
    labels = sorted((name, value.rjust(8)) for name, value in alert.labels.items())
    return (
        alert.severity is not Severity.CRITICAL,
        GRAVITY[alert.consequence],
        URGENCY[alert.severity],
        -(alert.usd_per_hour or 0.0),
        alert.rule,
        labels,
    )


def described(
    before: Incident | None,
    key: str,
    members: Mapping[str, IncidentAlert],
    firing: Mapping[str, Alert],
    graph: CauseGraph,
    nodes: NodeLabels,
    opened_at: datetime,
    now: datetime,
) -> Incident:
    """The incident of these members. If no head fires, its description stays."""
    live = [firing[m.fingerprint] for m in members.values() if m.ended_at is None]
    heads = [alert for alert in live if members[alert.fingerprint].cause is None]
    if not live:
        assert before is not None
        resolved_at = before.resolved_at or max(now, before.opened_at)
        return replace(
            before, state=IncidentState.RESOLVED, members=members, resolved_at=resolved_at
        )
    if heads:
        root = min(heads, key=lambda a: (*urgency(a)[:3], a.began_at, a.fingerprint))
        # Resolved roots count too, as long as the incident has the same rule.
        is_same = before is not None and before.rule == root.rule
        began_at = min(alert.began_at for alert in heads if alert.rule == root.rule)
        if before is not None and is_same:
            began_at = min(began_at, before.began_at)
        found = _of_root(key, root, members, graph, nodes, began_at, opened_at)
        owners = {alert.owner for alert in heads if alert.rule == root.rule}
        found = replace(found, owner=owners.pop() if len(owners) == 1 else None)
    else:
        assert before is not None
        found = before
    unknown = [alert.unknown_since or alert.stale_since for alert in live]
    quiet = [alert.muted for alert in sorted(heads or live, key=urgency)]
    return replace(
        found,
        state=IncidentState.OPEN,
        severity=min((alert.severity for alert in live), key=URGENCY.__getitem__),
        consequence=min((alert.consequence for alert in live), key=GRAVITY.__getitem__),
        members=members,
        usd_per_hour=cost_of(heads, live),
        muted=quiet[0] if all(quiet) else None,
        unknown_since=max(at for at in unknown if at) if all(unknown) else None,
        simulated=any(alert.simulated for alert in live),
        opened_at=before.opened_at if before else opened_at,
        resolved_at=None,
    )


def _of_root(
    key: str,
    root: Alert,
    members: Mapping[str, IncidentAlert],
    graph: CauseGraph,
    nodes: NodeLabels,
    began_at: datetime,
    opened_at: datetime,
) -> Incident:
    """The description: the root, and all heads of its rule, also resolved ones."""
    same = [m.labels for m in members.values() if m.cause is None and m.rule == root.rule]
    names = sorted({node for labels in same if (node := labels.get("node"))})
    common = _common(same) | _narrowest(names, nodes)
    place = _place(common, root)
    summary = root.summary
    if len(same) > 1:
        summary = _many(same, len(names), place, graph.many.get(root.rule), root.rule, began_at)
    return Incident(
        id=key,
        root=root.fingerprint,
        rule=root.rule,
        severity=root.severity,
        consequence=root.consequence,
        summary=summary,
        remedy=root.remedy,
        place=place,
        labels=common,
        nodes=len(names),
        roots=len(same),
        began_at=began_at,
        opened_at=opened_at,
    )


def _many(
    heads: Sequence[Mapping[str, str]],
    nodes: int,
    place: str,
    what: str | None,
    rule: str,
    began_at: datetime,
) -> str:
    """`12 nodes of rack r7 stopped reporting at 10:15 UTC.`"""
    gpus = len({uuid for labels in heads if (uuid := labels.get("gpu_uuid"))})
    of = f" of {place}" if place else ""
    at = began_at.astimezone(UTC).strftime("%H:%M UTC")
    if gpus > 1:
        count = f"{gpus} GPUs{f' on {nodes} nodes' if nodes > 1 else ''}"
    else:
        count = f"{nodes} nodes" if nodes > 1 else f"{len(heads)} alerts"
    return f"{count}{of} {what} at {at}." if what else f"{count}{of}: {rule} since {at}."


def _common(labels: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Labels that all of them have with the same value."""
    first, *rest = labels
    return {k: v for k, v in first.items() if all(other.get(k) == v for other in rest)}


def _narrowest(names: Sequence[str], nodes: NodeLabels) -> dict[str, str]:
    """The label that these nodes share and that the fewest other nodes have; empty if all nodes have it."""
    if len(names) < 2:
        return {}
    shared = _common(nodes.get(name, {}) for name in names)
    having = {
        key: sum(labels.get(key) == value for labels in nodes.values())
        for key, value in shared.items()
    }
    distinctive = [key for key in shared if having[key] < len(nodes)]
    if not distinctive:
        return {}
    key = min(distinctive, key=lambda key: (having[key], key))
    return {key: shared[key]}


def _place(shared: Mapping[str, str], root: Alert) -> str:
    """The place of all alerts: node and GPU, job, or a label of the nodes; empty: the fleet."""
    node, gpu = shared.get("node"), shared.get("gpu")
    if node:
        return f"{node} GPU {gpu}" if gpu and "gpu_uuid" in shared else node
    if job := shared.get("job"):
        return f"job {job}"
    own = root.labels.keys()
    found = [f"{key} {value}" for key, value in shared.items() if key not in own]
    return found[0] if found else " ".join(f"{key} {value}" for key, value in shared.items())


def cost_of(roots: Sequence[Alert], others: Sequence[Alert] = ()) -> float | None:
    """Cost an hour of the roots, or of the others where that of the roots is unknown."""
    known = [alert.usd_per_hour for alert in _costliest(roots) or _costliest(others)]
    return sum(usd for usd in known if usd is not None) if known else None


def spent_on(roots: Sequence[Alert], others: Sequence[Alert], now: datetime) -> float | None:
    """Cost so far of the alerts of `cost_of`, as in the view `incident_costs`."""
    known = [
        alert.usd_so_far(max(now, alert.began_at))
        for alert in _costliest(roots) or _costliest(others)
    ]
    return sum(usd for usd in known if usd is not None) if known else None


def _costliest(alerts: Sequence[Alert]) -> Sequence[Alert]:
    """For each GPU the alert with the highest known cost."""
    costliest: dict[str, Alert] = {}
    for alert in alerts:
        if alert.usd_per_hour is not None:
            key = alert.labels.get("gpu_uuid") or alert.fingerprint
            before = costliest.get(key)
            if before is None or (before.usd_per_hour or 0.0) < alert.usd_per_hour:
                costliest[key] = alert
    return list(costliest.values())
