"""Decides what to tell whom, and when: `plan(state, alerts, policy, now)`, a pure function.

It is level-triggered: it sees all alerts that are active now and compares them with what each
receiver believes. A call too many changes nothing, one too few is made up for by the next, and a
restart is no case of its own.

Invariants
- A receiver that was told that an alert fires is told once that it is over, also when it was muted
  or routed elsewhere meanwhile. It hears of no end whose beginning it was not told.
- It is not told of a muted alert; once the alert is muted no more and still fires, it is.
- State and messages belong together: whoever keeps one must keep the other (`outbox.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpuwarden.alert import Alert, AlertState, fingerprint
from gpuwarden.clock import to_ms
from gpuwarden_rules.notify.message import (
    ALERTS_MAX,
    URGENCY,
    MessageKind,
    Notification,
    message_id,
)
from gpuwarden_rules.notify.routing import (
    PACES,
    NotificationPace,
    Recipient,
    Route,
    RoutingPolicy,
    value_of,
)

STATE_KEEPER_PACE = NotificationPace(0, 0, 300)
"""Of receivers that group by themselves; `alertmanager.py` says how long what they are told holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationGroup:
    """Alerts that one receiver is told of together, and what it was told."""

    receiver: str
    labels: Mapping[str, str]
    address: str | None = None
    told: Mapping[str, Alert] = field(default_factory=dict)
    """What the receiver believes to fire, by fingerprint, as it was when it was told."""
    told_at: datetime
    """The last message."""
    messages: int = 0
    interval_s: float = 0.0
    """The pace of the last message; what comes next keeps to it where no alert says otherwise."""


State = Mapping[str, NotificationGroup]
"""Groups by their identity."""
Routes = Sequence[tuple[str, Route]]
"""Receivers of an alert, and the route that leads to each."""


@dataclass(frozen=True, slots=True)
class NotificationPlan:
    """What follows from a look at the alerts."""

    state: dict[str, NotificationGroup]
    messages: list[Notification]
    wake_at: datetime | None
    """When to look again if nothing changes; None: not before something does."""
    unrouted: int
    """Alerts that fire, are not muted, and match no route."""
    muted: int


@dataclass(slots=True)
class _Draft:
    """A group as it would be told now."""

    group: NotificationGroup
    fresh: list[Alert] = field(default_factory=list)
    """Fire, and the receiver has not been told."""
    known: list[Alert] = field(default_factory=list)
    """Fire, and the receiver has been told; without those that are muted."""
    over: list[Alert] = field(default_factory=list)
    """The receiver has been told that they fire, and they do not."""
    due: list[datetime] = field(default_factory=list)
    """When each of `fresh` has waited long enough."""
    paces: list[NotificationPace] = field(default_factory=list)


def plan(
    state: State, alerts: Iterable[Alert], policy: RoutingPolicy, now: datetime
) -> NotificationPlan:
    """The messages that are due at `now`, and the state after them.

    `alerts`: all that are active. `state` is never changed.
    """
    firing = {a.fingerprint: a for a in alerts if a.state is AlertState.FIRING}
    routes = {key: list(policy.routes_of(alert)) for key, alert in firing.items()}
    drafts = {
        key: _draft(group, firing, routes, policy, now)
        for key, group in state.items()
        if group.receiver in policy.recipients
    }
    home = {(g.receiver, g.address, told) for g in state.values() for told in g.told}
    unrouted = muted = 0
    for alert in firing.values():
        if alert.muted is not None:
            muted += 1
            continue
        unrouted += not routes[alert.fingerprint]
        for receiver, route in routes[alert.fingerprint]:
            address = policy.address(receiver, alert)
            is_for_nobody = address is None and policy.recipients[receiver].is_personal
            if not is_for_nobody and (receiver, address, alert.fingerprint) not in home:
                _add(drafts, alert, receiver, address, route, policy, now)
    after: dict[str, NotificationGroup] = {}
    messages: list[Notification] = []
    wakes: list[datetime] = []
    for key, draft in drafts.items():
        due_at = _due(draft, now)
        if due_at is not None and due_at <= now:
            draft, made = _tell(key, draft, policy.recipients[draft.group.receiver], now)
            messages += made
            due_at = _due(draft, now)
        quiet_until = draft.group.told_at + _s(draft.group.interval_s)
        if draft.group.told:
            after[key] = draft.group
        elif draft.group.messages and now <= quiet_until:
            # Over, but remembered for a while: an alert that comes and goes keeps the pace.
            after[key] = draft.group
            wakes.append(quiet_until + timedelta(milliseconds=1))
        if due_at is not None:
            wakes.append(due_at)
    return NotificationPlan(after, messages, min(wakes, default=None), unrouted, muted)


