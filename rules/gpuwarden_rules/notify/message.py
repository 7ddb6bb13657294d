"""Defines what is sent to a receiver: one message about an incident, a digest, or a test.

A message is stored as JSON before it is sent, and worded when it is sent.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import msgspec

from gpuwarden.alert import Alert, Severity
from gpuwarden.incident import Incident

ALERTS_MAX = 200
"""Alerts that a message lists; above it the rest is only counted."""


class MessageKind(StrEnum):
    """What a message is about."""

    INCIDENT = "incident"
    DIGEST = "digest"
    TEST = "test"


class MessageReason(StrEnum):
    """Why a receiver is told of an incident."""

    OPENED = "opened"
    ESCALATED = "escalated"  # worse than it was said to be, or much larger
    UPDATED = "updated"  # changed otherwise; only for receivers that replace what they were sent
    REPEATED = "repeated"  # still open, and told long ago
    RESOLVED = "resolved"
    MERGED = "merged"  # goes on in another incident


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
    """What it is about, to this receiver; messages of a group arrive in order."""
    made_at: datetime
    reason: MessageReason | None = None
    incident: Incident | None = None
    """Without its members: the alerts below are what the receiver is told of."""
    firing: tuple[Alert, ...] = ()
    """What holds now: roots first, then what follows, each in the order of urgency."""
    roots: int = 0
    """How many of `firing` follow from no other."""
    resolved: tuple[Alert, ...] = ()
    """What is over since the last message; of an incident that is over, what was told of it."""
    firing_total: int = 0
    resolved_total: int = 0
    usd_per_hour: float | None = None
    usd_so_far: float | None = None
    address: str | None = None
    """Whom a receiver with `{owner}` in its address sends this to."""
    handle: str | None = None
    """What the receiver called the message that this one replaces; None: it has none."""
    digest: Digest | None = None

    @property
    def severity(self) -> Severity | None:
        """That of the incident."""
        return self.incident.severity if self.incident else None

    @property
    def is_over(self) -> bool:
        """The incident is, for the receiver."""
        return self.reason in (MessageReason.RESOLVED, MessageReason.MERGED)

    @property
    def is_replaceable(self) -> bool:
        """A newer message of the group says all that this one does."""
        is_state = self.reason in (MessageReason.UPDATED, MessageReason.REPEATED)
        return is_state and not self.resolved


def to_json(message: Notification) -> bytes:
    """The message as it is stored."""
    return msgspec.json.encode(message)


def from_json(body: bytes) -> Notification:
    """The message that was stored. Raises ValueError."""
    return msgspec.json.decode(body, type=Notification)


def message_id(*parts: str) -> str:
    """32 hex digits of what makes a message this one."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def of_each_node(alerts: Sequence[Alert], most: int) -> list[Alert]:
    """At most so many of them, of as many nodes as can be, in their order: a node that has many hides no other."""
    if len(alerts) <= most:
        return [*alerts]
    seen: Counter[str] = Counter()
    ranks = []
    for at, alert in enumerate(alerts):
        node = alert.labels.get("node", "")
        ranks.append((seen[node], at))
        seen[node] += 1
    return [alerts[at] for at in sorted(at for _, at in sorted(ranks)[:most])]
