"""Judges the collector's own clock, by what agents say of theirs and by what was stored before.

A wrong clock of the collector would refuse every batch as too old or in the future, and drop rows by a wrong age.
While it is doubtful batches get 503, which agents wait out, and nothing is dropped by age.
"""

import ctypes
import statistics
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuwarden.clock import Clock
from gpuwarden.wire import AHEAD_S_MAX

WRONG_S = float(AHEAD_S_MAX)
"""So far apart, one of two clocks is wrong."""
MOST_OF = 3
"""So many agents that agree with each other and not with the collector are right."""
LOOK_S = 5.0
_RECENT_S = 600.0
_AGENTS_MAX = 4_096


@dataclass(frozen=True, slots=True)
class ClockEvidence:
    """What there is to judge by."""

    offsets_s: Sequence[float]
    """How far each agent of the last minutes is ahead of the collector's clock."""
    behind_s: float
    """How far the collector's clock is behind the newest time at which it heard of an agent; negative: it is not."""
    is_synchronised: bool | None
    """What the kernel says of the clock; None: it does not say."""


def doubt(evidence: ClockEvidence) -> str | None:
    """Why the clock is not to be trusted, in a sentence; None: it is."""
    offsets = evidence.offsets_s
    wrong = [offset for offset in offsets if abs(offset) > WRONG_S]
    hint = (
        ""
        if evidence.is_synchronised is not False
        else "; the kernel says that it is not synchronised"
    )
    if len(wrong) * 2 > len(offsets) and (
        len(wrong) >= MOST_OF or evidence.is_synchronised is False
    ):
        apart = _apart(-statistics.median(wrong))
        return f"the collector's clock is {apart} those of {len(wrong)} of {len(offsets)} agents: set it right{hint}"
    agree = len(offsets) > len(wrong) * 2
    if evidence.behind_s > WRONG_S and not agree and evidence.is_synchronised is not True:
        apart = _apart(-evidence.behind_s)
        return f"the collector's clock is {apart} the newest time that it has stored: set it right{hint}"
    return None


def _apart(offset_s: float) -> str:
    return f"{timedelta(seconds=round(abs(offset_s)))} {'ahead of' if offset_s > 0 else 'behind'}"


class ClockCheck:
    """Collects the evidence; for the event loop."""

    def __init__(
        self,
        clock: Clock,
        newest: datetime | None,
        is_synchronised: Callable[[], bool | None],
    ) -> None:
        """`newest`: when the collector last heard of an agent, as it has stored it."""
        self._clock = clock
        self._newest = newest
        self._is_synchronised = is_synchronised
        self._offsets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Seconds ahead, and the monotonic time, by agent."""
        self.reason: str | None = None
        """Why the clock is not to be trusted; None: it is."""
        self.look()

    def note(self, agent_id: str, ahead_s: float) -> None:
        """What an agent's request says of its clock."""
        is_news = agent_id not in self._offsets
        self._offsets[agent_id] = (ahead_s, self._clock.monotonic())
        self._offsets.move_to_end(agent_id)
        while len(self._offsets) > _AGENTS_MAX:
            self._offsets.popitem(last=False)
        # The first to come decide at once; later ones change what is looked at every few seconds.
        if is_news and len(self._offsets) <= 2 * MOST_OF:
            self.look()

    def look(self) -> None:
        """Judge anew."""
        least_s = self._clock.monotonic() - _RECENT_S
        while self._offsets and next(iter(self._offsets.values()))[1] < least_s:
            self._offsets.popitem(last=False)
        offsets = [ahead_s for ahead_s, _ in self._offsets.values()]
        behind = self._newest - self._clock.now() if self._newest else timedelta(0)
        self.reason = doubt(ClockEvidence(offsets, behind.total_seconds(), self._is_synchronised()))


def kernel_synchronised() -> bool | None:
    """Whether the kernel takes its clock as synchronised (adjtimex(2): TIME_ERROR); None: it cannot be asked."""
    if sys.platform != "linux":
        return None
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    # Zeroes in `modes` change nothing; the structure has 208 bytes on 64-bit Linux.
    state = adjtimex(ctypes.create_string_buffer(512))
    return None if state < 0 else state != _TIME_ERROR


_TIME_ERROR = 5
