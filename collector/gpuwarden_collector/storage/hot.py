"""Reads rows of segments as Arrow tables, and later only what the segments have gained.

Any process that can read the folder may use this. A frame is checked once, when it is first read. Small
frames are joined to larger chunks, because the cost of a query grows with the number of chunks; large ones
stay in the file's pages, which all processes share. When a block of frames is complete, one process writes
a file of its joined rows (`join`), and all processes map that file instead of their own copies.
"""

import logging
import mmap
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from gpuwarden_collector.storage.joined_rows import (
    Block,
    JoinedRows,
    block_number,
    joined_blocks,
    write_joined,
)
from gpuwarden_collector.storage.segment import (
    SCHEMAS,
    BatchKey,
    Frame,
    ReadFrame,
    SegmentError,
    SegmentHeader,
    frames_of,
    next_frame,
    numbers_in,
    read_header,
    segment_numbers,
    segment_path,
)

log = logging.getLogger(__name__)

CHUNK_ROWS = 65_536
"""Chunks of this size are not joined further."""
_ONE_CHUNK_ROWS = 8_192
"""A table up to this size becomes one chunk: a scan takes 0.2 ms for each chunk, as long as for 2,000 rows."""
_MAP_BYTES_MIN = 4 * 1024 * 1024
"""New bytes of a file from which it is mapped, not read."""
_SHARED_BYTES_MIN = 256 * 1024
"""Size of a message from which its rows are mapped, not copied."""


class MissingSegmentError(Exception):
    """The file of a segment that the lake does not hold is missing: it was just sealed, or is lost."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that should be frames and are not."""

    number: int
    start: int
    end: int


class Segment:
    """One file, read frame by frame as it grows."""

    def __init__(self, folder: Path, number: int, *, keeps_open: bool = False) -> None:
        """`keeps_open`: the file can be read to its end even after it was deleted. Raises SegmentError, OSError."""
        self.number = number
        self.path = segment_path(folder, number)
        self.header: SegmentHeader = read_header(self.path)
        self.end = self.header.end
        """The position up to which it was read."""
        self.is_complete = False
        """Whether the file ends there."""
        self.damaged: list[Damage] = []
        self._mapped: Any | None = None
        self._file: int | None = None
        if keeps_open:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._file)

    def unmap(self) -> None:
        """Unmap the file, except the pages of rows in use; it is mapped again when needed."""
        self._mapped = None

    @contextmanager
    def opened(self) -> Iterator[int]:
        """The file descriptor. Raises OSError."""
        if self._file is not None:
            yield self._file
            return
        with self.path.open("rb") as file:
            yield file.fileno()

    def content_at(self, file: int, start: int, size: int) -> Any:
        """A part of the file as a buffer, mapped if it is large. Raises OSError."""
        if size < _SHARED_BYTES_MIN:
            return pa.py_buffer(os.pread(file, size, start))
        if self._mapped is None or self._mapped.size < start + size:
            self._mapped = pa.py_buffer(mmap.mmap(file, 0, prot=mmap.PROT_READ))
        return self._mapped.slice(start, size)

    def new_frames(
        self, limit: int | None = None, *, is_abandoned: bool = False
    ) -> Iterator[ReadFrame]:
        """Frames that were not read yet. `limit`: the known end of the segment; None: it may still be written, or
        with `is_abandoned` it ends with its last whole frame.

        Other bytes before the end are added to `damaged` and skipped.
        """
        if self.is_complete:
            return
        content, start, salt = self._content(limit), self.end, self.header.salt
        if content is not None:
            for frame in frames_of(content, start, salt):
                self.end = frame.end
                yield frame
            while limit is not None or is_abandoned:
                # Each frame was on disk before the next was written, so a later frame is data.
                found = next_frame(content, start, self.end, salt)
                if found is None:
                    break
                self.damaged.append(Damage(self.number, self.end, found.start))
                self.end = found.end
                yield found
                for frame in frames_of(content.slice(self.end - start), self.end, salt):
                    self.end = frame.end
                    yield frame
        if limit is not None:
            if self.end < limit:
                self.damaged.append(Damage(self.number, self.end, limit))
                self.end = limit
            self.is_complete = True

    def _content(self, limit: int | None) -> Any | None:
        """The bytes behind `end` as a buffer; None: there are none."""
        with self.opened() as file:
            size = os.fstat(file).st_size
            size = (size if limit is None else min(size, limit)) - self.end
            if size <= 0:
                return None
            if size < _MAP_BYTES_MIN:
                return pa.py_buffer(os.pread(file, size, self.end))
            skipped = self.end % mmap.ALLOCATIONGRANULARITY
            mapped = mmap.mmap(file, size + skipped, prot=mmap.PROT_READ, offset=self.end - skipped)
            return pa.py_buffer(mapped).slice(skipped)


