"""Reads the streams of many bodies as if they were one.

To open a stream and read a batch of forty rows costs ten times what its values do. Agents of one
version begin their streams with the very same bytes, the schema; so the record batches of many
bodies, put behind it one after another, are one stream that is opened and read once. Framing is
walked before (`frames.py`), so a message cannot reach into its neighbour. A body that is unusual in
any way is left to `decode.py`, which judges it by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from gpuwarden.metrics import Type
from gpuwarden.schema import WIRE_TABLES
from gpuwarden.table import Table
from gpuwarden.wire import ROWS_MAX, TABLE_KEY
from gpuwarden_collector.decode import ARROW_ERRORS, WIRE_SCHEMAS
from gpuwarden_collector.frames import RECORD_BATCH, BodyError, message_at, walk

PLAIN_BYTES_MAX = 256 * 1024
"""Largest content that is read together with others'."""
_SCHEMAS_MAX = 64
_SCHEMA_BYTES_MAX = 64 * 1024
_PREFIX_BYTES = 8
_END = b"\xff\xff\xff\xff\0\0\0\0"

_BITS = {
    Type.TIMESTAMP: 64,
    Type.STRING: 32,  # the offset
    Type.BOOL: 1,
    Type.INT16: 16,
    Type.INT32: 32,
    Type.INT64: 64,
    Type.FLOAT32: 32,
    Type.FLOAT64: 64,
}


def _row_bits(table: Table) -> int:
    return sum(_BITS[column.type] for column in table.columns)


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """The schema message that a table's stream begins with."""

    content: bytes
    table: str
    row_bits: int
    """Least that the columns of a row take up."""


class Openings:
    """Openings that were seen and found to have the catalogue's own schema; for all threads."""

    def __init__(self) -> None:
        self._by_size: dict[int, tuple[Opening, ...]] = {}
        self._count = 0

    def at(self, content: bytes, position: int) -> Opening | None:
        """The opening that stands at `position`."""
        size = int.from_bytes(content[position + 4 : position + 8], "little")
        for opening in self._by_size.get(size, ()):
            if content.startswith(opening.content, position):
                return opening
        return None

    def learn(self, content: bytes) -> None:
        """Remember how the streams of an accepted content begin, where that is as it should be."""
        for span in walk(content, ROWS_MAX):
            if self.at(content, span.start) is not None or self._count >= _SCHEMAS_MAX:
                continue
            size = int.from_bytes(content[span.start + 4 : span.start + 8], "little")
            if size > _SCHEMA_BYTES_MAX:
                continue
            opening = content[span.start : span.start + _PREFIX_BYTES + size]
            schema = pa.ipc.read_schema(pa.py_buffer(opening))
            table = (schema.metadata or {}).get(TABLE_KEY.encode(), b"").decode()
            if schema.equals(WIRE_SCHEMAS[table]):
                known = self._by_size.get(size, ())
                found = Opening(opening, table, _row_bits(WIRE_TABLES[table]))
                self._by_size[size] = (*known, found)
                self._count += 1


@dataclass(frozen=True, slots=True)
class Stream:
    """The record batches of a table in one body: where they lie, and how many rows they have."""

    opening: Opening
    start: int
    end: int
    rows: int


def plain_streams(content: bytes, openings: Openings) -> list[Stream] | None:
    """The streams of a content as agents make it; None for any other."""
    if not 0 < len(content) <= PLAIN_BYTES_MAX:
        return None
    streams: list[Stream] = []
    position = 0
    while position < len(content):
        opening = openings.at(content, position)
        if opening is None:
            return None
        stream = _stream_at(content, position + len(opening.content), opening)
        if stream is None:
            return None
        streams.append(stream)
        position = stream.end + len(_END)
    names = {stream.opening.table for stream in streams}
    rows = sum(stream.rows for stream in streams)
    return streams if len(names) == len(streams) and rows <= ROWS_MAX else None


def _stream_at(content: bytes, start: int, opening: Opening) -> Stream | None:
    rows = 0
    position = start
    while not content.startswith(_END, position):
        try:
            message = message_at(content, position, "")
        except BodyError:
            return None
        if message.kind != RECORD_BATCH or message.end % 8:
            return None
        rows += message.rows
        position = message.end
    # Columns may lie on top of each other and be large once they are copied: not such ones.
    if rows * opening.row_bits > 8 * (position - start):
        return None
    return Stream(opening, start, position, rows)


@dataclass(slots=True)
class Joined:
    """Streams of many bodies, to be read as one for each opening."""

    _pieces: dict[Opening, list[memoryview]] = field(default_factory=dict)
    _rows: dict[Opening, int] = field(default_factory=dict)

    def add(self, content: bytes, streams: Sequence[Stream]) -> None:
        """Take the streams of one body."""
        view = memoryview(content)
        for stream in streams:
            self._pieces.setdefault(stream.opening, []).append(view[stream.start : stream.end])
            self._rows[stream.opening] = self._rows.get(stream.opening, 0) + stream.rows

    def read(self) -> dict[Opening, Any] | None:
        """A table for each opening, rows in the order of adding; None when some body is damaged."""
        tables: dict[Opening, Any] = {}
        for opening, pieces in self._pieces.items():
            stream = b"".join([opening.content, *pieces, _END])
            try:
                table = pa.ipc.open_stream(pa.py_buffer(stream)).read_all()
            except ARROW_ERRORS:
                return None
            if table.num_rows != self._rows[opening]:
                return None
            tables[opening] = table
        return tables
