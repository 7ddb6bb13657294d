"""Starts processes in groups of their own, none of which outlives the run."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

_started: list["subprocess.Popen[str]"] = []


def start(command: Sequence[str], **more: Any) -> "subprocess.Popen[str]":
    """Start one, as subprocess.Popen does."""
    process = subprocess.Popen(command, text=True, start_new_session=True, **more)
    _started.append(process)
    return process


def gpuwarden(*arguments: str) -> list[str]:
    """A command line of the checkout that is on the path."""
    main = "import sys; from gpuwarden_cli.main import main; sys.exit(main())"
    return [sys.executable, "-c", main, *arguments]


def kill(group: int) -> None:
    """Kill a process group, if it is there."""
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)


def kill_all() -> None:
    """Kill every one that still runs."""
    for process in _started:
        if process.poll() is None:
            kill(process.pid)
