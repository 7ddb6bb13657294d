"""Reads the state of NVIDIA's fabric manager and the kind of NVIDIA's kernel module: facts of the node.

Without the fabric manager no CUDA program starts on GPUs behind NVSwitches. Its process, on the host or
in a container, is found in /proc. If it is installed and does not run, systemd is asked why, at most
once in ten minutes. Its version is read once for each program file.
"""

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpuwarden.clock import Clock
from gpuwarden_agent.probe import Value

UNIT = "nvidia-fabricmanager.service"
COMM = "nv-fabricmanage"
"""Its name in the kernel, which has at most fifteen characters."""

ASK_EVERY_S = 600.0
COMMAND_LIMIT_S = 1.0

_PROGRAM = "usr/bin/nv-fabricmanager"
_UNIT_FOLDERS = ("etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
_VERSION = re.compile(r"\d{3,}\.\d+(?:\.\d+)*")

Run = Callable[[Sequence[str]], str | None]
"""Runs a command; returns its output, or None if it failed to run in time."""


def kernel_module(text: str) -> str | None:
    """Kind of the module in /proc/driver/nvidia/version; None: unknown format."""
    _, found, module = text.partition("NVRM version:")
    line = module.partition("\n")[0]
    if not found or "Kernel Module" not in line:
        return None
    return "open" if "Open Kernel Module" in line else "proprietary"


def parse_version(text: str | None) -> str | None:
    """The version in what `nv-fabricmanager --version` writes; None: there is none."""
    found = _VERSION.search(text or "")
    return found.group() if found else None


def state(is_running: bool, is_installed: bool, unit_state: str | None) -> str | None:
    """Column `fabric_manager` of `nodes`. `unit_state`: that of systemd, None if unknown.

    A unit that restarts repeatedly, for example with the wrong version, is "activating" most of
    the time.
    """
    if is_running:
        return "active"
    if unit_state in ("failed", "activating"):
        return "failed"
    return "inactive" if is_installed else None


class FabricManager:
    """Reads the fabric manager of this node."""

    def __init__(
        self,
        clock: Clock,
        proc: Path = Path("/proc"),
        root: Path = Path("/"),
        run: Run | None = None,
    ) -> None:
        self._clock = clock
        self._proc = proc
        self._root = root
        self._run = run or run_command
        self._pid: str | None = None
        self._unit_state: str | None = None
        self._asked_s = -float("inf")
        self._version: str | None = None
        self._version_of: tuple[int, int, int] | None = None

    def facts(self) -> Mapping[str, Value]:
        """Columns of `nodes`; none where NVIDIA's driver is not loaded."""
        if not (self._proc / "driver/nvidia").exists():
            return {}
        is_running, is_installed = self._is_running(), self._is_installed()
        if is_running:
            self._unit_state, self._asked_s = None, -float("inf")
        elif is_installed and self._clock.monotonic() - self._asked_s >= ASK_EVERY_S:
            self._asked_s = self._clock.monotonic()
            answer = self._run(("systemctl", "is-active", UNIT))
            self._unit_state = (answer or "").strip() or None
        return {
            "fabric_manager": state(is_running, is_installed, self._unit_state),
            "fabric_manager_version": self._installed_version(),
        }

    def _is_running(self) -> bool:
        if self._pid is not None and self._is_it(self._pid):
            return True
        pids = (name for name in os.listdir(self._proc) if name.isdecimal())
        self._pid = next((pid for pid in pids if self._is_it(pid)), None)
        return self._pid is not None

    def _is_it(self, pid: str) -> bool:
        try:
            return (self._proc / pid / "comm").read_text(errors="replace").strip() == COMM
        except OSError:
            return False

    def _is_installed(self) -> bool:
        places = (self._root / folder / UNIT for folder in _UNIT_FOLDERS)
        return (self._root / _PROGRAM).exists() or any(place.exists() for place in places)

    def _installed_version(self) -> str | None:
        program = self._root / _PROGRAM
        try:
            found = program.stat()
        except OSError:
            self._version_of = None
            return None
        identity = (found.st_ino, found.st_size, found.st_mtime_ns)
        if identity != self._version_of:
            self._version_of = identity
            self._version = parse_version(self._run((str(program), "--version")))
        return self._version


def run_command(command: Sequence[str]) -> str | None:
    """The command's output, with any exit status; None if it could not be run in time."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace")
