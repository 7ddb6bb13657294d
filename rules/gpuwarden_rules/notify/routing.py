"""Decides which receivers get an incident, and how often: routes, paces, owners. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpuwarden.alert import Alert, Severity


@dataclass(frozen=True, slots=True)
class NotificationPace:
    """Intervals between an incident's messages, in seconds."""

    interval_s: float
    """Least time between two messages."""
    repeat_s: float
    """Time after which a message about an open incident is repeated."""


PACES = {
    Severity.CRITICAL: NotificationPace(30, 4 * 3600),
    Severity.WARNING: NotificationPace(300, 12 * 3600),
    Severity.INFO: NotificationPace(900, 24 * 3600),
}
"""Default paces by severity; routes can set others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Incidents whose root matches go to these receivers."""

    receivers: tuple[str, ...]
    match: Mapping[str, tuple[re.Pattern[str], ...]] = field(default_factory=dict)
    """Patterns by label, `rule`, `severity`, `owner` or `simulated`; for each key one must match."""
    continues: bool = False
    """Whether later routes are tried after a match."""
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
        """Whether a pattern of every key matches; a label that the alert lacks is empty."""
        return all(
            any(pattern.match(value_of(alert, name)) for pattern in patterns)
            for name, patterns in self.match.items()
        )


_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,63}\$?")
"""Usernames of useradd(8) and directories. A process or pod can have any name, such as `me@elsewhere.example,x`,
which must not decide where a message goes."""


@dataclass(frozen=True, slots=True)
class Owners:
    """Mail addresses by username."""

    template: str | None = None
    """`{user}@example.com`; None: only users in `known` have an address."""
    known: Mapping[str, str] = field(default_factory=dict)
    nobody: str | None = None
    """Address for alerts whose owner is unknown or has no address; None: they are not sent."""

    def address(self, user: str | None) -> str | None:
        """The address of a user, or `nobody`."""
        if user is None:
            return self.nobody
        if user in self.known:
            return self.known[user]
        if self.template is None or _USER.fullmatch(user) is None:
            return self.nobody
        return self.template.replace("{user}", user)


@dataclass(frozen=True, slots=True)
class Recipient:
    """Properties of a receiver for the planner."""

    wants_resolved: bool = True
    is_personal: bool = False
    """Whether each message goes to the address of the alerts' owner."""
    keeps_state: bool = False
    """Whether it groups and repeats by itself, as Alertmanager does: it gets all alerts at once, repeatedly."""
    updates: bool = False
    """Whether a message replaces earlier ones of the same incident."""


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """Recipients, routes and owners."""

    recipients: Mapping[str, Recipient]
    routes: Sequence[Route]
    owners: Owners = field(default_factory=Owners)

    def routes_of(self, alert: Alert) -> Iterator[tuple[str, Route]]:
        """Receivers of an alert with their route, each receiver once."""
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
        """Address of the alert's owner for a personal receiver; None for others, and where it is unknown."""
        is_personal = self.recipients[receiver].is_personal
        return self.owners.address(alert.owner) if is_personal else None


def value_of(alert: Alert, name: str) -> str:
    """A label of the alert, or its rule, severity, owner or `simulated`."""
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
