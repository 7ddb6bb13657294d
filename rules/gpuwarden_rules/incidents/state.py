"""Joins firing alerts into incidents: `step(incidents, alerts, graph, nodes, now)`, a pure function.

It is level-triggered: each step sees all alerts that fire now, so that a restart is not a special case.

An alert follows from another if its rule declares the other's rule as a cause, the labels are equal, and the
cause began before the alert fired, or shortly after. An alert that follows from none is a head. Heads of one
rule at one place that come together have one cause that no rule can see, such as the power of a rack.

Invariants
- Every firing alert is in one open incident, or waits for a short time for others of its cause.
- Waiting alerts of one cause join an incident together when the first has waited long enough: the order in
  which they came does not matter.
- A cause that comes later joins the incident of its consequences. If it is the cause of several incidents,
  the oldest stays open and the others are merged into it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpuwarden.alert import Alert, AlertState
from gpuwarden.incident import Incident, IncidentAlert, IncidentState, incident_id
from gpuwarden_rules.incidents.describe import described
from gpuwarden_rules.incidents.graph import CauseGraph, NodeLabels, Place, values

LAG = timedelta(minutes=2)
"""A cause may begin this long after its consequence fired: readings of different tables come up to a minute
apart."""
SPREAD = timedelta(minutes=5)
"""A head that comes within this after the last one of its rule and place belongs to the same incident."""


@dataclass(frozen=True, slots=True)
class IncidentStep:
    """The result of a step."""

    incidents: dict[str, Incident]
    """Open incidents, and those resolved or merged lately, by id."""
    waiting: frozenset[str]
    """Fingerprints of alerts that wait for others of their cause."""
    wake_at: datetime | None
    """When to step again if no alert changes."""


@dataclass(frozen=True, slots=True)
class IncidentView:
    """The incidents after one step, with its alerts."""

    incidents: Sequence[Incident]
    """Open ones, and those lately resolved or merged."""
    alerts: Mapping[str, Alert]
    """Firing alerts by fingerprint."""


def step(
    incidents: Mapping[str, Incident],
    alerts: Iterable[Alert],
    graph: CauseGraph,
    nodes: NodeLabels,
    now: datetime,
) -> IncidentStep:
    """The incidents at `now`. `incidents`: the result of the previous step; `alerts`: all active alerts."""
    firing = {alert.fingerprint: alert for alert in alerts if alert.state is AlertState.FIRING}
    lately = {
        key: incident
        for key, incident in incidents.items()
        if incident.resolved_at is None
        or now - incident.resolved_at <= reopens_within(incident, graph)
    }
    kept = {k: i for k, i in lately.items() if i.state is not IncidentState.MERGED}
    merged = {k: i for k, i in lately.items() if i.state is IncidentState.MERGED}
    members = {key: _continued(incident, firing, now) for key, incident in kept.items()}
    home = {
        member.fingerprint: key
        for key, found in members.items()
        for member in found.values()
        if member.ended_at is None
    }
    for alert in firing.values():
        if alert.fingerprint not in home and (
            key := _previous_incident(alert, kept, members, graph, now)
        ):
            again = members[key][alert.fingerprint]
            members[key][alert.fingerprint] = replace(
                again, active_at=alert.active_at, ended_at=None
            )
            home[alert.fingerprint] = key
    opened: dict[str, datetime] = {}
    waiting: list[str] = []
    wakes: list[datetime] = []
    fresh = {key: alert for key, alert in firing.items() if key not in home}
    joined = _Joined(fresh, firing, members, home, graph, nodes, now)
    for group in joined.groups():
        olds = sorted(group.incidents, key=lambda key: (kept[key].opened_at, key))
        if olds:
            target = olds[0]
        else:
            due_at = min(_due(alert, graph, now) for alert in group.alerts)
            if due_at > now:
                waiting += [alert.fingerprint for alert in group.alerts]
                wakes.append(due_at)
                continue
            first = min(group.alerts, key=lambda alert: (_fired(alert), alert.fingerprint))
            target = incident_id(first.fingerprint, _fired(first))
            members[target], opened[target] = {}, now
        for other in olds[1:]:
            members[target] = members.pop(other) | members[target]
            merged[other] = _merged(kept[other], target, now)
        for alert in group.alerts:
            members[target][alert.fingerprint] = _member(alert, now)
    for found in members.values():
        for key in found.keys() & joined.causes.keys():
            found[key] = replace(found[key], cause=joined.causes[key])
    after = {
        key: described(kept.get(key), key, found, firing, graph, nodes, opened.get(key, now), now)
        for key, found in members.items()
    }
    return IncidentStep(after | merged, frozenset(waiting), min(wakes, default=None))


def reopens_within(incident: Incident, graph: CauseGraph) -> timedelta:
    """How long after its end an alert may reopen the incident; a merged one is only kept for its id."""
    is_merged = incident.state is IncidentState.MERGED
    return graph.reopens_within([""] if is_merged else [m.rule for m in incident.members.values()])


@dataclass(slots=True)
class _Group:
    """Incidents and new alerts that have one cause."""

    incidents: set[str]
    alerts: list[Alert]


class _Joined:
    """Finds which new alerts belong together, and to which incidents."""

    def __init__(
        self,
        fresh: Mapping[str, Alert],
        firing: Mapping[str, Alert],
        members: Mapping[str, Mapping[str, IncidentAlert]],
        home: Mapping[str, str],
        graph: CauseGraph,
        nodes: NodeLabels,
        now: datetime,
    ) -> None:
        self._fresh = fresh
        self._members = members
        self._graph = graph
        self._links: dict[str, str] = {}
        self.causes: dict[str, str] = {}
        """Fingerprint of the cause by that of what follows from it, as far as this step found them."""
        if not fresh:
            return
        heads = [
            (key, firing[member.fingerprint])
            for key, found in members.items()
            for member in found.values()
            if member.ended_at is None and member.cause is None
        ]
        known = [firing[key] for key in home]
        index = self._indexed([*known, *fresh.values()])
        over = self._ended()
        for alert in fresh.values():
            if cause := _cause(alert, index, graph):
                self.causes[alert.fingerprint] = cause
                self._link(alert.fingerprint, home.get(cause, cause))
            elif found := _cause_that_ended(alert, over, graph):
                self.causes[alert.fingerprint] = found[1].fingerprint
                self._link(alert.fingerprint, found[0])
        new = self._indexed(fresh.values())
        for key, head in heads:
            if cause := _cause(head, new, graph):
                self.causes[head.fingerprint] = cause
                self._link(cause, key)
        places: dict[tuple[str, Place], str] = {}
        latest: dict[str, datetime] = {}
        for key, head in heads:
            joined_at = members[key][head.fingerprint].joined_at
            latest[key] = max(joined_at, latest.get(key, joined_at))
        for key, head in sorted(heads, key=lambda found: found[0]):
            if now - latest[key] <= SPREAD:
                for place in graph.places(head, nodes):
                    places.setdefault((head.rule, place), key)
        for alert in fresh.values():
            if alert.fingerprint not in self.causes:
                for place in graph.places(alert, nodes):
                    there = places.setdefault((alert.rule, place), alert.fingerprint)
                    self._link(alert.fingerprint, there)

    def groups(self) -> list[_Group]:
        """Groups that have new alerts."""
        found: dict[str, _Group] = {}
        for key, alert in self._fresh.items():
            found.setdefault(self._end(key), _Group(set(), [])).alerts.append(alert)
        for key in self._members:
            if group := found.get(self._end(key)):
                group.incidents.add(key)
        return list(found.values())

    def _link(self, one: str, other: str) -> None:
        first, second = sorted((self._end(one), self._end(other)))
        if first != second:
            self._links[second] = first

    def _end(self, key: str) -> str:
        while (after := self._links.get(key)) is not None:
            key = after
        return key

    def _indexed(self, alerts: Iterable[Alert]) -> "_Index":
        asked: dict[str, set[tuple[str, ...]]] = {}
        for causes in self._graph.causes.values():
            for rule, names in causes.items():
                asked.setdefault(rule, set()).add(names)
        index: _Index = {}
        for alert in alerts:
            for names in asked.get(alert.rule, ()):
                if (found := values(alert.labels, names)) is not None:
                    index.setdefault((alert.rule, names, found), []).append(alert)
        return index

    def _ended(self) -> "_Over":
        found: _Over = {}
        for key, of_incident in self._members.items():
            if any(member.ended_at is None for member in of_incident.values()):
                for member in of_incident.values():
                    if member.ended_at is not None:
                        found.setdefault(member.rule, []).append((key, member))
        return found


_Index = dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[Alert]]
"""Possible causes by rule, names of labels and their values."""
_Over = dict[str, list[tuple[str, IncidentAlert]]]
"""Alerts of open incidents that have ended, by rule, with their incident."""


def _cause(alert: Alert, index: _Index, graph: CauseGraph) -> str | None:
    """The cause of an alert among those of the index: the strongest rule, of that the first that began."""
    latest = _fired(alert) + LAG
    for rule, names in graph.causes.get(alert.rule, {}).items():
        wanted = values(alert.labels, names)
        if wanted is None:
            continue
        found = [a for a in index.get((rule, names, wanted), ()) if a.began_at <= latest]
        if found:
            return min(found, key=lambda a: (a.began_at, a.fingerprint)).fingerprint
    return None


def _cause_that_ended(
    alert: Alert, over: _Over, graph: CauseGraph
) -> tuple[str, IncidentAlert] | None:
    """The alert of an open incident during which this one's condition began."""
    for rule, names in graph.causes.get(alert.rule, {}).items():
        wanted = values(alert.labels, names)
        for key, member in over.get(rule, ()) if wanted is not None else ():
            is_during = member.ended_at and member.active_at <= alert.began_at <= member.ended_at
            if is_during and values(member.labels, names) == wanted:
                return key, member
    return None


