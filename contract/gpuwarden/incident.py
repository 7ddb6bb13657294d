"""Defines an incident: alerts with one cause; the alert of the cause is its root."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from gpuwarden.alert import Consequence, Severity
from gpuwarden.clock import to_ms


class IncidentState(StrEnum):
    """Open while any of its alerts fires. A merged one continues in another."""

    OPEN = "open"
    RESOLVED = "resolved"
    MERGED = "merged"


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentAlert:
    """An alert as part of an incident."""

    fingerprint: str
    active_at: datetime
    """Identifies the episode, together with the fingerprint; the newest if it fired again."""
    rule: str
    labels: Mapping[str, str]
    cause: str | None = None
    """Fingerprint of the alert in this incident that caused it; None: a root."""
    joined_at: datetime
    ended_at: datetime | None = None
    """When it stopped firing; None: it still fires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Alerts with one cause. Instants are aware, UTC."""

    id: str
    state: IncidentState = IncidentState.OPEN
    root: str
    """Fingerprint of the root alert: the cause of the others, or the worst of several roots."""
    rule: str
    """Rule of the root."""
    severity: Severity
    """The worst of the firing alerts; if none fires, of the last ones."""
    consequence: Consequence
    summary: str
    remedy: str
    place: str
    """The place as text: `n1 GPU 3`, `rack r7`, `job 4711`."""
    labels: Mapping[str, str]
    """Labels that the alerts of the root's rule share, also those of their nodes."""
    nodes: int
    """Nodes of the alerts of the root's rule."""
    roots: int
    """Number of alerts of the root's rule without a cause."""
    members: Mapping[str, IncidentAlert] = field(default_factory=dict)
    """Alerts by fingerprint, also resolved ones."""
    usd_per_hour: float | None = None
    owner: str | None = None
    """Username of the owner of all alerts of the root's rule; None: several or unknown."""
    muted: str | None = None
    """Why it notifies nobody: its roots are silenced or acknowledged; None: it notifies."""
    unknown_since: datetime | None = None
    """Since when the state of all its alerts is unknown; None: that of some alert is known."""
    simulated: bool = False
    began_at: datetime
    opened_at: datetime
    resolved_at: datetime | None = None
    merged_into: str | None = None

    @property
    def firing(self) -> list[IncidentAlert]:
        """Its firing alerts."""
        return [member for member in self.members.values() if member.ended_at is None]


class IncidentStore(Protocol):
    """Stores incidents: the tables `incidents` and `incident_alerts`."""

    async def incidents_since(self, resolved_after: datetime) -> Sequence[Incident]:
        """Open incidents, and those resolved after an instant, with all their alerts."""
        ...

    async def save_incidents(self, incidents: Sequence[Incident]) -> None:
        """Insert or update by id, durably."""
        ...


def incident_id(fingerprint: str, fired_at: datetime) -> str:
    """Identity of the incident that a firing alert opens: 12 hex digits, the same in every process."""
    text = f"{fingerprint}/{to_ms(fired_at)}"
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
