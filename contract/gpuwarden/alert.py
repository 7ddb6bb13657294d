"""Defines alerts, which rules produce and the store keeps, and silences, which stop their notifications.

An acknowledgement is a silence of a single alert. Other silences have matchers: `node=n1`,
`severity!=critical`, `gpu_uuid=~GPU-0.*`, `team!~ml|web`. The name in a matcher is a label, `rule` or
`severity`; a label that an alert does not have is the empty text. A regular expression is RE2's, whose
time is linear in the text, and must match the whole value.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

MATCHER_CHARS_MAX = 200
_MATCHER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(=~|!~|!=|=)(.*)\Z", re.DOTALL)


class Severity(StrEnum):
    """How soon someone must act: today (info), within hours (warning), now (critical)."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Consequence(StrEnum):
    """What an alert means for the affected work, worst first."""

    LOST_WORK = "lost_work"  # work stands still or is lost
    FAILING_HARDWARE = "failing_hardware"  # will cost work soon
    UNWATCHED = "unwatched"  # its state is unknown
    SLOW_WORK = "slow_work"
    WASTE = "waste"  # costs money and nothing else


WORST_FIRST = (
    "severity <> 'critical', "
    f"list_position({[consequence.value for consequence in Consequence]}, consequence), "
    f"list_position({[severity.value for severity in reversed(Severity)]}, severity)"
)
"""ORDER BY of rows with severity and consequence: critical ones first, then by consequence."""


class AlertState(StrEnum):
    """Prometheus's states. Inactive alerts are not kept."""

    PENDING = "pending"  # the condition holds, not yet for long enough
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One instance of a rule for one label set. Instants are aware, UTC."""

    fingerprint: str
    rule: str
    severity: Severity
    consequence: Consequence = Consequence.SLOW_WORK
    state: AlertState
    labels: Mapping[str, str]
    summary: str
    remedy: str
    value: float | None
    usd_per_hour: float | None
    """What the condition costs per hour; None: unknown."""
    began_at: datetime
    """When the condition began, by the rule's SQL: at or before `active_at`."""
    active_at: datetime
    """First evaluation that found it; identifies this episode, together with the fingerprint."""
    fired_at: datetime | None = None
    resolved_at: datetime | None = None
    seen_at: datetime
    """Last evaluation that found it."""
    unknown_since: datetime | None = None
    """Since when it is unknown whether the condition holds; None: the last evaluation knew."""
    stale_since: datetime | None = None
    """Since when its node sends no samples; None: the node reports."""
    resolved_reason: str | None = None
    """Why it was resolved although the condition may still hold; None: the condition ended."""
    accounted_usd: float | None = None
    """Cost until `accounted_until` from `waste`; None: `usd_per_hour` gives the cost."""
    accounted_until: datetime | None = None
    owner: str | None = None
    """Username of the owner: whom it concerns, or who holds the GPU; None: unknown."""
    job: str | None = None
    """Job that it concerns, or that has the GPU; None: unknown."""
    muted: str | None = None
    """Text that says why it notifies nobody: silenced or acknowledged; None: it notifies."""
    simulated: bool = False

    def usd_so_far(self, now: datetime) -> float | None:
        """Its cost: as accounted, else until it was resolved or `now`."""
        if self.accounted_usd is not None:
            return self.accounted_usd
        return usd_between(self.usd_per_hour, self.began_at, self.resolved_at or now)


def usd_between(usd_per_hour: float | None, began_at: datetime, until: datetime) -> float | None:
    """Cost of a condition; None: unknown price."""
    if usd_per_hour is None:
        return None
    return usd_per_hour * (until - began_at).total_seconds() / 3600


USD_SO_FAR_SQL = (
    "coalesce(accounted_usd, usd_per_hour * date_diff('millisecond', began_at, "
    "coalesce(resolved_at, now()::TIMESTAMP)) / 3.6e6)"
)
"""`Alert.usd_so_far` as SQL on `alerts`."""


PLACE_SQL = (
    "concat_ws(' ', node, 'GPU ' || gpu::VARCHAR, labels['host'], labels['device'], labels['probe'],"
    " 'Xid ' || labels['xid'])"
)
"""SQL of the place of an alert."""
ALERT_FILTERS = {
    "node": "node GLOB $node",
    "gpu": "(gpu::VARCHAR = $gpu OR starts_with(lower(gpu_uuid), lower($gpu)))",
    "owner": "owner = $owner",
    "job": "labels['job'] = $job",
    "rule": "rule GLOB $rule",
    "severity": "severity = $severity",
}
"""SQL conditions on `alerts` by the name of a filter."""


