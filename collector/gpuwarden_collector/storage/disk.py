"""Watches the disk: decides when days are dropped for room, and when batches are refused.

Below twice `free_bytes_min` (or above 95 % of `bytes_max`) the oldest days are dropped (`retention.py`). Below
`free_bytes_min` (above `bytes_max`) batches are refused, and agents keep them. They are accepted again with some
distance to that limit, so that the decision does not flap.

Spilled bytes of queries are temporary: they do not count as used, and count as free space, so that no row is
dropped and no batch refused for them. In turn queries may spill only as much as leaves `free_bytes_min` free.
"""

import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gpuwarden.sizes import size_text
from gpuwarden_collector.storage.retention import Excess

log = logging.getLogger(__name__)

NO_ROOM_RETRY_AFTER_S = 30
"""When to send again what was refused for room."""
_NEAR = 0.95
_TAKES_AGAIN = 0.99
_FREE_AGAIN = 1.1
_WALK_EVERY = 30
_WALK_EVERY_IN_BUDGET = 5
"""Number of readings of free space between two sums of the folder's file sizes."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Free and used bytes now."""

    free_bytes: int
    """Free space of the file system, for this user."""
    used_bytes: int
    """Size of the data folder, without spilled bytes."""
    spill_bytes: int = 0
    """Spilled bytes of queries on the same file system."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of the store. `bytes_max` 0: no limit."""

    bytes_max: int
    free_bytes_min: int


def excess(usage: Usage, leaving_bytes: int, budget: Budget) -> Excess:
    """Bytes that must be dropped. `leaving_bytes`: dropped already, but still on the disk."""
    over = usage.used_bytes - leaving_bytes - int(budget.bytes_max * _NEAR)
    free = free_for_rows(usage) + leaving_bytes
    short = 2 * budget.free_bytes_min - free
    refused = math.ceil(budget.free_bytes_min * _FREE_AGAIN) - free
    is_refusing = free < budget.free_bytes_min
    return Excess(
        max(0, over) if budget.bytes_max else 0,
        max(0, short),
        max(0, refused if is_refusing else short),
    )


def refusal(usage: Usage, budget: Budget, *, is_refusing: bool) -> str | None:
    """Why batches are refused; None: they are accepted."""
    free_min = budget.free_bytes_min * (_FREE_AGAIN if is_refusing else 1)
    if free_for_rows(usage) < free_min:
        return (
            f"the disk has {size_text(usage.free_bytes)} free and disk_free_bytes_min is "
            f"{size_text(budget.free_bytes_min)}: make room on it"
        )
    used_max = budget.bytes_max * (_TAKES_AGAIN if is_refusing else 1)
    if budget.bytes_max and usage.used_bytes > used_max:
        return (
            f"the store has {size_text(usage.used_bytes)} and disk_bytes_max is "
            f"{size_text(budget.bytes_max)}: raise it"
        )
    return None


def free_for_rows(usage: Usage) -> int:
    """Free bytes, with those that queries spill, which become free soon."""
    return usage.free_bytes + usage.spill_bytes


def free_bytes(folder: Path) -> int:
    """Free space of the folder's file system for this user. Raises OSError."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def folder_bytes(folder: Path, but: Path | None = None) -> int:
    """Bytes on disk of all files below, without those of the folder `but`; files that vanish do not count."""
    total, waiting = 0, [os.fspath(folder)]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        for entry in entries:
            if but is not None and entry.name == but.name and Path(entry.path).samefile(but):
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
                continue
            try:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
            except OSError:
                continue
    return total


def _device(folder: Path) -> int | None:
    """The file system of a folder; None: the folder does not exist."""
    try:
        return folder.stat().st_dev
    except OSError:
        return None


class DiskMonitor:
    """Holds the state of the disk. Call `look` in a thread, the rest on the event loop."""

    def __init__(
        self,
        data_dir: Path,
        budget: Budget,
        *,
        free: Callable[[Path], int] = free_bytes,
        spill_dir: Callable[[], Path | None] = lambda: None,
        limit_spill: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`spill_dir`: gives the folder that queries spill to. `limit_spill`: receives the limit of spilled bytes."""
        self._data_dir = data_dir
        self.budget = budget
        self._free = free
        self._spill_dir = spill_dir
        self._limit_spill = limit_spill
        self._looks = 0
        self.usage: Usage | None = None
        """None: unknown."""
        self.refusal: str | None = None
        """Why batches are refused now; None: they are accepted."""

    def look(self, *, is_thorough: bool = False) -> None:
        """Read the disk's state and decide on batches."""
        every = _WALK_EVERY_IN_BUDGET if self.budget.bytes_max else _WALK_EVERY
        is_thorough = is_thorough or self._looks % every == 0
        self._looks += 1
        spill_dir = self._spill_dir()
        try:
            free, spill = self._free_and_spill(spill_dir)
        except OSError as error:
            if self.usage is not None:
                log.error("free space cannot be read", extra={"reason": str(error)})
            self.usage = self.refusal = None
            return
        if is_thorough or self.usage is None:
            used = folder_bytes(self._data_dir, spill_dir)
            self.usage = Usage(free, used, spill_bytes=spill)
        else:
            self.usage = replace(self.usage, free_bytes=free, spill_bytes=spill)
        was_refusing = self.refusal is not None
        self.refusal = refusal(self.usage, self.budget, is_refusing=was_refusing)
        if self.refusal and not was_refusing:
            log.error("batches are refused; agents keep them", extra={"reason": self.refusal})
        elif was_refusing and not self.refusal:
            log.warning("batches are accepted again", extra={"free": size_text(free)})

    def _free_and_spill(self, spill_dir: Path | None) -> tuple[int, int]:
        """Free bytes and spilled bytes of the data folder's file system; limits spilling. Raises OSError."""
        if spill_dir is None:
            return self._free(self._data_dir), 0
        before = folder_bytes(spill_dir)
        free = self._free(self._data_dir)
        # A query may end and delete its files in between: count them as spilled, or the disk would seem short.
        spill = max(before, folder_bytes(spill_dir))
        is_here = _device(spill_dir) in (None, _device(self._data_dir))
        spill_free = free if is_here else self._free(spill_dir)
        self._limit_spill(max(0, spill + spill_free - self.budget.free_bytes_min))
        return free, spill if is_here else 0

    @property
    def is_short(self) -> bool:
        """Whether the disk is near full, including files that are about to leave it."""
        return self.excess(0) != Excess()

    def excess(self, leaving_bytes: int) -> Excess:
        """Bytes that must be dropped now."""
        if self.usage is None:
            return Excess()
        return excess(self.usage, leaving_bytes, self.budget)
