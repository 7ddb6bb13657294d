"""Reads small files of /sys and /proc: what a device does not have is absent, what fails is also counted."""

import errno
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")

REASONS_MAX = 100
TEXT_BYTES = 4096
"""A page: what an attribute of sysfs is at most."""
BINARY_BYTES_MAX = 1 << 20

NOT_THERE = frozenset({errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP, errno.ENODATA})
"""Errors that say that the device does not have the reading."""


class DeviceFiles:
    """Files of one device."""

    def __init__(self, device: Mapping[str, object], not_there: frozenset[int] = NOT_THERE) -> None:
        """`device`: what the log calls it by. `not_there`: errors that are no failure."""
        self.failed: Counter[str] = Counter()
        """Failed readings by "FILE: WHY"."""
        self._device = device
        self._not_there = not_there

    def read(self, path: Path, parser: Callable[[str], T]) -> T | None:
        """What `parser` makes of the file; None: absent."""
        return self._read(path, lambda: parser(text_of(path)))

    def read_whole(self, path: Path, parser: Callable[[bytes], T]) -> T | None:
        """What `parser` makes of a binary file, which may be longer than a page; None: absent."""
        return self._read(path, lambda: parser(_whole(path)))

    def note(self, reason: str) -> None:
        """Count a failed reading."""
        # Content is part of some reasons: a device that makes up new garbage must not fill memory.
        if reason not in self.failed and len(self.failed) >= REASONS_MAX:
            reason = "others"
        self.failed[reason] += 1
        if self.failed[reason] == 1:
            log.warning("reading failed", extra={**self._device, "error": reason})

    def _read(self, path: Path, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except OSError as error:
            if error.errno not in self._not_there:
                self.note(f"{path.name}: {errno.errorcode.get(error.errno or 0, 'OSError')}")
        except ValueError as error:
            self.note(f"{path.name}: {error}")
        return None


def text_of(path: Path | str) -> str:
    """Text of an attribute. Raises OSError."""
    return _bytes_of(path, TEXT_BYTES).decode(errors="replace")


def read_text(path: Path | str) -> str | None:
    """Text of an attribute; None where it is not there or may not be read."""
    try:
        return text_of(path)
    except OSError:
        return None


def first_bytes(path: Path, count: int) -> bytes:
    """Empty where the file cannot be read."""
    try:
        return _bytes_of(path, count)
    except OSError:
        return b""


def listed(folder: Path) -> list[str]:
    """Names in a folder; none where it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def is_there(path: Path) -> bool:
    """Whether the file exists; True also where permission to look is missing, so that the caller reports it."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def driver_of(device: Path) -> str | None:
    """Name of the driver that serves a PCI device."""
    try:
        return os.path.basename(os.readlink(device / "driver"))
    except OSError:
        return None


def _bytes_of(path: Path | str, count: int) -> bytes:
    # Attributes of sysfs are made by one read, and each read asks the device again.
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, count)
    finally:
        os.close(file)


def _whole(path: Path) -> bytes:
    # The kernel gives a binary attribute page by page, whatever the size asked for.
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    parts: list[bytes] = []
    size = 0
    try:
        while size < BINARY_BYTES_MAX and (part := os.read(file, BINARY_BYTES_MAX - size)):
            parts.append(part)
            size += len(part)
    finally:
        os.close(file)
    return b"".join(parts)
