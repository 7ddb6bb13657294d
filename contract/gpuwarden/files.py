"""Writes small files atomically and readable by their owner only: a temporary file, fsync, rename."""

import os
from pathlib import Path

Mark = tuple[int, int, int]


Owner = tuple[int, int]


def write_whole(
    path: Path, content: bytes, *, mode: int = 0o600, owner: Owner | None = None
) -> None:
    """Replace a file's content; after a crash the file has the old or the new content.

    `owner`: user and group ids. Without it a file that root writes belongs to the owner of its folder,
    whose service reads it. Raises OSError.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    beside.unlink(missing_ok=True)
    handle = os.open(beside, flags, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)  # independent of the umask
            if os.geteuid() == 0:
                folder_stat = path.parent.stat()
                os.fchown(file.fileno(), *(owner or (folder_stat.st_uid, folder_stat.st_gid)))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """fsync a folder, so that its names are on disk. Raises OSError."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sync_tree(path: Path) -> None:
    """fsync a folder and everything in it. Raises OSError."""
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            number = os.open(os.path.join(folder, name), os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)
        sync_folder(Path(folder))


def mark_of(path: Path) -> Mark | None:
    """Inode, size and modification time, which change with the file; None: there is no readable file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def make_folder(path: Path, *, mode: int = 0o755) -> None:
    """Make a folder and its parents. If root makes them, they belong to the owner of the nearest existing parent.

    Raises OSError.
    """
    if path.is_dir():
        return
    make_folder(path.parent, mode=mode)
    path.mkdir(mode=mode, exist_ok=True)
    if os.geteuid() == 0:
        above = path.parent.stat()
        os.chown(path, above.st_uid, above.st_gid)
