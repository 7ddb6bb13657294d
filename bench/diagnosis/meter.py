"""Shares a few numbers, in a file, between a simulated GPU and the loop that uses it.

The loop says when the device is busy and how much was sent to it; the sampler reads it. Times are of
the machine's monotonic clock, which all processes share. Standard library alone: the loop runs
where gpuwarden is not installed.
"""

import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

_BUSY, _RECEIVED, _MEMORY, _POWER, _STEPS, _BEGUN, _READY = range(7)
_SIZE = 8 * 7
_STEPS_TO_PACE = 2


@dataclass(frozen=True, slots=True)
class Use:
    """Work of a GPU up to an instant."""

    at_ns: int
    busy_ns: int
    received_bytes: int
    memory_bytes: int
    power_share: float
    """Power while it is busy, from idle (0) to its limit (1)."""
    steps: int
    has_begun: bool
    """The program is loaded, and the loop about to begin."""
    is_ready: bool
    """The loop is at its pace."""


class Meter:
    """The file of one GPU. One thread writes it, any process may read. As a context: it is busy."""

    # Each number is one aligned word, so that nobody reads half of it. Time busy is less its begin while
    # it lasts: negative then, and one word tells all.

    def __init__(self, path: Path) -> None:
        """Open the file; make it where it is not there."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, _SIZE)
            self._map = mmap.mmap(file, _SIZE)
        finally:
            os.close(file)
        self._cells = memoryview(self._map).cast("q")

    def __enter__(self) -> Self:
        self._cells[_BUSY] -= time.monotonic_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cells[_BUSY] += time.monotonic_ns()

    def hold(self, memory_bytes: int, power_share: float) -> None:
        """Set the memory of the process on the device, and the power of its kernels."""
        self._cells[_MEMORY] = memory_bytes
        self._cells[_POWER] = round(1000 * power_share)

    def worked(self, seconds: float) -> None:
        """It was busy for this part of the time just past, while the process did something else."""
        self._cells[_BUSY] += int(1e9 * seconds)

    def receive(self, count: int) -> None:
        """So many bytes are copied to it."""
        self._cells[_RECEIVED] += count

    def stepped(self) -> None:
        """A step of the loop is done."""
        self._cells[_STEPS] += 1
        if self._cells[_STEPS] >= _STEPS_TO_PACE:
            self.ready()

    def begin(self) -> None:
        """The program is loaded."""
        self._cells[_BEGUN] = 1

    def ready(self) -> None:
        """The loop is at its pace."""
        self._cells[_READY] = 1

    def use(self) -> Use:
        """Work up to now."""
        busy, received, memory, power, steps, begun, ready = self._cells.tolist()
        now = time.monotonic_ns()
        return Use(
            at_ns=now,
            busy_ns=busy if busy >= 0 else busy + now,
            received_bytes=received,
            memory_bytes=memory,
            power_share=power / 1000,
            steps=steps,
            has_begun=bool(begun),
            is_ready=bool(ready),
        )

    def close(self) -> None:
        """Release the file."""
        self._cells.release()
        self._map.close()
