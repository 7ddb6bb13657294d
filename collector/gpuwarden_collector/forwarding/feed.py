"""Reads committed rows behind a receiver's position: frames of segments, whether sealed or not.

A position is the end of a frame. Commits are ordered by segment and by place in it. Sealed segments are read where they
are kept (`storage/kept_segments.py`). The newest frame before a kill is written again at the next start, and then read
twice.
"""

import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuwarden.files import write_whole
from gpuwarden_collector.forwarding.port import CommitPosition, CommittedRows, ReceiverState
from gpuwarden_collector.storage.hot import Segment
from gpuwarden_collector.storage.kept_segments import FORWARDING, kept_folder
from gpuwarden_collector.storage.segment import (
    FOLDER,
    ReadFrame,
    SegmentError,
    read_header,
    segment_numbers,
    segment_path,
)

log = logging.getLogger(__name__)

READ_BYTES_MAX = 2 * 1024 * 1024
"""Frames that are read together; one frame may be larger."""
EARLIER_BYTES = 16 * 1024 * 1024


def position_path(data_dir: Path, name: str) -> Path:
    """The file of a receiver's position."""
    return data_dir / FORWARDING / f"{name}.json"


def begin_positions(data_dir: Path, names: Iterable[str], now: CommitPosition) -> None:
    """Give receivers without a position the position `now`, and forget those that are not named. Raises OSError."""
    wanted = {position_path(data_dir, name) for name in names}
    for path in (data_dir / FORWARDING).glob("*.json"):
        if path not in wanted:
            path.unlink()
    for path in wanted:
        if not path.exists():
            _write(path, now, None)


def _write(path: Path, position: CommitPosition, sending: CommitPosition | None) -> None:
    said = {"position": position, "sending": sending}
    write_whole(path, json.dumps(said).encode() + b"\n", mode=0o640)


