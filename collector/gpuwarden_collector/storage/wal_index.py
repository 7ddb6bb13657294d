"""Detects commits to a local catalogue by a look at memory, where asking the lake costs milliseconds.

The catalogue is an SQLite file in WAL mode. A commit is visible from the moment at which its header
in the `-shm` file has changed, and that never has the same content twice (a counter of
transactions, and check sums): https://www.sqlite.org/walformat.html#the_wal_index_header. Times of
files would not do: a commit may wait for its disk between writing them and being visible.
"""

import os
from pathlib import Path

from gpuwarden_collector.storage.address import LakeAddress

_HEADER_BYTES = 48
"""Of one of the two copies that the file begins with; a writer changes the second one first."""
_IS_FILLED = 12


class CatalogMark:
    """What to compare, for one process and any of its threads."""

    def __init__(self, address: LakeAddress) -> None:
        is_local = not address.is_shared and not address.is_remote
        self._path = Path(f"{address.catalog}-shm") if is_local else None
        self._file = -1
        self._inode = 0

    def look(self) -> bytes | None:
        """The same as before only if nothing was committed since; None: that cannot be told now."""
        if self._path is None:
            return None
        try:
            inode = self._path.stat().st_ino
            if inode != self._inode:
                # The one before stays open: closing it would drop the locks that SQLite holds on that
                # file for this process.
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                self._inode = os.fstat(self._file).st_ino
            content = os.pread(self._file, 2 * _HEADER_BYTES, 0)
        except OSError:
            return None
        first, second = content[:_HEADER_BYTES], content[_HEADER_BYTES:]
        if first != second or len(first) < _HEADER_BYTES or not first[_IS_FILLED]:
            return None
        return first + self._inode.to_bytes(8, "little")
