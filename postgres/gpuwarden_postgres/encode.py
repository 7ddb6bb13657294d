"""Encodes rows as messages of PostgreSQL's protocol, in query processes, whose memory and time are limited."""

import json
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden.query import QueryError
from gpuwarden_collector.query.port import Description, Encoder, Ending, chunks, joined, json_column
from gpuwarden_postgres import messages, types
from gpuwarden_postgres.types import ColumnType

_HEAD = np.dtype([("kind", "S1"), ("size", ">i4"), ("columns", ">i2")])
_COPY_HEAD = np.dtype([("kind", "S1"), ("size", ">i4")])
_NULL = b"\xff\xff\xff\xff"
_DAY_US = 86_400_000_000
_FIRST_US, _END_US = -62_135_596_800_000_000, 253_402_300_800_000_000
"""The years 1 to 9999."""
_INFINITY_US, _INFINITY_DAY = (1 << 63) - 1, (1 << 31) - 1
_COPIED = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})

Cells = list[bytes | None]


def described(names: Sequence[str], sql_types: Sequence[str], formats: Sequence[int]) -> bytes:
    """The RowDescription of columns."""
    columns = []
    for at, (name, sql_type) in enumerate(zip(names, sql_types, strict=True)):
        kind = types.column_type(sql_type)
        form = format_of(formats, at)
        columns.append(messages.ColumnDescription(name, kind.oid, kind.size, kind.modifier, form))
    return messages.row_description(columns)


def encoder_of(form: str, schema: Any, sql_types: Sequence[str]) -> Encoder:
    """The encoder of a format. `form`: `postgres:` with a format for each column, or `postgres-copy`."""
    kind, _, formats = form.partition(":")
    if kind == "postgres-copy":
        return _Copy(schema, sql_types)
    return _Rows(schema, sql_types, [int(part) for part in formats.split(",") if part])


def description(found: Description) -> bytes:
    """ParameterDescription of $1 and on, with 0 for an unknown type, and RowDescription."""
    numbers = [int(name) for name in found.parameters if name.isdecimal()]
    if len(numbers) < len(found.parameters) or max(numbers, default=0) > messages.PARAMETERS_MAX:
        raise QueryError("parameters are written $1, $2 and so on")
    known = [found.parameters.get(str(at + 1), "") for at in range(max(numbers, default=0))]
    oids = [types.column_type(sql_type).oid if sql_type else 0 for sql_type in known]
    return messages.parameter_description(oids) + described(found.names, found.types, ())


class _Rows:
    """RowDescription, and a DataRow for each row."""

    batch_bytes = 256 * 1024

    def __init__(self, schema: Any, sql_types: Sequence[str], formats: Sequence[int]) -> None:
        self._names, self._types, self._formats = schema.names, sql_types, formats

    def begin(self) -> bytes:
        """Encode the RowDescription."""
        if len(self._formats) not in (0, 1, len(self._names)):
            raise QueryError(f"{len(self._names)} columns, and formats of {len(self._formats)}")
        return described(self._names, self._types, self._formats)

    def rows(self, data: Any) -> bytes:
        return b"".join(self._chunk(chunk) for chunk in chunks(data))

    def _chunk(self, chunk: Any) -> bytes:
        sizes = np.full(chunk.num_rows, 6 + 4 * len(self._types), np.int32)
        parts = []
        for at, (column, sql_type) in enumerate(zip(chunk.columns, self._types, strict=True)):
            encode = _binary_cells if format_of(self._formats, at) else _text_cells
            cells = encode(column, sql_type, types.column_type(sql_type))
            lengths = pc.binary_length(cells).fill_null(-1).to_numpy(zero_copy_only=False)
            sizes += np.maximum(lengths, 0)
            parts += [_fixed(lengths.astype(">i4")), cells.fill_null(b"")]
        heads = np.empty(chunk.num_rows, _HEAD)
        heads["kind"], heads["size"], heads["columns"] = b"D", sizes, len(self._types)
        return joined(_fixed(heads), *parts)

    def end(self, ending: Ending) -> bytes:
        """As of Encoder: who asked says whether rows were cut."""
        return b""


