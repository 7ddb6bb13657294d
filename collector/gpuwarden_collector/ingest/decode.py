"""Decodes the body of a batch into tables with the catalogue's types, or refuses it and says why.

Besides the exact types it accepts types that convert without loss: int32 for int64, float32 for float64, timestamps
in other units, large or dictionary-encoded strings, and null columns where a value is optional. Columns that this
collector does not know are left out and named. A missing column becomes NULL if it is optional.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden.schema import WIRE_TABLES
from gpuwarden.table import Column, Table
from gpuwarden.wire import DECODED_BYTES_MAX, ROWS_MAX, TABLE_KEY
from gpuwarden_collector.ingest.ipc_messages import BodyError, decompress, walk
from gpuwarden_collector.storage.schemas import arrow_schema

FIELDS_MAX = 1_000
"""Columns of a stream at most."""
_MEMORY_BYTES_MAX = 3 * DECODED_BYTES_MAX
"""Largest size of a batch's tables, with missing columns filled and dictionaries decoded."""

ARROW_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError)
"""Exceptions of pyarrow for damaged data: OSError for metadata, UnicodeDecodeError for column names."""

WIRE_SCHEMAS = {name: arrow_schema(table.columns) for name, table in WIRE_TABLES.items()}
_KNOWN_COLUMNS = {name: frozenset(table.names) for name, table in WIRE_TABLES.items()}


@dataclass(frozen=True, slots=True)
class RefusedBody:
    """The batch is refused: the HTTP status and one sentence. The agent sends it again only after 503."""

    status: int
    reason: str
    admitting_ahead_s: tuple[float, float] | None = None
    """The clock that would admit the refused times: how far ahead of the collector's it is, at least and at most;
    None: no clock admits them, or the refusal has another cause."""


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The rows of a batch within a table that may hold the rows of many batches."""

    whole: Any
    start: int
    rows: int

    @property
    def data(self) -> Any:
        """The rows as a table."""
        if self.rows == self.whole.num_rows:
            return self.whole
        return self.whole.slice(self.start, self.rows)


@dataclass(frozen=True, slots=True)
class Decoded:
    """Tables of a batch in the catalogue's types and column order."""

    parts: Mapping[str, BatchRows]
    memory_bytes: int
    """Size of the rows in memory."""
    unknown_columns: frozenset[tuple[str, str]] = frozenset()
    """(table, column) of the columns that this collector does not know."""

    @classmethod
    def of(
        cls,
        tables: Mapping[str, Any],
        memory_bytes: int,
        unknown_columns: frozenset[tuple[str, str]] = frozenset(),
    ) -> "Decoded":
        """A batch with tables of its own."""
        parts = {name: BatchRows(table, 0, table.num_rows) for name, table in tables.items()}
        return cls(parts, memory_bytes, unknown_columns)

    @property
    def rows(self) -> int:
        """Number of rows of all tables."""
        return sum(part.rows for part in self.parts.values())

    @property
    def tables(self) -> dict[str, Any]:
        """The rows by table."""
        return {name: part.data for name, part in self.parts.items()}


def decode(body: bytes, encoding: str) -> Decoded | RefusedBody:
    """The tables of a body; `encoding` is the Content-Encoding, "" for none."""
    content = content_of(body, encoding)
    return content if isinstance(content, RefusedBody) else decode_content(content)


def content_of(body: bytes, encoding: str) -> bytes | RefusedBody:
    """The decompressed body."""
    try:
        if encoding.lower() == "zstd":
            return decompress(body, DECODED_BYTES_MAX)
    except BodyError as error:
        return RefusedBody(error.status, error.reason)
    if encoding.lower() not in ("", "identity"):
        return RefusedBody(415, f"Content-Encoding {encoding!r} is not known; send zstd or none")
    if len(body) > DECODED_BYTES_MAX:
        return RefusedBody(413, f"the body has more than {DECODED_BYTES_MAX} bytes")
    return body


def decode_content(content: bytes) -> Decoded | RefusedBody:
    """The tables of a decompressed body."""
    try:
        return _decode(content)
    except BodyError as error:
        return RefusedBody(error.status, error.reason)
    except MemoryError:
        raise  # also Arrow's subclass, which is no sign of a damaged body
    except ARROW_ERRORS as error:
        return RefusedBody(400, f"the body is not valid Arrow: {first_line(error)}")


def _decode(body: bytes) -> Decoded:
    spans = walk(body, ROWS_MAX)
    if not spans:
        raise BodyError(400, "the body is empty")
    parts: dict[str, list[Any]] = {}
    unknown: set[tuple[str, str]] = set()
    buffer = pa.py_buffer(body)
    memory_bytes = 0
    for number, span in enumerate(spans, 1):
        stream = buffer.slice(span.start, span.end - span.start)
        name, data, left_out, held_bytes = _read_stream(stream, number)
        memory_bytes += held_bytes
        if memory_bytes > _MEMORY_BYTES_MAX:
            raise BodyError(413, f"columns hold more than {_MEMORY_BYTES_MAX} bytes in all")
        parts.setdefault(name, []).append(data)
        unknown.update((name, column) for column in left_out)
    tables = {
        name: pa.concat_tables(chunks) if len(chunks) > 1 else chunks[0]
        for name, chunks in parts.items()
    }
    return Decoded.of(tables, memory_bytes, frozenset(unknown))


