"""Converts values of result rows for Python, JSON, CSV and Parquet, in query processes and threads.

TIMESTAMP is UTC. In JSON instants are `2026-01-01T00:00:00.000Z`, durations seconds, blobs hexadecimal; NaN and
infinity, which JSON lacks, become null.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden.query import QueryError

_PLAIN_TYPES = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_floating)
_WIDE = ("HUGEINT", "UHUGEINT")
_END_US = 253_402_300_800_000_000
"""The year 10000."""
_JSON = msgspec.json.Encoder()
_CHUNK_ROWS = 2_048


@dataclass(frozen=True, slots=True)
class ResultRows:
    """Result of a query: an Arrow table, and the SQL type of each column."""

    data: Any
    types: tuple[str, ...]
    truncated: bool


def decoded(body: bytes | bytearray, types: Sequence[str], *, truncated: bool) -> ResultRows:
    """Decode rows that were encoded as `arrow`. Raises pa.ArrowException."""
    return ResultRows(pa.ipc.open_stream(body).read_all(), tuple(types), truncated)


def python_rows(rows: ResultRows) -> Sequence[tuple[Any, ...]]:
    """Rows as tuples: aware datetimes, timedelta, int for HUGEINT, float for DECIMAL.

    Raises QueryError for values that Python's types cannot hold.
    """
    columns = [
        _python_column(name, values, sql_type)
        for name, values, sql_type in zip(
            rows.data.schema.names, rows.data.columns, rows.types, strict=True
        )
    ]
    return list(zip(*columns, strict=True)) if columns else []


def parquet_column(name: str, values: Any, sql_type: str) -> Any:
    """A column for Parquet: durations in seconds, wide integers as text. Raises QueryError."""
    if sql_type == "INTERVAL":
        spans = _python_column(name, values, sql_type)
        return pa.array([None if s is None else s.total_seconds() for s in spans], pa.float64())
    if sql_type in _WIDE:
        wide = _python_column(name, values, sql_type)
        return pa.array([None if v is None else str(v) for v in wide], pa.string())
    return values


def chunks(data: Any) -> Iterator[Any]:
    """Parts of an Arrow table that are converted to Python values at once."""
    for start in range(0, data.num_rows, _CHUNK_ROWS):
        yield data.slice(start, _CHUNK_ROWS)


def joined(*parts: Any) -> bytes:
    """Join Arrow arrays of bytes without NULL row by row; a bytes object is repeated in each row."""
    rows = pc.binary_join_element_wise(*parts, b"")
    if not len(rows):
        return b""
    ends = np.frombuffer(rows.buffers()[1], np.int32)[rows.offset :]
    return bytes(memoryview(rows.buffers()[2])[ends[0] : ends[len(rows)]])


def json_bytes(value: Any) -> bytes:
    """JSON without blanks, as UTF-8; NaN and infinity are null."""
    return _JSON.encode(value)


def json_lines(values: Sequence[Any]) -> bytes:
    """Values as `json_bytes`, one per line."""
    return _JSON.encode_lines(values)


def instant_texts(values: Any) -> Any:
    """A column of instants as `2026-01-01T00:00:00.000Z`; None: some are before 1970 or after 9999."""
    us = values.cast(pa.timestamp("us", values.type.tz), safe=False).cast(pa.int64())
    ends = pc.min_max(us).as_py()
    if ends["min"] is None or ends["min"] < 0 or ends["max"] >= _END_US:
        return None
    ms = us.cast(pa.timestamp("us")).cast(pa.timestamp("ms"), safe=False)
    text = pc.replace_substring(ms.cast(pa.string()), " ", "T")
    return pc.binary_join_element_wise(text, "Z", "")


def _python_column(name: str, values: Any, sql_type: str) -> list[Any]:
    """Raises QueryError."""
    try:
        return _column(values, sql_type)
    except (OverflowError, ValueError) as error:  # Arrow's errors are among them
        raise QueryError(
            f"column {name} has a {sql_type} outside the years 1 to 9999 or infinite: "
            "cast it to VARCHAR"
        ) from error


def json_column(name: str, values: Any, sql_type: str) -> list[Any]:
    """Cells for JSON; columns of instants and numbers are converted as a whole. Raises QueryError."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        texts = instant_texts(values)
        if texts is not None:
            return list(texts.to_pylist())
    elif pa.types.is_float32(kind):
        # The DOUBLE of the shortest text, such as 0.1, not of the exact value.
        return list(values.cast(pa.string()).cast(pa.float64()).to_pylist())
    elif sql_type not in _WIDE and any(is_plain(kind) for is_plain in _PLAIN_TYPES):
        plain: list[Any] = values.to_pylist()
        return plain
    return [_json_cell(cell) for cell in _python_column(name, values, sql_type)]


def _column(values: Any, sql_type: str) -> list[Any]:
    kind = values.type
    if pa.types.is_timestamp(kind):
        # Cut nanoseconds and time zones, for which Arrow needs pandas, to what datetime holds.
        return _instants(values)
    if sql_type in _WIDE:
        # Both come as signed 128 bits, but a UHUGEINT has no sign.
        wrap = 1 << 128 if sql_type == "UHUGEINT" else 0
        return [None if v is None else int(v) + wrap * (v < 0) for v in values.to_pylist()]
    cells: list[Any] = values.to_pylist()
    if any(is_plain(kind) for is_plain in _PLAIN_TYPES):
        return cells
    return [_value(cell, kind) for cell in cells]


def _instants(values: Any) -> list[Any]:
    cut = values.cast(pa.timestamp("us", values.type.tz), safe=False).to_pylist()
    return [None if v is None else _aware(v) for v in cut]


def _aware(instant: datetime) -> datetime:
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def _value(cell: Any, kind: Any) -> Any:
    """A cell of a type that is not plain, with its nested values. `kind`: its Arrow type; None: of a UNION, whose values
    are all that is known."""
    if cell is None:
        return None
    if isinstance(cell, pa.MonthDayNano):
        # As in DuckDB's Python client, a month is 30 days.
        return timedelta(days=cell.months * 30 + cell.days, microseconds=cell.nanoseconds // 1000)
    if isinstance(cell, datetime):
        return _aware(cell)
    if isinstance(cell, Decimal):
        return float(cell)
    if kind is not None and pa.types.is_union(kind):
        kind = None
    if kind is not None and pa.types.is_map(kind):
        return {_text(_value(k, kind.key_type)): _value(v, kind.item_type) for k, v in cell}
    if isinstance(cell, list | tuple):
        return [_value(item, kind and kind.value_type) for item in cell]
    if isinstance(cell, dict):
        return {name: _value(v, kind and kind.field(name).type) for name, v in cell.items()}
    return cell


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _json_cell(cell: Any) -> Any:
    match cell:
        case None | bool() | int() | str():
            return cell
        case float():
            return cell if math.isfinite(cell) else None
        case datetime():
            return cell.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case date() | time():
            return cell.isoformat()
        case timedelta():
            return cell.total_seconds()
        case bytes():
            return cell.hex()
        case list():
            return [_json_cell(item) for item in cell]
        case dict():
            return {name: _json_cell(value) for name, value in cell.items()}
        case _:
            return str(cell)


def csv_cell(cell: Any) -> Any:
    """A Python value for CSV."""
    plain = _json_cell(cell)
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, (list, dict)):
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    return plain
