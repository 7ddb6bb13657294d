"""Gives a clock that follows the data: a benchmark sends an hour's samples in minutes, and none is late.

With the machine's clock, samples that are sent faster than real time would be late for their minute, and the
benchmark would measure the path of late rows.
"""

import mmap
import struct
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path

from gpuwarden.clock import SystemClock, from_ms

_TIME = struct.Struct("<q")
_AHEAD = timedelta(seconds=60)
"""The clock is ahead of the samples, so that their minutes close within a short run."""


class DataClock(SystemClock):
    """Wall time is that of the newest samples that were sent; for all processes with the same file."""

    def __init__(self, path: Path, begin_ms: int) -> None:
        """`begin_ms`: until something was sent."""
        self._path = path
        if not path.exists():
            path.write_bytes(_TIME.pack(begin_ms))

    def __reduce__(self) -> tuple[object, ...]:
        return DataClock, (self._path, 0)

    def now(self) -> datetime:
        return from_ms(_TIME.unpack_from(self._mapped)[0]) + _AHEAD

    def set(self, ts_ms: int) -> None:
        """Samples of that time are sent now."""
        # One copy: `pack_into` clears the bytes first, and a reader would see the year 1970.
        self._mapped[: _TIME.size] = _TIME.pack(ts_ms)

    @cached_property
    def _mapped(self) -> mmap.mmap:
        with self._path.open("r+b") as file:
            return mmap.mmap(file.fileno(), _TIME.size)
