"""Reserves disk space, so that a full disk cannot keep the spool from shrinking.

SQLite needs room to delete: a spool that filled the disk while the collector was away could not
forget what the collector took when it came back, and would be stuck for ever. The reserve is a file
of real blocks beside the spool. New batches never get its space, deleting does.
"""

import contextlib
import os
import sys
from pathlib import Path

RESERVE_BYTES = 2 * 1024**2
"""Twice what the WAL may hold before it is written back."""


class Reserve:
    """The file; held or given away."""

    def __init__(self, path: Path, size_bytes: int = RESERVE_BYTES) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self.is_held = False

    def hold(self) -> bool:
        """Take the space, unless it is held; False when the disk does not have it."""
        if self.is_held:
            return True
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                if sys.platform == "linux":
                    os.posix_fallocate(file, 0, self._size_bytes)
                else:
                    os.pwrite(file, bytes(self._size_bytes), 0)
            finally:
                os.close(file)
        except OSError:
            self.give()
            return False
        self.is_held = True
        return True

    def give(self) -> bool:
        """Free the space, also what an earlier run held; False when there was none to free."""
        self.is_held = False
        with contextlib.suppress(OSError):
            self._path.unlink()
            return True
        return False
