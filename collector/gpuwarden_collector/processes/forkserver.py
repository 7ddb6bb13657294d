"""Runs the fork server: a process that has imported the modules of queries, and forks processes on request.

`spawn` starts it at the first use. A fork takes milliseconds, where a new interpreter takes most of a second,
and forked processes share the pages of imported modules. The fork server ends with the process that started
it, and kills its process group, with all processes that it forked; if it is killed itself, the kernel kills
them.

    python -m gpuwarden_collector.forked FD
"""

import atexit
import gc
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from gpuwarden_collector.processes.footprint import keep_small
from gpuwarden_collector.processes.sandbox import end_with_parent

START_S = 30.0
"""Longest time to start and fork for the first time."""
FORK_S = 5.0
"""Longest time for a later fork; a fork server that takes longer is stopped, or hangs, and is replaced."""
END_S = 5.0
"""Longest wait for its end after it was killed."""
QUERY, RULES, STORAGE, TEAM, TEAM_ROWS = b"q", b"r", b"s", b"t", b"w"
"""Kinds of processes in requests."""
_NAMES = {
    QUERY: "gpuwarden-query",
    RULES: "gpuwarden-query",
    STORAGE: "gpuwarden-store",
    TEAM: "gpuwarden-team",
    TEAM_ROWS: "gpuwarden-rows",
}
_NICE = {RULES: 2, STORAGE: 5, QUERY: 10, TEAM: 10, TEAM_ROWS: 10}
"""Niceness added to that of the process that acknowledges samples, so that it gets a core first: then queries of
rules, the storage process, and last queries of people."""
_ENDS_MAX = 2
"""Most sockets that a process gets."""
KEPT = (
    *("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PYTHONHOME", "TZ"),
    *("SSL_CERT_DIR", "SSL_CERT_FILE"),
)
"""Variables that the fork server and its processes get: all others, which may hold secrets, stay here."""
_ENVIRONMENT = {
    # Threads and arenas from before a fork are useless after it, and count against the memory limit.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
}


Work = Callable[..., None]
"""The main function of a process, which gets its sockets."""


class ForkServer:
    """Starts and calls the fork server. Any thread may use it."""

    def __init__(
        self, module: str = "gpuwarden_collector.forked", kept: Collection[str] = KEPT
    ) -> None:
        """`module`: is run, and calls `main`. `kept`: the variables that it gets."""
        self._module = module
        self._kept = kept
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._has_forked = False
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self, ends: Sequence[int], kind: bytes = QUERY) -> int:
        """Fork a process that gets `ends`, each one end of a socket pair; its process id. Closes them. Raises OSError."""
        try:
            with self._lock:
                for is_last in (False, True):
                    try:
                        return self._forked(self._sock or self._start(), ends, kind)
                    except OSError:
                        self._stop()
                        if is_last:
                            raise
        finally:
            for end in ends:
                os.close(end)
        raise AssertionError

    def stop(self) -> None:
        """Kill it, with all processes that it forked. The next `spawn` starts another."""
        with self._lock:
            self._stop()

    @property
    def pid(self) -> int | None:
        """Its process id; None: it does not run."""
        return None if self._process is None else self._process.pid

    def _forked(self, sock: socket.socket, ends: Sequence[int], kind: bytes) -> int:
        sock.settimeout(FORK_S if self._has_forked else START_S)
        socket.send_fds(sock, [kind], ends)
        answer = sock.recv(8)
        if len(answer) != 8:
            raise ConnectionError("the process that forks query processes has ended")
        self._has_forked = True
        return int.from_bytes(answer, "little")

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                # -P: do not import from the working directory.
                [sys.executable, "-P", "-m", self._module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={
                    **{name: os.environ[name] for name in self._kept if name in os.environ},
                    **_ENVIRONMENT,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
                start_new_session=True,  # Ctrl-C goes to the starting process, which then ends this one
            )
        self._sock, self._has_forked = ours, False
        return ours

    def _stop(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self._process is not None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):  # it may hang in the kernel, on a disk
                self._process.wait(END_S)
            self._process = None


_server = ForkServer()
atexit.register(_server.stop)


def spawn(ends: Sequence[int], kind: bytes = QUERY) -> int:
    """Fork a process by this process's fork server, as `ForkServer.spawn`."""
    return _server.spawn(ends, kind)


def serve(control: socket.socket, works: Mapping[bytes, Work]) -> None:
    """Fork a process for each request until the other side closes `control`."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps ended processes
    gc.freeze()
    parent = os.getpid()
    while True:
        try:
            asked, numbers, _, _ = socket.recv_fds(control, 1, _ENDS_MAX)
        except OSError:
            return
        if not asked:
            return
        if not numbers:
            continue
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.nice(_NICE[asked])
                _work(works[asked], _NAMES[asked], numbers, parent)
                status = 0
            except BaseException:  # noqa: BLE001  the process ends with it
                traceback.print_exc()
            finally:
                os._exit(status)
        for number in numbers:
            os.close(number)
        with suppress(OSError):
            control.sendall(pid.to_bytes(8, "little"))


def _work(work: Work, name: str, numbers: Sequence[int], parent: int) -> None:
    end_with_parent(name, parent)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # The limit may be infinite; the fork server itself has a handful of files.
    last = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 16)
    for before, number in pairwise((2, *sorted(numbers), last)):
        os.closerange(before + 1, number)
    work(*(socket.socket(fileno=number) for number in numbers))


def main(works: Callable[[], Mapping[bytes, Work]]) -> None:
    """Serve requests on the socket whose file descriptor is the first argument. `works`: imports the main functions
    of the processes, by kind."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A service manager may send SIGTERM to all processes; running queries are answered until the collector
    # has ended.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # With autogroup (sched(7)) niceness counts only within a session, and this process has its own.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICE[RULES]))
    keep_small()
    serve(control, works())
    os.killpg(0, signal.SIGKILL)


_POLL_S = 0.01


class ProcessHandle:
    """A process id that cannot be reused until `close`, where the platform allows it."""

    def __init__(self, pid: int, *, by_number: bool = sys.platform != "linux") -> None:
        """Raises OSError when there is no such process."""
        self.pid = pid
        self._pidfd = -1
        if by_number:
            os.kill(pid, 0)
        elif sys.platform == "linux":
            self._pidfd = os.pidfd_open(pid)

    def kill(self) -> None:
        """Kill the process, if it has not ended."""
        with suppress(ProcessLookupError):
            if self._pidfd < 0:
                os.kill(self.pid, signal.SIGKILL)
            elif sys.platform == "linux":
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait_ended(self, timeout_s: float) -> bool:
        """Wait until the process has ended and its files are closed; whether it has ended in time."""
        if self._pidfd >= 0:
            # Not select(), which fails for descriptors above 1,023: a collector has one for each agent.
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            return bool(poll.poll(timeout_s * 1000))
        for _ in range(int(timeout_s / _POLL_S)):
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return True
            time.sleep(_POLL_S)
        return False

    def close(self) -> None:
        """Close the handle."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
