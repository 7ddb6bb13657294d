"""Reads the notes of Slurm's prolog and epilog about the jobs of this node: two files a job, in memory.

`JOB` is written when the job starts, `JOB.end` when it ends. Both are NAME=value texts separated by NUL;
a complete file ends with ".". Only root may write there. The agent does not delete notes, so it can read
them again after a restart. Incomplete files are counted and skipped.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuwarden_agent.collect.processes.cgroup import number

NOTES = Path("/run/gpuwarden-slurm")
"""Where the scripts of `gpuwarden slurm install` write."""
END = ".end"
NOTE_BYTES_MAX = 64 * 1024
"""Limit for one file; a list of thousands of nodes is shorter."""
JOBS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class JobNote:
    """The notes of prolog and epilog about a job."""

    job: str
    fields: Mapping[str, str]
    """Variables of the prolog, and over them the epilog's."""
    started_ms: int
    ended_ms: int | None = None
    """None: its epilog has not run."""

    def text(self, name: str) -> str | None:
        """A variable; None if it is absent, empty, or Slurm's text for none."""
        value = self.fields.get(name, "")
        return None if value in ("", "(null)", "N/A") else value

    def number(self, name: str) -> int | None:
        """A variable that is a number."""
        return number(self.fields.get(name))


def parse_note(content: bytes) -> dict[str, str] | None:
    """The variables of a file; None if it is not complete."""
    *parts, end, rest = [b"", *content.split(b"\0")]
    if end != b"." or rest:
        return None
    pairs = (part.decode(errors="replace").partition("=") for part in parts)
    return {name: value for name, equals, value in pairs if equals}


class SlurmNotes:
    """Reads the folder of notes; unchanged files are not read again."""

    def __init__(self, folder: Path = NOTES) -> None:
        self.failed: Counter[str] = Counter()
        """Files that could not be read, by reason."""
        self._folder = folder
        self._known: dict[str, tuple[tuple[int, int], Mapping[str, str] | None]] = {}

    def look(self) -> dict[str, JobNote]:
        """Jobs of this node by id: running ones, and those that ended within the hour. Raises OSError if
        the folder cannot be read."""
        seen = self._files()
        known, self._known = self._known, {}
        found: dict[str, JobNote] = {}
        for name, stamp in seen.items():
            self._known[name] = known.get(name, (stamp, None))
            if name not in known or known[name][0] != stamp:
                self._known[name] = (stamp, self._read(name))
        for name, ((mtime_ms, _), fields) in self._known.items():
            if name.endswith(END) or fields is None:
                continue
            end = self._known.get(name + END)
            if end is None or end[0][0] < mtime_ms:
                found[name] = JobNote(name, fields, mtime_ms)
            else:
                found[name] = JobNote(name, {**fields, **(end[1] or {})}, mtime_ms, end[0][0])
        return found

    def _files(self) -> dict[str, tuple[int, int]]:
        """Time of change in milliseconds and size of each file, by name."""
        files: dict[str, tuple[int, int]] = {}
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if number(entry.name.removesuffix(END)) is None:
                        continue
                    if len(files) >= JOBS_MAX:
                        self.failed[f"more than {JOBS_MAX} files"] += 1
                        break
                    try:
                        stat = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # deleted by the epilog of another job
                    files[entry.name] = (stat.st_mtime_ns // 1_000_000, stat.st_size)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return files

    def _read(self, name: str) -> Mapping[str, str] | None:
        try:
            file = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            self.failed[f"{error.strerror}"] += 1
            return None
        try:
            fields = parse_note(os.read(file, NOTE_BYTES_MAX))
        except OSError as error:
            self.failed[f"{error.strerror}"] += 1
            return None
        finally:
            os.close(file)
        if fields is None:
            self.failed["a note that is not whole"] += 1
        return fields
