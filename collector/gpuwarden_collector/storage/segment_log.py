"""Writes the store: holds the folder's lock, the state file and the current segment.

It runs in the process that acknowledges batches, without DuckDB. Only the writer thread calls `append` and
`freeze`.
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from gpuwarden.files import sync_folder
from gpuwarden.lifecycle import StartError
from gpuwarden_collector.storage.errors import StoreUnavailableError
from gpuwarden_collector.storage.hot import Tail, last_frame, read_tail
from gpuwarden_collector.storage.joined_rows import remove_joined
from gpuwarden_collector.storage.segment import (
    FOLDER,
    Frame,
    SegmentWriter,
    read_header,
    segment_numbers,
    segment_path,
)
from gpuwarden_collector.storage.state import FILE_NAME, StateFile

LOCK_NAME = "lock"

Follower = Callable[[Mapping[str, Any]], None]


class FrameLog(Protocol):
    """The log that the writer appends to."""

    @property
    def state(self) -> StateFile: ...
    @property
    def tail(self) -> Tail: ...
    @property
    def segment_number(self) -> int: ...
    @property
    def last_number(self) -> int: ...
    @property
    def progress(self) -> Mapping[str, datetime | None]: ...
    def append(self, frame: Frame) -> None: ...
    def freeze(self) -> int: ...


class SegmentLog:
    """Appends frames to segments."""

    def __init__(self, data_dir: Path) -> None:
        """Lock the folder and open the state file. Raises StartError, sqlite3.Error, SegmentError,
        StoreUnavailableError, OSError."""
        self._folder = data_dir / FOLDER
        self._follower: Follower = lambda tables: None
        self._on_follower_failure: Callable[[Exception], None] = lambda error: None
        self._lock = _lock(data_dir)
        self._segment: SegmentWriter | None = None
        try:
            self._folder.mkdir(exist_ok=True)
            sync_folder(data_dir)
            remove_joined(self._folder)
            numbers = segment_numbers(self._folder)
            # The lake knows its sealed segments by this identity.
            known = read_header(segment_path(self._folder, numbers[-1])) if numbers else None
            self.state = StateFile(
                data_dir / FILE_NAME, collector=known.collector if known else None
            )
            self.tail: Tail = read_tail(self._folder, int(self.state.meta("ledger_until")))
            """Batches and progress in segments at the start that the state file lacked."""
            self._progress = progress_of(self.state, self.tail)
            self.last_number = max([0, *numbers, int(self.state.meta("ledger_until"))])
            """The highest segment number so far."""
            self._previous_end: int | None = None
            self._last: tuple[int, Frame] | None = None
            """Position and content of the newest frame at the start."""
            if self.last_number in numbers:
                self._previous_end = read_tail(self._folder, self.last_number - 1).end
                self._last = last_frame(self._folder, self.last_number)
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def segment_number(self) -> int:
        """Number of the current segment, or of the next one."""
        return self.last_number if self._segment is not None else self.last_number + 1

    @property
    def progress(self) -> dict[str, datetime | None]:
        """Progress of rollups, naive UTC; `closed_until` as of the start."""
        return self._progress

    @property
    def size_bytes(self) -> int:
        """Segments and the state file on disk."""
        return hot_bytes(self.state.path.parent)

    @property
    def end(self) -> int:
        """End of the last frame of the current segment; 0: there is no segment."""
        return self._segment.end if self._segment is not None else 0

    def begin(self, sealed: int) -> None:
        """Begin the first segment. `sealed`: the newest that the lake holds. Raises OSError.

        A number that the lake holds is not used again, because such a segment counts as sealed. The newest frame
        may not be on disk, if its writer was killed before fdatasync or fdatasync failed. So it is written again
        into the first segment of this run, and the old segment ends before it. Each earlier frame was synced before
        the next was written.
        """
        if sealed >= self.last_number:
            self._last = None
        if sealed > self.last_number:
            self.last_number, self._previous_end = sealed, None
        if self._last is None:
            self._begin()
            return
        self._previous_end, frame = self._last
        with self.state.writing() as writing:
            writing.move_doubtful(self.last_number, self.last_number + 1, frame.batches)
        self._begin(frame)
        self._last = None

    def follow(self, follower: Follower, on_failure: Callable[[Exception], None]) -> None:
        """Call `follower` with the tables of each frame that is synced from now on. Its errors go to `on_failure`
        alone, because the frame is stored."""
        self._follower, self._on_follower_failure = follower, on_failure

    def append(self, frame: Frame) -> None:
        """Write and sync a frame. Raises StoreUnavailableError."""
        try:
            if self._segment is None:
                self._begin()
            assert self._segment is not None
            self._segment.append(frame)
        except (OSError, MemoryError) as error:
            self._end()
            why = error.strerror or error if isinstance(error, OSError) else "no memory"
            path = segment_path(self._folder, self.last_number)
            raise StoreUnavailableError(f"{path}: {why}") from error
        if frame.progress is not None:
            self._progress = {**self._progress, **instants(frame.progress)}
        try:
            self._follower(frame.tables)
        except Exception as error:  # noqa: BLE001  raised, it would make the writer repeat the frame
            self._on_follower_failure(error)

    def freeze(self) -> int:
        """Begin a new segment; the number of the one before. Raises StoreUnavailableError."""
        frozen = self.last_number
        self._end()
        try:
            self._begin()
        except OSError as error:
            raise StoreUnavailableError(f"{self._folder}: {error.strerror or error}") from error
        return frozen

    def close(self) -> None:
        """Close all files; delete an empty segment."""
        if self._segment is not None:
            is_empty, path = not self._segment.frame_bytes, self._segment.path
            self._end()
            if is_empty:
                path.unlink(missing_ok=True)
        with suppress(OSError):
            remove_joined(self._folder)
        self.state.close()
        os.close(self._lock)

    def _begin(self, first: Frame | None = None) -> None:
        self._segment = SegmentWriter(
            self._folder, self.last_number + 1, self._previous_end, self.state.collector, first
        )
        self.last_number += 1

    def _end(self) -> None:
        """End the current segment after its last valid frame."""
        if self._segment is not None:
            self._previous_end = self._segment.end
            self._segment.close()
            self._segment = None


def hot_bytes(data_dir: Path) -> int:
    """Size of segments and the state file on disk."""
    folder = data_dir / FOLDER
    paths = [data_dir / FILE_NAME, data_dir / f"{FILE_NAME}-wal"]
    total = 0
    for path in (*paths, *(segment_path(folder, n) for n in segment_numbers(folder))):
        with suppress(OSError):
            total += path.stat().st_size
    return total


def progress_of(state: StateFile, tail: Tail) -> dict[str, datetime | None]:
    """Progress of rollups, from the state file and the segments behind it."""
    return {**state.progress(), **instants(tail.progress or {})}


def instants(said: Mapping[str, str]) -> dict[str, datetime]:
    """A frame's progress as datetimes."""
    return {name: datetime.fromisoformat(at) for name, at in said.items()}


@contextmanager
def held(data_dir: Path) -> Iterator[None]:
    """Lock a store's folder for this process. Raises StartError when another process holds the lock."""
    number = _lock(data_dir)
    try:
        yield
    finally:
        os.close(number)


def _lock(data_dir: Path) -> int:
    """Lock a store's folder while the returned file descriptor is open. Raises StartError."""
    path = data_dir / LOCK_NAME
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(number, 20).decode("ascii", "replace").strip() or "unknown"
        os.close(number)
        raise StartError(
            f"{data_dir} is in use by process {holder}: stop it or choose another --data"
        ) from error
    try:
        os.ftruncate(number, 0)
        os.pwrite(number, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        os.close(number)
        raise
    return number
