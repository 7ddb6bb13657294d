"""A process that has imported what queries need and forks query processes on request.

Started once by whoever needs it (`spawn`). A fork takes milliseconds where a new interpreter takes the
better part of a second, and its processes share the pages of what they have imported. It ends with the
process that started it, however that ends, and takes all that it has forked with it: they are one
process group, which it kills; the kernel does so should it be killed itself.

    python -m gpuwarden_collector.forked FD
"""

import atexit
import contextlib
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from gpuwarden_collector.processes.footprint import keep_small
from gpuwarden_collector.processes.sandbox import end_with_parent

START_S = 30.0
"""Most time that it may take to start and to fork for the first time."""
FORK_S = 5.0
"""Most time that it may take to fork from then on: who takes longer is stopped, or stuck, and is replaced."""
END_S = 5.0
"""Most time that it is waited for when it was killed."""
QUERY, RULES, STORAGE = b"q", b"r", b"s"
"""Kinds of processes, as they are asked for."""
_NAMES = {QUERY: "gpuwarden-query", RULES: "gpuwarden-query", STORAGE: "gpuwarden-store"}
_NICE = {RULES: 2, STORAGE: 5, QUERY: 10}
"""Added to what the process that acknowledges samples has, so that it gets a core before these do: then
queries of rules, what moves rows to the lake, and last what people ask."""
_ENVIRONMENT = {
    # Threads and arenas made before a fork would be of no use, and count against the limit of memory.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
}


class ForkServer:
    """The way to the process; for any thread."""

    def __init__(self, module: str = "gpuwarden_collector.forked") -> None:
        """`module`: what is run, which calls `main`."""
        self._module = module
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._has_forked = False
        self._process: subprocess.Popen[bytes] | None = None

    def spawn(self, end: int, kind: bytes = QUERY) -> int:
        """Fork a process that holds `end`, one end of a pair of sockets; its process id.

        `end` is closed. Raises OSError.
        """
        try:
            with self._lock:
                for is_last in (False, True):
                    try:
                        return self._forked(self._sock or self._start(), end, kind)
                    except OSError:
                        self._stop()
                        if is_last:
                            raise
        finally:
            os.close(end)
        raise AssertionError

    def stop(self) -> None:
        """End it, and with it all that it has forked. The next `spawn` starts another."""
        with self._lock:
            self._stop()

    @property
    def pid(self) -> int | None:
        """Of its process; None: there is none."""
        return None if self._process is None else self._process.pid

    def _forked(self, sock: socket.socket, end: int, kind: bytes) -> int:
        sock.settimeout(FORK_S if self._has_forked else START_S)
        socket.send_fds(sock, [kind], [end])
        answer = sock.recv(8)
        if len(answer) != 8:
            raise ConnectionError("the process that forks query processes has ended")
        self._has_forked = True
        return int.from_bytes(answer, "little")

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                # -P: where this process was started is no place to import from.
                [sys.executable, "-P", "-m", self._module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={
                    **os.environ,
                    **_ENVIRONMENT,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
                start_new_session=True,  # Ctrl-C is for whoever started it, who then ends it
            )
        self._sock, self._has_forked = ours, False
        return ours

    def _stop(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(
                subprocess.TimeoutExpired
            ):  # it is in the kernel, as for a disk
                self._process.wait(END_S)
            self._process = None


_server = ForkServer()
atexit.register(_server.stop)


def spawn(end: int, kind: bytes = QUERY) -> int:
    """Fork a query process, for people or for RULES, by the fork server of this process. As
    `ForkServer.spawn`."""
    return _server.spawn(end, kind)


def spawn_storage(end: int) -> int:
    """Fork a storage process. As `ForkServer.spawn`."""
    return _server.spawn(end, STORAGE)


def serve(control: socket.socket, works: Mapping[bytes, Callable[[socket.socket], None]]) -> None:
    """Fork a process for each request until the other side of `control` is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets those that have ended
    gc.freeze()
    parent = os.getpid()
    while True:
        try:
            asked, numbers, _, _ = socket.recv_fds(control, 1, 1)
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
                _work(works[asked], _NAMES[asked], numbers[0], parent)
                status = 0
            except BaseException:  # noqa: BLE001  the process ends with it
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(numbers[0])
        with contextlib.suppress(OSError):
            control.sendall(pid.to_bytes(8, "little"))


def _work(work: Callable[[socket.socket], None], name: str, number: int, parent: int) -> None:
    end_with_parent(name, parent)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.closerange(3, number)
    # The limit may be infinite; the fork server itself has a handful of files.
    os.closerange(number + 1, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 16))
    work(socket.socket(fileno=number))


def main(works: Callable[[], Mapping[bytes, Callable[[socket.socket], None]]]) -> None:
    """Serve the other side of the socket whose number is the first argument; `works`: imports what each kind
    of process does, by kind."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A service manager may tell all processes to end; those that asked get their answers until the one
    # that has started this one has ended.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Where the kernel groups processes by session, niceness counts only within a session, and this is one
    # of its own (sched(7), autogroup).
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICE[RULES]))
    keep_small()
    serve(control, works())
    os.killpg(0, signal.SIGKILL)


_POLL_S = 0.01


class ProcessHandle:
    """One process. `close` lets go of it, whether or not it has ended."""

    def __init__(self, pid: int, *, by_number: bool = sys.platform != "linux") -> None:
        """Raises OSError when there is no such process."""
        self.pid = pid
        self._pidfd = -1
        if by_number:
            os.kill(pid, 0)
        elif sys.platform == "linux":
            self._pidfd = os.pidfd_open(pid)

    def kill(self) -> None:
        """End it at once; nothing where it has ended."""
        with suppress(ProcessLookupError):
            if self._pidfd < 0:
                os.kill(self.pid, signal.SIGKILL)
            elif sys.platform == "linux":
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def wait_ended(self, timeout_s: float) -> bool:
        """Wait, for a bounded time, until it has ended and its files are closed; whether it has."""
        if self._pidfd >= 0:
            # Not select(), which takes no descriptor above 1,023: a collector has one for each agent.
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
        """Let go of it."""
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
