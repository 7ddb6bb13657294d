"""Defines what is sent to a receiver: one message about a group of alerts, a digest, or a test.

A message is stored as JSON before it is sent, and worded when it is sent.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

import msgspec

from gpuwarden.alert import Alert, Severity

ALERTS_MAX = 200
"""Alerts that a message lists; above it the rest is only counted."""
URGENCY = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.INFO: 2}


class MessageKind(StrEnum):
    """What a message is about."""

    ALERTS = "alerts"
    DIGEST = "digest"
    TEST = "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waster:
    """A line of the digest."""

    name: str
    usd: float | None
    hours: float
    """GPU-hours wasted; of a rule, hours that its alerts held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """What a span of time wasted. Dollars are None where no price is known."""

    since: datetime
    until: datetime
    simulated: bool = False
    """All of it: the fleet has no real GPU."""
    wasted_hours: float
    gpu_hours: float
    usd: float | None
    """What the wasted hours cost."""
    labels: tuple[Waster, ...] = ()
    """What the waste was (docs/money.md), the costliest first."""
    wasters: tuple[Waster, ...] = ()
    """Nodes, the costliest first."""
    alerts: tuple[Waster, ...] = ()
    """Rules by what their alerts cost, the costliest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """Something to tell one receiver. Instants are aware, UTC."""

    id: str
    """The same however often it is sent: a receiver can tell a repeat."""
    receiver: str
    kind: MessageKind
    group: str
    """Identity of the group that it is about; messages of a group arrive in order."""
    made_at: datetime
    labels: Mapping[str, str] = field(default_factory=dict)
    """What the alerts of the group have in common."""
    firing: tuple[Alert, ...] = ()
    """What holds now, news first, then the most urgent."""
    resolved: tuple[Alert, ...] = ()
    """What is over since the last message of the group."""
    news: int = 0
    """How many of `firing` this receiver has not been told yet."""
    firing_total: int = 0
    resolved_total: int = 0
    usd_per_hour: float | None = None
    """What all that is firing costs an hour, as far as it is known."""
    usd_so_far: float | None = None
    is_repeat: bool = False
    """Nothing changed; the group is still firing."""
    address: str | None = None
    """Whom a receiver with `{owner}` in its address sends this to."""
    digest: Digest | None = None

    @property
    def severity(self) -> Severity | None:
        """The most urgent of what is firing; of what is over where nothing is."""
        severities = [a.severity for a in self.firing or self.resolved]
        return min(severities, key=URGENCY.__getitem__) if severities else None


def to_json(message: Notification) -> bytes:
    """The message as it is stored."""
    return msgspec.json.encode(message)


def from_json(body: bytes) -> Notification:
    """The message that was stored. Raises ValueError."""
    return msgspec.json.decode(body, type=Notification)


def message_id(*parts: str) -> str:
    """32 hex digits of what makes a message this one."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
