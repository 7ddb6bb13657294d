"""Reads and writes segments: append-only files of Arrow frames that are both log and hot table.

A group commit is one frame: the identities of its batches, and for each table a record batch that readers
map without decoding. A frame is valid when it is whole and its CRC32C is right; bytes after the last valid
frame are a torn write. One run of one process writes a file, and nobody shortens it, so mapping it is safe.
The header of the next file stores the final end of a file (`previous_end`); it is synced before any frame
follows it.

Layout, little endian, each part padded to 64 bytes:

    file    header frame*
    header  "GPUWSEG1"  u32 length of JSON  u32 CRC32C of JSON  JSON
    frame   "GPUWFRM1"  u32 length of JSON  u32 CRC32C of JSON and body  u64 length of body  JSON  body

The CRC of a frame starts from the file's `salt`, a random number in its header. So neither data of an agent
nor a frame of another file can pass for a frame of this file.
"""

import base64
import errno
import json
import os
import secrets
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa

from gpuwarden.files import sync_folder
from gpuwarden.schema import TABLES, UPSERTED, stored_columns
from gpuwarden_collector.storage.schemas import arrow_schema

FOLDER = "segments"
SUFFIX = ".seg"
UNFINISHED = ".new"
TABLE_NAMES = tuple(name for name in TABLES if name not in UPSERTED)
"""Tables whose rows are only ever appended."""


def _stored_schema(name: str) -> Any:
    """The Arrow schema in DuckDB's types, so that reading needs no conversion: instants are microseconds."""
    schema = arrow_schema(stored_columns(TABLES[name]))
    return pa.schema(
        [f.with_type(pa.timestamp("us")) if pa.types.is_timestamp(f.type) else f for f in schema]
    )


SCHEMAS: Mapping[str, Any] = {name: _stored_schema(name) for name in TABLES}
"""Arrow schema of each table as it is stored."""

_FILE_MAGIC, _FRAME_MAGIC = b"GPUWSEG1", b"GPUWFRM1"
_HEADER, _FRAME = struct.Struct("<8sII"), struct.Struct("<8sIIQ")
_ALIGN = 64
_META_BYTES_MAX = 64 * 1024 * 1024
_WRITEV_MAX = 512
"""Buffers of one write; the kernel allows 1,024."""
_MESSAGE_ROWS_MIN = 4_096
"""Chunks smaller than that are joined into one message."""


_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError, pa.ArrowException)
"""Errors of reading JSON that no collector wrote."""


class SegmentError(Exception):
    """A file is not a segment, or has a later version."""


@dataclass(frozen=True, slots=True)
class BatchKey:
    """Identity of a stored batch. `floor`: no batch of its boot with a lower sequence will come."""

    sender: str
    agent_id: str
    boot_id: str
    sequence: int
    floor: int


@dataclass(frozen=True, slots=True)
class Frame:
    """The content of one commit."""

    tables: Mapping[str, Any] = field(default_factory=dict)
    """Arrow tables in the stored column order, by name."""
    batches: Sequence[BatchKey] = ()
    progress: Mapping[str, Any] | None = None
    """Progress of rollups with the rows of this frame; None: unchanged."""


@dataclass(frozen=True, slots=True)
class SegmentMessage:
    """Position of a record batch in the body of its frame."""

    table: str
    start: int
    size: int
    rows: int