def _continued(
    incident: Incident, firing: Mapping[str, Alert], now: datetime
) -> dict[str, IncidentAlert]:
    """The members with their current state; `_previous_incident` handles those that fire again after their end."""
    return {
        key: member
        if member.ended_at is not None
        else replace(member, ended_at=max(now, member.active_at))
        if (alert := firing.get(key)) is None
        else member
        if member.active_at == alert.active_at
        else replace(member, active_at=alert.active_at)
        for key, member in incident.members.items()
    }


def _previous_incident(
    alert: Alert,
    kept: Mapping[str, Incident],
    members: Mapping[str, Mapping[str, IncidentAlert]],
    graph: CauseGraph,
    now: datetime,
) -> str | None:
    """The incident in which the alert fired lately, also a resolved one."""
    within = graph.reopens_within([alert.rule])
    found = [
        (member.ended_at, key)
        for key in kept
        if (member := members[key].get(alert.fingerprint))
        and member.ended_at is not None
        and now - member.ended_at <= within
    ]
    return max(found)[1] if found else None


def _member(alert: Alert, now: datetime) -> IncidentAlert:
    return IncidentAlert(
        fingerprint=alert.fingerprint,
        active_at=alert.active_at,
        rule=alert.rule,
        labels=alert.labels,
        joined_at=now,
    )


def _merged(incident: Incident, target: str, now: datetime) -> Incident:
    over = {
        key: member if member.ended_at else replace(member, ended_at=now)
        for key, member in incident.members.items()
    }
    return replace(
        incident,
        state=IncidentState.MERGED,
        members=over,
        resolved_at=max(now, incident.opened_at),
        merged_into=target,
    )


def _fired(alert: Alert) -> datetime:
    return alert.fired_at or alert.active_at


def _due(alert: Alert, graph: CauseGraph, now: datetime) -> datetime:
    """When the alert has waited long enough."""
    fired_at = _fired(alert)
    # Fired in the future: the clock was set back, and the time it has waited is unknown.
    return now if fired_at > now else fired_at + timedelta(seconds=graph.wait_s(alert))
