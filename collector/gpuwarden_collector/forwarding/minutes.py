"""Keeps the minute up to which a receiver has what is queried of a source, in a file for each receiver and source."""

import json
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gpuwarden.files import write_whole
from gpuwarden_collector.storage.kept_segments import FORWARDING

MINUTES = "minutes"


class MinuteFile:
    """Implements `MinutePosition`."""

    def __init__(self, path: Path, first_ms: int) -> None:
        """`first_ms`: the position, if there is no file. Raises OSError, ValueError for a damaged file."""
        self._path = path
        self.position_ms, self.sending_ms = first_ms, None
        with suppress(FileNotFoundError):
            said = json.loads(path.read_text())
            self.position_ms, self.sending_ms = int(said["position_ms"]), said["sending_ms"]
            return
        self.confirm(first_ms)

    position_ms: int
    sending_ms: int | None

    def note_sending(self, until_ms: int) -> None:
        """As of MinutePosition."""
        self._write(self.position_ms, until_ms)

    def confirm(self, until_ms: int) -> None:
        """As of MinutePosition."""
        self._write(until_ms, None)

    def _write(self, position_ms: int, sending_ms: int | None) -> None:
        said = {"position_ms": position_ms, "sending_ms": sending_ms}
        write_whole(self._path, json.dumps(said).encode() + b"\n", mode=0o640)
        self.position_ms, self.sending_ms = position_ms, sending_ms


def minutes_folder(data_dir: Path, name: str) -> Path:
    """The folder of a receiver's files."""
    return data_dir / FORWARDING / MINUTES / name


def begin_minutes(data_dir: Path, names: Iterable[str]) -> None:
    """Make the folders of these receivers, and delete those of others. Raises OSError."""
    wanted = {minutes_folder(data_dir, name) for name in names}
    for folder in wanted:
        folder.mkdir(parents=True, exist_ok=True)
    for folder in (data_dir / FORWARDING / MINUTES).iterdir():
        if folder not in wanted:
            shutil.rmtree(folder)
