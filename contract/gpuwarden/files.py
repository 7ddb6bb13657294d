"""Small files that must be whole and their owner's alone: written beside, synced, and renamed."""

import os
from pathlib import Path

Mark = tuple[int, int, int]


Owner = tuple[int, int]


def write_whole(
    path: Path, content: bytes, *, mode: int = 0o600, owner: Owner | None = None
) -> None:
    """Put `content` in the place of whatever the path holds; also after a crash it is one or the other.

    `owner`: user and group ids; None: written by root, it belongs to the owner of its folder, whose
    service reads it. Raises OSError.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    beside.unlink(missing_ok=True)
    handle = os.open(beside, flags, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask
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
    """Have the names in a folder on disk. Raises OSError."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sync_tree(path: Path) -> None:
    """Have a folder, and all that is in it, on disk. Raises OSError."""
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            number = os.open(os.path.join(folder, name), os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)
        sync_folder(Path(folder))


def mark_of(path: Path) -> Mark | None:
    """What changes when the file does; None: there is none, or it cannot be seen."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def make_folder(path: Path, *, mode: int = 0o755) -> None:
    """Make a folder and those above it; made by root, they belong to the owner of the first that was there.

    Raises OSError.
    """
    if path.is_dir():
        return
    make_folder(path.parent, mode=mode)
    path.mkdir(mode=mode, exist_ok=True)
    if os.geteuid() == 0:
        above = path.parent.stat()
        os.chown(path, above.st_uid, above.st_gid)
