"""Wakes rules on their interval, phases spread so that they do not fall together.

Timers are the event loop's own, which no change of the wall clock moves. A turn that a busy loop missed is
skipped: whoever is woken late is woken once.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

GOLDEN_RATIO = 0.618034


class EvaluationSchedule:
    """Calls functions on their interval."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._turns: dict[str, asyncio.TimerHandle] = {}
        self._made = 0

    def every(self, name: str, interval_s: float, wake: Callable[[], None]) -> None:
        """Call `wake` on an interval; a call of the same name before is replaced."""
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
        """Call it no longer."""
        if handle := self._turns.pop(name, None):
            handle.cancel()

    def close(self) -> None:
        """Call nothing any more."""
        for name in list(self._turns):
            self.forget(name)


@asynccontextmanager
async def running() -> AsyncIterator[EvaluationSchedule]:
    """A schedule for as long as the block runs."""
    made = EvaluationSchedule()
    try:
        yield made
    finally:
        made.close()
