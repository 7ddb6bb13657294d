"""Reads the Arrow streams of many bodies as one stream.

To open a stream and read forty rows takes ten times as long as their values. The streams of agents of one version
begin with the same bytes, the schema message. So one schema followed by the record batches of many bodies is a valid
stream, which is opened and read once. The framing is checked before (`ipc_messages.py`), so a message cannot reach
into the next one. Record batches with the same layout, which most have, are read together (`stacked.py`). `decode.py`
reads every other body by itself.
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
from gpuwarden_collector.storage.schemas import ARROW_TYPES

PLAIN_BYTES_MAX = 256 * 1024
"""Larger contents are read by themselves."""
_SCHEMAS_MAX = 64
_SCHEMA_BYTES_MAX = 64 * 1024
_LAYOUTS_MAX = 1_024
"""Metadata of record batches that are remembered for one schema; then all are forgotten."""
_LAYOUT_SEEN_MIN = 4
"""A layout is stacked after it was seen this often: some layouts come only once."""
_STACKED_MIN = 6
"""With fewer batches of one layout pyarrow is faster, which reads them one by one."""
_PREFIX_BYTES = 8
_MARKER = b"\xff\xff\xff\xff"
_END = _MARKER + b"\0\0\0\0"

_OFFSET_BITS = 32


def _row_bits(table: Table) -> int:
    types = [column.type for column in table.columns]
    return sum(_OFFSET_BITS if t is Type.STRING else ARROW_TYPES[t].bit_width for t in types)


@dataclass(frozen=True, slots=True, eq=False)
class SchemaPrefix:
    """The schema message at the start of a table's stream."""

    content: bytes
    table: str
    row_bits: int
    """Smallest size of a row."""
    _known: dict[bytes, "_KnownMetadata"] = field(default_factory=dict)

    def batch(self, metadata: bytes) -> "_KnownMetadata | None":
        """The record batch that the metadata describes; None: it is another message, or damaged."""
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
            known = self._known[metadata] = _KnownMetadata(batch, layout_of(self.table, batch))
        known.seen += 1
        return known


@dataclass(slots=True)
class _KnownMetadata:
    """Metadata that was seen before. Two threads may lose a count, which does not matter."""

    batch: RecordBatch
    layout: Layout | None
    seen: int = 0


class KnownSchemas:
    """Schema messages of earlier bodies that have exactly the catalogue's schema. Thread-safe."""

    def __init__(self) -> None:
        self._by_size: dict[int, tuple[SchemaPrefix, ...]] = {}
        self._count = 0

    def at(self, content: bytes, position: int) -> SchemaPrefix | None:
        """The known schema message at `position`."""
        size = int.from_bytes(content[position + 4 : position + 8], "little")
        for prefix in self._by_size.get(size, ()):
            if content.startswith(prefix.content, position):
                return prefix
        return None

    def learn(self, content: bytes) -> None:
        """Remember the schema messages of an accepted content that have exactly the catalogue's schema."""
        for span in walk(content, ROWS_MAX):
            if self.at(content, span.start) is not None or self._count >= _SCHEMAS_MAX:
                continue
            size = int.from_bytes(content[span.start + 4 : span.start + 8], "little")
            if size > _SCHEMA_BYTES_MAX:
                continue
            prefix = content[span.start : span.start + _PREFIX_BYTES + size]
            schema = pa.ipc.read_schema(pa.py_buffer(prefix))
            table = (schema.metadata or {}).get(TABLE_KEY.encode(), b"").decode()
            if schema.equals(WIRE_SCHEMAS[table]):
                known = self._by_size.get(size, ())
                added = SchemaPrefix(prefix, table, _row_bits(WIRE_TABLES[table]))
                self._by_size[size] = (*known, added)
                self._count += 1


