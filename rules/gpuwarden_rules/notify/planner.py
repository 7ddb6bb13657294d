"""Decides which messages are sent, to whom and when: `plan(state, view, policy, now)`, a pure function.

It is level-triggered: it compares all incidents with what each receiver was sent. An extra call changes
nothing, a missed one is covered by the next, and a restart is not a special case. Alerts wait for each other
before they become an incident (`incidents/state.py`).

Invariants
- A receiver gets a message when an incident opens, when it ends, and between these when it is more severe, is
  twice as large, or has reached other nodes, and after the repeat interval. Each change is sent once. Receivers
  that replace messages get every change, at the pace of its severity.
- A receiver that was sent an open incident is sent its end once, also when the incident was muted or routed
  elsewhere meanwhile. It gets no end of an incident whose begin it was not sent.
- State and messages must be stored together (`outbox.py`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpuwarden.alert import Alert, AlertState, Severity, fingerprint
from gpuwarden.clock import to_ms
from gpuwarden.incident import Incident, IncidentState
from gpuwarden_rules.incidents.describe import URGENCY, cost_of, spent_on, urgency
from gpuwarden_rules.incidents.state import IncidentView
from gpuwarden_rules.notify.message import (
    ALERTS_MAX,
    MessageKind,
    MessageReason,
    Notification,
    message_id,
    of_each_node,
)
from gpuwarden_rules.notify.routing import NotificationPace, Recipient, Route, RoutingPolicy

STATE_KEEPER_PACE = NotificationPace(0, 300)
"""Pace of receivers that group by themselves; `alertmanager.py` sets how long their alerts are valid."""
GROWTH = 2
"""An incident whose roots have multiplied by this since the last message is sent again."""
NODES_GROWTH = 0.5
"""So is an incident whose new nodes are this share of the named ones, so that many GPUs of one node do not hide
other nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentNotice:
    """What one receiver was sent about an incident."""

    receiver: str
    address: str | None = None
    incident: Incident
    """The incident at the last message, without members."""
    alerts: Mapping[str, Alert] = field(default_factory=dict)
    """Alerts that fired at the last message, by fingerprint."""
    worst: Severity
    roots: int
    """The highest number of roots that was sent."""
    shape: tuple[str, ...] = ()
    """Properties of the incident whose change makes an update."""
    sent_at: datetime
    messages: int = 1
    interval_s: float = 0.0
    is_over: bool = False
    """Whether the end was sent. The notice is kept for a while, so that an incident that reopens keeps the pace."""


NoticeState = Mapping[str, IncidentNotice]
"""Notices by their identity: receiver, address and incident."""