def end_of(segment: Segment, follower: Segment | None) -> int | None:
    """The end of a segment, from the header of the next one; None: there is no next one."""
    if follower is None or follower.number != segment.number + 1:
        return None
    return follower.header.previous_end


class _Rows:
    """Rows of one table in a block, read when they are first needed. Each row is joined at most log n times."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._chunks: list[Any] = []
        self._unread: list[tuple[int, int]] = []

    def note(self, start: int, size: int) -> None:
        """Add a message at a position of the file."""
        self._unread.append((start, size))

    def chunks(self, segment: Segment, name: str) -> list[Any]:
        """Chunks of all rows. Raises OSError."""
        if self._unread:
            schema = segment.header.schemas[name]
            with segment.opened() as file:
                for start, size in self._unread:
                    content = segment.content_at(file, start, size)
                    self._add(pa.ipc.read_record_batch(content, schema))
            self._unread.clear()
        return self._chunks

    def _add(self, batch: Any) -> None:
        chunks = self._chunks
        chunks.append(_conformed(batch, self._schema))
        while len(chunks) > 1:
            last, before = chunks[-1].num_rows, chunks[-2].num_rows
            if last + before > CHUNK_ROWS or before >= 2 * last:
                return
            both = pa.Table.from_batches(chunks[-2:], self._schema).combine_chunks()
            chunks[-2:] = both.to_batches()


class _Block:
    """Rows of the frames of one block of a segment."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._read: dict[str, _Rows] = {}
        self._joined: JoinedRows | None = None

    @property
    def is_joined(self) -> bool:
        """Whether its rows come from a file of joined rows."""
        return self._joined is not None

    @property
    def tables(self) -> list[str]:
        """Names of the tables whose rows were read from the segment."""
        return list(self._read)

    def note(self, name: str, start: int, size: int) -> None:
        """Add a message at a position of the segment."""
        if name not in self._read:
            self._read[name] = _Rows(SCHEMAS[name])
        self._read[name].note(start, size)

    def chunks(self, segment: Segment, name: str) -> list[Any]:
        """Rows of a table. Raises OSError."""
        if self._joined is not None:
            batch = self._joined.batches.get(name)
            return [] if batch is None else [batch]
        return self._read[name].chunks(segment, name) if name in self._read else []

    def use(self, joined: JoinedRows) -> None:
        """Take the rows from a file of joined rows, and drop those that were read."""
        self._joined = joined
        self._read.clear()

    def release_pages(self) -> None:
        """Release the pages of that file."""
        if self._joined is not None:
            self._joined.release_pages()


class _Unsealed:
    """A segment and its blocks."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.blocks: list[_Block] = []

    @property
    def whole(self) -> list[_Block]:
        """Blocks that are complete."""
        return self.blocks if self.segment.is_complete else self.blocks[:-1]

    def note(self, frame: ReadFrame) -> None:
        """Add the positions of a frame's rows."""
        number = block_number(frame.start)
        if not self.blocks or self.blocks[-1].number != number:
            self.blocks.append(_Block(number))
        for message in frame.messages:
            if message.table in SCHEMAS:
                start = frame.body_start + message.start
                self.blocks[-1].note(message.table, start, message.size)

    def chunks(self, name: str) -> Iterator[Any]:
        """Rows of a table. Raises OSError."""
        for block in self.blocks:
            yield from block.chunks(self.segment, name)


@dataclass(slots=True)
class RowsSince:
    """New rows of followed tables in segments."""

    tables: dict[str, list[Any]] = field(default_factory=dict)
    """Record batches since the last `take`, in the order of arrival, by table."""
    has_gap: bool = False
    """Whether rows are missing, so that all must be read again."""

    def take(self, name: str) -> list[Any]:
        """Record batches of a followed table since the last call."""
        found, self.tables[name] = self.tables[name], []
        return found

    def note(self, segment: Segment, frame: ReadFrame) -> None:
        """Add the rows of a new frame."""
        for message in frame.messages:
            if message.table in self.tables:
                content = frame.body.slice(message.start, message.size)
                batch = pa.ipc.read_record_batch(content, segment.header.schemas[message.table])
                self.tables[message.table].append(_conformed(batch, SCHEMAS[message.table]))


