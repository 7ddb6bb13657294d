"""Receives StatsD datagrams of progress on a Unix socket.

The kernel tells pid and uid of the sender, so that its cgroup names its job.
"""

import socket
import stat
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.processes.owner import slurm_job_of, user_name
from gpuwarden_agent.collect.progress.lines import BadLineError, parse_line
from gpuwarden_agent.collect.progress.streams import ProgressSender, ProgressStreams

DATAGRAM_MAX = 8192
LINES_MAX = 50
"""Of a datagram."""
BUFFER_BYTES = 1 << 20
_CREDENTIALS = struct.Struct("3i")
_SO_PASSCRED, _SCM_CREDENTIALS = 16, 2
"""Linux's numbers; the socket module has them on Linux alone."""
LOOK_S = 0.5


class ProgressSocket:
    """One socket and the thread that reads it."""

    def __init__(
        self,
        path: Path,
        streams: ProgressStreams,
        clock: Clock,
        *,
        name_of: Callable[[int], str] = user_name,
        proc: Path = Path("/proc"),
    ) -> None:
        self._path = path
        self._streams = streams
        self._clock = clock
        self._name_of = name_of
        self._proc = proc
        self._socket: socket.socket | None = None
        self._stop = threading.Event()

    def open(self) -> None:
        """Bind and begin to read, unless it is open. Raises OSError."""
        if self._socket is not None:
            return
        made = _bound(self._path)
        made.settimeout(LOOK_S)
        with suppress(OSError):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._socket = made
        threading.Thread(target=self._run, args=(made,), name="progress", daemon=True).start()

    def close(self) -> None:
        """End the thread and remove the socket's file."""
        self._stop.set()
        if self._socket is not None:
            self._socket.close()
            with suppress(OSError):
                self._path.unlink()

    def _run(self, made: socket.socket) -> None:
        while not self._stop.is_set():
            try:
                data, ancillary, flags, _ = made.recvmsg(
                    DATAGRAM_MAX, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except TimeoutError:
                continue
            except OSError:
                return  # closed
            if flags & socket.MSG_TRUNC:
                self._streams.refuse(f"a datagram has more than {DATAGRAM_MAX} bytes")
                continue
            credentials = next(
                (
                    _CREDENTIALS.unpack(value[: _CREDENTIALS.size])
                    for level, kind, value in ancillary
                    if (level, kind) == (socket.SOL_SOCKET, _SCM_CREDENTIALS)
                    and len(value) >= _CREDENTIALS.size
                ),
                None,
            )
            self._take(data, credentials)

    def _take(self, data: bytes, credentials: tuple[int, ...] | None) -> None:
        if credentials is None:
            self._streams.refuse("a datagram has no credentials")
            return
        pid, uid, _ = credentials
        origin = ProgressSender("unix", f"pid {pid}", self._name_of(uid), self._job_of(pid))
        if not self._streams.admits(origin.username, data.count(b"\n") + 1):
            return
        lines = data.splitlines()
        if len(lines) > LINES_MAX:
            self._streams.refuse(f"a datagram has more than {LINES_MAX} lines")
        for line in lines[:LINES_MAX]:
            try:
                said = parse_line(line, in_file=False)
                if said is not None:
                    sender = replace(origin, job=origin.job or said.job, rank=said.rank)
                    self._streams.take(sender, said, self._clock.monotonic())
            except BadLineError as error:
                self._streams.refuse(str(error))

    def _job_of(self, pid: int) -> str | None:
        """Slurm's job of a process, by its cgroup, which it cannot change."""
        try:
            with open(self._proc / f"{pid}/cgroup", encoding="ascii", errors="replace") as file:
                return slurm_job_of(file.read(65_536), {})
        except OSError:
            return None


def _bound(path: Path) -> socket.socket:
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()  # of a run before
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, _SO_PASSCRED, 1)
        bound.bind(str(path))
        path.chmod(0o666)
    except BaseException:
        bound.close()
        raise
    return bound
