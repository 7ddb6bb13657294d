"""Rows of segments as Arrow tables, read anew only where segments have grown.

Any process that can read the folder may have one. A frame is checked once when it is first seen; small
frames are joined to larger chunks as they come, as what a query costs follows from the number of
chunks; large ones stay where they are, in pages of the file that all processes share. Of a block of
frames that is whole one process writes a file of joined rows (`join`), which all others map instead of
what they have joined for themselves.
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
"""Chunks of so many rows are not joined any more."""
_ONE_CHUNK_ROWS = 8_192
"""Tables of so few rows are given as one chunk: a scan takes 0.2 ms for each, as long as for 2,000 rows."""
_MAP_BYTES_MIN = 4 * 1024 * 1024
"""From so many new bytes on a file is mapped to look for its frames."""
_SHARED_BYTES_MIN = 256 * 1024
"""From so many bytes on the rows of a message are not copied."""


class MissingSegmentError(Exception):
    """A segment that the lake does not hold is not there: it was sealed meanwhile, or is lost."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment, between whole frames or before its known end, that are no frame."""

    number: int
    start: int
    end: int


class Segment:
    """One file, read from the beginning to as far as it goes."""

    def __init__(self, folder: Path, number: int, *, keeps_open: bool = False) -> None:
        """`keeps_open`: have it read to its end also when the lake has its rows and it is deleted. Raises
        SegmentError, OSError."""
        self.number = number
        self.path = segment_path(folder, number)
        self.header: SegmentHeader = read_header(self.path)
        self.end = self.header.end
        """How far it is read."""
        self.is_complete = False
        """Whether it is known to end there."""
        self.damaged: list[Damage] = []
        self._mapped: Any | None = None
        self._file: int | None = None
        if keeps_open:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._file)

    def let_go(self) -> None:
        """Keep no page of the file but those that rows are in; what is needed again is mapped again."""
        self._mapped = None

    @contextmanager
    def opened(self) -> Iterator[int]:
        """The file. Raises OSError."""
        if self._file is not None:
            yield self._file
            return
        with self.path.open("rb") as file:
            yield file.fileno()

    def content_at(self, file: int, start: int, size: int) -> Any:
        """A part of the file as a buffer: of the file's own pages if it is large. Raises OSError."""
        if size < _SHARED_BYTES_MIN:
            return pa.py_buffer(os.pread(file, size, start))
        if self._mapped is None or self._mapped.size < start + size:
            self._mapped = pa.py_buffer(mmap.mmap(file, 0, prot=mmap.PROT_READ))
        return self._mapped.slice(start, size)

    def new_frames(
        self, limit: int | None = None, *, is_abandoned: bool = False
    ) -> Iterator[ReadFrame]:
        """Frames that were not read yet. `limit`: where the segment ends; None: it may be written, unless
        it `is_abandoned`, then it ends with the last frame that is whole.

        What stands before its end and is no frame is noted in `damaged` and passed over.
        """
        if self.is_complete:
            return
        content, start, salt = self._content(limit), self.end, self.header.salt
        if content is not None:
            for frame in frames_of(content, start, salt):
                self.end = frame.end
                yield frame
            while limit is not None or is_abandoned:
                # Each frame was on disk before the next was written, so what follows is data.
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
        """What is in the file behind `end`, as a buffer; None: nothing."""
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
    """Where a segment ends, as the one right behind it says; None: that one is not there."""
    if follower is None or follower.number != segment.number + 1:
        return None
    return follower.header.previous_end


class _Rows:
    """Rows of one table in a segment, read when they are first asked for; as few chunks as joining each
    row at most log n times gives."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._chunks: list[Any] = []
        self._unread: list[tuple[int, int]] = []

    def note(self, start: int, size: int) -> None:
        """There is a message more, at a place of the file."""
        self._unread.append((start, size))

    def chunks(self, segment: Segment, name: str) -> list[Any]:
        """All of them. Raises OSError."""
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
        """Whether its rows are in a file of their own."""
        return self._joined is not None

    @property
    def tables(self) -> list[str]:
        """Names of the tables that it has rows of, as read from the segment."""
        return list(self._read)

    def note(self, name: str, start: int, size: int) -> None:
        """There is a message more, at a place of the segment."""
        if name not in self._read:
            self._read[name] = _Rows(SCHEMAS[name])
        self._read[name].note(start, size)

    def chunks(self, segment: Segment, name: str) -> list[Any]:
        """Rows of a table. Raises OSError."""
        if self._joined is not None:
            batch = self._joined.batches.get(name)
            return [] if batch is None else [batch]
        return self._read[name].chunks(segment, name) if name in self._read else []

    def take(self, joined: JoinedRows) -> None:
        """Have its rows from a file, instead of what was read."""
        self._joined = joined
        self._read.clear()

    def let_go(self) -> None:
        """Have no page of that file in memory until it is read again."""
        if self._joined is not None:
            self._joined.let_go()


class _Unsealed:
    """A segment and its blocks."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.blocks: list[_Block] = []

    @property
    def whole(self) -> list[_Block]:
        """Blocks that nothing will be added to."""
        return self.blocks if self.segment.is_complete else self.blocks[:-1]

    def note(self, frame: ReadFrame) -> None:
        """Take over where the rows of a frame stand."""
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
    """Rows that came to segments since, of the tables that are followed."""

    tables: dict[str, list[Any]] = field(default_factory=dict)
    """Record batches that nobody has taken, in the order in which they came."""
    has_gap: bool = False
    """Whether some are missing: all are to be read again."""

    def take(self, name: str) -> list[Any]:
        """The rows of a followed table that came since the last call."""
        found, self.tables[name] = self.tables[name], []
        return found

    def note(self, segment: Segment, frame: ReadFrame) -> None:
        """A frame came."""
        for message in frame.messages:
            if message.table in self.tables:
                content = frame.body.slice(message.start, message.size)
                batch = pa.ipc.read_record_batch(content, segment.header.schemas[message.table])
                self.tables[message.table].append(_conformed(batch, SCHEMAS[message.table]))


