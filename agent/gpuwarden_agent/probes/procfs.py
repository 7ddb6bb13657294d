"""Processes as /proc shows them: every process once a look, and more of the few that matter.

Only names are read, never command lines. What the agent may not read of another user's process is
None, never 0.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Identity = tuple[int, int]
"""Pid and start: pids are used again, the pair is not."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process, or a thread, from its `stat` file."""

    pid: int
    parent: int
    name: str
    """The name of the (main) thread: 15 bytes at most, and a program may change it."""
    state: str
    """R running, S sleeping, D blocked on a device, Z ended and not waited for, T stopped."""
    ticks: int
    """CPU in user code and kernel since its start."""
    started_ticks: int
    """Start, since boot."""
    stack: int
    """Where its first stack began: the same in a forked child, another after exec; 0: not shown."""

    @property
    def identity(self) -> Identity:
        """Tells it from an earlier process of the same pid."""
        return (self.pid, self.started_ticks)


@dataclass(frozen=True, slots=True)
class Io:
    """Bytes since the start of a process, its ended and waited-for children included."""

    read_bytes: int
    read_chars: int
    write_bytes: int


def parse_pid_stat(text: str) -> Process:
    """/proc/PID/stat and /proc/PID/task/TID/stat. Raises ValueError when it is cut short.

    The name stands in parentheses and may hold spaces and parentheses itself.
    """
    head, closed, rest = text.rpartition(")")
    fields = rest.split()
    pid, opened, name = head.partition(" (")
    if not closed or not opened or len(fields) < 26:
        raise ValueError(f"not a stat line: {text[:40]!r}")
    return Process(
        pid=int(pid),
        parent=int(fields[1]),
        name=name,
        state=fields[0],
        ticks=int(fields[11]) + int(fields[12]),
        started_ticks=int(fields[19]),
        stack=int(fields[25]),
    )


def parse_pid_io(text: str) -> Io:
    """/proc/PID/io. Raises ValueError or KeyError when it is not that."""
    numbers = {name: int(value) for name, _, value in (x.partition(":") for x in text.splitlines())}
    return Io(numbers["read_bytes"], numbers["rchar"], numbers["write_bytes"])


class ProcFs:
    """Reads a /proc."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = str(root)

    def processes(self) -> dict[int, Process]:
        """Every process; one that ends meanwhile may be missing."""
        return {process.pid: process for process in self._stats(self._root)}

    def threads(self, pid: int) -> dict[int, Process]:
        """Threads of a process; empty when it has ended."""
        return {thread.pid: thread for thread in self._stats(f"{self._root}/{pid}/task")}

    def io(self, pid: int) -> Io | None:
        """None without permission, or where the kernel does not count."""
        try:
            return parse_pid_io(self.text(f"{pid}/io"))
        except (OSError, ValueError, KeyError):
            return None

    def text(self, name: str) -> str:
        """A file below /proc. Raises OSError."""
        # Three system calls instead of the ten of open(): there are thousands of these a look.
        file = os.open(f"{self._root}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts = []
            while part := os.read(file, 65536):
                parts.append(part)
        finally:
            os.close(file)
        return b"".join(parts).decode(errors="replace")

    def executable(self, pid: int) -> str | None:
        """File name of the program; None without permission."""
        try:
            path = os.readlink(f"{self._root}/{pid}/exe")
        except OSError:
            return None
        return os.path.basename(path.removesuffix(" (deleted)")) or None

    def boot_s(self) -> int | None:
        """Seconds since the epoch at boot; None where /proc/stat does not say."""
        try:
            lines = self.text("stat").splitlines()
        except OSError:
            return None
        return next((int(x.split()[1]) for x in lines if x.startswith("btime ")), None)

    def uptime_ticks(self) -> int:
        """Time since boot in the unit of a process's start. Raises OSError."""
        return int(float(self.text("uptime").split()[0]) * TICKS_PER_S)

    def shows_host_pids(self) -> bool:
        """False inside a pid namespace, where the driver's pids mean other processes or none.

        Only the host's first namespace has the kernel's thread 2.
        """
        try:
            return self.text("2/comm").strip() == "kthreadd"
        except OSError:
            return False

    def _stats(self, folder: str) -> Iterator[Process]:
        try:
            entries = os.listdir(folder)
        except OSError:
            return
        prefix = folder.removeprefix(self._root).lstrip("/")
        for entry in entries:
            if entry.isdigit():
                try:
                    text = self.text(f"{prefix}/{entry}/stat" if prefix else f"{entry}/stat")
                    yield parse_pid_stat(text)
                except (OSError, ValueError):
                    continue  # it ended between the two system calls
