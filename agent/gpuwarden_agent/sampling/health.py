"""Tracks whether a source answers: a pure state machine that reports each change of state once."""

from dataclasses import dataclass, field
from typing import assert_never

from gpuwarden_agent.events.kinds import span


@dataclass(frozen=True, slots=True)
class Read:
    """The source gave a reading in time."""


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """The source gave no reading; `kind` is the kind of its event."""

    kind: str
    message: str
    cause: Exception | None = field(default=None, compare=False)
    """An exception that probes are not expected to raise."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """The call has not returned within the deadline and still runs."""

    after_s: float


Outcome = Read | ProbeFailed | Overdue


@dataclass(frozen=True, slots=True)
class ProbeHealth:
    """State of one source: `trouble` is the kind of the reported event; None: the source answers."""

    trouble: str | None = None
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """An event to write."""

    kind: str
    message: str
    duration_seconds: float | None = None


def observe(
    health: ProbeHealth, name: str, outcome: Outcome, now_s: float
) -> tuple[ProbeHealth, HealthEvent | None]:
    """The state of the source `name` after a call, and the event to write. `now_s` is monotonic."""
    match outcome:
        case Read():
            return ProbeHealth(), _recovered(health, name, now_s)
        case ProbeFailed(kind, message, _):
            if health.trouble == kind:
                return health, None
            return ProbeHealth(kind, _since(health, now_s)), HealthEvent(kind, f"{name}: {message}")
        case Overdue(after_s):
            if health.trouble == "probe_stuck":
                return health, None
            message = (
                f"{name}: the call has not returned for {span(after_s)};"
                " its samples are missing until it does, everything else continues"
            )
            since_s = _since(health, now_s - after_s)
            return ProbeHealth("probe_stuck", since_s), HealthEvent("probe_stuck", message, after_s)
        case _:
            assert_never(outcome)


def _since(health: ProbeHealth, now_s: float) -> float:
    """When the trouble began; one kind that turns into another keeps the first time."""
    return now_s if health.trouble is None else health.since_s


def _recovered(health: ProbeHealth, name: str, now_s: float) -> HealthEvent | None:
    if health.trouble is None:
        return None
    lasted_s = max(0.0, now_s - health.since_s)
    message = f"{name}: answers again after {span(lasted_s)} ({health.trouble})"
    return HealthEvent("probe_recovered", message, lasted_s)