class HotRows:
    """Rows of all segments behind a number; for any thread."""

    def __init__(self, folder: Path, since: RowsSince | None = None) -> None:
        """`since`: what is given all rows that come, besides."""
        self._folder = folder
        self._since = since
        self._after: int | None = None
        self._lock = threading.Lock()
        self._segments: dict[int, _Unsealed] = {}
        self._tables: dict[str, tuple[int, int | None, Any]] = {}
        self._version = 0
        self._whole: set[Block] = set()
        self._is_failure_told = False

    def tables(
        self, names: Iterable[str], after: int, until: int | None = None, *, is_strict: bool = True
    ) -> dict[str, Any]:
        """Arrow tables of the segments behind `after`, up to and with `until`, by name.

        Raises MissingSegmentError unless `is_strict` is off: the lake may hold it by now. Raises
        SegmentError, OSError.
        """
        with self._lock:
            self._refresh(after, is_strict=is_strict)
            try:
                return {name: self._table(name, after, until) for name in names}
            except FileNotFoundError as error:
                raise MissingSegmentError(str(error)) from error

    def look(self, after: int) -> None:
        """Read what has come to the segments behind `after`. Raises SegmentError, OSError."""
        with self._lock:
            self._refresh(after, is_strict=False)

    def forget(self, until: int) -> None:
        """Let go of the rows of segments up to a number: the lake holds them."""
        with self._lock:
            for number in [n for n in self._segments if n <= until]:
                del self._segments[number]
            self._tables.clear()
            self._version += 1

    @property
    def damaged(self) -> list[Damage]:
        """What was passed over in the segments that there are."""
        with self._lock:
            return [d for known in self._segments.values() for d in known.segment.damaged]

    def let_go(self) -> None:
        """Have no page of joined rows in this process's memory until they are read again."""
        with self._lock:
            for known in self._segments.values():
                for block in known.blocks:
                    block.let_go()

    def join(self, after: int) -> int:
        """Write files of joined rows for the blocks behind `after` that were whole at the last call
        already; how many. One process calls it, now and then, while no segment is deleted.

        Where many rows come, the lake has their segment before the second call. Raises SegmentError, OSError.
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
                    # Each process has its own copy of the rows then, as before.
                    if not self._is_failure_told:
                        log.warning("joined rows cannot be written", extra={"reason": str(error)})
                    self._is_failure_told = True
                    return written
                self._is_failure_told = False
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
        self._take_joined(joined_blocks(names))

    def _read_sealed(self, since: RowsSince, after: int) -> None:
        """Give on what came to segments that the lake holds by now, before they are let go of."""
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
        """Whether all of a segment is read now that nobody writes."""
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

    def _take_joined(self, blocks: set[Block]) -> None:
        for number, known in self._segments.items():
            for block in known.whole:
                if block.is_joined or (number, block.number) not in blocks:
                    continue
                try:
                    block.take(JoinedRows(self._folder, (number, block.number), SCHEMAS))
                except (OSError, ValueError):
                    continue  # the segment has the same
                known.segment.let_go()
                self._version += 1
                self._tables.clear()

    def _read(self, number: int) -> None:
        """Take over what a segment has got since it was last read."""
        known = self._segments[number]
        follower = self._segments.get(number + 1)
        limit = end_of(known.segment, follower.segment if follower else None)
        if limit is not None and known.segment.end > limit and not known.segment.is_complete:
            # Its writer gave up what was read here before it knew that.
            known = self._anew(number)
            if self._since is not None:
                self._since.has_gap = True
        self._take_frames(known, limit)

    def _segment(self, number: int) -> _Unsealed:
        return self._segments.get(number) or self._anew(number)

    def _anew(self, number: int) -> _Unsealed:
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
    """All rows of a block, one batch a table. Raises OSError."""
    found = {}
    for name in block.tables:
        table = pa.Table.from_batches(block.chunks(segment, name), SCHEMAS[name])
        if table.num_rows:
            found[name] = table.combine_chunks().to_batches()[0]
    return found


@dataclass(frozen=True, slots=True)
class Tail:
    """What segments say besides rows."""

    batches: list[BatchKey]
    progress: Mapping[str, Any] | None
    end: int | None
    """Where the newest one ends; None: there is none."""


def read_tail(folder: Path, after: int) -> Tail:
    """Batches and progress in the segments behind `after`, which nobody writes. Raises SegmentError,
    OSError."""
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
    """Where the last frame of a segment that nobody writes begins, and what it holds, in today's columns; None:
    it has none. Raises SegmentError, OSError."""
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
    """A batch of a file that another version wrote: columns that it lacks are NULL."""
    if batch.schema.equals(schema):
        return batch
    names = set(batch.schema.names)
    columns = [
        batch.column(f.name).cast(f.type) if f.name in names else pa.nulls(batch.num_rows, f.type)
        for f in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
