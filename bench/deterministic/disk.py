"""Forgets what was not synced: a disk whose power can be cut, under files that are written for real.

The files are in a folder of memory, as the kernel's page cache has them, and are read there.
Functions of `os` that change files below that folder are watched (`Disks.watching`); what they did is on the
disk only once `fsync` or `fdatasync` was called for the file, and for its folder as to names. At a power cut the
disk keeps of the rest what the seed decides: of each file any sectors, of each folder the first so many changes of
names. A sync that fails with EIO loses what it was to write, and the next one succeeds without it, as on Linux.
"""

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

SECTOR = 512
_real = {
    name: getattr(os, name)
    for name in ("open", "close", "pwrite", "pwritev", "fsync", "fdatasync", "rename", "unlink")
}
"""The functions as they are without the watch."""


class PowerCut(BaseException):
    """The host has lost its power, or its process was killed: nothing of it runs any more."""


@dataclass(eq=False)
class _File:
    """One file, whatever its names are."""

    kept: bytes = b""
    """Durable content of the disk."""
    pending: list[tuple[int, bytes]] = field(default_factory=list)
    """Writes that it may lose, oldest first."""


@dataclass
class Disk:
    """The disk of one host: the files below `root`."""

    root: str
    rng: random.Random
    step: Callable[[str, str], None]
    """Called before each change with what is done to what; may raise OSError, or cut the power."""
    fails_sync: Callable[[], bool] = lambda: False
    """Whether this sync fails with EIO."""
    is_off: bool = False
    names: dict[str, _File] = field(default_factory=dict)
    kept_names: dict[str, _File] = field(default_factory=dict)
    changes: dict[str, list[tuple[str, str, _File | None]]] = field(default_factory=dict)
    """By folder: changes of names (kind, path, file) that it may lose, oldest first."""
    handles: dict[int, str] = field(default_factory=dict)
    """Paths of open files and folders."""
    _of: dict[int, _File] = field(default_factory=dict)

    def open(self, path: str, flags: int, number: int) -> None:
        """A file or folder was opened."""
        self.handles[number] = path
        if flags & os.O_DIRECTORY:
            return
        if path not in self.names:
            if not flags & os.O_CREAT:
                return
            self._name(path, _File())
        elif flags & os.O_TRUNC:
            self.names[path].pending.append((-1, b""))
        self._of[number] = self.names[path]

    def closed(self, number: int) -> None:
        """It was closed."""
        self.handles.pop(number, None)
        self._of.pop(number, None)

    def wrote(self, number: int, position: int, content: bytes) -> None:
        """Bytes are in the cache."""
        if number in self._of:
            self._of[number].pending.append((position, content))

    def sync(self, number: int) -> None:
        """Have a file's bytes, or a folder's names, on the disk."""
        path = self.handles[number]
        if os.path.isdir(path):
            for kind, name, file in self.changes.pop(path, ()):
                _rename(self.kept_names, kind, name, file)
            return
        if (file := self._of.get(number)) is None:
            file = self.names.get(path)
        if file is None:
            return
        if self.fails_sync():
            file.pending.clear()  # and the cache shows them all the same, until it is read again
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        file.kept = _written(file.kept, file.pending)
        file.pending.clear()

    def rename(self, old: str, new: str) -> None:
        """A file has another name."""
        file = self.names[old]
        self._note(old, "unlink", None)
        self._note(new, "name", file)
        del self.names[old]
        self.names[new] = file

    def unlink(self, path: str) -> None:
        """A name is gone."""
        if self.names.pop(path, None) is not None:
            self._note(path, "unlink", None)

    def durable(self, path: str) -> bytes | None:
        """What is left of a file by any power cut; None: maybe not even its name."""
        file = self.kept_names.get(path)
        return None if file is None else file.kept

    def close_all(self) -> None:
        """Close what a process left open."""
        for number in list(self.handles):
            self.closed(number)
            _real["close"](number)

    def forget(self) -> None:
        """The power was cut: have the folder hold what the disk has kept."""
        for changes in self.changes.values():
            for kind, path, file in changes[: self.rng.randint(0, len(changes))]:
                _rename(self.kept_names, kind, path, file)
        self.changes.clear()
        for path in set(self.names) - set(self.kept_names):
            _real["unlink"](path)
        self.names = dict(self.kept_names)
        for path, file in self.names.items():
            if file.pending:
                file.kept = _torn(file.kept, file.pending, self.rng)
                file.pending.clear()
            self._show(path, file)

    def drop_caches(self) -> None:
        """Have clean pages read from the disk again: what a failed sync has lost is seen to be lost."""
        for path, file in self.names.items():
            if not file.pending:
                self._show(path, file)

    def _show(self, path: str, file: _File) -> None:
        if Path(path).exists() and Path(path).read_bytes() == file.kept:
            return
        beside = Path(f"{path}.beside")  # who has the old one mapped keeps it
        beside.write_bytes(file.kept)
        _real["rename"](beside, path)

    def _name(self, path: str, file: _File) -> None:
        self.names[path] = file
        self._note(path, "name", file)

    def _note(self, path: str, kind: str, file: _File | None) -> None:
        self.changes.setdefault(os.path.dirname(path), []).append((kind, path, file))


