"""Writes messages to a file, one line each, or to standard output."""

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpuwarden_rules.notify.json_body import line_of
from gpuwarden_rules.notify.message import Notification
from gpuwarden_rules.notify.receivers.receiver import TIMEOUT_S, Delivered, DeliveryDelayed, Outcome
from gpuwarden_rules.notify.sentences import Style, rendered


class LineFile:
    """A Receiver that appends JSON lines; logrotate may rename the file at any time."""

    timeout_s: float | None = TIMEOUT_S

    def __init__(self, path: Path, style: Style) -> None:
        self._path = path
        self._style = style
        # Its own thread: a disk that hangs must not delay others.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="notify-file")

    async def send(self, message: Notification) -> Outcome:
        line = line_of(message, self._style)
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, append, self._path, line)
        except OSError as error:
            return DeliveryDelayed(f"{self._path}: {error.strerror}")
        return Delivered(f"appended to {self._path}")

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def append(path: Path, line: str) -> None:
    """Append a line, durably; completes a line that a crash has cut off. Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    try:
        size = os.fstat(file).st_size
        is_cut_off = size > 0 and os.pread(file, 1, size - 1) != b"\n"
        data = ("\n" * is_cut_off + line + "\n").encode()
        written = os.write(file, data)
        if written < len(data):  # the disk is full: remove the partial line
            os.ftruncate(file, size)
            raise OSError(28, "No space left on device")
        os.fsync(file)
    finally:
        os.close(file)


class Output:
    """A Receiver that prints, for `gpuwarden up` and containers."""

    timeout_s: float | None = TIMEOUT_S

    def __init__(self, form: str, style: Style) -> None:
        self._form = form
        self._style = style

    async def send(self, message: Notification) -> Outcome:
        if self._form == "json":
            text = line_of(message, self._style)
        else:
            words = rendered(message, self._form, self._style)
            text = words.body if self._form == "short" else f"{words.title}\n{words.body}\n"
        try:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
        except OSError as error:
            return DeliveryDelayed(f"standard output: {error.strerror}")
        return Delivered("printed")

    async def close(self) -> None:
        """Do nothing: standard output stays open."""
