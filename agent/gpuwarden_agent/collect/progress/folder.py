"""Reads files of progress in one folder, where every user may write (mode 1777, as /tmp).

A file counts for the user who owns it, whatever it says: the kernel knows its uid. Links, pipes and files with a second
name are refused: they may be another's. Of a file at most the last bytes are read, and whole lines only. Users have equal
shares of the files that are read, so that nobody's junk hides another's file.
"""

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuwarden_agent.collect.processes.owner import user_name
from gpuwarden_agent.collect.progress.lines import BadLineError, named_by_file, parse_line
from gpuwarden_agent.collect.progress.shares import FILES_MAX, FolderShares
from gpuwarden_agent.collect.progress.streams import ProgressSender, ProgressStreams

TAIL_BYTES = 4096
MARK_BYTES = 256
"""Read of a file, each time; a job that writes more between two readings loses lines, not its totals."""
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class _Seen:
    inode: int
    mtime_ns: int
    size: int
    read_to: int
    """The end of the last line that was read."""
    mark: bytes = b""
    """Bytes before it: as long as they are there, the file was appended to."""


class ProgressFolder:
    """Files of one folder, and how far each was read."""

    def __init__(
        self, path: Path, streams: ProgressStreams, name_of: Callable[[int], str] = user_name
    ) -> None:
        self.path = path
        self._streams = streams
        self._name_of = name_of
        self._shares = FolderShares(name_of)
        self._seen: dict[str, _Seen] = {}

    def read(self, now_s: float) -> None:
        """Take new lines. Raises OSError where the folder cannot be read."""
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            mode = os.fstat(folder).st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                self._streams.refuse(
                    "the folder has no sticky bit, so that users may remove files of others: chmod 1777"
                )
            names, left = self._shares.choose(folder, now_s)
            for user, number in left.items():
                self._streams.refuse(f"{user}: more files than a share of {FILES_MAX}", number)
            read = {name: self._read_file(folder, name, now_s) for name in names}
            self._seen = {name: seen for name, seen in read.items() if seen is not None}
        finally:
            os.close(folder)

    def _read_file(self, folder: int, name: str, now_s: float) -> _Seen | None:
        before = self._seen.get(name)
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if before is not None and (found.st_ino, found.st_mtime_ns, found.st_size) == (
                before.inode, before.mtime_ns, before.size
            ):  # fmt: skip
                return before
            handle = os.open(name, _OPEN, dir_fd=folder)
        except OSError as error:
            if error.errno == errno.ELOOP:
                self._streams.refuse("a file is a link")
            elif error.errno == errno.ENOENT:
                self._shares.forget(name)
            else:
                self._streams.refuse(
                    f"a file cannot be read ({errno.errorcode.get(error.errno or 0, 'error')})"
                )
            return None
        try:
            return self._take(handle, name, before, now_s)
        finally:
            os.close(handle)

    def _take(self, handle: int, name: str, before: _Seen | None, now_s: float) -> _Seen | None:
        found = os.fstat(handle)
        problem = _problem(found)
        named = named_by_file(name)
        if problem is None and named is None:
            problem = "a file is not named by a job: 4711, 4711.RANK, namespace_pod"
        seen = _Seen(found.st_ino, found.st_mtime_ns, found.st_size, 0)
        if problem is not None or named is None:
            self._streams.refuse(problem or "")
            return seen
        start = max(0, found.st_size - TAIL_BYTES)
        data = os.pread(handle, TAIL_BYTES, start)
        end = data.rfind(b"\n") + 1
        begin = _appended_from(data, start, before) if before is not None else None
        if begin is None:  # a new file, or written again
            begin = data.find(b"\n") + 1 if start else 0
        lines = data[begin:end].splitlines()
        sender = ProgressSender("file", name, self._name_of(found.st_uid), named.job, named.rank)
        if not self._streams.admits(sender.username, len(lines)):
            lines = []
        for line in lines:
            try:
                said = parse_line(line, in_file=True)
            except BadLineError as error:
                self._streams.refuse(str(error))
                continue
            if said is not None:
                self._streams.take(sender, said, now_s)
        mark = data[max(0, end - MARK_BYTES) : end]
        return _Seen(seen.inode, seen.mtime_ns, seen.size, start + end, mark)


def _appended_from(data: bytes, start: int, before: _Seen) -> int | None:
    """Where in `data`, which begins at `start` of the file, that begins which was appended; None: it was not."""
    at = before.read_to - start
    if not before.mark or at < len(before.mark) or data[at - len(before.mark) : at] != before.mark:
        return None
    return at


def _problem(found: os.stat_result) -> str | None:
    if not stat.S_ISREG(found.st_mode):
        return "a file is not a regular one"
    if found.st_nlink != 1:
        return "a file has a second name (hard link)"
    return None