@dataclass(frozen=True, slots=True)
class Stream:
    """The record batches of a table in one body: their position and number of rows."""

    prefix: SchemaPrefix
    start: int
    end: int
    rows: int
    layout: Layout | None = None
    """Of the only record batch."""
    body: int = 0
    """Where the body of that record batch begins."""

    @property
    def table(self) -> str:
        """The table of the rows."""
        return self.prefix.table


Source = SchemaPrefix | Layout
"""Record batches with the same source are read as one."""


def plain_streams(content: bytes, schemas: KnownSchemas) -> list[Stream] | None:
    """The streams of a content in the form that agents send; None for any other content."""
    if not 0 < len(content) <= PLAIN_BYTES_MAX:
        return None
    streams: list[Stream] = []
    position = 0
    while position < len(content):
        prefix = schemas.at(content, position)
        if prefix is None:
            return None
        located = _stream_at(content, position + len(prefix.content), prefix)
        if located is None:
            return None
        stream, position = located
        streams.append(stream)
    names = {stream.table for stream in streams}
    rows = sum(stream.rows for stream in streams)
    return streams if len(names) == len(streams) and rows <= ROWS_MAX else None


def _stream_at(content: bytes, start: int, prefix: SchemaPrefix) -> tuple[Stream, int] | None:
    """The stream whose record batches begin at `start`, and its end."""
    rows = batches = body = 0
    position = start
    layout: Layout | None = None
    while not content.startswith(_END, position):
        body = position + _PREFIX_BYTES
        marker, size = content[position : position + 4], content[position + 4 : body]
        body += int.from_bytes(size, "little")
        known = prefix.batch(content[position + _PREFIX_BYTES : body])
        if marker != _MARKER or known is None:
            return None
        position = body + known.batch.body_bytes
        if position > len(content) or position % 8:
            return None
        rows += known.batch.rows
        batches += 1
        layout = known.layout if known.seen > _LAYOUT_SEEN_MIN else None
    # Buffers of columns may overlap, so that a small body becomes large when copied: leave it to `decode.py`.
    if rows * prefix.row_bits > 8 * (position - start):
        return None
    end = position + len(_END)
    if layout is not None and batches == 1:
        return Stream(prefix, start, position, rows, layout, body), end
    return Stream(prefix, start, position, rows), end


@dataclass(slots=True)
class CoalescedStreams:
    """Streams of many bodies, which are read as one for each source."""

    _added: list[tuple[memoryview, Stream]] = field(default_factory=list)
    _of_layout: Counter[Layout] = field(default_factory=Counter)

    def add(self, content: bytes, streams: Sequence[Stream]) -> None:
        """Add the streams of one body."""
        view = memoryview(content)
        for stream in streams:
            self._added.append((view, stream))
            if stream.layout is not None:
                self._of_layout[stream.layout] += 1

    def source_of(self, stream: Stream) -> Source:
        """The source of a stream, once all streams are added."""
        layout = stream.layout
        if layout is not None and self._of_layout[layout] >= _STACKED_MIN:
            return layout
        return stream.prefix

    def read(self) -> dict[Source, Any] | None:
        """A table for each source, rows in the order of adding; None: a body is damaged."""
        pieces: dict[Source, list[memoryview]] = {}
        rows: Counter[Source] = Counter()
        for view, stream in self._added:
            source = self.source_of(stream)
            start = stream.body if source is stream.layout else stream.start
            pieces.setdefault(source, []).append(view[start : stream.end])
            rows[source] += stream.rows
        tables: dict[Source, Any] = {}
        for source, streams in pieces.items():
            match source:
                case Layout():
                    table = stacked(source, streams)
                case SchemaPrefix(content=content):
                    table = _read(b"".join([content, *streams, _END]))
            if table is None or table.num_rows != rows[source]:
                return None
            tables[source] = table
        return tables


def _read(stream: bytes) -> Any | None:
    try:
        return pa.ipc.open_stream(pa.py_buffer(stream)).read_all()
    except ARROW_ERRORS:
        return None
