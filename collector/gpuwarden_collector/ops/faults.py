"""Counts exceptions that nobody expected and that were kept to the batch they came from.

A bug ends the process, but for one that a body brings out: its sender would end it again and again.
What is kept from ending it is counted here and told, however often it comes, in a bounded number of
lines: a stack trace the first time that an exception comes from a place, then a line each time that
their number has doubled.
"""

import logging
import threading
import traceback
from collections import Counter
from pathlib import Path

log = logging.getLogger(__name__)

_PLACES_MAX = 100
"""Places that are told apart; what comes from others is told as one."""
_PACKAGE = __name__.partition(".")[0]


class Faults:
    """Counts them; for all threads."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By what was being done."""
        self._lock = threading.Lock()
        self._places: Counter[tuple[str, str]] = Counter()

    def note(self, doing: str, error: BaseException) -> None:
        """Count an exception that was kept, and tell of it if it is its turn."""
        with self._lock:
            self.counts[doing] += 1
            place = (type(error).__name__, _place(error))
            if place not in self._places and len(self._places) >= _PLACES_MAX:
                place = ("other", "elsewhere")
            self._places[place] += 1
            times = self._places[place]
        if times & (times - 1):
            return
        log.error(
            "an unexpected exception was kept to the batch that it came from",
            extra={
                "doing": doing,
                "exception": f"{place[0]} at {place[1]}",
                "reason": str(error).partition("\n")[0][:300],
                "times": times,
            },
            exc_info=error if times == 1 else None,
        )


def _place(error: BaseException) -> str:
    """The innermost line of the collector that the exception went through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _PACKAGE in Path(frame.filename).parts]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "elsewhere"
