"""Keeps the figures of each rule, and decides whether the rules have judged the fleet.

The decision is a pure function of when each rule last ran on fresh data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuwarden.judgement import Judgement, JudgementState
from gpuwarden_rules.evaluation.fleet import SILENT_AFTER


@dataclass(slots=True)
class RuleStatistics:
    """Counts and times of a rule's evaluations since the engine was made."""

    evaluations: int = 0
    skipped: int = 0
    """Turns without an evaluation, because no event had come that could change its result."""
    failures: int = 0
    seconds_total: float = 0.0
    last_seconds: float | None = None
    last_error: str | None = None
    """Why the last evaluation or the saving of its alerts failed; None: both succeeded."""
    last_success_at: datetime | None = None
    judged_at: datetime | None = None
    """Begin of the newest evaluation that succeeded on fresh data."""
    unjudged_since: datetime | None = None
    """Time of the first of successive evaluations that needed the lake while it was away."""
    failing_since: datetime | None = None
    """Time of the first of successive evaluations that failed."""
    slow_since: datetime | None = None
    """Time of the first of successive evaluations that took longer than the interval."""
    cannot_run: str | None = None
    """Why the rule is not evaluated; None: it is."""
    dropped: int = 0
    """Alerts that were never saved, because the store failed for too long."""
    pending: int = 0
    firing: int = 0
    unknown: int = 0
    """Alerts whose condition was unknown at the last evaluation."""
    muted: int = 0

    def count(self, seconds: float, began_at: datetime, *, is_slow: bool) -> None:
        """Count an evaluation that took so long. `is_slow`: its group took longer than the interval."""
        self.evaluations += 1
        self.last_seconds = seconds
        self.seconds_total += seconds
        self.slow_since = (self.slow_since or began_at) if is_slow else None

    @property
    def state(self) -> str:
        """ok, failing, not judged, slow, cannot run, or waiting for its first evaluation."""
        if self.cannot_run:
            return "cannot run"
        if self.unjudged_since:
            return "not judged"
        if self.last_error:
            return "failing"
        if self.slow_since:
            return "slow"
        return "ok" if self.evaluations else "waiting"


LATE_INTERVALS = 3
LATE_AFTER = timedelta(minutes=5)
"""A rule that has not run for this time, and for LATE_INTERVALS of its intervals, is stale."""


@dataclass(frozen=True, slots=True)
class RuleRun:
    """When a rule was added, and when it last ran on fresh data."""

    interval_s: float
    begun_at: datetime
    """When the rule was added."""
    judged_at: datetime | None
    """Begin of the newest evaluation that succeeded on fresh data; None: there is none."""


def judgement_of(rules: Mapping[str, RuleRun], now: datetime) -> Judgement:
    """Whether these rules have judged the fleet."""
    never = {name: run.begun_at for name, run in rules.items() if run.judged_at is None}
    late = {
        name: run.judged_at
        for name, run in rules.items()
        if run.judged_at is not None and now - run.judged_at > _late_after(run)
    }
    waiting = never or late
    judged = len(rules) - len(never) - len(late)
    if not waiting:
        return Judgement(JudgementState.YES, None, len(rules), judged)
    state = JudgementState.NOT_YET if never else JudgementState.STALE
    return Judgement(state, min(waiting.values()), len(rules), judged, tuple(sorted(never | late)))


def is_fresh(lag_s: float | None, since_start: timedelta) -> bool:
    """Whether the stored data is current. `lag_s`: age of the newest row when it was stored; None: no row came
    since the start, which counts as current once agents have had time to send."""
    if lag_s is None:
        return since_start >= SILENT_AFTER
    return lag_s <= SILENT_AFTER.total_seconds()


def _late_after(run: RuleRun) -> timedelta:
    return max(LATE_AFTER, timedelta(seconds=LATE_INTERVALS * run.interval_s))
