"""Keeps what the engine knows about a rule beside its alerts: counts, times, and why it does not work."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(slots=True)
class RuleStatistics:
    """What a rule's evaluations came to since the engine was made."""

    evaluations: int = 0
    failures: int = 0
    seconds_total: float = 0.0
    last_seconds: float | None = None
    last_at: datetime | None = None
    last_error: str | None = None
    """Why the last evaluation failed, or its alerts could not be saved; None: it succeeded."""
    last_success_at: datetime | None = None
    judged_at: datetime | None = None
    """Begin of the newest evaluation that succeeded on fresh data."""
    unjudged_since: datetime | None = None
    """First of the evaluations in a row that needed rows which only the lake has, while that was away."""
    failing_since: datetime | None = None
    """First of the evaluations in a row that failed."""
    slow_since: datetime | None = None
    """First of the evaluations in a row that took longer than the rule's interval."""
    cannot_run: str | None = None
    """Why the rule is not evaluated here; None: it is."""
    dropped: int = 0
    """Alerts that were never recorded, because the store failed for too long."""
    pending: int = 0
    firing: int = 0
    unknown: int = 0
    """Label sets of which the last evaluation could not say whether the condition holds."""
    muted: int = 0

    @property
    def state(self) -> str:
        """In a word or two: ok, failing, not judged, slow, cannot run, or waiting for its first evaluation."""
        if self.cannot_run:
            return "cannot run"
        if self.unjudged_since:
            return "not judged"
        if self.last_error:
            return "failing"
        if self.slow_since:
            return "slow"
        return "ok" if self.evaluations else "waiting"
