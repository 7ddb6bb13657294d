"""Runs the tools of vendors: one that prints and ends, and one that prints a line for each reading.

Tools run without a shell, without input, in the C locale, below a deadline, and what they print is
bounded. A tool that fails is a ProbeError that names it, its exit status and its last words.
"""

import contextlib
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuwarden.clock import Clock
from gpuwarden_agent.probe import ProbeError

OUTPUT_BYTES_MAX = 4 << 20
LINE_BYTES_MAX = 1 << 20
WORDS_MAX = 200
"""Characters of a tool's last words in an error."""
RESTART_S_MIN, RESTART_S_MAX = 1.0, 60.0


def output_of(command: Sequence[str], limit_s: float, folder: str | None = None) -> str:
    """What the tool prints, run in `folder`. Raises ProbeError where it cannot be run, fails, or takes longer than `limit_s`."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
            cwd=folder,
            env=_environment(),
        )
    except OSError as error:
        raise ProbeError(f"{name} cannot be run: {error.strerror or error}") from error
    except subprocess.TimeoutExpired:
        raise ProbeError(f"{name} gave no answer within {limit_s:g} s") from None
    if done.returncode != 0:
        raise ProbeError(f"{name} failed with {_status(done.returncode)}{_words(done.stderr)}")
    if len(done.stdout) > OUTPUT_BYTES_MAX:
        raise ProbeError(f"{name} printed {len(done.stdout)} bytes: more than a reading can have")
    return done.stdout.decode(errors="replace")


class LineTool:
    """A tool that runs on and prints one line for each reading; started by the first `newest`.

    One thread reads it. A tool that ends is started again, after a pause that doubles up to a minute
    while it prints nothing.
    """

    def __init__(
        self, command: Sequence[str], clock: Clock, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = Path(command[0]).name
        self._command = tuple(command)
        self._clock = clock
        self._environment = {**_environment(), **(environment or {})}
        self._lock = threading.Lock()
        self._printed = threading.Condition(self._lock)
        self._line: tuple[float, str] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._last_words = b""
        self._start_at = 0.0
        self._pause_s = RESTART_S_MIN
        self.starts = 0
        """How often it was started."""

    def newest(self, age_s_max: float, first_wait_s: float = 0.0) -> str:
        """The newest line. Raises ProbeError when there is none, or it is older than `age_s_max`. The first call waits
        for a line, `first_wait_s` at most.
        """
        now = self._clock.monotonic()
        is_first = self.starts == 0
        ended = self._keep_running(now)
        with self._printed:
            if is_first:
                self._printed.wait_for(lambda: self._line is not None, first_wait_s)
                now = self._clock.monotonic()
            line = self._line
        if line is not None and now - line[0] <= age_s_max:
            return line[1]
        if ended is not None:
            raise ProbeError(f"{self.name} ended with {ended}; it is started again")
        raise ProbeError(f"{self.name} has printed no reading for {age_s_max:g} s")

    def close(self) -> None:
        """End the tool."""
        child, self._child = self._child, None
        if child is None:
            return
        child.terminate()
        try:
            child.wait(1)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _keep_running(self, now: float) -> str | None:
        """Start the tool if it does not run and its pause is over; returns how it ended, if it did."""
        child = self._child
        if child is not None and (status := child.poll()) is None:
            return None
        ended = None
        if child is not None:
            ended = f"{_status(status)}{_words(self._last_words)}"
            self._child = None
            with self._lock:
                printed, self._line = self._line is not None, None
            self._pause_s = RESTART_S_MIN if printed else min(2 * self._pause_s, RESTART_S_MAX)
            self._start_at = now + self._pause_s
        if now >= self._start_at:
            self._start()
        return ended

    def _start(self) -> None:
        try:
            child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
            )
        except OSError as error:
            self._start_at = self._clock.monotonic() + RESTART_S_MAX
            raise ProbeError(f"{self.name} cannot be run: {error.strerror or error}") from error
        self.starts += 1
        self._child = child
        for read in (self._read_lines, self._read_words):
            threading.Thread(target=read, args=(child,), name=self.name, daemon=True).start()

    def _read_lines(self, child: "subprocess.Popen[bytes]") -> None:
        pipe = child.stdout
        assert pipe is not None
        with contextlib.closing(pipe):
            while line := pipe.readline(LINE_BYTES_MAX):
                if not line.endswith(b"\n"):
                    # Longer than a reading can be, or cut off by the tool's end.
                    while line and not line.endswith(b"\n"):
                        line = pipe.readline(LINE_BYTES_MAX)
                    continue
                with self._lock:
                    if child is self._child:
                        text = line.decode(errors="replace")
                        self._line = self._clock.monotonic(), text
                        self._printed.notify_all()

    def _read_words(self, child: "subprocess.Popen[bytes]") -> None:
        pipe = child.stderr
        assert pipe is not None
        with contextlib.closing(pipe):
            while line := pipe.readline(LINE_BYTES_MAX):
                if child is self._child and line.strip():
                    self._last_words = line


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C"}


def _status(code: int | None) -> str:
    return f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"


def _words(printed: bytes) -> str:
    lines = printed.decode(errors="replace").strip().splitlines()
    return f": {lines[-1].strip()[:WORDS_MAX]}" if lines else ""