def fingerprint(rule: str, labels: Mapping[str, str]) -> str:
    """Identity of a rule's alert with these labels: 16 hex digits, the same in every process."""
    text = _ENCODER.encode([rule, sorted(labels.items())])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""Made once: `json.dumps` would make one per call, which takes most of its time."""


@dataclass(frozen=True, slots=True)
class Matcher:
    """A condition on one label of an alert."""

    name: str
    operator: str
    value: str
    _pattern: Any = field(default=None, repr=False, compare=False)
    """The compiled value of `=~` and `!~`."""

    def __str__(self) -> str:
        return f"{self.name}{self.operator}{self.value}"

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the condition holds; `labels` include `rule` and `severity`."""
        value = labels.get(self.name, "")
        if self._pattern is None:
            is_same = value == self.value
        else:
            is_same = self._pattern.fullmatch(value) is not None
        return is_same is not self.operator.startswith("!")


def matcher_of(text: str) -> Matcher:
    """Parse a matcher such as `node=~gpu-0.*`. Raises ValueError."""
    if len(text) > MATCHER_CHARS_MAX:
        raise ValueError(f"a matcher has at most {MATCHER_CHARS_MAX} characters: {text[:40]}...")
    found = _MATCHER.match(text.strip())
    if found is None:
        raise ValueError(
            f"{text!r} is not a matcher; write node=n1, node!=n1, node=~n.* or node!~n.*"
        )
    name, operator, value = found.groups()
    pattern = None
    if "~" in operator:
        try:
            pattern = compiled_pattern(value)
        except ValueError as error:
            raise ValueError(f"{text!r}: {value!r} is not a regular expression: {error}") from error
    return Matcher(name, operator, value, pattern)


def compiled_pattern(value: str) -> Any:
    """A regular expression of RE2, whose time is in proportion to the text. Raises ValueError."""
    import re2  # imported here: the agent has no silences, nor this library

    options = re2.Options()
    options.log_errors = False  # RE2 would write them to stderr
    try:
        return re2.compile(value, options)
    except re2.error as error:
        reason = error.args[0]
        raise ValueError(reason.decode() if isinstance(reason, bytes) else reason) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Alerts that notify nobody from `starts_at` until `ends_at`, aware instants."""

    id: str
    matchers: tuple[Matcher, ...] = ()
    """All of them must match; empty for an acknowledgement."""
    fingerprint: str | None = None
    """The acknowledged alert; None: the silence has matchers."""
    author: str
    comment: str
    starts_at: datetime
    ends_at: datetime
    changes: int = 0
    """How often it was changed; of two collectors' versions the higher one holds."""

    def covers(self, alert: Alert) -> bool:
        """Whether it matches this alert, at any time."""
        if self.fingerprint is not None:
            return alert.fingerprint == self.fingerprint
        labels = {**alert.labels, "rule": alert.rule, "severity": alert.severity.value}
        return all(matcher.matches(labels) for matcher in self.matchers)

    def is_active(self, now: datetime) -> bool:
        """Whether it is active at `now`."""
        return self.starts_at <= now < self.ends_at

    def reason(self, now: datetime) -> str:
        """Why its alerts notify nobody: `silenced until 18:00 by alice: maintenance`."""
        verb = "silenced" if self.fingerprint is None else "acknowledged"
        same_day = self.ends_at.date() == now.date()
        until = self.ends_at.strftime("%H:%M" if same_day else "%Y-%m-%d %H:%M")
        comment = f": {self.comment}" if self.comment else ""
        return f"{verb} until {until} UTC by {self.author}{comment}"


class SharedSilence(NamedTuple):
    """A silence as the collectors of a lake share it."""

    id: str
    changes: int
    ends_ms: int
    body: str
    """JSON."""


def first_covering(silences: Sequence[Silence], alert: Alert, now: datetime) -> Silence | None:
    """Of the silences that are active and cover the alert, the one that ends last."""
    active = [s for s in silences if s.is_active(now) and s.covers(alert)]
    return max(active, key=lambda s: (s.ends_at, s.id), default=None)


class AlertStore(Protocol):
    """Stores alerts and silences: the tables `alerts` and `silences`."""

    async def active(self) -> Sequence[Alert]:
        """Pending and firing alerts, as last saved."""
        ...

    async def resolved_since(self, since: datetime) -> Sequence[Alert]:
        """Alerts that fired and were resolved after an instant."""
        ...

    async def save(self, alerts: Sequence[Alert]) -> None:
        """Insert or update by (fingerprint, active_at), durably."""
        ...

    async def silences(self) -> Sequence[Silence]:
        """Silences that have not ended."""
        ...

    async def silences_since(self, since: datetime) -> Sequence[Silence]:
        """Silences that end after an instant, also those that have ended."""
        ...

    async def save_silences(self, silences: Sequence[Silence]) -> None:
        """Insert or update by id, durably."""
        ...


class SilenceBoard(Protocol):
    """Where the collectors of a lake share silences."""

    async def share_silences(
        self, ours: Sequence[SharedSilence], known: Sequence[str], since_ms: int
    ) -> list[SharedSilence]:
        """Store `ours` where they are newer; all that end after `since_ms`, and those of the ids `known`. Raises QueryError."""
        ...
