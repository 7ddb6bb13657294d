"""Keeps a process of the collector small: what its libraries must not import, how memory is allocated and freed.

For whoever owns the process, before it imports Arrow; never for a library, as it changes the process.
"""

import ctypes
import gc
import os
import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_M_ARENA_MAX = -8
_ARENAS = 2
_GARBAGE_THRESHOLDS = (2_000, 10, 50)
"""A full collection stops all threads for 0.1 s with 1,000 nodes: fourteen times as seldom as by default."""
_GROWN_BYTES = 8 * 1024 * 1024
GIVE_BACK_S = 15.0
"""How often a process that lives long looks whether it has memory to give back."""


class _Absent(MetaPathFinder):
    """Has `import` find no module of some names, whether or not they are installed."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._names:
            raise ModuleNotFoundError(f"{fullname} is not used in this process", name=fullname)
        return None


def keep_small() -> None:
    """Do without pandas, which Arrow imports where it is installed (31 MiB), have one heap for all, and
    collect garbage seldom.

    glibc gives each thread an arena of its own, and Arrow has an allocator of its own: what one of them
    has freed the others cannot take.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    sys.meta_path.insert(0, _Absent(frozenset({"pandas"})))
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


def free_memory() -> None:
    """Give the kernel back what was freed, which stays with the C library otherwise; milliseconds.

    Arrow's memory too: its pool is the C library's after `keep_small`.
    """
    with suppress(OSError, AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)


class Memory:
    """What this process has in memory, by a file that stays open, and gives back when it has grown."""

    def __init__(self) -> None:
        self._file = -1
        if sys.platform == "linux":
            self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._rss_bytes = 0

    def read(self) -> tuple[int, int]:
        """Bytes in memory, and bytes of private memory as the kernel counts them for RLIMIT_DATA."""
        if self._file < 0:
            import psutil  # of Linux it would read the same file, for 0.9 MiB

            return psutil.Process().memory_info().rss, 0
        words = os.pread(self._file, 200, 0).split()
        page_bytes = resource.getpagesize()
        return int(words[1]) * page_bytes, int(words[5]) * page_bytes

    @property
    def has_grown(self) -> bool:
        """Whether there is much more in memory than after `give_back`."""
        rss_bytes, _ = self.read()
        self._rss_bytes = min(self._rss_bytes, rss_bytes)
        return rss_bytes > self._rss_bytes + _GROWN_BYTES

    def give_back(self) -> None:
        """Give the kernel back what was freed."""
        free_memory()
        self._rss_bytes, _ = self.read()

    def give_back_if_grown(self) -> None:
        """As `give_back`, where that may be worth its time."""
        if self.has_grown:
            self.give_back()

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
