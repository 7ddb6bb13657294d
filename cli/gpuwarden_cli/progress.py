"""Shows the progress of a long command as a line on stderr, if that is a terminal.

It is own code, as `rich` would add 14 MB to every host.
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
    """The line; set `done` and `text` from any thread."""

    what: str
    total: float | None = None
    """Final value of `done`; None: unknown, so there is no bar."""
    done: float = 0.0
    text: str = ""
    stream: TextIO | None = None
    """The terminal; None: nothing is shown."""
    clock: Callable[[], float] = time.monotonic
    _began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._began_s = self.clock()
        self._lock = threading.Lock()

    def line(self, width: int) -> str:
        """The text of the line."""
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
        """Set `text`."""
        self.text = text

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Clear the line while the block prints."""
        with self._lock:
            self._write(_CLEAR)
            yield

    def show(self) -> None:
        """Draw the line again."""
        with self._lock:
            self._write(_CLEAR + self.line(get_terminal_size().columns))

    def clear(self) -> None:
        """Clear the line."""
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
    """Show the line while the block runs, if stderr is a terminal."""
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
