"""Defines messages to receivers: about an incident, a digest, a report, or a test.

A message is stored as JSON, and rendered when it is sent.
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
"""Most alerts that a message lists; the others are counted."""


class MessageKind(StrEnum):
    """What a message is about."""

    INCIDENT = "incident"
    DIGEST = "digest"
    REPORT = "report"
    POLICY = "policy"
    TEST = "test"


class MessageReason(StrEnum):
    """Why a message about an incident is sent."""

    OPENED = "opened"
    ESCALATED = "escalated"  # more severe than the last message said, or much larger
    UPDATED = "updated"  # another change; only for receivers that replace messages
    REPEATED = "repeated"  # still open after the repeat interval
    RESOLVED = "resolved"
    MERGED = "merged"  # merged into another incident


@dataclass(frozen=True, slots=True, kw_only=True)
class Waster:
    """A line of the digest."""

    name: str
    usd: float | None
    hours: float
    """Wasted GPU-hours; for a rule, hours of its alerts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """Waste of a span of time. Dollars are None where no price is known."""

    since: datetime
    until: datetime
    simulated: bool = False
    """Whether all GPUs are simulated."""
    wasted_hours: float
    gpu_hours: float
    usd: float | None
    """What the wasted hours cost."""
    categories: tuple[Waster, ...] = ()
    """Labels of the waste (docs/money.md), the costliest first."""
    wasters: tuple[Waster, ...] = ()
    """Nodes, the costliest first."""
    alerts: tuple[Waster, ...] = ()
    """Rules by what their alerts cost, the costliest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MailedReport:
    """A report of money, rendered: it says what was known when it was made."""

    since: datetime
    until: datetime
    title: str
    text: str
    html: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyText:
    """A policy's message to the owner of what it is about."""

    title: str
    paragraphs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """A message to one receiver. Instants are aware, in UTC."""

    id: str
    """The same at each attempt, so that a receiver can detect duplicates."""
    receiver: str
    kind: MessageKind
    group: str
    """Messages of a group to one receiver arrive in order."""
    made_at: datetime
    reason: MessageReason | None = None
    incident: Incident | None = None
    """Without members: the receiver gets the alerts below."""
    firing: tuple[Alert, ...] = ()
    """Firing alerts: roots first, then consequences, each by urgency."""
    roots: int = 0
    """How many of `firing` are roots."""
    resolved: tuple[Alert, ...] = ()
    """Alerts that resolved since the last message; at the end of the incident, all that were reported."""
    firing_total: int = 0
    resolved_total: int = 0
    usd_per_hour: float | None = None
    usd_so_far: float | None = None
    address: str | None = None
    """Address for `{owner}` in the receiver's address."""
    handle: str | None = None
    """The receiver's handle of the message that this one replaces; None: there is none."""
    digest: Digest | None = None
    report: MailedReport | None = None
    policy: PolicyText | None = None

    @property
    def severity(self) -> Severity | None:
        """Severity of the incident."""
        return self.incident.severity if self.incident else None

    @property
    def is_over(self) -> bool:
        """Whether the incident has ended for the receiver."""
        return self.reason in (MessageReason.RESOLVED, MessageReason.MERGED)

    @property
    def is_replaceable(self) -> bool:
        """Whether a newer message of the group makes this one unnecessary."""
        is_state = self.reason in (MessageReason.UPDATED, MessageReason.REPEATED)
        return is_state and not self.resolved


def to_json(message: Notification) -> bytes:
    """The message as JSON for the outbox."""
    return msgspec.json.encode(message)


def from_json(body: bytes) -> Notification:
    """The message from the outbox. Raises ValueError."""
    return msgspec.json.decode(body, type=Notification)


def message_id(*parts: str) -> str:
    """An id of 32 hex digits from the parts that identify a message."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def of_each_node(alerts: Sequence[Alert], most: int) -> list[Alert]:
    """At most `most` alerts in their order, from as many nodes as possible."""
    if len(alerts) <= most:
        return [*alerts]
    seen: Counter[str] = Counter()
    ranks = []
    for at, alert in enumerate(alerts):
        node = alert.labels.get("node", "")
        ranks.append((seen[node], at))
        seen[node] += 1
    return [alerts[at] for at in sorted(at for _, at in sorted(ranks)[:most])]
