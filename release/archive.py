"""Writes archives that are the same bytes for the same content: no owner, no time, entries sorted."""

import hashlib
import io
import lzma
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

EPOCH_MIN = 315_532_800
"""1980-01-01, the first instant that a zip file can name."""
FORM = 3
"""Version of the output of `pack` and of what it is given; another number is another cache."""
_DICTIONARY_BYTES = 32 << 20


def source_date_epoch() -> int:
    """The time stamp of built files, as https://reproducible-builds.org defines it."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", EPOCH_MIN))


def pack(folder: Path, machine: str) -> bytes:
    """A .tar.xz of the folders, files and links in `folder`, sorted by name."""
    made = io.BytesIO()
    lzma2 = {"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": _DICTIONARY_BYTES}
    branches = [{"id": lzma.FILTER_X86}] if machine == "x86_64" else []
    with (
        lzma.open(made, "wb", filters=[*branches, lzma2]) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for path in sorted(folder.rglob("*"), key=lambda p: p.relative_to(folder).parts):
            _add(tar, path, str(path.relative_to(folder)))
    return made.getvalue()


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.mtime = EPOCH_MIN
    if path.is_symlink():
        entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
        tar.addfile(entry)
    elif path.is_dir():
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(entry)
    else:
        data = path.read_bytes()
        entry.size = len(data)
        entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
        tar.addfile(entry, io.BytesIO(data))


def unpacked_bytes(folder: Path) -> int:
    """Disk space of the files, each in blocks of 4 KiB."""
    return sum(
        -(-path.stat().st_size // 4096) * 4096
        for path in folder.rglob("*")
        if not path.is_symlink()
    )


def digest(entries: Mapping[str, bytes]) -> str:
    """A hash of the names and contents of a set of files."""
    found = hashlib.sha256()
    for name in sorted(entries):
        found.update(f"{name} {hashlib.sha256(entries[name]).hexdigest()}\n".encode())
    return found.hexdigest()