@dataclass(frozen=True, slots=True)
class ReadFrame:
    """A whole frame of a file."""

    start: int
    end: int
    batches: Sequence[BatchKey]
    progress: Mapping[str, Any] | None
    messages: Sequence[SegmentMessage]
    body: Any
    """Buffer of the body."""

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(message.rows for message in self.messages)

    @property
    def body_start(self) -> int:
        """Position of the body in the file."""
        return self.end - padded(self.body.size)


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The header of a segment."""

    number: int
    schemas: Mapping[str, Any]
    """Arrow schema of each table in this file."""
    previous_end: int | None
    """End of the segment before; later bytes are not data. None: there was no segment."""
    salt: int
    """Start value of the CRC of its frames."""
    collector: str
    """Identity of the collector that wrote it, in case its state file is lost."""
    end: int
    """Position of the first frame."""


def segment_path(folder: Path, number: int) -> Path:
    """The file of a segment."""
    return folder / f"{number:012d}{SUFFIX}"


def segment_numbers(folder: Path) -> list[int]:
    """Numbers of the segments in a folder, oldest first. Raises OSError."""
    try:
        return numbers_in(os.listdir(folder))
    except FileNotFoundError:
        return []


def numbers_in(names: Iterable[str]) -> list[int]:
    """Numbers of the segments among the names of a folder, oldest first."""
    stems = (name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isdigit())


class SegmentWriter:
    """Writes one segment. After an error, begin the next segment."""

    def __init__(
        self,
        folder: Path,
        number: int,
        previous_end: int | None,
        collector: str = "",
        first: Frame | None = None,
    ) -> None:
        """Create and sync the file, with a `first` frame, and sync its name. Raises OSError."""
        self.number = number
        self.path = segment_path(folder, number)
        self._salt = secrets.randbits(32)
        header = _header_bytes(number, previous_end, self._salt, collector)
        if self.path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(self.path))
        # Under a temporary name until it is whole, so that nobody reads half a header.
        unfinished = self.path.with_suffix(UNFINISHED)
        self._file = os.open(
            unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640
        )
        try:
            parts, size = ([], 0) if first is None else _frame_parts(first, self._salt)
            write_all(self._file, [header, *parts], 0)
            os.fsync(self._file)
            unfinished.rename(self.path)
            sync_folder(folder)
        except OSError:
            os.close(self._file)
            # The next try creates the same file.
            for path in (unfinished, self.path):
                path.unlink(missing_ok=True)
            raise
        self._begin = len(header)
        self.end = self._begin + size

    @property
    def frame_bytes(self) -> int:
        """Size of its frames."""
        return self.end - self._begin

    def append(self, frame: Frame) -> None:
        """Write and sync a frame. Raises OSError or MemoryError; the file then ends at `end`."""
        parts, size = _frame_parts(frame, self._salt)
        write_all(self._file, parts, self.end)
        if sys.platform == "linux":
            os.fdatasync(self._file)
        else:
            os.fsync(self._file)
        self.end += size

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_header(path: Path) -> SegmentHeader:
    """The header of a segment. Raises SegmentError, OSError."""
    with path.open("rb") as file:
        prefix = file.read(_HEADER.size)
        if len(prefix) < _HEADER.size:
            raise SegmentError(f"{path} has {len(prefix)} bytes, less than a header")
        magic, size, crc = _HEADER.unpack(prefix)
        if magic != _FILE_MAGIC:
            raise SegmentError(f"{path} is not a segment of this version")
        content = file.read(min(size, _META_BYTES_MAX))
    if len(content) != size or google_crc32c.value(content) != crc:
        raise SegmentError(f"{path} has a damaged header")
    try:
        said = json.loads(content)
        schemas = {
            name: pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
            for name, text in said["schemas"].items()
        }
        return SegmentHeader(
            said["number"],
            schemas,
            said["previous_end"],
            said["salt"],
            said["collector"],
            padded(_HEADER.size + size),
        )
    except _MALFORMED as error:
        raise SegmentError(f"{path} has a header that no collector writes") from error


def frames_of(content: Any, offset: int, salt: int) -> Iterator[ReadFrame]:
    """Valid frames at the beginning of `content`, a pyarrow buffer at `offset` of its file.

    Ends at the first invalid frame.
    """
    view = memoryview(content)
    at = 0
    while (frame := _frame_at(content, view, at, offset, salt)) is not None:
        yield frame
        at = frame.end - offset


def next_frame(content: Any, offset: int, at: int, salt: int) -> ReadFrame | None:
    """The first valid frame at or behind position `at` of the file: the one that follows damage."""
    view = memoryview(content)
    for start in range(padded(at - offset), len(view) - _FRAME.size, _ALIGN):
        if view[start : start + 8] == _FRAME_MAGIC:
            frame = _frame_at(content, view, start, offset, salt)
            if frame is not None:
                return frame
    return None


def _frame_at(content: Any, view: memoryview, at: int, offset: int, salt: int) -> ReadFrame | None:
    if len(view) - at < _FRAME.size:
        return None
    magic, meta_bytes, crc, body_bytes = _FRAME.unpack_from(view, at)
    meta_start = at + _FRAME.size
    body_start = padded(meta_start + meta_bytes)
    end = padded(body_start + body_bytes)
    if magic != _FRAME_MAGIC or meta_bytes > _META_BYTES_MAX or end > len(view):
        return None
    meta = bytes(view[meta_start : meta_start + meta_bytes])
    body = content.slice(body_start, body_bytes)
    if google_crc32c.extend(google_crc32c.extend(salt, meta), body) != crc:
        return None
    try:
        said = json.loads(meta)
        return ReadFrame(
            offset + at,
            offset + end,
            [BatchKey(*key) for key in said["batches"]],
            said.get("progress"),
            [SegmentMessage(*message) for message in said["tables"]],
            body,
        )
    except _MALFORMED:  # with a right CRC, as a sender of copies could compute one
        return None


def _header_bytes(number: int, previous_end: int | None, salt: int, collector: str) -> bytes:
    schemas = {
        name: base64.b64encode(SCHEMAS[name].serialize().to_pybytes()).decode()
        for name in TABLE_NAMES
    }
    content = json.dumps(
        {
            "number": number,
            "previous_end": previous_end,
            "salt": salt,
            "collector": collector,
            "schemas": schemas,
        }
    ).encode()
    header = _HEADER.pack(_FILE_MAGIC, len(content), google_crc32c.value(content)) + content
    return header.ljust(padded(len(header)), b"\0")


def _frame_parts(frame: Frame, salt: int) -> tuple[list[Any], int]:
    """Buffers of a frame in order, and their total size."""
    body: list[Any] = []
    messages: list[tuple[str, int, int, int]] = []
    position = 0
    for name, table in frame.tables.items():
        for batch in _batches(table):
            message = batch.serialize()
            messages.append((name, position, message.size, batch.num_rows))
            padding = bytes(padded(message.size) - message.size)
            body += [message, padding] if padding else [message]
            position += message.size + len(padding)
    said: dict[str, Any] = {
        "tables": messages,
        "batches": [(b.sender, b.agent_id, b.boot_id, b.sequence, b.floor) for b in frame.batches],
    }
    if frame.progress is not None:
        said["progress"] = frame.progress
    meta = json.dumps(said).encode()
    crc = google_crc32c.extend(salt, meta)
    for part in body:
        crc = google_crc32c.extend(crc, part)
    head = _FRAME.pack(_FRAME_MAGIC, len(meta), crc, position) + meta
    head = head.ljust(padded(len(head)), b"\0")
    return [head, *body], len(head) + position


def _batches(table: Any) -> Iterator[Any]:
    if not table.num_rows:
        return
    chunks = table.column(0).num_chunks
    if chunks > 1 and table.num_rows < chunks * _MESSAGE_ROWS_MIN:
        table = table.combine_chunks()
    yield from (batch for batch in table.to_batches() if batch.num_rows)


def write_all(file: int, parts: Sequence[Any], position: int) -> None:
    """Write all buffers at a position. Raises OSError."""
    waiting = [memoryview(part).cast("B") for part in parts]
    while waiting:
        written = os.pwritev(file, waiting[:_WRITEV_MAX], position)
        position += written
        while waiting and written >= len(waiting[0]):
            written -= len(waiting.pop(0))
        if waiting and written:
            waiting[0] = waiting[0][written:]


def padded(size: int) -> int:
    """A size, rounded up to where the next part begins."""
    return -(-size // _ALIGN) * _ALIGN
