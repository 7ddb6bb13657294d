"""Defines an incident: alerts with one cause, under the alert that it follows from (its root)."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from gpuwarden.alert import Consequence, Severity
from gpuwarden.clock import to_ms


class IncidentState(StrEnum):
    """Open while any of its alerts fires. A merged one goes on in another."""

    OPEN = "open"
    RESOLVED = "resolved"
    MERGED = "merged"


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentAlert:
    """An alert as part of an incident."""

    fingerprint: str
    active_at: datetime
    """With the fingerprint, the episode of the alert; the newest where it fired again."""
    rule: str
    labels: Mapping[str, str]
    cause: str | None = None
    """Fingerprint of the alert of this incident that it follows from; None: it follows from none."""
    joined_at: datetime
    ended_at: datetime | None = None
    """When it stopped firing; None: it fires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Alerts with one cause. Instants are aware, UTC."""

    id: str
    state: IncidentState = IncidentState.OPEN
    root: str
    """Fingerprint of the alert that stands for it: the cause of the others, or the gravest of equals."""
    rule: str
    """Rule of the root."""
    severity: Severity
    """The worst of what fires; of what fired last where nothing does."""
    consequence: Consequence
    summary: str
    remedy: str
    place: str
    """Where, in words: `n1 GPU 3`, `rack r7`, `job 4711`."""
    labels: Mapping[str, str]
    """What the alerts of the root's rule have in common, a label of their nodes among it."""
    nodes: int
    """Nodes of the alerts of the root's rule."""
    roots: int
    """Alerts of the root's rule that follow from no other."""
    members: Mapping[str, IncidentAlert] = field(default_factory=dict)
    """Alerts by fingerprint, those that are over too."""
    usd_per_hour: float | None = None
    owner: str | None = None
    """Username of whom all alerts of the root's rule concern; None: several or unknown."""
    muted: str | None = None
    """Why it notifies nobody: its roots are silenced or acknowledged; None: it notifies."""
    unknown_since: datetime | None = None
    """Since when nobody can say of any of its alerts whether it still holds; None: of some one can."""
    simulated: bool = False
    began_at: datetime
    opened_at: datetime
    resolved_at: datetime | None = None
    merged_into: str | None = None

    @property
    def firing(self) -> list[IncidentAlert]:
        """Its alerts that fire."""
        return [member for member in self.members.values() if member.ended_at is None]


class IncidentStore(Protocol):
    """Where incidents are kept: the tables `incidents` and `incident_alerts`."""

    async def incidents_since(self, resolved_after: datetime) -> Sequence[Incident]:
        """Open incidents, and those resolved after an instant, with all their alerts."""
        ...

    async def save_incidents(self, incidents: Sequence[Incident]) -> None:
        """Insert or update by id; durable when it returns."""
        ...


def incident_id(fingerprint: str, fired_at: datetime) -> str:
    """Identity of the incident that an alert's firing opened: 12 hex digits, the same in every process."""
    text = f"{fingerprint}/{to_ms(fired_at)}"
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
