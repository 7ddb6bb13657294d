"""Decides when the next tick is due: pure functions of the wall clock and the monotonic clock.

Ticks are the multiples of the interval since the epoch, so that all nodes sample the same instants.
Timestamps only grow: a tick at or before the last one is never due, also when the wall clock was
set back; the node then waits until the clock has passed its last tick. The exception is a clock that
was wrong by more than `AHEAD_MS_MAX`: the collector refuses samples that far in the future, so no
sample can come twice, and a node that once booted in the year 2035 must not wait until then.
"""

from dataclasses import dataclass

from gpuwarden.wire import AHEAD_S_MAX

AHEAD_MS_MAX = AHEAD_S_MAX * 1000
"""How far the last tick may be ahead of the wall clock: the collector's default limit."""
STEP_MS_MIN = 500
"""Smallest difference between wall and monotonic clock, between two calls, that counts as a step."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """State for the next decision."""

    interval_ms: int
    last_ts_ms: int | None = None
    """The last tick that was due, of this run or of the one before."""
    wall_ms: int | None = None
    """Wall clock at the last call; None: no call in this run yet."""
    monotonic_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TickPlan:
    """The decision: what to do now."""

    ts_ms: int | None
    """The tick that is due; None: not yet."""
    missed: int = 0
    """Ticks that passed since the last one and will never be sampled."""
    stepped_ms: int = 0
    """How far the wall clock was set since the last call, forward or (negative) back; at the first
    call: how far it is behind the last tick."""
    waits_ms: int = 0
    """How long no tick is due because the wall clock is behind the last one."""


def next_tick(state: Schedule, wall_ms: int, monotonic_s: float) -> tuple[Schedule, TickPlan]:
    """Compare the clocks: the tick that is due, and what happened since the last call."""
    interval_ms, last = state.interval_ms, state.last_ts_ms
    stepped_ms = _stepped_ms(state, wall_ms, monotonic_s)
    tick = wall_ms // interval_ms * interval_ms
    if last is not None and tick <= last and last - tick <= AHEAD_MS_MAX:
        looked = Schedule(interval_ms, last, wall_ms, monotonic_s)
        waits_ms = last + interval_ms - wall_ms if tick < last else 0
        return looked, TickPlan(None, stepped_ms=stepped_ms, waits_ms=waits_ms)
    missed = 0
    if last is not None and tick > last and state.wall_ms is not None:
        # Seconds that the clock skipped never took place, so they were not missed.
        passed_ms = tick - last - max(0, stepped_ms)
        missed = max(0, round(passed_ms / interval_ms) - 1)
    due = Schedule(interval_ms, tick, wall_ms, monotonic_s)
    return due, TickPlan(tick, missed=missed, stepped_ms=stepped_ms)


def wait_s(interval_ms: int, wall_ms: int) -> float:
    """Seconds from `wall_ms` to the next tick."""
    return (interval_ms - wall_ms % interval_ms) / 1000


def is_due(cadence_s: int, ts_ms: int, last_ts_ms: int | None, interval_ms: int) -> bool:
    """Whether a table is read at this tick: the first tick in each of its periods.

    That is the wall clock second that its cadence divides, or the next tick if that one was missed.
    """
    period_ms = cadence_ms(cadence_s, interval_ms)
    return last_ts_ms is None or ts_ms // period_ms != last_ts_ms // period_ms


def cadence_ms(cadence_s: int, interval_ms: int) -> int:
    """The period of a cadence; one second means every tick, however short the interval."""
    return interval_ms if cadence_s <= 1 else max(interval_ms, cadence_s * 1000)


def _stepped_ms(state: Schedule, wall_ms: int, monotonic_s: float) -> int:
    if state.wall_ms is None:
        # A clock behind the last tick of the previous run was set back since then.
        stepped_ms = 0 if state.last_ts_ms is None else min(0, wall_ms - state.last_ts_ms)
    else:
        passed_ms = (monotonic_s - state.monotonic_s) * 1000
        stepped_ms = round(wall_ms - state.wall_ms - passed_ms)
    return stepped_ms if abs(stepped_ms) >= STEP_MS_MIN else 0
