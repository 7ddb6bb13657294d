"""Decides who is told of an incident, and how often: routes, paces, owners. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpuwarden.alert import Alert, Severity


@dataclass(frozen=True, slots=True)
class NotificationPace:
    """How an incident's messages follow each other, in seconds."""

    interval_s: float
    """Least time between two messages."""
    repeat_s: float
    """After which an incident that is still open is told again."""


PACES = {
    Severity.CRITICAL: NotificationPace(30, 4 * 3600),
    Severity.WARNING: NotificationPace(300, 12 * 3600),
    Severity.INFO: NotificationPace(900, 24 * 3600),
}
"""By the severity of the incident, where a route says nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Incidents whose root matches go to these receivers."""

    receivers: tuple[str, ...]
    match: Mapping[str, tuple[re.Pattern[str], ...]] = field(default_factory=dict)
    """Patterns by label, `rule`, `severity`, `owner` or `simulated`; one of each must fit."""
    continues: bool = False
    """Whether later routes are looked at after a match."""
    interval_s: float | None = None
    repeat_s: float | None = None

    def pace(self, severity: Severity) -> NotificationPace:
        """The pace of an incident that took this route."""
        usual = PACES[severity]
        return NotificationPace(
            usual.interval_s if self.interval_s is None else self.interval_s,
            usual.repeat_s if self.repeat_s is None else self.repeat_s,
        )

    def matches(self, alert: Alert) -> bool:
        """Whether every pattern fits; a label that the alert has not reads as empty."""
        return all(
            any(pattern.match(value_of(alert, name)) for pattern in patterns)
            for name, patterns in self.match.items()
        )


_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,63}\$?")
"""Usernames as useradd(8) and directories have them. Whoever starts a process or labels a pod may choose another,
such as `me@elsewhere.example,x`, and must not decide where a message goes."""


@dataclass(frozen=True, slots=True)
class Owners:
    """Addresses of people by their username."""

    template: str | None = None
    """`{user}@example.com`; None: only those in `known` have an address."""
    known: Mapping[str, str] = field(default_factory=dict)
    nobody: str | None = None
    """Where alerts go whose owner is unknown or has no address; None: nowhere."""

    def address(self, user: str | None) -> str | None:
        """The address of a user, or that of nobody."""
        if user is None:
            return self.nobody
        if user in self.known:
            return self.known[user]
        if self.template is None or _USER.fullmatch(user) is None:
            return self.nobody
        return self.template.replace("{user}", user)


@dataclass(frozen=True, slots=True)
class Recipient:
    """What the planner must know of a receiver."""

    wants_resolved: bool = True
    is_personal: bool = False
    """Each message goes to the address of its alerts' owner."""
    keeps_state: bool = False
    """It is a system that groups and repeats by itself: it is told all, at once, again and again."""
    updates: bool = False
    """What it is sent replaces what it was sent of the same incident."""


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """All that decides on messages."""

    recipients: Mapping[str, Recipient]
    routes: Sequence[Route]
    owners: Owners = field(default_factory=Owners)

    def routes_of(self, alert: Alert) -> Iterator[tuple[str, Route]]:
        """Receivers of an alert with the route that leads there, each receiver once."""
        seen = set()
        for route in self.routes:
            if not route.matches(alert):
                continue
            for receiver in route.receivers:
                if receiver not in seen:
                    seen.add(receiver)
                    yield receiver, route
            if not route.continues:
                return

    def address(self, receiver: str, alert: Alert) -> str | None:
        """Whom a personal receiver tells of the alert; None of others, and where nobody is known."""
        is_personal = self.recipients[receiver].is_personal
        return self.owners.address(alert.owner) if is_personal else None


def value_of(alert: Alert, name: str) -> str:
    """A label of the alert, or what it is by itself: rule, severity, owner, simulated."""
    match name:
        case "rule":
            return alert.rule
        case "severity":
            return alert.severity.value
        case "owner":
            return alert.owner or ""
        case "simulated":
            return "true" if alert.simulated else "false"
    return alert.labels.get(name, "")