@dataclass(frozen=True, slots=True)
class NotificationPlan:
    """The result of `plan`."""

    state: dict[str, IncidentNotice]
    messages: list[Notification]
    wake_at: datetime | None
    """When to plan again if nothing changes; None: not before a change."""
    unrouted: int
    """Open incidents that are not muted and match no route."""
    muted: int


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An open incident as it would be sent to a receiver now."""

    receiver: str
    address: str | None
    incident: Incident
    alerts: Sequence[Alert]
    """Roots first."""
    roots: int
    pace: NotificationPace

    @property
    def shape(self) -> tuple[str, ...]:
        incident = self.incident
        is_known = incident.unknown_since is None
        counts = (self.roots, len(self.alerts), len(incident.members), is_known)
        return (incident.root, incident.severity.value, *map(str, counts))


def plan(
    state: NoticeState,
    view: IncidentView,
    policy: RoutingPolicy,
    now: datetime,
    elsewhere: Collection[str] = (),
) -> NotificationPlan:
    """The messages that are due at `now`, and the state after them. `state` is never changed. `elsewhere`: nodes that
    send to another collector, which sends what follows about their incidents."""
    wanted: dict[str, _Wanted] = {}
    unrouted = muted = 0
    by_id = {incident.id: incident for incident in view.incidents}
    for incident in view.incidents:
        if incident.state is not IncidentState.OPEN:
            continue
        if incident.muted is not None:
            muted += 1
            continue
        found, is_routed = _wanted(incident, view, policy)
        unrouted += not is_routed
        wanted |= found
    after: dict[str, IncidentNotice] = {}
    messages: list[Notification] = []
    wakes: list[datetime] = []
    for key in dict.fromkeys((*state, *wanted)):
        notice, want = state.get(key), wanted.get(key)
        if notice is not None:
            if notice.receiver not in policy.recipients:
                continue
            # Sent in the future: the clock was set back.
            notice = notice if notice.sent_at <= now else replace(notice, sent_at=now)
        if want is not None:
            recipient = policy.recipients[want.receiver]
            reason, due_at = _due(notice, want, recipient, now)
            if due_at <= now:
                notice, made = _message(key, notice, want, recipient, reason, now)
                messages += made
                reason, due_at = _due(notice, want, recipient, now)
            wakes.append(due_at)
            if notice is not None:
                after[key] = notice
            continue
        assert notice is not None
        ended = by_id.get(notice.incident.id)
        is_open = ended is not None and ended.state is IncidentState.OPEN
        if elsewhere and not is_open and ended is not None and _has_moved(ended, elsewhere):
            continue
        quiet_until = notice.sent_at + _s(notice.interval_s)
        if notice.is_over:
            if now <= quiet_until:
                after[key] = notice
                wakes.append(quiet_until + timedelta(milliseconds=1))
        elif is_open:
            after[key] = notice
        elif now < quiet_until:
            after[key] = notice
            wakes.append(quiet_until)
        else:
            after[key], made = _end(key, notice, ended, policy.recipients[notice.receiver], now)
            messages += made
            wakes.append(now + _s(notice.interval_s) + timedelta(milliseconds=1))
    return NotificationPlan(after, messages, min(wakes, default=None), unrouted, muted)


def _has_moved(incident: Incident, elsewhere: Collection[str]) -> bool:
    """Whether all alerts of an incident are of nodes that send to another collector."""
    return all(member.labels.get("node") in elsewhere for member in incident.members.values())


def _wanted(
    incident: Incident, view: IncidentView, policy: RoutingPolicy
) -> tuple[dict[str, _Wanted], bool]:
    """What to send to whom about an open incident, and whether any route matches. Its roots decide."""
    firing = [view.alerts[m.fingerprint] for m in incident.firing if m.fingerprint in view.alerts]
    firing.sort(key=urgency)
    heads = [a for a in firing if incident.members[a.fingerprint].cause is None]
    follows = [a for a in firing if incident.members[a.fingerprint].cause is not None]
    routes: dict[tuple[str, str | None], Route] = {}
    is_routed = False
    for head in heads or follows:
        # A consequence that is critical makes the incident critical, also for routes.
        for receiver, route in policy.routes_of(replace(head, severity=incident.severity)):
            is_routed = True
            address = policy.address(receiver, head)
            if address is not None or not policy.recipients[receiver].is_personal:
                routes.setdefault((receiver, address), route)
    found = {}
    for (receiver, address), route in routes.items():
        recipient = policy.recipients[receiver]

        def is_listed(
            alert: Alert,
            receiver: str = receiver,
            address: str | None = address,
            recipient: Recipient = recipient,
        ) -> bool:
            if recipient.keeps_state:
                return alert.muted is None
            return not recipient.is_personal or policy.address(receiver, alert) == address

        roots = [alert for alert in heads if is_listed(alert)]
        listed = [*roots, *(alert for alert in follows if is_listed(alert))]
        pace = STATE_KEEPER_PACE if recipient.keeps_state else route.pace(incident.severity)
        key = fingerprint(receiver, {"": address or "", "incident": incident.id})
        found[key] = _Wanted(receiver, address, incident, listed, len(roots), pace)
    return found, is_routed


def _due(
    notice: IncidentNotice | None, want: _Wanted, recipient: Recipient, now: datetime
) -> tuple[MessageReason, datetime]:
    """Reason and time of the next message to the receiver."""
    if notice is None:
        return MessageReason.OPENED, now
    soon = max(now, notice.sent_at + _s(want.pace.interval_s))
    if notice.is_over:
        return MessageReason.OPENED, soon
    is_worse = URGENCY[want.incident.severity] < URGENCY[notice.worst]
    is_larger = want.roots >= GROWTH * max(1, notice.roots) or _reaches_others(notice, want)
    if is_worse or is_larger:
        return MessageReason.ESCALATED, soon
    if recipient.updates and notice.shape != want.shape:
        return MessageReason.UPDATED, soon
    if recipient.keeps_state and {a.fingerprint for a in want.alerts} != notice.alerts.keys():
        return MessageReason.UPDATED, soon
    return MessageReason.REPEATED, notice.sent_at + _s(want.pace.repeat_s)


def _reaches_others(notice: IncidentNotice, want: _Wanted) -> bool:
    """Whether there are enough nodes that were not sent yet, if a message can name all nodes."""
    named, nodes = _nodes(notice.alerts.values()), _nodes(want.alerts)
    return len(nodes) <= ALERTS_MAX and len(nodes - named) >= max(1, NODES_GROWTH * len(named))


def _listed(want: _Wanted) -> tuple[list[Alert], int]:
    """The alerts that a message lists, and how many are roots; at least a quarter is for consequences."""
    roots, follows = want.alerts[: want.roots], want.alerts[want.roots :]
    first = of_each_node(roots, ALERTS_MAX - min(len(follows), ALERTS_MAX // 4))
    return [*first, *of_each_node(follows, ALERTS_MAX - len(first))], len(first)


def _nodes(alerts: Iterable[Alert]) -> set[str]:
    return {alert.labels["node"] for alert in alerts if "node" in alert.labels}


def _message(
    key: str,
    notice: IncidentNotice | None,
    want: _Wanted,
    recipient: Recipient,
    reason: MessageReason,
    now: datetime,
) -> tuple[IncidentNotice, list[Notification]]:
    """The notice after a message, and the message; several if one cannot list all alerts."""
    told = {} if notice is None else notice.alerts
    listed, listed_roots = want.alerts, want.roots
    if not recipient.keeps_state:
        listed, listed_roots = _listed(want)
    firing = {alert.fingerprint: alert for alert in listed}
    known = {alert.fingerprint for alert in want.alerts}
    over = [_over(alert, now) for name, alert in told.items() if name not in known]
    roots = want.alerts[: want.roots] or want.alerts
    usd_per_hour = cost_of(roots, want.alerts)
    sent = replace(want.incident, members={})
    before = 0 if notice is None else notice.messages
    whole = Notification(
        id="",
        receiver=want.receiver,
        kind=MessageKind.INCIDENT,
        group=key,
        made_at=now,
        reason=reason,
        incident=sent,
        firing=tuple(firing.values()),
        roots=listed_roots,
        resolved=tuple(over) if recipient.wants_resolved else (),
        firing_total=len(want.alerts),
        resolved_total=len(over) if recipient.wants_resolved else 0,
        usd_per_hour=usd_per_hour,
        usd_so_far=spent_on(roots, want.alerts, now),
        address=want.address,
    )
    is_again = notice is None or notice.is_over
    after = IncidentNotice(
        receiver=want.receiver,
        address=want.address,
        incident=sent,
        alerts=firing,
        worst=want.incident.severity
        if is_again or notice is None
        else min(want.incident.severity, notice.worst, key=URGENCY.__getitem__),
        roots=want.roots if is_again or notice is None else max(want.roots, notice.roots),
        shape=want.shape,
        sent_at=now,
        messages=before + 1,
        interval_s=want.pace.interval_s,
    )
    return after, _parts(whole, before, recipient)


def _end(
    key: str,
    notice: IncidentNotice,
    ended: Incident | None,
    recipient: Recipient,
    now: datetime,
) -> tuple[IncidentNotice, list[Notification]]:
    """The notice after the end, and its message; no message for receivers that do not want ends."""
    after = replace(notice, alerts={}, sent_at=now, messages=notice.messages + 1, is_over=True)
    if not recipient.wants_resolved:
        return after, []
    # An incident that is not in the view any more ended while this process did not run.
    end = max(now, notice.incident.opened_at)
    last = ended or replace(notice.incident, state=IncidentState.RESOLVED, resolved_at=end)
    sent = tuple(notice.alerts.values())
    over = tuple(_over(alert, now) for alert in sent)
    is_merged = last.state is IncidentState.MERGED
    usd_per_hour = cost_of(over[: notice.roots], over)
    until = max(last.resolved_at or now, last.began_at)
    whole = Notification(
        id="",
        receiver=notice.receiver,
        kind=MessageKind.INCIDENT,
        group=key,
        made_at=now,
        reason=MessageReason.MERGED if is_merged else MessageReason.RESOLVED,
        incident=replace(last, members={}, severity=notice.worst),
        resolved=over,
        resolved_total=len(ended.members) if ended else len(over),
        usd_per_hour=usd_per_hour,
        # Alerts that are over have cost until now, which may be long after the end.
        usd_so_far=spent_on(sent[: notice.roots], sent, until),
        address=notice.address,
    )
    return after, _parts(whole, notice.messages, recipient)


def _parts(whole: Notification, before: int, recipient: Recipient) -> list[Notification]:
    count = 1
    if recipient.keeps_state:
        count = max(1, -(-max(len(whole.firing), len(whole.resolved)) // ALERTS_MAX))
    parts = []
    for number in range(count):
        listed = slice(number * ALERTS_MAX, (number + 1) * ALERTS_MAX)
        identity = message_id(whole.group, str(to_ms(whole.made_at)), str(before), str(number))
        parts.append(
            replace(
                whole, id=identity, firing=whole.firing[listed], resolved=whole.resolved[listed]
            )
        )
    return parts


def _over(alert: Alert, now: datetime) -> Alert:
    return replace(alert, state=AlertState.RESOLVED, resolved_at=max(now, alert.active_at))


def _s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)
