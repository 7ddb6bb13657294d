"""Decompresses request bodies and checks the framing of their Arrow IPC streams, within bounds.

It trusts no length that a body declares. Decompression stops at a limit, and the IPC framing is checked before pyarrow
reads the body: pyarrow would allocate as much memory as a compressed buffer or a dictionary claims to need.

Framing (Arrow columnar format 1.x, "Encapsulated message format"): continuation marker 0xFFFFFFFF,
int32 size of the metadata, flatbuffer metadata, body; metadata size 0 ends a stream.
"""

import struct
import sys
from dataclasses import dataclass

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_WINDOW_LOG_MAX = 23
"""Largest zstd window, as a power of two: RFC 8878 recommends it for decoders, and levels up to 19 use it."""
FRAMES_MAX = 1_000
"""Zstd frames of a body."""
MESSAGES_MAX = 10_000
"""IPC messages of a body: schemas, dictionaries and record batches together."""

# One RLE block of 4 bytes becomes 128 KiB, so 512 bytes of input become at most 16 MiB.
_FEED_BYTES = 512

_ONE_FRAME_BYTES_MAX = 1024 * 1024
"""Largest content that is decompressed in one step, with as much memory as the frame declares."""

_SCHEMA, _DICTIONARY, RECORD_BATCH = 1, 2, 3
_CONTINUATION = 0xFFFFFFFF
_PREFIX = struct.Struct("<Ii")
_PAIR = struct.Struct("<qq")
_ZSTD: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX}


