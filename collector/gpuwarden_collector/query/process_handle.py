"""Kills a process that the fork server made, and waits until it has ended.

On Linux by a pidfd: a number may be another process's by the time that it is killed. Elsewhere by the
number; the fork server reaps at once, so that a number without a process is one that has ended.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress

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