class HotRows:
    """Rows of all segments behind a number; for any thread."""

    def __init__(self, folder: Path, since: RowsSince | None = None) -> None:
        """`since`: receives all new rows too."""
        self._folder = folder
        self._since = since
        self._after: int | None = None
        self._lock = threading.Lock()
        self._segments: dict[int, _Unsealed] = {}
        self._tables: dict[str, tuple[int, int | None, Any]] = {}
        self._version = 0
        self._whole: set[Block] = set()
        self._is_failure_logged = False

    def tables(
        self, names: Iterable[str], after: int, until: int | None = None, *, is_strict: bool = True
    ) -> dict[str, Any]:
        """Arrow tables of the segments behind `after`, up to and including `until`, by name.

        Raises MissingSegmentError with `is_strict`, when the lake may hold a segment by now. Raises SegmentError,
        OSError.
        """
        with self._lock:
            self._refresh(after, is_strict=is_strict)
            try:
                return {name: self._table(name, after, until) for name in names}
            except FileNotFoundError as error:
                raise MissingSegmentError(str(error)) from error

    def look(self, after: int) -> None:
        """Read the new rows of the segments behind `after`. Raises SegmentError, OSError."""
        with self._lock:
            self._refresh(after, is_strict=False)

    def forget(self, until: int) -> None:
        """Drop the rows of segments up to a number, which the lake holds."""
        with self._lock:
            for number in [n for n in self._segments if n <= until]:
                del self._segments[number]
            self._tables.clear()
            self._version += 1

    @property
    def damaged(self) -> list[Damage]:
        """Damaged parts of the segments."""
        with self._lock:
            return [d for known in self._segments.values() for d in known.segment.damaged]

    def release_pages(self) -> None:
        """Release the pages of joined rows; the next query reads them from the page cache."""
        with self._lock:
            for known in self._segments.values():
                for block in known.blocks:
                    block.release_pages()

    def join(self, after: int) -> int:
        """Write files of joined rows for blocks behind `after` that were complete at the last call too; how many.

        One process calls it periodically, while no segment is deleted. Under a high load a segment is sealed before
        the second call, and no file is written for it. Raises SegmentError, OSError.
        """
        written = 0
        with self._lock:
            self._refresh(after, is_strict=False)
            whole = {
                (number, block.number): (known.segment, block)
                for number, known in self._segments.items()
                for block in known.whole
                if not block.is_joined
            }
            due, self._whole = whole.keys() & self._whole, set(whole)
            for key in sorted(due):
                segment, block = whole[key]
                try:
                    write_joined(self._folder, key, _joined(segment, block))
                except OSError as error:
                    # Each process keeps its own copy of the rows.
                    if not self._is_failure_logged:
                        log.warning("joined rows cannot be written", extra={"reason": str(error)})
                    self._is_failure_logged = True
                    return written
                self._is_failure_logged = False
                written += 1
            if written:
                self._refresh(after, is_strict=False)
        return written

    def _refresh(self, after: int, *, is_strict: bool) -> None:
        names = os.listdir(self._folder)
        numbers = [n for n in numbers_in(names) if n > after]
        missing = set(range(after + 1, numbers[-1] + 1)) - set(numbers) if numbers else set()
        if missing and is_strict:
            raise MissingSegmentError(f"segment {min(missing)} is not in {self._folder}")
        if self._since is not None:
            self._read_sealed(self._since, after)
        for number in [n for n in self._segments if n <= after]:
            del self._segments[number]
            self._version += 1
            self._tables.clear()
        try:
            for number in numbers:
                self._segment(number)
            for number in numbers:
                self._read(number)
        except FileNotFoundError as error:
            raise MissingSegmentError(str(error)) from error
        self._use_joined(joined_blocks(names))

    def _read_sealed(self, since: RowsSince, after: int) -> None:
        """Add the last rows of segments that the lake now holds to `since`, before they are dropped."""
        before, self._after = self._after, after
        if before is None or not since.tables:
            return
        for number in range(before + 1, after + 1):
            known = self._segments.get(number)
            if known is None or not self._read_to_end(known):
                since.has_gap = True
        if after < before:
            since.has_gap = True

    def _read_to_end(self, known: _Unsealed) -> bool:
        """Read a segment that is no longer written to its end; whether that succeeded."""
        if not known.segment.is_complete:
            follower = self._segments.get(known.segment.number + 1)
            try:
                behind = (
                    follower.segment
                    if follower is not None
                    else Segment(self._folder, known.segment.number + 1)
                )
            except (OSError, SegmentError):
                return False
            limit = end_of(known.segment, behind)
            if limit is None or known.segment.end > limit:
                return False
            self._take_frames(known, limit)
        return True

    def _take_frames(self, known: _Unsealed, limit: int | None) -> None:
        for frame in known.segment.new_frames(limit):
            known.note(frame)
            if self._since is not None:
                self._since.note(known.segment, frame)
            self._version += 1

    def _use_joined(self, blocks: set[Block]) -> None:
        for number, known in self._segments.items():
            for block in known.whole:
                if block.is_joined or (number, block.number) not in blocks:
                    continue
                try:
                    block.use(JoinedRows(self._folder, (number, block.number), SCHEMAS))
                except (OSError, ValueError):
                    continue  # the segment has the same rows
                known.segment.unmap()
                self._version += 1
                self._tables.clear()

    def _read(self, number: int) -> None:
        """Read the new frames of a segment."""
        known = self._segments[number]
        follower = self._segments.get(number + 1)
        limit = end_of(known.segment, follower.segment if follower else None)
        if limit is not None and known.segment.end > limit and not known.segment.is_complete:
            # The writer gave up frames that were read here already.
            known = self._opened(number)
            if self._since is not None:
                self._since.has_gap = True
        self._take_frames(known, limit)

    def _segment(self, number: int) -> _Unsealed:
        return self._segments.get(number) or self._opened(number)

    def _opened(self, number: int) -> _Unsealed:
        keeps_open = self._since is not None
        self._segments[number] = _Unsealed(Segment(self._folder, number, keeps_open=keeps_open))
        self._version += 1
        return self._segments[number]

    def _table(self, name: str, after: int, until: int | None) -> Any:
        known = self._tables.get(name)
        if known is not None and known[:2] == (self._version, until):
            return known[2]
        chunks = [
            chunk
            for number in sorted(self._segments)
            if number > after and (until is None or number <= until)
            for chunk in self._segments[number].chunks(name)
        ]
        table = pa.Table.from_batches(chunks, SCHEMAS[name])
        if len(chunks) > 1 and table.num_rows <= _ONE_CHUNK_ROWS:
            table = table.combine_chunks()
        self._tables[name] = self._version, until, table
        return table