class BodyError(ValueError):
    """The body cannot be accepted; `status` is the HTTP status of the answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class MessageSpan:
    """Position of a complete IPC stream in the body, and the number of rows that its batches declare."""

    start: int
    end: int
    rows: int


def decompress(body: bytes, limit_bytes: int) -> bytes:
    """The content of the zstd frames of `body`, one after another.

    Raises BodyError: 413 above `limit_bytes`, 400 for anything that is not whole zstd frames.
    """
    if (content := _one_frame(body)) is not None and len(content) <= limit_bytes:
        return content
    pieces: list[bytes] = []
    total = 0
    frames = 0
    position = 0
    view = memoryview(body)
    while position < len(body):
        frames += 1
        if frames > FRAMES_MAX:
            raise BodyError(400, f"the body has more than {FRAMES_MAX} zstd frames")
        frame = zstd.ZstdDecompressor(options=_ZSTD)
        while not frame.eof:
            if position >= len(body):
                raise BodyError(400, f"zstd frame {frames} is cut off at byte {len(body)}")
            fed = view[position : position + _FEED_BYTES]
            try:
                piece = frame.decompress(fed)
            except zstd.ZstdError as error:
                raise BodyError(400, f"zstd frame {frames} is damaged: {error}") from error
            position += len(fed) - len(frame.unused_data)
            total += len(piece)
            if total > limit_bytes:
                raise BodyError(413, f"the body decompresses to more than {limit_bytes} bytes")
            pieces.append(piece)
    return b"".join(pieces)


def _one_frame(body: bytes) -> bytes | None:
    """The content of a body as agents send it: one frame that declares a small size.

    None for any other body, and if something is wrong with it: `decompress` then finds out what.
    """
    try:
        size = zstd.get_frame_info(body).decompressed_size
        if size is None or not 0 < size <= _ONE_FRAME_BYTES_MAX:
            return None
        frame = zstd.ZstdDecompressor(options=_ZSTD)
        content = frame.decompress(body, size)  # never more than the frame declares
    except zstd.ZstdError:
        return None
    return content if frame.eof and not frame.unused_data else None


def walk(data: bytes, rows_max: int) -> list[MessageSpan]:
    """The IPC streams of `data`, which it consists of completely.

    Raises BodyError for anything else: truncated messages, streams without their end marker,
    compressed buffers, more messages or rows than allowed.
    """
    spans: list[MessageSpan] = []
    position = messages = rows_before = 0
    while position < len(data):
        start, rows = position, 0
        while True:
            messages += 1
            if messages > MESSAGES_MAX:
                raise BodyError(400, f"the body has more than {MESSAGES_MAX} IPC messages")
            where = f"IPC message {messages} at byte {position}"
            message = message_at(data, position, where)
            if message.kind == _SCHEMA and position != start:
                raise BodyError(400, f"{where} is a second schema: a stream before lacks its end")
            if message.kind != _SCHEMA and position == start:
                raise BodyError(400, f"{where} comes before a schema")
            position = message.end
            if message.kind is None:
                break
            rows += message.rows
            if rows_before + rows > rows_max:
                raise BodyError(413, f"the body has more than {rows_max} rows")
        rows_before += rows
        spans.append(MessageSpan(start, position, rows))
    return spans


@dataclass(frozen=True, slots=True)
class IpcMessage:
    """A message of a stream."""

    kind: int | None  # None: the end marker of a stream
    end: int
    rows: int = 0


def message_at(data: bytes, position: int, where: str) -> IpcMessage:
    """The message at `position`; `where`: its name in errors. Raises BodyError."""
    try:
        marker, size = _PREFIX.unpack_from(data, position)
    except struct.error as error:
        raise BodyError(400, f"{where} is cut off: a stream must end with its marker") from error
    if marker != _CONTINUATION:
        raise BodyError(400, f"{where} is not an Arrow IPC stream")
    metadata = position + 8
    if size == 0:
        return IpcMessage(None, metadata)
    if size < 0 or metadata + size > len(data):
        raise BodyError(400, f"{where} is cut off in its metadata")
    try:
        kind, rows, body_bytes = _read_metadata(data[metadata : metadata + size], where)
    except (struct.error, IndexError) as error:
        raise BodyError(400, f"{where} has damaged metadata") from error
    end = metadata + size + body_bytes
    if end > len(data):
        raise BodyError(400, f"{where} is cut off in its body")
    return IpcMessage(kind, end, rows)


@dataclass(frozen=True, slots=True)
class Node:
    """Number of rows and NULLs of a column (FieldNode)."""

    rows: int
    nulls: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """Position of a buffer in the body of its message."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """The metadata of a record batch."""

    rows: int
    body_bytes: int
    nodes: tuple[Node, ...]
    buffers: tuple[Buffer, ...]


def record_batch(metadata: bytes) -> RecordBatch | None:
    """Parse the metadata of a record batch; None: it is another message. Raises BodyError."""
    try:
        kind, rows, body_bytes = _read_metadata(metadata, "the message")
        if kind != RECORD_BATCH:
            return None
        # `_read_metadata` has checked that the header exists.
        batch = _follow(metadata, _field(metadata, _follow(metadata, 0), 2) or 0)
        nodes = tuple(Node(*pair) for pair in _pairs(metadata, batch, 1))
        buffers = tuple(Buffer(*pair) for pair in _pairs(metadata, batch, 2))
    except (struct.error, IndexError) as error:
        raise BodyError(400, "the message has damaged metadata") from error
    return RecordBatch(rows, body_bytes, nodes, buffers)


def _pairs(buffer: bytes, table: int, slot: int) -> list[tuple[int, int]]:
    """A vector of structs with two 64 bit numbers."""
    at = _field(buffer, table, slot)
    if at is None:
        return []
    vector = _follow(buffer, at)
    count = struct.unpack_from("<I", buffer, vector)[0]
    end = vector + 4 + _PAIR.size * count
    if end > len(buffer):
        raise IndexError
    return list(_PAIR.iter_unpack(buffer[vector + 4 : end]))


def _read_metadata(buffer: bytes, where: str) -> tuple[int, int, int]:
    """Kind, rows and body size of a message; slots as in Message.fbs."""
    message = _follow(buffer, 0)
    kind_at, header_at, size_at = (_field(buffer, message, slot) for slot in (1, 2, 3))
    if kind_at is None or header_at is None:
        raise BodyError(400, f"{where} has no header")
    kind = buffer[kind_at]
    body_bytes = struct.unpack_from("<q", buffer, size_at)[0] if size_at is not None else 0
    if body_bytes < 0 or kind not in (_SCHEMA, _DICTIONARY, RECORD_BATCH):
        raise BodyError(400, f"{where} is of a kind that batches must not have")
    if kind == _SCHEMA:
        return kind, 0, body_bytes
    batch = _follow(buffer, header_at)
    if kind == _DICTIONARY:
        batch_at = _field(buffer, batch, 1)
        if batch_at is None:
            raise BodyError(400, f"{where} is a dictionary without values")
        batch = _follow(buffer, batch_at)
    if _field(buffer, batch, 3) is not None:
        raise BodyError(
            400, f"{where} has compressed buffers: compress the whole body with zstd instead"
        )
    length_at = _field(buffer, batch, 0)
    rows = struct.unpack_from("<q", buffer, length_at)[0] if length_at is not None else 0
    if rows < 0:
        raise BodyError(400, f"{where} has a negative number of rows")
    return kind, rows, body_bytes


def _follow(buffer: bytes, position: int) -> int:
    """The target of the flatbuffer offset at `position`."""
    target: int = position + struct.unpack_from("<I", buffer, position)[0]
    if target >= len(buffer):
        raise IndexError
    return target


def _field(buffer: bytes, table: int, slot: int) -> int | None:
    """Position of a field of a flatbuffer table; None: it has the default."""
    vtable: int = table - struct.unpack_from("<i", buffer, table)[0]
    if not 0 <= vtable < len(buffer):
        raise IndexError
    entry = 4 + 2 * slot
    if entry + 2 > struct.unpack_from("<H", buffer, vtable)[0]:
        return None
    offset: int = struct.unpack_from("<H", buffer, vtable + entry)[0]
    if offset and table + offset >= len(buffer):
        raise IndexError
    return table + offset if offset else None
