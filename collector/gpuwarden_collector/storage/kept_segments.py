"""Keeps sealed segments for receivers that are behind, in a folder of their own, until forwarding deletes them.

The folder exists if and only if rows are forwarded. A sealed segment moves there instead of being deleted, so neither
queries nor seals see it.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from gpuwarden.files import sync_folder
from gpuwarden_collector.storage.segment import FOLDER, segment_numbers, segment_path

FORWARDING = "forwarding"
"""Folder in the data folder: positions of receivers, and kept segments in its folder `segments`."""


def kept_folder(data_dir: Path) -> Path:
    """The folder of kept segments."""
    return data_dir / FORWARDING / FOLDER


def delete_or_keep(data_dir: Path, number: int) -> None:
    """Delete a segment that the lake holds, or keep it for receivers. Raises OSError."""
    path, folder = segment_path(data_dir / FOLDER, number), kept_folder(data_dir)
    if folder.is_dir():
        with suppress(FileNotFoundError):
            path.rename(segment_path(folder, number))
            sync_folder(folder)
    else:
        path.unlink(missing_ok=True)


def kept_bytes(data_dir: Path) -> dict[int, int]:
    """Sizes of kept segments by number, oldest first."""
    folder = kept_folder(data_dir)
    found = {}
    for number in segment_numbers(folder):
        with suppress(OSError):
            found[number] = segment_path(folder, number).stat().st_size
    return found


def begin_keeping(data_dir: Path) -> None:
    """Create the folder. Raises OSError."""
    kept_folder(data_dir).mkdir(mode=0o750, parents=True, exist_ok=True)
    sync_folder(data_dir)


def end_keeping(data_dir: Path) -> int:
    """Remove the folder with positions and kept segments; the number of these. Raises OSError."""
    number = len(segment_numbers(kept_folder(data_dir)))
    if (data_dir / FORWARDING).exists():
        shutil.rmtree(data_dir / FORWARDING)
    return number
