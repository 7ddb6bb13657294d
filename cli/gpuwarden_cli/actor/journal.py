"""Keeps what the actor began and how it ended: lines of JSON, each on disk before the next step is taken."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from gpuwarden.files import sync_folder


class JournalError(Exception):
    """The journal cannot be used; one line with its path."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An act that was begun; `is_done` None: its end is not known."""

    begun_at: datetime
    is_done: bool | None = None
    note: str = ""


class Journal:
    """The file. One process has it open."""

    def __init__(self, path: Path) -> None:
        """Read it, or create it. Raises JournalError."""
        self._path = path
        self.entries: dict[str, Entry] = {}
        """By id of the act."""
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            sync_folder(path.parent)
            content = path.read_bytes()
        except OSError as error:
            raise JournalError(f"{path}: {error.strerror}: give its folder to this user") from error
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:  # a line that a crash cut off was not acted upon
            self._cut(len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise JournalError(
                    f"{path}:{number}: not a line of this journal: move it away, and look what was done"
                ) from error

    def begin(self, name: str, now: datetime) -> None:
        """Note that an act begins. Raises JournalError, and then it must not be done."""
        self._write({"id": name, "begun_at": now.isoformat()})

    def end(self, name: str, *, is_done: bool, note: str) -> None:
        """Note how an act ended. Raises JournalError."""
        self._write({"id": name, "is_done": is_done, "note": note})

    def begun_since(self, at: datetime) -> int:
        """Acts that were begun since then."""
        return sum(entry.begun_at >= at for entry in self.entries.values())

    def may_begin(self, an_hour: int, now: datetime) -> bool:
        """Whether one more act may begin within the limit of acts in any hour."""
        return self.begun_since(now - timedelta(hours=1)) < an_hour

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _take(self, line: dict[str, object]) -> None:
        name = str(line["id"])
        if "begun_at" in line:
            self.entries[name] = Entry(datetime.fromisoformat(str(line["begun_at"])))
        else:
            begun = self.entries[name].begun_at
            self.entries[name] = Entry(begun, bool(line["is_done"]), str(line["note"]))

    def _write(self, line: dict[str, object]) -> None:
        data = json.dumps(line).encode() + b"\n"

        def write() -> None:
            if os.write(self._file, data) != len(data):
                raise OSError(28, "no space left on device")
            os.fsync(self._file)

        size = os.fstat(self._file).st_size
        try:
            write()
        except OSError as error:
            self._guarded(lambda: self._cut(size))
            raise JournalError(
                f"{self._path}: {error.strerror}: nothing is done until it can be written"
            ) from error
        self._take(line)

    def _cut(self, size: int) -> None:
        os.ftruncate(self._file, size)
        os.fsync(self._file)

    def _guarded(self, do: Callable[[], None]) -> None:
        try:
            do()
        except OSError as error:
            raise JournalError(f"{self._path}: {error.strerror}") from error