def _rename(names: dict[str, _File], kind: str, path: str, file: _File | None) -> None:
    if kind == "unlink":
        names.pop(path, None)
    else:
        assert file is not None
        names[path] = file


def _written(kept: bytes, pending: list[tuple[int, bytes]]) -> bytes:
    content = bytearray(kept)
    for position, said in pending:
        if position < 0:
            content.clear()
            continue
        content.extend(bytes(max(0, position - len(content))))
        content[position : position + len(said)] = said
    return bytes(content)


def _torn(kept: bytes, pending: list[tuple[int, bytes]], rng: random.Random) -> bytes:
    """What a disk has of writes that it was not told to keep: none, all, or any sectors of them."""
    mode = rng.choice(("none", "all", "sectors", "size alone"))
    full = _written(kept, pending)
    if mode == "none":
        return kept
    if mode == "all":
        return full
    share = rng.random() if mode == "sectors" else 0.0
    content = bytearray(full if len(full) >= len(kept) else kept)
    for start in range(0, len(content), SECTOR):
        end = start + SECTOR
        if content[start:end] != kept[start:end] and rng.random() >= share:
            old = kept[start:end]
            content[start:end] = old.ljust(min(SECTOR, len(content) - start), b"\0")
    if rng.random() < 0.5:
        del content[max(len(kept), rng.randint(0, len(content))) :]
    return bytes(content)


class Disks:
    """The disks of several hosts."""

    def __init__(self, disks: list[Disk]) -> None:
        self._disks = disks

    @contextmanager
    def watching(self) -> Iterator[None]:
        """What `os` does to files of these disks within is theirs."""
        with mock.patch.multiple(
            os,
            open=self._open,
            close=self._close,
            pwrite=self._pwrite,
            pwritev=self._pwritev,
            fsync=self._sync,
            fdatasync=self._sync,
            rename=self._rename,
            replace=self._rename,
            unlink=self._unlink,
        ):
            yield

    def _at(self, path: Any) -> tuple[Disk | None, str]:
        name = os.fspath(path)
        if isinstance(name, str):
            for disk in self._disks:
                if name.startswith(disk.root):
                    return disk, name
        return None, name

    def _of(self, number: int) -> tuple[Disk | None, str]:
        for disk in self._disks:
            if (path := disk.handles.get(number)) is not None:
                return disk, path
        return None, ""

    def _open(self, path: Any, flags: int, *more: Any, **named: Any) -> int:
        disk, name = self._at(path)
        if disk is None:
            return int(_real["open"](path, flags, *more, **named))
        if disk.is_off:
            raise PowerCut
        if flags & (os.O_CREAT | os.O_TRUNC):
            disk.step("open", name)
        number = int(_real["open"](path, flags, *more, **named))
        disk.open(name, flags, number)
        return number

    def _close(self, number: int) -> None:
        disk, _ = self._of(number)
        if disk is not None:
            disk.closed(number)
        _real["close"](number)

    def _pwrite(self, number: int, content: Any, position: int) -> int:
        return self._pwritev(number, [content], position)

    def _pwritev(self, number: int, parts: Any, position: int, *more: Any) -> int:
        disk, path = self._of(number)
        if disk is None:
            return int(_real["pwritev"](number, parts, position, *more))
        disk.step("write", path)
        content = b"".join(bytes(part) for part in parts)
        if len(content) > SECTOR and disk.rng.random() < 0.02:
            content = content[: disk.rng.randrange(1, len(content))]  # a short write
        _real["pwrite"](number, content, position)
        disk.wrote(number, position, content)
        return len(content)

    def _sync(self, number: int) -> None:
        disk, path = self._of(number)
        if disk is None:
            _real["fsync"](number)
            return
        disk.step("sync", path)
        disk.sync(number)

    def _rename(self, old: Any, new: Any, **named: Any) -> None:
        disk, name = self._at(old)
        if disk is not None:
            disk.step("rename", name)
        _real["rename"](old, new, **named)
        if disk is not None:
            disk.rename(name, os.fspath(new))

    def _unlink(self, path: Any, **named: Any) -> None:
        disk, name = self._at(path)
        if disk is not None and os.path.exists(name):
            disk.step("unlink", name)
        _real["unlink"](path, **named)
        if disk is not None:
            disk.unlink(name)
