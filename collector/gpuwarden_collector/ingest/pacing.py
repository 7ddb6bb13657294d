"""Decides how many seconds of samples agents are asked to put into a batch.

A batch costs the collector as much as a request, even with few rows. While the collector is busy, its
answers ask for longer batches (`Gpuwarden-Batch-Seconds`), and for shorter ones once it is idle again.
Agents always send events at once.
"""

import time
from dataclasses import dataclass

from gpuwarden.clock import Clock
from gpuwarden.wire import BATCH_SECONDS_MAX
from gpuwarden_collector.storage.stats import Histogram

CHECK_INTERVAL_S = 5.0
STEPS_S = (0, 10, 20, BATCH_SECONDS_MAX)
"""Batch lengths, changed one step at a time; 0: agents use their own settings."""
REST_S = 2 * BATCH_SECONDS_MAX
"""Time between two changes: the load shows the effect only after a batch of the new length."""

BUSY = 0.7
"""Above this share of CPU time of the event loop's thread the collector is busy."""
IDLE = 0.2
"""Below this share it is idle: twice as many requests may double it, which is still below BUSY."""
SLOW_S = 0.5
"""Above this mean time of an acknowledgement it is busy as well, for example when other programs use the CPUs."""
FAST_S = 0.2


@dataclass(frozen=True, slots=True)
class Pace:
    """The batch length that agents are asked for."""

    step: int = 0
    """Index into STEPS_S."""
    changed_s: float = float("-inf")
    """Monotonic time of the last change."""


def next_pace(pace: Pace, busy: float, acknowledge_s: float | None, now_s: float) -> Pace:
    """The pace after a check.

    `busy`: CPU time of the event loop's thread since the last check, as a share. `acknowledge_s`: mean time
    from request to answer since then; None: there was no batch.
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
    """Keeps the pace. Call `update` every CHECK_INTERVAL_S seconds on the event loop's thread."""

    def __init__(self, clock: Clock, acknowledged: Histogram) -> None:
        self._clock = clock
        self._acknowledged = acknowledged
        self._pace = Pace()
        self._updated_s = clock.monotonic()
        self._busy_s = time.thread_time()
        self._seen = (acknowledged.count, acknowledged.sum_s)

    @property
    def batch_s(self) -> int:
        """Batch length in seconds that agents are asked for; 0: none."""
        return STEPS_S[self._pace.step]

    async def update(self) -> None:
        """Measure the load since the last call and change the pace."""
        now_s, busy_s = self._clock.monotonic(), time.thread_time()
        seen = (self._acknowledged.count, self._acknowledged.sum_s)
        batches, waited_s = seen[0] - self._seen[0], seen[1] - self._seen[1]
        since_s = now_s - self._updated_s
        if since_s <= 0:
            return
        busy = (busy_s - self._busy_s) / since_s
        self._pace = next_pace(self._pace, busy, waited_s / batches if batches else None, now_s)
        self._updated_s, self._busy_s, self._seen = now_s, busy_s, seen