class _Copy:
    """The output of COPY TO STDOUT: a line for each row, columns separated by tabs, \\N for NULL."""

    batch_bytes = 256 * 1024

    def __init__(self, schema: Any, sql_types: Sequence[str]) -> None:
        self._types = sql_types

    def begin(self) -> bytes:
        return messages.copy_out(len(self._types))

    def rows(self, data: Any) -> bytes:
        return b"".join(self._chunk(chunk) for chunk in chunks(data))

    def _chunk(self, chunk: Any) -> bytes:
        sizes = np.full(chunk.num_rows, 4 + len(self._types), np.int32)
        parts: list[Any] = []
        for column, sql_type in zip(chunk.columns, self._types, strict=True):
            cells = _copied(_text_cells(column, sql_type, types.column_type(sql_type)))
            sizes += pc.binary_length(cells).to_numpy(zero_copy_only=False)
            parts += [cells, b"\t"]
        heads = np.empty(chunk.num_rows, _COPY_HEAD)
        heads["kind"], heads["size"] = b"d", sizes
        return joined(_fixed(heads), *parts[:-1], b"\n")

    def end(self, ending: Ending) -> bytes:
        """As of Encoder: who asked says whether rows were cut."""
        return b""


def format_of(formats: Sequence[int], at: int) -> int:
    """The format of a column: one format applies to all columns, none means text."""
    return formats[at] if len(formats) > 1 else formats[0] if formats else 0


