"""Decides how many seconds of samples agents are asked to put into a batch.

A batch costs the collector what a request costs, however few rows it has. While it has much to do,
its answers ask for longer batches (`Gpuwarden-Batch-Seconds`), and for shorter ones once it has time
again. Events are sent at once whatever is asked.
"""

import time
from dataclasses import dataclass

from gpuwarden.clock import Clock
from gpuwarden.wire import BATCH_SECONDS_MAX
from gpuwarden_collector.storage.stats import Histogram

LOOK_S = 5.0
STEPS_S = (0, 10, 20, BATCH_SECONDS_MAX)
"""What is asked for, one step at a time; 0: nothing, agents go by their own settings."""
REST_S = 2 * BATCH_SECONDS_MAX
"""Between two changes: only after a batch of the new length does the load show what it has done."""

BUSY = 0.7
"""Share of time that the event loop's thread computes, above which there is much to do."""
IDLE = 0.2
"""Share below which there is time: half the requests may double it, which is still below BUSY."""
SLOW_S = 0.5
"""Mean time of an acknowledgement that says the same, as where other programs have the processors."""
FAST_S = 0.2


@dataclass(frozen=True, slots=True)
class Pace:
    """What agents are asked for."""

    step: int = 0
    """Place in STEPS_S."""
    changed_s: float = float("-inf")
    """Monotonic time of the last change."""


def next_pace(pace: Pace, busy: float, acknowledge_s: float | None, now_s: float) -> Pace:
    """The pace after a look.

    `busy`: share of time since the last look that the event loop's thread computed. `acknowledge_s`: mean
    time from request to answer since then; None: there was no batch.
    """
    if now_s - pace.changed_s < REST_S:
        return pace
    waited_s = acknowledge_s or 0.0
    if busy > BUSY or waited_s > SLOW_S:
        step = min(pace.step + 1, len(STEPS_S) - 1)
    elif busy < IDLE and waited_s < FAST_S:
        step = max(pace.step - 1, 0)
    else:
        step = pace.step
    return pace if step == pace.step else Pace(step, now_s)


class Pacing:
    """Keeps the pace; `look` is to be called every LOOK_S seconds on the event loop's thread."""

    def __init__(self, clock: Clock, acknowledged: Histogram) -> None:
        self._clock = clock
        self._acknowledged = acknowledged
        self._pace = Pace()
        self._looked_s = clock.monotonic()
        self._busy_s = time.thread_time()
        self._seen = (acknowledged.count, acknowledged.sum_s)

    @property
    def batch_s(self) -> int:
        """Seconds that are asked for; 0: none."""
        return STEPS_S[self._pace.step]

    async def look(self) -> None:
        """Compare what was done since the last look with what can be done."""
        now_s, busy_s = self._clock.monotonic(), time.thread_time()
        seen = (self._acknowledged.count, self._acknowledged.sum_s)
        batches, waited_s = seen[0] - self._seen[0], seen[1] - self._seen[1]
        since_s = now_s - self._looked_s
        if since_s <= 0:
            return
        busy = (busy_s - self._busy_s) / since_s
        self._pace = next_pace(self._pace, busy, waited_s / batches if batches else None, now_s)
        self._looked_s, self._busy_s, self._seen = now_s, busy_s, seen
