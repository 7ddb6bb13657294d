"""A folder whose writes and syncs fail on demand: everything else is passed through.

`python -m bench.chaos.faulty_folder FOLDER PLACE`: PLACE shows FOLDER. While `FOLDER.errno` exists, writes and
syncs fail with the number in it, such as 5 (EIO) or 28 (ENOSPC).
"""

import os
import sys
from pathlib import Path
from typing import Any

import mfusepy


class Served(mfusepy.Operations):  # type: ignore[misc]  # no types there
    """Passes calls through to a folder."""

    use_ns = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._errno = folder.with_name(f"{folder.name}.errno")

    def _fail(self) -> None:
        if self._errno.exists():
            raise mfusepy.FuseOSError(int(self._errno.read_text()))

    def _inside(self, path: str) -> str:
        return f"{self._folder}{path}"

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        found = os.lstat(self._inside(path)) if fh is None else os.fstat(fh)
        names = ("mode", "nlink", "size", "uid", "gid", "ino")
        times = {f"st_{n}time": getattr(found, f"st_{n}time_ns") for n in "amc"}
        return {f"st_{n}": getattr(found, f"st_{n}") for n in names} | times

    def readdir(self, path: str, fh: int) -> list[str]:
        del fh
        return [".", "..", *os.listdir(self._inside(path))]

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._inside(path))
        return {n: getattr(found, n) for n in dir(found) if n.startswith("f_") and n != "f_fsid"}

    def access(self, path: str, amode: int) -> int:
        del path, amode
        return 0

    def mknod(self, path: str, mode: int, dev: int) -> int:
        """Refuse special files; regular files come through `create`."""
        self._fail()
        os.mknod(self._inside(path), mode, dev)
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        self._fail()
        os.mkdir(self._inside(path), mode)
        return 0

    def rmdir(self, path: str) -> int:
        os.rmdir(self._inside(path))
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self._inside(path))
        return 0

    def rename(self, old: str, new: str) -> int:
        self._fail()
        os.rename(self._inside(old), self._inside(new))
        return 0

    def link(self, target: str, source: str) -> int:
        self._fail()
        os.link(self._inside(source), self._inside(target))
        return 0

    def symlink(self, target: str, source: str) -> int:
        os.symlink(source, self._inside(target))
        return 0

    def readlink(self, path: str) -> str:
        return os.readlink(self._inside(path))

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._inside(path), mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        os.chown(self._inside(path), uid, gid)
        return 0

    def utimens(self, path: str, times: tuple[int, int]) -> int:
        os.utime(self._inside(path), ns=times)
        return 0

    def open(self, path: str, flags: int) -> int:
        return os.open(self._inside(path), flags & ~os.O_APPEND)

    def create(self, path: str, mode: int, fi: object = None) -> int:
        del fi
        self._fail()
        return os.open(self._inside(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        del path
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        del path
        self._fail()
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        self._fail()
        os.truncate(self._inside(path) if fh is None else fh, length)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        del path
        self._fail()
        (os.fdatasync if datasync else os.fsync)(fh)
        return 0

    def flush(self, path: str, fh: int) -> int:
        del path, fh
        return 0

    def release(self, path: str, fh: int) -> int:
        del path
        os.close(fh)
        return 0


if __name__ == "__main__":
    mfusepy.FUSE(Served(Path(sys.argv[1])), sys.argv[2], foreground=True, nothreads=True)
