"""A line on the terminal that says how far a long command is; nothing where stderr is none.

Fifty lines: `rich` would bring 14 MB to every host for them.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from shutil import get_terminal_size
from typing import TextIO

from gpuwarden.durations import readable

_EVERY_S = 0.2
_BAR = 24
_CLEAR = "\r\x1b[2K"


@dataclass
class ProgressLine:
    """How far something is: set `done` and `text` from any thread."""

    what: str
    total: float | None = None
    """What `done` will be at the end; None: unknown, and there is no bar."""
    done: float = 0.0
    text: str = ""
    stream: TextIO | None = None
    """The terminal; None: nobody looks."""
    clock: Callable[[], float] = time.monotonic
    _began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._began_s = self.clock()
        self._lock = threading.Lock()

    def line(self, width: int) -> str:
        """What is shown now."""
        passed_s = self.clock() - self._began_s
        parts = [self.what]
        if self.total:
            share = min(1.0, max(0.0, self.done / self.total))
            full = round(share * _BAR)
            parts += [f"{'━' * full}{'─' * (_BAR - full)} {100 * share:3.0f} %"]
            if share > 0.02 and passed_s > 2 and share < 1:
                parts.append(f"{readable(passed_s / share * (1 - share))} left")
        parts += [self.text] if self.text else []
        parts.append(readable(passed_s))
        return "  ".join(parts)[: width - 1]

    def tell(self, text: str) -> None:
        """What is done now."""
        self.text = text

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to what the block prints."""
        with self._lock:
            self._write(_CLEAR)
            yield

    def show(self) -> None:
        """Draw it anew."""
        with self._lock:
            self._write(_CLEAR + self.line(get_terminal_size().columns))

    def clear(self) -> None:
        """Leave the terminal as it was."""
        with self._lock:
            self._write(_CLEAR)

    def _write(self, text: str) -> None:
        if self.stream is not None:
            self.stream.write(text)
            self.stream.flush()


@contextmanager
def progress(
    what: str, total: float | None = None, *, is_wanted: bool = True
) -> Iterator[ProgressLine]:
    """Shows it while the block runs, if a person looks."""
    is_seen = is_wanted and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    made = ProgressLine(what, total, stream=sys.stderr if is_seen else None)
    if not is_seen:
        yield made
        return
    is_over = threading.Event()

    def draw() -> None:
        while not is_over.wait(_EVERY_S):
            made.show()

    drawing = threading.Thread(target=draw, name="progress", daemon=True)
    drawing.start()
    try:
        yield made
    finally:
        is_over.set()
        drawing.join()
        made.clear()
