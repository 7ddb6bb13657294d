"""A disk that records every write and flush, so that any instant of it can be mounted again.

A process serves one file over FUSE and appends each write and flush to a record; a loop device with a
file system is on the file. A power cut at `position` leaves what was flushed before it, and of what
was written since, whatever the disk pleases: see `Left`.
"""

import errno
import mmap
import os
import signal
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from random import Random

DISK_BYTES = 512 * 1024 * 1024
DISK, RECORD, POSITION = "disk", "record", "position"
_WRITE, _FLUSH = 0, 1
_HEAD = struct.Struct("<BQI")
"""Kind, offset, length; the bytes of a write follow."""
_READY_S = 20.0


class Left(StrEnum):
    """Which writes since the last flush a power cut keeps."""

    ALL = "all"
    NONE = "none"
    SOME = "some"


def run(*command: str) -> None:
    """Run a command. Raises CalledProcessError, whose `stderr` says why."""
    subprocess.run(command, check=True, capture_output=True)


class Position:
    """How many writes and flushes there were, shared between processes."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)

    @property
    def now(self) -> int:
        return int.from_bytes(self._shared[:8], "little")

    def advance(self) -> None:
        self._shared[:8] = (self.now + 1).to_bytes(8, "little")


class RecordedDisk:
    """A mounted ext4 in a folder; its record and its position are beside it."""

    def __init__(self, folder: Path, stack: ExitStack, options: str) -> None:
        """`options`: of mount(8), such as "commit=300"."""
        self.folder = folder
        folder.mkdir(parents=True)
        disk = folder / DISK
        disk.touch()
        os.truncate(disk, DISK_BYTES)
        run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(disk))
        run("cp", "--sparse=always", str(disk), str(folder / "first"))
        self.position = Position(folder / POSITION)
        served = folder / "served"
        served.mkdir()
        server = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder), str(served)], stderr=subprocess.DEVNULL
        )
        stack.callback(end, server)
        stack.callback(run, "umount", "--lazy", str(served))
        deadline_s = time.monotonic() + _READY_S
        while not (served / DISK).exists():
            if time.monotonic() > deadline_s or server.poll() is not None:
                raise RuntimeError("the recording disk does not start: is FUSE available?")
            time.sleep(0.02)
        self.path = folder / "mounted"
        stack.enter_context(mounted(served / DISK, self.path, options))


@contextmanager
def mounted(file: Path, place: Path, options: str = "") -> Iterator[Path]:
    """Mount a file system that is in a file for as long as the block runs."""
    place.mkdir(exist_ok=True)
    run("mount", "-o", ",".join(filter(None, ("loop", options))), str(file), str(place))
    try:
        yield place
    finally:
        for _ in range(50):
            with suppress(subprocess.CalledProcessError):
                run("umount", str(place))
                break
            time.sleep(0.1)
        else:
            run("umount", "--lazy", str(place))


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, by force after a while."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(5)
    process.kill()
    process.wait()


class Images:
    """The disk as power cuts leave it, at positions that only grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._flushed = folder / "flushed"
        """Everything up to the newest flush that was passed."""
        run("cp", "--sparse=always", str(folder / "first"), str(self._flushed))
        self._record = (folder / RECORD).open("rb")
        self._passed = 0
        self._since: list[tuple[int, bytes]] = []
        self._count = 0

    def at(self, position: int, left: Left, random: Random) -> Path:
        """An image of the disk after that many writes and flushes."""
        with self._flushed.open("r+b") as file:
            while self._passed < position:
                self._pass_one(file.fileno())
        self._count += 1
        image = self._folder / f"image-{self._count}"
        run("cp", "--sparse=always", str(self._flushed), str(image))
        with image.open("r+b") as file:
            for offset, data in self._since:
                if left is Left.ALL or (left is Left.SOME and random.random() < 0.5):
                    os.pwrite(file.fileno(), data, offset)
        return image

    def _pass_one(self, flushed: int) -> None:
        head = self._record.read(_HEAD.size)
        kind, offset, length = _HEAD.unpack(head)
        self._passed += 1
        if kind == _WRITE:
            self._since.append((offset, self._record.read(length)))
            return
        for at, data in self._since:
            os.pwrite(flushed, data, at)
        self._since.clear()


def serve(folder: Path, place: Path) -> None:
    """Serve the disk of a folder until it is unmounted."""
    import mfusepy

    disk = os.open(folder / DISK, os.O_RDWR)
    record = os.open(folder / RECORD, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    position = Position(folder / POSITION)

    class Served(mfusepy.Operations):  # type: ignore[misc]  # no types there
        use_ns = True

        def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
            del fh
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
            if path != f"/{DISK}":
                raise mfusepy.FuseOSError(errno.ENOENT)
            return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": DISK_BYTES}

        def readdir(self, path: str, fh: int) -> list[str]:
            del path, fh
            return [".", "..", DISK]

        def open(self, path: str, flags: int) -> int:
            del path, flags
            return 0

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            del path, fh
            return os.pread(disk, size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            del path, fh
            os.pwrite(disk, data, offset)
            os.writev(record, (_HEAD.pack(_WRITE, offset, len(data)), data))
            position.advance()
            return len(data)

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            del path, datasync, fh
            os.write(record, _HEAD.pack(_FLUSH, 0, 0))
            position.advance()
            return 0

    mfusepy.FUSE(Served(), str(place), foreground=True, nothreads=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))
