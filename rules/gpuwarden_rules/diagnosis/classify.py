"""Classifies one GPU by its features, with evidence and nearest misses, or the reason why it is unknown."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuwarden.diagnosis import MEANINGS, Bottleneck, Evidence
from gpuwarden_rules.diagnosis.conditions import opposing, supporting
from gpuwarden_rules.diagnosis.features import Features, GpuInfo
from gpuwarden_rules.diagnosis.procedure import FIRST, OTHER, PAUSES, STARVED, STILL, Candidate
from gpuwarden_rules.diagnosis.thresholds import THRESHOLDS

MISSES_MAX = 3
UNLIKELY_BELOW = 0.5
"""Below this confidence a verdict is called likely."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The class of one GPU."""

    bottleneck: Bottleneck
    confidence: float
    evidence: Sequence[Evidence]
    reason: str | None = None
    """Why the class is unknown."""
    misses: Sequence[str] = ()
    """Nearest other classes, each with the evidence against it."""

    @property
    def is_likely_only(self) -> bool:
        """Whether the verdict is called likely."""
        return self.confidence < UNLIKELY_BELOW


def classify(place: GpuInfo, features: Features) -> Verdict:
    """The first class that applies; among those of a starved GPU the one with the most evidence."""
    if reason := _too_few_readings(place, features):
        return _unknown(reason)
    if found := _first(FIRST, features) or _first(STILL, features):
        return found
    if reason := _cannot_be_judged(features):
        return _unknown(reason)
    found = _first(PAUSES, features) or _best(STARVED, features) or _first(OTHER, features)
    if found is None:
        return _unknown(
            _unexplained(place, features),
            tuple(_misses((*PAUSES, *STARVED, *OTHER), features)),
        )
    return found


def _too_few_readings(place: GpuInfo, features: Features) -> str | None:
    if features.duty is None:
        if place.is_mig:
            return "a MIG device has no utilization, and the agent no profiling metrics of it"
        return "there are no readings of utilization in the window"
    if (features.coverage or 0) < THRESHOLDS.coverage_min:
        return f"only {100 * (features.coverage or 0):.0f} % of the window has readings"
    return None


def _cannot_be_judged(features: Features) -> str | None:
    if (features.owners or 0) > 1:
        return f"{features.owners:.0f} jobs share the GPU, and utilization is their sum"
    if features.age is not None and features.age < THRESHOLDS.warm_up:
        return f"the process started {features.age:.0f} s ago and may still warm up"
    return None


def _unexplained(place: GpuInfo, features: Features) -> str:
    stall = features.stall or 0
    if not place.has_process_data:
        return (
            "the agent of this node reports no processes, so only the GPU's measurements are known"
        )
    if features.processes == 0:
        return "it works, but the agent sees no process on it (containers without host PIDs?)"
    if (restarts := features.unseen_turnovers or 0) >= THRESHOLDS.two and stall < THRESHOLDS.stall:
        return (
            f"workers were restarted in {restarts:.0f} readings, and utilization is read too rarely"
            " to see what that costs"
        )
    if stall >= THRESHOLDS.stall:
        return f"the GPU waits {100 * stall:.0f} % of the time, and no measurement shows for what"
    return f"the GPU is busy {100 * (1 - stall):.0f} % of the time, and no measurement is unusual"


def _unknown(reason: str, misses: Sequence[str] = ()) -> Verdict:
    return Verdict(Bottleneck.UNKNOWN, 0.0, (), reason, misses)


def _first(candidates: Sequence[Candidate], features: Features) -> Verdict | None:
    for candidate in candidates:
        if candidate.needs.holds(features) is True:
            return _verdict(candidate, features)
    return None


def _best(candidates: Sequence[Candidate], features: Features) -> Verdict | None:
    found = [c for c in candidates if c.needs.holds(features) is True]
    if not found:
        return None
    return max((_verdict(c, features) for c in found), key=lambda v: v.confidence)


def _verdict(candidate: Candidate, features: Features) -> Verdict:
    evidence: dict[str, Evidence] = {}
    for condition in (candidate.needs, *candidate.signs):
        for line in supporting(condition, features):
            evidence.setdefault(line.feature, line)
    return Verdict(
        candidate.bottleneck,
        _confidence(candidate, features),
        tuple(evidence.values()),
    )


def _confidence(candidate: Candidate, features: Features) -> float:
    """Share of signs that agree. `needs` counts as one that agrees, an unknown sign as half a sign."""
    held = [sign.holds(features) for sign in candidate.signs]
    agree = 1 + held.count(True)
    return round(agree / (agree + held.count(False) + held.count(None) / 2), 3)


def _misses(candidates: Sequence[Candidate], features: Features) -> Iterator[str]:
    """The classes with the least evidence against them."""
    against = [(list(opposing(c.needs, features)), c.bottleneck) for c in candidates]
    against = [(lines, b) for lines, b in against if lines and b is not Bottleneck.BUSY]
    against.sort(key=lambda found: len(found[0]))
    for lines, bottleneck in against[:MISSES_MAX]:
        what = MEANINGS[bottleneck].rstrip(".")
        yield f"{bottleneck.value} ({what[:1].lower()}{what[1:]}): {'; '.join(lines[:3])}"
