"""Keeps verdicts over time: an episode begins, continues and ends. One pure function."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpuwarden.diagnosis import Diagnosis

REFRESH = timedelta(minutes=5)
"""How often an open episode is saved."""
EVALUATIONS_TO_CHANGE = 2
"""Number of successive evaluations that must find another class, so that one borderline window changes nothing."""
GONE_AFTER = timedelta(minutes=2)
"""An episode ends when its subject was not seen for this time."""


@dataclass(frozen=True, slots=True)
class EpisodeState:
    """Open episodes, and other classes that were found, but not often enough yet."""

    open: Mapping[str, Diagnosis] = field(default_factory=dict)
    saved_at: Mapping[str, datetime] = field(default_factory=dict)
    challengers: Mapping[str, tuple[Diagnosis, int]] = field(default_factory=dict)


def restored(diagnoses: Iterable[Diagnosis]) -> EpisodeState:
    """The state from stored diagnoses."""
    found = {d.subject: d for d in diagnoses if d.ended_at is None}
    return EpisodeState(found, {subject: d.seen_at for subject, d in found.items()})


def step(
    state: EpisodeState, found: Sequence[Diagnosis], now: datetime
) -> tuple[EpisodeState, list[Diagnosis]]:
    """The state after an evaluation, and the diagnoses to save."""
    open_, saved_at = dict(state.open), dict(state.saved_at)
    challengers: dict[str, tuple[Diagnosis, int]] = {}
    changed: list[Diagnosis] = []

    def save(diagnosis: Diagnosis) -> None:
        changed.append(diagnosis)
        saved_at[diagnosis.subject] = now

    seen = {diagnosis.subject for diagnosis in found}
    for fresh in found:
        subject, before = fresh.subject, open_.get(fresh.subject)
        if before is None:
            open_[subject] = fresh
            save(fresh)
            continue
        if (fresh.bottleneck, fresh.cause) == (before.bottleneck, before.cause):
            open_[subject] = replace(fresh, began_at=before.began_at)
            if now - saved_at[subject] >= REFRESH:
                save(open_[subject])
            continue
        first, times = state.challengers.get(subject, (fresh, 0))
        is_same = (first.bottleneck, first.cause) == (fresh.bottleneck, fresh.cause)
        first, times = (first, times + 1) if is_same else (fresh, 1)
        if times < EVALUATIONS_TO_CHANGE:
            challengers[subject] = (first, times)
            continue
        changed.append(replace(before, ended_at=first.began_at))
        open_[subject] = replace(fresh, began_at=first.began_at)
        save(open_[subject])
    for subject, diagnosis in state.open.items():
        if subject not in seen and now - diagnosis.seen_at >= GONE_AFTER:
            changed.append(replace(diagnosis, ended_at=diagnosis.seen_at))
            del open_[subject], saved_at[subject]
    return EpisodeState(open_, saved_at, challengers), changed