def _joined(segment: Segment, block: _Block) -> dict[str, Any]:
    """All rows of a block, one record batch a table. Raises OSError."""
    found = {}
    for name in block.tables:
        table = pa.Table.from_batches(block.chunks(segment, name), SCHEMAS[name])
        if table.num_rows:
            found[name] = table.combine_chunks().to_batches()[0]
    return found


@dataclass(frozen=True, slots=True)
class Tail:
    """Batch identities and progress in the last segments."""

    batches: list[BatchKey]
    progress: Mapping[str, Any] | None
    end: int | None
    """The end of the newest segment; None: there is none."""


def read_tail(folder: Path, after: int) -> Tail:
    """Batches and progress in the segments behind `after`, while none is written. Raises SegmentError, OSError."""
    batches: list[BatchKey] = []
    progress: dict[str, Any] = {}
    end = None
    segments = [Segment(folder, n) for n in segment_numbers(folder) if n > after]
    for at, segment in enumerate(segments, 1):
        limit = end_of(segment, segments[at] if at < len(segments) else None)
        for frame in segment.new_frames(limit, is_abandoned=True):
            batches += frame.batches
            progress |= frame.progress or {}
        end = segment.end
    return Tail(batches, progress or None, end)


def last_frame(folder: Path, number: int) -> tuple[int, Frame] | None:
    """Position and content of the last frame of a segment that is not written, in today's columns; None: it has
    no frame. Raises SegmentError, OSError."""
    segment = Segment(folder, number)
    last = None
    for frame in segment.new_frames(is_abandoned=True):
        last = frame
    if last is None:
        return None
    pieces: dict[str, list[Any]] = {}
    for name, start, size in ((m.table, m.start, m.size) for m in last.messages):
        batch = pa.ipc.read_record_batch(last.body.slice(start, size), segment.header.schemas[name])
        if name in SCHEMAS:
            pieces.setdefault(name, []).append(_conformed(batch, SCHEMAS[name]))
    tables = {name: pa.Table.from_batches(batches) for name, batches in pieces.items()}
    return last.start, Frame(tables, last.batches, last.progress)


def _conformed(batch: Any, schema: Any) -> Any:
    """A record batch with today's columns, NULL for those that an older version did not write."""
    if batch.schema.equals(schema):
        return batch
    names = set(batch.schema.names)
    columns = [
        batch.column(f.name).cast(f.type) if f.name in names else pa.nulls(batch.num_rows, f.type)
        for f in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
