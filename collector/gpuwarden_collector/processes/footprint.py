"""Keeps a process of the collector small: blocks imports, and sets how memory is allocated and freed.

Only the main module of a process calls `keep_small`, before it imports Arrow, because that changes the process.
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
"""A full collection stops all threads for 0.1 s with 1,000 nodes; these make it fourteen times rarer than by default."""
_GROWN_BYTES = 8 * 1024 * 1024
GIVE_BACK_S = 15.0
"""Interval at which a long-lived process returns free memory to the kernel."""


class _Absent(MetaPathFinder):
    """Makes `import` fail for some modules, even if they are installed."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._names:
            raise ModuleNotFoundError(f"{fullname} is not used in this process", name=fullname)
        return None


def keep_small() -> None:
    """Block pandas, which Arrow imports if it is installed (31 MiB), use one heap for all, and collect garbage
    rarely.

    glibc gives each thread an arena of its own, and Arrow has its own allocator: memory that one of them has freed
    is not available to the others.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    sys.meta_path.insert(0, _Absent(frozenset({"pandas"})))
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


def free_memory() -> None:
    """Return freed memory from the C library to the kernel; takes milliseconds.

    It includes Arrow's memory, whose pool is the C library's after `keep_small`.
    """
    with suppress(OSError, AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)


class Memory:
    """Measures this process's memory by a file that stays open, and returns free memory when it has grown."""

    def __init__(self) -> None:
        self._file = -1
        if sys.platform == "linux":
            self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._rss_bytes = 0

    def read(self) -> tuple[int, int]:
        """Bytes in memory, and bytes of private memory as the kernel counts them for RLIMIT_DATA."""
        if self._file < 0:
            import psutil  # on Linux it would read the same file, at a cost of 0.9 MiB

            return psutil.Process().memory_info().rss, 0
        words = os.pread(self._file, 200, 0).split()
        page_bytes = resource.getpagesize()
        return int(words[1]) * page_bytes, int(words[5]) * page_bytes

    @property
    def has_grown(self) -> bool:
        """Whether the process uses much more memory than after `give_back`."""
        rss_bytes, _ = self.read()
        self._rss_bytes = min(self._rss_bytes, rss_bytes)
        return rss_bytes > self._rss_bytes + _GROWN_BYTES

    def give_back(self) -> None:
        """Return freed memory to the kernel."""
        free_memory()
        self._rss_bytes, _ = self.read()

    def give_back_if_grown(self) -> None:
        """Call `give_back` if memory has grown."""
        if self.has_grown:
            self.give_back()

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