def _draft(
    group: NotificationGroup,
    firing: Mapping[str, Alert],
    routes: Mapping[str, Routes],
    policy: RoutingPolicy,
    now: datetime,
) -> _Draft:
    """A group with what its receiver was told compared with what is."""
    recipient = policy.recipients[group.receiver]
    # Told in the future: the clock was set back.
    draft = _Draft(group if group.told_at <= now else replace(group, told_at=now))
    for key, told in group.told.items():
        alert = firing.get(key)
        if alert is None:
            end = max(now, told.active_at)
            draft.over.append(replace(told, state=AlertState.RESOLVED, resolved_at=end))
        elif alert.muted is None:
            draft.known.append(alert)
            draft.paces.append(_pace(alert, group.receiver, recipient, routes[key]))
    if draft.over and not recipient.wants_resolved:
        over = {alert.fingerprint for alert in draft.over}
        left = {key: alert for key, alert in group.told.items() if key not in over}
        draft.group, draft.over = replace(draft.group, told=left), []
    return draft


def _pace(alert: Alert, receiver: str, recipient: Recipient, routes: Routes) -> NotificationPace:
    """The pace of an alert that was told; by its severity alone where no route leads there now."""
    if recipient.keeps_state:
        return STATE_KEEPER_PACE
    route = next((route for name, route in routes if name == receiver), None)
    return PACES[alert.severity] if route is None else route.pace(alert.severity)


def _add(
    drafts: dict[str, _Draft],
    alert: Alert,
    receiver: str,
    address: str | None,
    route: Route,
    policy: RoutingPolicy,
    now: datetime,
) -> None:
    """Put an alert that the receiver does not know into its group there."""
    keeps_state = policy.recipients[receiver].keeps_state
    by = ("rule",) if keeps_state else route.group_by
    labels = {name: value for name in by if (value := value_of(alert, name))}
    key = fingerprint(receiver, {**labels, "": address} if address else labels)
    draft = drafts.get(key)
    if draft is None:
        group = NotificationGroup(receiver=receiver, labels=labels, address=address, told_at=now)
        draft = drafts[key] = _Draft(group)
    pace = STATE_KEEPER_PACE if keeps_state else route.pace(alert.severity)
    fired_at = alert.fired_at or alert.active_at
    draft.fresh.append(alert)
    draft.paces.append(pace)
    # Fired in the future: the clock was set back, and nobody knows how long it has waited.
    draft.due.append(now if fired_at > now else fired_at + _s(pace.wait_s))


def _due(draft: _Draft, now: datetime) -> datetime | None:
    """When the group's next message is due, as things are."""
    group = draft.group
    if draft.fresh or draft.over:
        due_at = now if draft.over else min(draft.due)
        if group.messages:
            due_at = max(due_at, group.told_at + _s(_interval_s(draft)))
        return due_at
    if draft.known:
        return group.told_at + _s(min(pace.repeat_s for pace in draft.paces))
    return None


def _interval_s(draft: _Draft) -> float:
    return min((pace.interval_s for pace in draft.paces), default=draft.group.interval_s)


def _tell(
    key: str, draft: _Draft, recipient: Recipient, now: datetime
) -> tuple[_Draft, list[Notification]]:
    """The group after being told, and the message; several where one cannot list what all must go."""
    group, over = draft.group, {alert.fingerprint for alert in draft.over}
    told = {name: alert for name, alert in group.told.items() if name not in over}
    told |= {alert.fingerprint: alert for alert in (*draft.known, *draft.fresh)}
    firing = _by_urgency(draft.fresh) + _by_urgency(draft.known)
    whole = Notification(
        id="",
        receiver=group.receiver,
        kind=MessageKind.ALERTS,
        group=key,
        made_at=now,
        labels=group.labels,
        firing=tuple(firing),
        resolved=tuple(draft.over),
        news=len(draft.fresh),
        firing_total=len(firing),
        resolved_total=len(draft.over),
        usd_per_hour=_sum(alert.usd_per_hour for alert in firing),
        usd_so_far=_sum(a.usd_so_far(max(now, a.began_at)) for a in firing or draft.over),
        is_repeat=not draft.fresh and not draft.over,
        address=group.address,
    )
    count = -(-max(len(firing), len(draft.over)) // ALERTS_MAX) if recipient.keeps_state else 1
    messages = []
    for number in range(count):
        listed = slice(number * ALERTS_MAX, (number + 1) * ALERTS_MAX)
        identity = message_id(key, str(to_ms(now)), str(group.messages), str(number))
        part = replace(
            whole, id=identity, firing=whole.firing[listed], resolved=whole.resolved[listed]
        )
        messages.append(part)
    after = replace(
        group,
        told=told,
        told_at=now,
        messages=group.messages + 1,
        interval_s=_interval_s(draft),
    )
    return _Draft(after, known=draft.fresh + draft.known, paces=draft.paces), messages


def _sum(amounts: Iterable[float | None]) -> float | None:
    """The sum of what is known; None where nothing is."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


def _by_urgency(alerts: Sequence[Alert]) -> list[Alert]:
    """The most urgent first, then the costliest, then by name."""

    def order(alert: Alert) -> tuple[int, float, str, list[tuple[str, str]]]:
        labels = sorted((name, value.rjust(8)) for name, value in alert.labels.items())
        return URGENCY[alert.severity], -(alert.usd_per_hour or 0.0), alert.rule, labels

    return sorted(alerts, key=order)


def _s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)
