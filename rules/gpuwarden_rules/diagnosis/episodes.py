"""Verdicts over time: an episode begins, is seen again, ends. One pure function."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpuwarden.diagnosis import Diagnosis

REFRESH = timedelta(minutes=5)
"""How often an episode that goes on is saved anew."""
LOOKS_TO_CHANGE = 2
"""So many looks in a row must find another class: one window on the edge changes nothing."""
GONE_AFTER = timedelta(minutes=2)
"""An episode ends when its subject was not heard of for so long."""


@dataclass(frozen=True, slots=True)
class EpisodeState:
    """Open episodes, and classes that were found but not often enough yet."""

    open: Mapping[str, Diagnosis] = field(default_factory=dict)
    saved_at: Mapping[str, datetime] = field(default_factory=dict)
    challengers: Mapping[str, tuple[Diagnosis, int]] = field(default_factory=dict)


def restored(diagnoses: Iterable[Diagnosis]) -> EpisodeState:
    """The state that a store holds."""
    found = {d.subject: d for d in diagnoses if d.ended_at is None}
    return EpisodeState(found, {subject: d.seen_at for subject, d in found.items()})


def step(
    state: EpisodeState, looked: Sequence[Diagnosis], now: datetime
) -> tuple[EpisodeState, list[Diagnosis]]:
    """What is open after a look, and what is to be saved."""
    open_, saved_at = dict(state.open), dict(state.saved_at)
    challengers: dict[str, tuple[Diagnosis, int]] = {}
    changed: list[Diagnosis] = []

    def save(diagnosis: Diagnosis) -> None:
        changed.append(diagnosis)
        saved_at[diagnosis.subject] = now

    seen = {diagnosis.subject for diagnosis in looked}
    for fresh in looked:
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
        first, looks = state.challengers.get(subject, (fresh, 0))
        is_same = (first.bottleneck, first.cause) == (fresh.bottleneck, fresh.cause)
        first, looks = (first, looks + 1) if is_same else (fresh, 1)
        if looks < LOOKS_TO_CHANGE:
            challengers[subject] = (first, looks)
            continue
        changed.append(replace(before, ended_at=first.began_at))
        open_[subject] = replace(fresh, began_at=first.began_at)
        save(open_[subject])
    for subject, diagnosis in state.open.items():
        if subject not in seen and now - diagnosis.seen_at >= GONE_AFTER:
            changed.append(replace(diagnosis, ended_at=diagnosis.seen_at))
            del open_[subject], saved_at[subject]
    return EpisodeState(open_, saved_at, challengers), changed