def _fixed(values: Any) -> Any:
    """The bytes of each value of a numpy array."""
    width = values.dtype.itemsize
    ends = np.arange(0, (len(values) + 1) * width, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(values.tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _copied(cells: Any) -> Any:
    """Texts escaped for COPY."""
    if pc.any(pc.match_substring_regex(cells.cast(pa.string()), r"[\\\t\n\r]")).as_py():
        texts = cells.cast(pa.string()).to_pylist()
        copied = [None if text is None else text.translate(_COPIED).encode() for text in texts]
        cells = pa.array(copied, pa.binary())
    return cells.fill_null(b"\\N")


def _binary_cells(column: Any, sql_type: str, kind: ColumnType) -> Any:
    return pa.array(_binary(column, sql_type, kind), pa.binary())


def _text_cells(column: Any, sql_type: str, kind: ColumnType) -> Any:
    """The text of each value as bytes; for common types the whole column at once."""
    found = None if kind.is_array else _plain_texts(column)
    if found is None:
        found = pa.array(_texts(column, sql_type, kind), pa.string())
    return found.cast(pa.binary())


def _plain_texts(column: Any) -> Any:
    """The text of each value of a common type; None: use `_texts`."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_string(kind):
        return column.cast(pa.string())
    if pa.types.is_boolean(kind):
        return pc.if_else(column, "t", "f")
    if pa.types.is_floating(kind) and pc.all(pc.is_finite(column)).as_py() is not False:
        return column.cast(pa.string())
    return _plain_instants(column) if pa.types.is_timestamp(kind) else None


def _plain_instants(column: Any) -> Any:
    us = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
    ends = pc.min_max(us).as_py()
    if ends["min"] is None or not (ends["min"] >= _FIRST_US and ends["max"] < _END_US):
        return None
    text = pc.replace_substring_regex(us.cast(pa.timestamp("us")).cast(pa.string()), r"\.?0+$", "")
    return text if column.type.tz is None else pc.binary_join_element_wise(text, "+00", "")


def _text(column: Any, sql_type: str, kind: ColumnType) -> Cells:
    return [None if cell is None else cell.encode() for cell in _texts(column, sql_type, kind)]


def _texts(column: Any, sql_type: str, kind: ColumnType) -> list[str | None]:
    """The text of each value in PostgreSQL's form."""
    if kind.is_array:
        return _arrays(column, sql_type, kind, _array_text)
    match kind.kind.name:
        case "bool":
            return [None if v is None else "t" if v else "f" for v in column.to_pylist()]
        case "float4" | "float8":
            found = column.cast(pa.string()).to_pylist()
            return [_FLOATS.get(v, v) for v in found]
        case "bytea":
            return [None if v is None else "\\x" + v.hex() for v in _blobs(column)]
        case "date":
            return [_dated(v) for v in _days(column)]
        case "timestamp":
            return [_instant(v) for v in _instants(column)]
        case "timestamptz":
            return [None if v is None else _instant(v, "+00") for v in _instants(column)]
        case "interval":
            return [None if v is None else interval_text(v) for v in column.to_pylist()]
        case "numeric":
            return [None if v is None else f"{v:f}" for v in _numbers(column, sql_type)]
        case "json" if sql_type != "JSON":
            return _documents(column, sql_type)
        case _:
            return _strings(column)


def _strings(column: Any) -> list[str | None]:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):  # a type that Arrow lacks
        return [None if v is None else v.hex() for v in column.to_pylist()]
    found: list[str | None] = column.cast(pa.string()).to_pylist()
    return found


_FLOATS = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN", "-nan": "NaN"}


def _documents(column: Any, sql_type: str) -> list[str | None]:
    cells = json_column("", column, sql_type)
    return [None if cell is None else json.dumps(cell, ensure_ascii=False) for cell in cells]


def _blobs(column: Any) -> list[bytes | None]:
    found: list[bytes | None] = column.to_pylist()
    return found


def _days(column: Any) -> list[int | None]:
    found: list[int | None] = column.cast(pa.int32()).to_pylist()
    return found


def _instants(column: Any) -> list[int | None]:
    """Microseconds since 1970, from any unit."""
    kind = column.type
    if kind.unit == "us":
        whole = column.cast(pa.int64())
    else:
        whole = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
    found: list[int | None] = whole.to_pylist()
    return found


def _dated(day: int | None) -> str | None:
    if day is None:
        return None
    if abs(day) >= _INFINITY_DAY:
        return "infinity" if day > 0 else "-infinity"
    return str(_instant(day * _DAY_US))[:10]


def _instant(us: int | None, zone: str = "") -> Any:
    if us is None:
        return None
    if abs(us) >= _INFINITY_US:
        return "infinity" if us > 0 else "-infinity"
    if not _FIRST_US <= us < _END_US:
        raise QueryError("a time is outside the years 1 to 9999: cast it to VARCHAR")
    days, rest = divmod(us, _DAY_US)
    seconds, part = divmod(rest, 1_000_000)
    return f"{_day(days)} {_clock(seconds, part)}{zone}"


_DAYS: dict[int, str] = {}


def _day(days: int) -> str:
    found = _DAYS.get(days)
    if found is None:
        if len(_DAYS) > 4_096:
            _DAYS.clear()
        found = _DAYS[days] = str(pa.scalar(days, pa.date32()).as_py())
    return found


def _clock(seconds: int, part_us: int) -> str:
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return text + (f".{part_us:06}".rstrip("0") if part_us else "")


def interval_text(span: Any) -> str:
    """Months, days and time, each with its own sign, in IntervalStyle postgres."""
    parts = []
    years, months = divmod(abs(span.months), 12)
    sign = "-" if span.months < 0 else ""
    for count, name in ((years, "year"), (months, "mon")):
        if count:
            parts.append(f"{sign}{count} {name}{'' if count == 1 and not sign else 's'}")
    if span.days:
        parts.append(f"{span.days} day{'' if span.days == 1 else 's'}")
    us = abs(span.nanoseconds) // 1_000
    if us or not parts:
        parts.append(("-" if span.nanoseconds < 0 else "") + _clock(*divmod(us, 1_000_000)))
    return " ".join(parts)


def _numbers(column: Any, sql_type: str) -> list[Decimal | None]:
    # A UHUGEINT comes as signed 128 bits, but has no sign.
    if sql_type == "UHUGEINT":
        whole = (None if v is None else int(v) for v in column.to_pylist())
        return [None if v is None else Decimal(v + (v < 0) * (1 << 128)) for v in whole]
    return [None if v is None else Decimal(v) for v in column.to_pylist()]


def _arrays(
    column: Any,
    sql_type: str,
    kind: ColumnType,
    joined: Callable[[list[Any], ColumnType], Any],
) -> list[Any]:
    """Encode arrays from their elements, which are encoded as one column."""
    element = sql_type[: sql_type.rindex("[")]
    one = ColumnType(kind.kind)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    sizes = pc.list_value_length(column).to_pylist()
    encode = _texts if joined is _array_text else _binary
    cells = encode(pc.list_flatten(column), element, one)
    found: list[Any] = []
    at = 0
    for size in sizes:
        if size is None:
            found.append(None)
            continue
        found.append(joined(cells[at : at + size], one))
        at += size
    return found


def _array_text(items: list[str | None], _kind: ColumnType) -> str:
    return "{" + ",".join("NULL" if item is None else _quoted(item) for item in items) + "}"


def _quoted(item: str) -> str:
    is_plain = item and item.upper() != "NULL" and not set(item) & set('{},"\\ \t\n\r\v\f')
    return item if is_plain else '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _array_binary(items: Cells, kind: ColumnType) -> bytes:
    head = struct.pack("!iiI", 1 if items else 0, int(None in items), kind.oid)
    if not items:
        return head
    cells = (_NULL if item is None else struct.pack("!i", len(item)) + item for item in items)
    return head + struct.pack("!ii", len(items), 1) + b"".join(cells)


_PACKED = {
    "bool": struct.Struct("!?"),
    "int2": struct.Struct("!h"),
    "int4": struct.Struct("!i"),
    "int8": struct.Struct("!q"),
    "oid": struct.Struct("!I"),
    "float4": struct.Struct("!f"),
    "float8": struct.Struct("!d"),
}
_INT8 = _PACKED["int8"]
_INT4 = _PACKED["int4"]


def _binary(column: Any, sql_type: str, kind: ColumnType) -> Cells:
    if kind.is_array:
        return _arrays(column, sql_type, kind, _array_binary)
    name = kind.kind.name
    if packed := _PACKED.get(name):
        return [None if v is None else packed.pack(v) for v in column.to_pylist()]
    match name:
        case "bytea":
            return _blobs(column)
        case "date":
            return [None if v is None else _INT4.pack(_pg_day(v)) for v in _days(column)]
        case "time":
            values = column.cast(pa.time64("us")).cast(pa.int64()).to_pylist()
            return [None if v is None else _INT8.pack(v) for v in values]
        case "timestamp" | "timestamptz":
            return [None if v is None else _INT8.pack(_pg_instant(v)) for v in _instants(column)]
        case "interval":
            return [None if v is None else _interval(v) for v in column.to_pylist()]
        case "numeric":
            numbers = _numbers(column, sql_type)
            return [None if v is None else types.numeric_bytes(v) for v in numbers]
        case "uuid":
            return [None if v is None else UUID(str(v)).bytes for v in column.to_pylist()]
        case _:
            return _text(column, sql_type, kind)


def _pg_day(day: int) -> int:
    if abs(day) >= _INFINITY_DAY:
        return _INFINITY_DAY if day > 0 else -_INFINITY_DAY - 1
    return day - types.EPOCH_DAYS


def _pg_instant(us: int) -> int:
    if abs(us) >= _INFINITY_US:
        return _INFINITY_US if us > 0 else -_INFINITY_US - 1
    return us - types.EPOCH_US if us > types.EPOCH_US - _INFINITY_US else -_INFINITY_US


def _interval(span: Any) -> bytes:
    # Round toward zero: a floor would make a negative span longer.
    us = abs(span.nanoseconds) // 1_000 * (-1 if span.nanoseconds < 0 else 1)
    return struct.pack("!qii", us, span.days, span.months)
