"""Reads processes from /proc: stat lines of all processes, and more of selected ones.

Files that the agent has no permission for give None, never 0. A process may end between two reads: it
is then treated as if it had not been there.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
STAT_BYTES = 4096
"""More than a stat line can have: 52 numbers and a name."""
COMMAND_BYTES = 4096
"""Limit for reading a command line; some are megabytes long."""

_SWITCHES = re.compile(
    r"^voluntary_ctxt_switches:\s*(\d+)\nnonvoluntary_ctxt_switches:\s*(\d+)", re.MULTILINE
)

_SIGNALS = re.compile(r"^(SigPnd|ShdPnd|SigBlk|SigIgn|SigCgt):\s*([0-9a-f]+)$", re.MULTILINE)

Identity = tuple[int, int]
"""Pid and start: pids are used again, the pair is not."""


class Process(NamedTuple):
    """A process, or a thread, from its `stat` file."""

    # There are thousands in a reading: a named tuple takes a quarter of a dataclass's time.

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
    """Address of its first stack: the same in a forked child, another after exec; 0: not visible."""
    threads: int
    rss_bytes: int
    """Host memory; the kernel may be some pages per thread behind."""

    @property
    def identity(self) -> Identity:
        """Distinguishes it from an earlier process with the same pid."""
        return (self.pid, self.started_ticks)


@dataclass(frozen=True, slots=True)
class Io:
    """Bytes since the start of a process, its ended and waited-for children included."""

    read_bytes: int
    read_chars: int
    write_bytes: int


@dataclass(frozen=True, slots=True)
class Switches:
    """How often a thread left the CPU since its start."""

    voluntary: int
    involuntary: int


@dataclass(frozen=True, slots=True)
class SignalMasks:
    """Signals of a process: bit N is signal N + 1."""

    pending: int
    """For the process, and for its main thread."""
    blocked: int
    """By its main thread."""
    ignored: int
    caught: int


def parse_pid_stat(text: str) -> Process:
    """/proc/PID/stat and /proc/PID/task/TID/stat. Raises ValueError when it is cut short.

    The name is in parentheses and may hold spaces and parentheses itself.
    """
    head, closed, rest = text.rpartition(")")
    fields = rest.split(None, 26)
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
        threads=int(fields[17]),
        rss_bytes=int(fields[21]) * PAGE_BYTES,
    )


def parse_pid_io(text: str) -> Io:
    """/proc/PID/io. Raises ValueError or KeyError when it is not that."""
    numbers = {name: int(value) for name, _, value in (x.partition(":") for x in text.splitlines())}
    return Io(numbers["read_bytes"], numbers["rchar"], numbers["write_bytes"])


def parse_switches(text: str) -> Switches:
    """/proc/PID/task/TID/status. Raises ValueError where it does not say."""
    found = _SWITCHES.search(text)
    if found is None:
        raise ValueError("no ctxt_switches in status")
    return Switches(int(found.group(1)), int(found.group(2)))


def parse_signals(text: str) -> SignalMasks:
    """/proc/PID/status. Raises ValueError where it does not say."""
    masks = {name: int(mask, 16) for name, mask in _SIGNALS.findall(text)}
    if len(masks) < 5:
        raise ValueError("no signals in status")
    pending = masks["SigPnd"] | masks["ShdPnd"]
    return SignalMasks(pending, masks["SigBlk"], masks["SigIgn"], masks["SigCgt"])


class ProcFs:
    """Reads a /proc."""

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._root = str(root)

    def pids(self) -> list[int]:
        """Every process. Raises OSError."""
        return [int(entry) for entry in os.listdir(self._root) if entry.isdigit()]

    def stats(self, pids: Iterable[int]) -> dict[int, Process]:
        """These processes, without those that have ended or are not shown (hidepid)."""
        return {process.pid: process for process in self._stats("", pids)}

    def threads(self, pid: int) -> dict[int, Process]:
        """Threads of a process; empty when it has ended."""
        try:
            tids = [int(entry) for entry in os.listdir(f"{self._root}/{pid}/task")]
        except OSError:
            return {}
        return {thread.pid: thread for thread in self._stats(f"{pid}/task/", tids)}

    def switches(self, pid: int, tid: int) -> Switches | None:
        """Context switches of a thread; None when it has ended, or without permission."""
        try:
            return parse_switches(self.text(f"{pid}/task/{tid}/status"))
        except (OSError, ValueError):
            return None

    def signals(self, pid: int) -> SignalMasks | None:
        """Signals of a process; None when it has ended."""
        try:
            return parse_signals(self.text(f"{pid}/status"))
        except (OSError, ValueError):
            return None

    def command(self, pid: int) -> bytes:
        """The beginning of a command line, its arguments ended by NUL; empty: none, or not shown."""
        try:
            return self._bytes(f"{pid}/cmdline", COMMAND_BYTES)
        except OSError:
            return b""

    def io(self, pid: int) -> Io | None:
        """I/O of a process; None without permission, or if the kernel does not count it."""
        try:
            return parse_pid_io(self.text(f"{pid}/io"))
        except (OSError, ValueError, KeyError):
            return None

    def text(self, name: str) -> str:
        """A file below /proc. Raises OSError."""
        return self._bytes(name).decode(errors="replace")

    def text_or_empty(self, name: str) -> str:
        """A file below /proc; empty where it is not there or may not be read."""
        try:
            return self.text(name)
        except OSError:
            return ""

    def executable(self, pid: int) -> str | None:
        """File name of the program; None without permission."""
        try:
            path = os.readlink(f"{self._root}/{pid}/exe")
        except OSError:
            return None
        return os.path.basename(path.removesuffix(" (deleted)")) or None

    def boot_s(self) -> int | None:
        """Time of the boot in seconds since the epoch; None if /proc/stat does not have it."""
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

    def _bytes(self, name: str, limit: int | None = None) -> bytes:
        # Three system calls instead of the ten of open(): a reading has thousands of files.
        file = os.open(f"{self._root}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if limit is not None:
                return os.read(file, limit)
            parts = []
            while part := os.read(file, 65536):
                parts.append(part)
        finally:
            os.close(file)
        return b"".join(parts)

    def _stats(self, folder: str, entries: Iterable[int]) -> Iterator[Process]:
        for entry in entries:
            try:
                raw = self._bytes(f"{folder}{entry}/stat", STAT_BYTES)
                yield parse_pid_stat(raw.decode(errors="replace"))
            except (OSError, ValueError):
                continue  # it ended between the two system calls
