"""Defines an alert: the model that rules produce, the store keeps and people read."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpuwarden.silence import Silence


class Severity(StrEnum):
    """How soon someone must act: today (info), within hours (warning), now (critical)."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Consequence(StrEnum):
    """What an alert means for the people whose work it is, the gravest first."""

    LOST_WORK = "lost_work"  # work stands still or is lost
    FAILING_HARDWARE = "failing_hardware"  # will cost work soon
    UNWATCHED = "unwatched"  # nobody can say how it is
    SLOW_WORK = "slow_work"
    WASTE = "waste"  # costs money and nothing else


WORST_FIRST = (
    "severity <> 'critical', "
    f"list_position({[consequence.value for consequence in Consequence]}, consequence), "
    f"list_position({[severity.value for severity in reversed(Severity)]}, severity)"
)
"""SQL that rows with severity and consequence are ordered by: what is critical, then by consequence."""


class AlertState(StrEnum):
    """Prometheus's words. Inactive alerts are not kept."""

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
    """What the condition costs an hour; None where that is unknown."""
    began_at: datetime
    """When the condition began, as the rule's SQL saw it: at or before `active_at`."""
    active_at: datetime
    """First evaluation that found it; with the fingerprint, the identity of this episode."""
    fired_at: datetime | None = None
    resolved_at: datetime | None = None
    seen_at: datetime
    """Last evaluation that found it."""
    unknown_since: datetime | None = None
    """Since when nobody can say whether it still holds; None: the last evaluation could."""
    stale_since: datetime | None = None
    """Since when its node is silent, so that it is of the past; None: the node is heard."""
    resolved_reason: str | None = None
    """Why it is over, where the condition is not known to be; None: the condition is over."""
    accounted_usd: float | None = None
    """What it has cost until `accounted_until`, as `waste` has it; None: its price an hour tells."""
    accounted_until: datetime | None = None
    owner: str | None = None
    """Username of whom it concerns; None where that is unknown."""
    muted: str | None = None
    """Why it notifies nobody, in words: silenced or acknowledged; None: it notifies."""
    simulated: bool = False

    def usd_so_far(self, now: datetime) -> float | None:
        """What it has cost: as accounted for, else up to `now` (or until it resolved)."""
        if self.accounted_usd is not None:
            return self.accounted_usd
        return usd_between(self.usd_per_hour, self.began_at, self.resolved_at or now)


def usd_between(usd_per_hour: float | None, began_at: datetime, until: datetime) -> float | None:
    """What a condition has cost; None where its price is unknown."""
    if usd_per_hour is None:
        return None
    return usd_per_hour * (until - began_at).total_seconds() / 3600


USD_SO_FAR_SQL = (
    "coalesce(accounted_usd, usd_per_hour * date_diff('millisecond', began_at, "
    "coalesce(resolved_at, now()::TIMESTAMP)) / 3.6e6)"
)
"""`Alert.usd_so_far` of a row of `alerts`."""


PLACE_SQL = (
    "concat_ws(' ', node, 'GPU ' || gpu::VARCHAR, labels->>'$.host', labels->>'$.device', labels->>'$.probe',"
    " 'Xid ' || (labels->>'$.xid'))"
)
"""SQL that says where an alert is."""
ALERT_FILTERS = {
    "node": "node GLOB $node",
    "gpu": "(gpu::VARCHAR = $gpu OR starts_with(lower(gpu_uuid), lower($gpu)))",
    "user": "owner = $user",
    "job": "(labels->>'$.job') = $job",
    "rule": "rule GLOB $rule",
    "severity": "severity = $severity",
}
"""SQL that alerts are chosen by, by the name that people give it by."""


class AlertStore(Protocol):
    """Where alerts are kept: the `alerts` table."""

    async def active(self) -> Sequence[Alert]:
        """Pending and firing alerts, as last saved."""
        ...

    async def resolved_since(self, since: datetime) -> Sequence[Alert]:
        """Alerts that had fired and were over after an instant."""
        ...

    async def save(self, alerts: Sequence[Alert]) -> None:
        """Insert or update by (fingerprint, active_at); durable when it returns."""
        ...

    async def silences(self) -> "Sequence[Silence]":
        """Silences that have not ended."""
        ...

    async def save_silences(self, silences: "Sequence[Silence]") -> None:
        """Insert or update by id; durable when it returns."""
        ...


def fingerprint(rule: str, labels: Mapping[str, str]) -> str:
    """Identity of a rule's alert for a label set: 16 hex digits, the same in every process."""
    text = _ENCODER.encode([rule, sorted(labels.items())])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
"""`json.dumps` would make one each time, which is most of the time that it takes."""
