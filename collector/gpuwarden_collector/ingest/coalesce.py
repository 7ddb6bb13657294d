"""Reads the streams of many bodies as if they were one.

To open a stream and read a batch of forty rows costs ten times what its values do. Agents of one
version begin their streams with the very same bytes, the schema; so the record batches of many
bodies, put behind it one after another, are one stream that is opened and read once. Framing is
walked before (`ipc_messages.py`), so a message cannot reach into its neighbour. Batches that are laid out
alike, as most are, are not even read one by one (`stacked.py`). A body that is unusual in any way is left
to `decode.py`, which judges it by itself.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from gpuwarden.metrics import Type
from gpuwarden.schema import WIRE_TABLES
from gpuwarden.table import Table
from gpuwarden.wire import ROWS_MAX, TABLE_KEY
from gpuwarden_collector.ingest.decode import ARROW_ERRORS, WIRE_SCHEMAS
from gpuwarden_collector.ingest.ipc_messages import (
    BodyError,
    RecordBatch,
    record_batch,
    walk,
)
from gpuwarden_collector.ingest.stacked import Layout, layout_of, stacked

PLAIN_BYTES_MAX = 256 * 1024
"""Largest content that is read together with others'."""
_SCHEMAS_MAX = 64
_SCHEMA_BYTES_MAX = 64 * 1024
_LAYOUTS_MAX = 1_024
"""Metadata of record batches remembered for an opening; then they are learned anew."""
_LAYOUT_SEEN_MIN = 4
"""Times that a layout has been met before its batches are stacked: some never come again."""
_STACKED_MIN = 6
"""Batches of one layout below which pyarrow, which reads one after another, is faster."""
_PREFIX_BYTES = 8
_MARKER = b"\xff\xff\xff\xff"
_END = _MARKER + b"\0\0\0\0"

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
    _known: dict[bytes, "_Known"] = field(default_factory=dict)

    def batch(self, metadata: bytes) -> "_Known | None":
        """What such metadata means; None: it is no record batch, or damaged."""
        known = self._known.get(metadata)
        if known is None:
            try:
                batch = record_batch(metadata)
            except BodyError:
                return None
            if batch is None:
                return None
            if len(self._known) >= _LAYOUTS_MAX:
                self._known.clear()
            known = self._known[metadata] = _Known(batch, layout_of(self.table, batch))
        known.seen += 1
        return known


@dataclass(slots=True)
class _Known:
    """Metadata that was met before. Threads may count at once and lose a count: it is no matter."""

    batch: RecordBatch
    layout: Layout | None
    seen: int = 0


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
    layout: Layout | None = None
    """Of the only record batch."""
    body: int = 0
    """Where that one's body begins."""

    @property
    def table(self) -> str:
        """Of which the rows are."""
        return self.opening.table


Source = Opening | Layout
"""Record batches with the same source are read as one."""


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
        found = _stream_at(content, position + len(opening.content), opening)
        if found is None:
            return None
        stream, position = found
        streams.append(stream)
    names = {stream.table for stream in streams}
    rows = sum(stream.rows for stream in streams)
    return streams if len(names) == len(streams) and rows <= ROWS_MAX else None


def _stream_at(content: bytes, start: int, opening: Opening) -> tuple[Stream, int] | None:
    """The stream whose record batches begin at `start`, and where it ends."""
    rows = batches = body = 0
    position = start
    layout: Layout | None = None
    while not content.startswith(_END, position):
        body = position + _PREFIX_BYTES
        marker, size = content[position : position + 4], content[position + 4 : body]
        body += int.from_bytes(size, "little")
        known = opening.batch(content[position + _PREFIX_BYTES : body])
        if marker != _MARKER or known is None:
            return None
        position = body + known.batch.body_bytes
        if position > len(content) or position % 8:
            return None
        rows += known.batch.rows
        batches += 1
        layout = known.layout if known.seen > _LAYOUT_SEEN_MIN else None
    # Columns may lie on top of each other and be large once they are copied: not such ones.
    if rows * opening.row_bits > 8 * (position - start):
        return None
    end = position + len(_END)
    if layout is not None and batches == 1:
        return Stream(opening, start, position, rows, layout, body), end
    return Stream(opening, start, position, rows), end


@dataclass(slots=True)
class CoalescedStreams:
    """Streams of many bodies, to be read as one for each source."""

    _added: list[tuple[memoryview, Stream]] = field(default_factory=list)
    _alike: Counter[Layout] = field(default_factory=Counter)

    def add(self, content: bytes, streams: Sequence[Stream]) -> None:
        """Take the streams of one body."""
        view = memoryview(content)
        for stream in streams:
            self._added.append((view, stream))
            if stream.layout is not None:
                self._alike[stream.layout] += 1

    def source_of(self, stream: Stream) -> Source:
        """What the rows of a stream are read from, once all are added."""
        layout = stream.layout
        if layout is not None and self._alike[layout] >= _STACKED_MIN:
            return layout
        return stream.opening

    def read(self) -> dict[Source, Any] | None:
        """A table for each source, rows in the order of adding; None when some body is damaged."""
        pieces: dict[Source, list[memoryview]] = {}
        rows: Counter[Source] = Counter()
        for view, stream in self._added:
            source = self.source_of(stream)
            start = stream.body if source is stream.layout else stream.start
            pieces.setdefault(source, []).append(view[start : stream.end])
            rows[source] += stream.rows
        tables: dict[Source, Any] = {}
        for source, found in pieces.items():
            match source:
                case Layout():
                    table = stacked(source, found)
                case Opening(content=content):
                    table = _read(b"".join([content, *found, _END]))
            if table is None or table.num_rows != rows[source]:
                return None
            tables[source] = table
        return tables


def _read(stream: bytes) -> Any | None:
    try:
        return pa.ipc.open_stream(pa.py_buffer(stream)).read_all()
    except ARROW_ERRORS:
        return None
