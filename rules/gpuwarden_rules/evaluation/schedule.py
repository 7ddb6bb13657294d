"""Decides when rules are evaluated: on their interval, and how many at once.

The phases of the rules are spread over the interval. Timers are the event loop's own, so a change of the
wall clock does not move them. A turn that a busy loop missed is skipped: a rule that is late is woken once.

Quick groups of rules never wait for slow ones. A group is quick or slow as its last evaluation was. Before the
first one, a group with a short interval, or one that events wake, counts as quick.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable

from gpuwarden.clock import Clock
from gpuwarden.lifecycle import until
from gpuwarden_rules.evaluation.group import RuleGroup

GOLDEN_RATIO = 0.618034
REST_FACTOR = 4.0
"""An evaluation rests this many times as long as it took: slow ones must not crowd out the others."""
COALESCE_S = 0.05
"""Pause after an evaluation of incidents or messages, in which changes come together."""


class EvaluationSchedule:
    """Timers by name."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._turns: dict[str, asyncio.TimerHandle] = {}
        self._made = 0

    def every(self, name: str, interval_s: float, wake: Callable[[], None]) -> None:
        """Call `wake` on an interval; replaces the timer of the same name."""
        self.forget(name)
        phase = self._made * GOLDEN_RATIO % 1 or 1.0
        self._made += 1

        def turn(due: float) -> None:
            late_s = max(0.0, self._loop.time() - due)
            at = due + interval_s * (1 + math.floor(late_s / interval_s))
            self._turns[name] = self._loop.call_at(at, turn, at)
            wake()

        first = self._loop.time() + phase * interval_s
        self._turns[name] = self._loop.call_at(first, turn, first)

    def forget(self, name: str) -> None:
        """Cancel a timer."""
        if handle := self._turns.pop(name, None):
            handle.cancel()

    def close(self) -> None:
        """Cancel all timers."""
        for name in list(self._turns):
            self.forget(name)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[EvaluationSchedule]:
    """A schedule that is closed at the end of the block."""
    made = EvaluationSchedule()
    try:
        yield made
    finally:
        made.close()


QUICK_S = 1.0
"""A group whose last evaluation took longer is slow."""
SOON_S = 5.0
"""A group with this interval or a shorter one is quick until its first evaluation."""
LANE_MAX = 2
"""Concurrent evaluations of each kind; the rest wait, so that rules do not crowd out ingest and queries."""
CONCURRENT_MAX = 2 * LANE_MAX


class EvaluationSlots:
    """Limits of concurrency, one for quick rules and one for slow ones."""

    def __init__(self) -> None:
        self.quick = asyncio.Semaphore(LANE_MAX)
        self.slow = asyncio.Semaphore(LANE_MAX)

    def of(self, group: RuleGroup) -> asyncio.Semaphore:
        """The slot of the group's next evaluation."""
        return self.quick if is_quick(group) else self.slow


def is_quick(group: RuleGroup) -> bool:
    """Whether the group's next evaluation is expected to be quick."""
    if group.last_seconds is not None:
        return group.last_seconds <= QUICK_S
    return group.interval_s <= SOON_S or bool(group.on_events)


async def repeat(
    evaluate: Callable[[], Awaitable[float]],
    changed: asyncio.Event,
    stop: asyncio.Event,
    clock: Clock,
) -> None:
    """Call `evaluate` until `stop` is set: when `changed` is set, and after the seconds that it returns.

    Set `changed` after `stop`. A call rests REST_FACTOR times as long as it took, so that a storm of alerts
    does not crowd out ingest, and at least COALESCE_S, in which changes come together.
    """
    while not stop.is_set():
        changed.clear()
        started = clock.monotonic()
        pause_s = await evaluate()
        took_s = clock.monotonic() - started
        await until(stop, max(COALESCE_S, REST_FACTOR * took_s))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, pause_s - took_s)):
                await changed.wait()
