"""Reads small files of /sys and /proc. A missing file is absent; a failed reading is absent and counted."""

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
"""A page: the largest size of a sysfs attribute."""
BINARY_BYTES_MAX = 1 << 20

NOT_THERE = frozenset({errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP, errno.ENODATA})
"""Errors that mean that the device does not have the reading."""


class DeviceFiles:
    """Files of one device."""

    def __init__(self, device: Mapping[str, object], not_there: frozenset[int] = NOT_THERE) -> None:
        """`device`: fields for the log. `not_there`: errors that are not failures."""
        self.failed: Counter[str] = Counter()
        """Failed readings by "FILE: WHY"."""
        self._device = device
        self._not_there = not_there

    def read(self, path: Path, parser: Callable[[str], T]) -> T | None:
        """Parse the file; None: absent."""
        return self._read(path, lambda: parser(text_of(path)))

    def read_whole(self, path: Path, parser: Callable[[bytes], T]) -> T | None:
        """Parse a binary file, which may be longer than a page; None: absent."""
        return self._read(path, lambda: parser(_whole(path)))

    def note(self, reason: str) -> None:
        """Count a failed reading."""
        # Reasons may contain file content: invalid content that always changes must not fill memory.
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
    """Text of an attribute; None if it cannot be read."""
    try:
        return text_of(path)
    except OSError:
        return None


def first_bytes(path: Path, count: int) -> bytes:
    """The first bytes of a file; empty if it cannot be read."""
    try:
        return _bytes_of(path, count)
    except OSError:
        return b""


def listed(folder: Path) -> list[str]:
    """Names in a folder; none if it cannot be read."""
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
    # One read returns a whole attribute of sysfs, and each read asks the device again.
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, count)
    finally:
        os.close(file)


def _whole(path: Path) -> bytes:
    # The kernel returns a binary attribute page by page.
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