def _read_stream(stream: Any, number: int) -> tuple[str, Any, list[str], int]:
    """Table name, data in the catalogue's schema, names of columns left out, and size of the data."""
    reader = pa.ipc.open_stream(stream)
    name = _name_of(reader.schema, number)
    schema = WIRE_SCHEMAS[name]
    if reader.schema.equals(schema):
        data = reader.read_all()
        return name, data, [], _held_bytes(name, data, stream.size)
    names = _checked_names(name, reader.schema.names)
    left_out = [column for column in names if column not in _KNOWN_COLUMNS[name]]
    if left_out:
        known = [i for i, column in enumerate(names) if column in _KNOWN_COLUMNS[name]]
        if not known:  # an empty selection would mean every column
            raise BodyError(422, f"{name} has no known column")
        options = pa.ipc.IpcReadOptions(included_fields=known)
        reader = pa.ipc.open_stream(stream, options=options)
    data = reader.read_all()
    _held_bytes(name, data, stream.size)
    if reason := invalid(name, data):
        raise BodyError(400, reason)
    conformed = _conformed_table(WIRE_TABLES[name], data)
    return name, conformed, left_out, conformed.nbytes


def _held_bytes(name: str, data: Any, stream_bytes: int) -> int:
    """Size of the columns. Raises BodyError when a small stream claims to hold large columns.

    Buffers may overlap. If even that cannot exceed the limit, the size of the stream is enough, because the columns
    are slices of it: adding up forty columns takes longer than decoding.
    """
    if stream_bytes * data.num_columns * 3 <= DECODED_BYTES_MAX:
        return stream_bytes
    held_bytes: int = data.nbytes
    if held_bytes > DECODED_BYTES_MAX:
        raise BodyError(413, f"{name}: columns hold more than {DECODED_BYTES_MAX} bytes")
    return held_bytes


def _name_of(schema: Any, number: int) -> str:
    metadata = schema.metadata or {}
    raw = metadata.get(TABLE_KEY.encode())
    if raw is None:
        raise BodyError(400, f"stream {number} has no {TABLE_KEY!r} in its schema metadata")
    name: str = raw.decode("utf-8", "replace")
    if name not in WIRE_TABLES:
        raise BodyError(422, f"unknown table {name[:100]!r}; known: {', '.join(WIRE_TABLES)}")
    return name


def _checked_names(table: str, names: list[str]) -> list[str]:
    if len(names) > FIELDS_MAX:
        raise BodyError(400, f"{table} has more than {FIELDS_MAX} columns")
    if len(set(names)) != len(names):
        twice = sorted({n for n in names if names.count(n) > 1})
        raise BodyError(422, f"{table} has columns twice: {', '.join(twice)[:200]}")
    return names


def _conformed_table(table: Table, data: Any) -> Any:
    schema = WIRE_SCHEMAS[table.name]
    present = set(data.schema.names)
    columns = []
    budget_bytes = _MEMORY_BYTES_MAX
    for column, expected in zip(table.columns, schema.types, strict=True):
        if column.name in present:
            values = data.column(column.name)
            if values.type != expected:
                values = _widened(f"{table.name}.{column.name}", values, expected)
        else:
            values = _absent(table, column, data.num_rows, expected)
        budget_bytes -= values.nbytes
        if budget_bytes < 0:
            raise BodyError(413, f"{table.name} holds more than {_MEMORY_BYTES_MAX} bytes")
        columns.append(values)
    return pa.Table.from_arrays(columns, schema=schema)


def _absent(table: Table, column: Column, rows: int, expected: Any) -> Any:
    if column.required:
        raise BodyError(422, f"{table.name} lacks the required column {column.name}")
    return pa.nulls(rows, expected)


def _widened(where: str, values: Any, expected: Any) -> Any:
    """`values` converted to the type `expected` without loss. Raises BodyError."""
    types = pa.types
    got = values.type
    if types.is_dictionary(got) and types.is_string(expected):
        values = _without_dictionary(where, values)
        got = values.type
    if not _is_widening(got, expected):
        raise BodyError(422, f"{where} is {got}, must be {expected}")
    try:
        return values.cast(expected, safe=True)
    except pa.ArrowException as error:
        raise BodyError(
            422, f"{where} is {got} and does not fit {expected}: {first_line(error)}"
        ) from error


def _is_widening(got: Any, expected: Any) -> bool:
    types = pa.types
    if types.is_integer(got) and types.is_integer(expected):
        return bool(got.bit_width <= expected.bit_width)
    if types.is_floating(got) and types.is_floating(expected):
        return bool(got.bit_width <= expected.bit_width)
    return bool(
        got == expected
        or types.is_null(got)
        or (types.is_timestamp(got) and types.is_timestamp(expected))
        or (types.is_large_string(got) and types.is_string(expected))
    )


def _without_dictionary(where: str, values: Any) -> Any:
    """Dictionary-encoded texts as plain texts. Raises BodyError if they become too large."""
    value_type = values.type.value_type
    if not (pa.types.is_string(value_type) or pa.types.is_large_string(value_type)):
        raise BodyError(422, f"{where} is {values.type}, must be string")
    total_bytes = 0
    for chunk in values.chunks:
        lengths = pc.take(pc.binary_length(chunk.dictionary), chunk.indices)
        total_bytes += pc.sum(lengths).as_py() or 0
    if total_bytes > DECODED_BYTES_MAX:
        raise BodyError(413, f"{where} holds more than {DECODED_BYTES_MAX} bytes of text")
    return values.cast(value_type)


def invalid(name: str, data: Any) -> str | None:
    """Which column of the table `name` is damaged or holds invalid UTF-8; None: the table is valid."""
    try:
        data.validate(full=True)
    except ARROW_ERRORS as error:
        for column, values in zip(data.schema.names, data.columns, strict=True):
            try:
                values.validate(full=True)
            except ARROW_ERRORS as own:
                return f"{name}.{column[:64]} is not valid Arrow: {first_line(own)}"
        return f"{name} is not valid Arrow: {first_line(error)}"
    return None


def first_line(error: Exception) -> str:
    """The first line of an error's message."""
    return str(error).partition("\n")[0][:300]
