"""Decides whether the rules have judged the fleet, from when each last ran on fresh data; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuwarden.judgement import Judgement, JudgementState
from gpuwarden_rules.evaluation.fleet import SILENT_AFTER

LATE_INTERVALS = 3
LATE_AFTER = timedelta(minutes=5)
"""A rule that has not run for so long, and for LATE_INTERVALS of its own, no longer says what is so now."""


@dataclass(frozen=True, slots=True)
class RuleRun:
    """When a rule ran."""

    interval_s: float
    begun_at: datetime
    """Since when it is among those that run."""
    judged_at: datetime | None
    """Begin of its newest evaluation that succeeded on fresh data; None: there was none."""


def judgement_of(rules: Mapping[str, RuleRun], now: datetime) -> Judgement:
    """How far these rules have judged the fleet."""
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
    """Whether what is stored tells of now. `lag_s`: age of the newest row when it was stored; None: nothing
    came since the start, which says something only once agents have had time to come."""
    if lag_s is None:
        return since_start >= SILENT_AFTER
    return lag_s <= SILENT_AFTER.total_seconds()


def _late_after(run: RuleRun) -> timedelta:
    return max(LATE_AFTER, timedelta(seconds=LATE_INTERVALS * run.interval_s))