class SegmentFeed:
    """Implements `Feed`."""

    def __init__(
        self, data_dir: Path, name: str, tables: frozenset[str], state: ReceiverState
    ) -> None:
        """Raises OSError, ValueError for a damaged position file."""
        self._folders = (data_dir / FOLDER, kept_folder(data_dir))
        self._path = position_path(data_dir, name)
        self._tables = tables
        self._state = state
        self._lock = threading.Lock()
        said = json.loads(self._path.read_text())
        self.position = CommitPosition(*said["position"])
        sending = said["sending"]
        self._repeated = None if sending is None else CommitPosition(*sending)
        self._at = self.position
        self._read_until = self.position
        self._segment: Segment | None = None
        self._is_first_repeated = False
        """Whether the next frame was read before, at the end of another segment."""

    @property
    def needed(self) -> int:
        """The oldest segment that may have rows that were not confirmed."""
        is_confirmed = self._read_until[:2] <= self.position[:2]
        return self._at.segment if is_confirmed else self.position.segment

    def earlier(self) -> Iterator[Mapping[str, Any]]:
        """As of Feed."""
        at = self.position
        folder = self._folder_of(at.segment)
        if folder is None:
            return
        segment = Segment(folder, at.segment, keeps_open=True)
        if segment.header.salt != at.salt:
            return
        frames: list[ReadFrame] = []
        for frame in segment.new_frames():
            if frame.end > at.offset:
                break
            if frame.start > at.offset - EARLIER_BYTES:
                frames.append(frame)
                if frame.end - frames[0].start > READ_BYTES_MAX:
                    yield self._rows(segment, frames)
                    frames = []
        if frames:
            yield self._rows(segment, frames)

    def read(self) -> CommittedRows | None:
        """As of Feed."""
        with self._lock:
            while True:
                segment = self._opened()
                if segment is None:
                    return None
                found = self._read(segment)
                if found is not None:
                    return found
                if not self._go_on(segment):
                    return None

    def note_sending(self, rows: CommittedRows) -> None:
        """As of Feed."""
        with self._lock:
            if rows.until[:2] > self.position[:2]:
                _write(self._path, self.position, rows.until)

    def confirm(self, rows: CommittedRows) -> None:
        """As of Feed."""
        with self._lock:
            if rows.until[:2] > self.position[:2]:
                _write(self._path, rows.until, None)
                self.position = rows.until

    def skip(self, number: int) -> int:
        """Continue behind a kept segment that is about to be deleted; how many rows were not sent. Raises OSError."""
        with self._lock:
            if self.position.segment > number:
                return 0
            rows = self._rows_behind(number)
            self._state.lost_rows += rows
            after = CommitPosition(number + 1, 0, 0)
            _write(self._path, after, None)
            self.position = after
            if self._at.segment <= number:
                self._at, self._segment, self._repeated = after, None, None
            return rows

    def _rows_behind(self, number: int) -> int:
        folder = self._folder_of(number)
        if folder is None:
            return 0
        try:
            segment = Segment(folder, number)
        except SegmentError:
            return 0
        if self.position.segment == number and segment.header.salt == self.position.salt:
            segment.end = max(segment.end, self.position.offset)
        return sum(
            message.rows
            for frame in segment.new_frames(self._limit(number), is_abandoned=True)
            for message in frame.messages
            if message.table in self._tables
        )

    def _opened(self) -> Segment | None:
        """The segment at the read position; None: it does not exist yet."""
        if self._segment is not None and self._segment.number == self._at.segment:
            return self._segment
        number, folder = self._at.segment, self._folder_of(self._at.segment)
        if folder is None:
            later = [n for f in self._folders for n in segment_numbers(f) if n > number]
            if not later:
                return None
            self._at = CommitPosition(min(later), 0, 0)
            return self._opened()
        try:
            self._segment = Segment(folder, number, keeps_open=True)
        except FileNotFoundError:
            return self._opened()  # it has just been sealed and moved
        except SegmentError as error:
            after = self._next(number)
            if after is None:
                raise
            self._state.lost_rows += 1  # at least one
            extra = {"segment": number, "reason": str(error)}
            log.error("a segment cannot be read, and its rows are not forwarded", extra=extra)
            self._at = CommitPosition(after, 0, 0)
            return self._opened()
        salt = self._segment.header.salt
        if self._at.salt == salt:
            self._segment.end = max(self._segment.end, self._at.offset)
        self._at = CommitPosition(number, self._segment.end, salt)
        return self._segment

    def _read(self, segment: Segment) -> CommittedRows | None:
        limit = self._limit(segment.number)
        is_abandoned = limit is None and self._next(segment.number) is not None
        is_first, self._is_first_repeated = self._is_first_repeated, False
        last = self._repeated_until(segment)
        frames: list[ReadFrame] = []
        size, has_more, damaged = 0, False, len(segment.damaged)
        for frame in segment.new_frames(limit, is_abandoned=is_abandoned):
            frames.append(frame)
            size += frame.end - frame.start
            if size >= READ_BYTES_MAX or frame.end == last or is_first:
                has_more = True
                break
        self._state.lost_rows += len(segment.damaged) - damaged  # at least one each
        if not frames:
            self._is_first_repeated = is_first
            return None
        self._at = CommitPosition(segment.number, frames[-1].end, segment.header.salt)
        self._read_until = self._at
        is_repeated = is_first or last is not None
        if last is not None and self._at.offset >= last:
            self._repeated = None
        return CommittedRows(self._rows(segment, frames), self._at, is_repeated, has_more)

    def _repeated_until(self, segment: Segment) -> int | None:
        """The end of the rows in this segment that an earlier run has begun to send."""
        repeated = self._repeated
        if repeated is None or repeated.segment != segment.number:
            return None
        if repeated.salt != segment.header.salt or repeated.offset <= segment.end:
            self._repeated = None
            return None
        return repeated.offset

    def _go_on(self, segment: Segment) -> bool:
        """Go to the next segment, if this one was read to its end."""
        after = self._next(segment.number)
        limit = self._limit(segment.number)
        if after is None or (limit is not None and segment.end < limit):
            return False
        if limit is not None:
            # The writer was killed and has written its newest frame again, into the next segment.
            sent = 0
            if self._repeated is not None and self._repeated.segment == segment.number:
                sent = self._repeated.offset
            self._is_first_repeated |= max(sent, segment.end) > limit
        if self._repeated is not None and self._repeated.segment <= segment.number:
            self._repeated = None
        self._at, self._segment = CommitPosition(after, 0, 0), None
        return True

    def _rows(self, segment: Segment, frames: Iterable[ReadFrame]) -> dict[str, Any]:
        pieces: dict[str, list[Any]] = {}
        for frame in frames:
            for message in frame.messages:
                if message.table in self._tables:
                    content = frame.body.slice(message.start, message.size)
                    schema = segment.header.schemas[message.table]
                    batch = pa.ipc.read_record_batch(content, schema)
                    pieces.setdefault(message.table, []).append(batch)
        return {name: pa.Table.from_batches(batches) for name, batches in pieces.items()}

    def _folder_of(self, number: int) -> Path | None:
        # A segment moves from the first folder to the second.
        found = (f for f in self._folders if segment_path(f, number).exists())
        return next(found, None)

    def _limit(self, number: int) -> int | None:
        """The end of a segment, from the header of the next one; None: that does not exist."""
        for folder in self._folders:
            with suppress(FileNotFoundError):
                return read_header(segment_path(folder, number + 1)).previous_end
        return None

    def _next(self, number: int) -> int | None:
        if self._folder_of(number + 1) is not None:
            return number + 1
        later = [n for folder in self._folders for n in segment_numbers(folder) if n > number]
        return min(later, default=None)
