"""Result rows as Python values, JSON, CSV, Arrow and Parquet. Runs in query processes and threads, never on the loop.

TIMESTAMP is UTC. JSON has instants as `2026-01-01T00:00:00.000Z`, durations in seconds, blobs in
hexadecimal; NaN and infinity, which JSON lacks, become null.
"""

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from gpuwarden.query import QueryError

_PLAIN_TYPES = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_floating)
_WIDE = ("HUGEINT", "UHUGEINT")
_FIRST, _END = np.datetime64("0001-01-01"), np.datetime64("9999-12-31T23:59:59")
ENCODED_BYTES_MAX = 128 * 1024 * 1024
"""Twice what rows may have before they are encoded."""
_CHUNK_ROWS = 2_048


@dataclass(frozen=True, slots=True)
class ResultRows:
    """Result of a query: an Arrow table, and the SQL type of each column."""

    data: Any
    types: tuple[str, ...]
    truncated: bool


def encoded(form: str, rows: ResultRows, elapsed_s: float) -> bytes:
    """Rows as bytes. `form`: json, csv, parquet or arrow. Raises QueryError, also when they are too many."""
    match form:
        case "json":
            return json_body(rows, elapsed_s)
        case "csv":
            return csv_body(rows)
        case "parquet":
            return parquet_body(rows)
        case _:
            return arrow_body(rows)


def decoded(body: bytes | bytearray, types: Sequence[str], *, truncated: bool) -> ResultRows:
    """Rows that were encoded as `arrow`. Raises pa.ArrowException."""
    return ResultRows(pa.ipc.open_stream(body).read_all(), tuple(types), truncated)


def python_rows(rows: ResultRows) -> Sequence[tuple[Any, ...]]:
    """Rows as tuples: aware datetimes, timedelta, int for HUGEINT, float for DECIMAL.

    Raises QueryError for what Python's types cannot hold.
    """
    columns = [
        _python_column(name, values, sql_type)
        for name, values, sql_type in zip(
            rows.data.schema.names, rows.data.columns, rows.types, strict=True
        )
    ]
    return list(zip(*columns, strict=True)) if columns else []


def json_body(rows: ResultRows, elapsed_s: float) -> bytes:
    """`{"columns": [{"name", "type"}], "rows": [[...]], "truncated": ..., "elapsed_s": ...}`."""
    names = rows.data.schema.names
    columns = [{"name": n, "type": t} for n, t in zip(names, rows.types, strict=True)]
    body = bytearray(b'{"columns":' + _json(columns) + b',"rows":[')
    for at, chunk in enumerate(_chunks(rows)):
        columns_of_cells = [
            _json_column(name, values, sql_type)
            for name, values, sql_type in zip(names, chunk.data.columns, rows.types, strict=True)
        ]
        cells = list(zip(*columns_of_cells, strict=True))
        body += (b"," if at else b"") + _json(cells)[1:-1]
        _bound(len(body), "JSON")
    end = {"truncated": rows.truncated, "elapsed_s": round(elapsed_s, 6)}
    body += b"]," + _json(end)[1:]
    return bytes(body)


def csv_body(rows: ResultRows) -> bytes:
    """RFC 4180 with a header line; NULL is an empty field, nested values are JSON."""
    out = io.BytesIO()
    text = io.TextIOWrapper(out, encoding="utf-8", newline="")
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(rows.data.schema.names)
    for chunk in _chunks(rows):
        for row in python_rows(chunk):
            writer.writerow([_csv_cell(cell) for cell in row])
        _bound(out.tell(), "CSV")
    text.flush()
    _bound(out.tell(), "CSV")
    return out.getvalue()


def arrow_body(rows: ResultRows) -> bytes:
    """An Arrow IPC stream with DuckDB's own types."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.data.schema) as writer:
        writer.write_table(rows.data)
    _bound(sink.tell(), "Arrow")
    return sink.getvalue()


def parquet_body(rows: ResultRows) -> bytes:
    """A Parquet file. What Parquet lacks is as in JSON: durations are seconds; wide integers are text."""
    import pyarrow.parquet as pq  # 20 MB that few query processes need

    names, columns = rows.data.schema.names, rows.data.columns
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise QueryError(f"two columns are called {twice}: Parquet needs a name for each (AS)")
    kept = [_parquet_column(*of) for of in zip(names, columns, rows.types, strict=True)]
    table = pa.table(kept, names=names)
    sink = io.BytesIO()
    try:
        with pq.ParquetWriter(sink, table.schema, compression="zstd") as writer:
            for batch in table.to_batches(max_chunksize=32 * _CHUNK_ROWS):
                writer.write_batch(batch)
                _bound(sink.tell(), "Parquet")
    except pa.ArrowException as error:
        raise QueryError(f"Parquet cannot hold this: {error}; cast it to VARCHAR") from error
    _bound(sink.tell(), "Parquet")
    return sink.getvalue()


def _parquet_column(name: str, values: Any, sql_type: str) -> Any:
    """Raises QueryError."""
    if sql_type == "INTERVAL":
        spans = _python_column(name, values, sql_type)
        return pa.array([None if s is None else s.total_seconds() for s in spans], pa.float64())
    if sql_type in _WIDE:
        wide = _python_column(name, values, sql_type)
        return pa.array([None if v is None else str(v) for v in wide], pa.string())
    return values


def _chunks(rows: ResultRows) -> Iterator[ResultRows]:
    """Rows in parts of which the Python values are few enough to hold."""
    for start in range(0, rows.data.num_rows, _CHUNK_ROWS):
        yield ResultRows(rows.data.slice(start, _CHUNK_ROWS), rows.types, rows.truncated)


def _bound(size: int, form: str) -> None:
    if size > ENCODED_BYTES_MAX:
        raise QueryError(
            f"the answer is larger than {ENCODED_BYTES_MAX // 2**20} MiB as {form}: "
            "select fewer columns or rows, or aggregate"
        )


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _python_column(name: str, values: Any, sql_type: str) -> list[Any]:
    """Raises QueryError."""
    try:
        return _column(values, sql_type)
    except (OverflowError, ValueError) as error:  # Arrow's errors are among them
        raise QueryError(
            f"column {name} has a {sql_type} outside the years 1 to 9999 or infinite: "
            "cast it to VARCHAR"
        ) from error


def _json_column(name: str, values: Any, sql_type: str) -> list[Any]:
    """Cells as JSON has them; instants and numbers, of which most answers are, all at once.

    Raises QueryError.
    """
    kind = values.type
    if pa.types.is_timestamp(kind) and kind.unit in ("us", "ms", "s"):
        instants = values.combine_chunks().to_numpy(zero_copy_only=False)
        is_null = np.isnat(instants)
        known = instants[~is_null]
        if not known.size or (known.min() >= _FIRST and known.max() < _END):
            texts = np.datetime_as_string(known.astype("datetime64[ms]"), timezone="UTC")
            if not is_null.any():
                return list(texts.tolist())
            found = np.full(len(instants), None, object)
            found[~is_null] = texts
            return list(found)
    elif pa.types.is_floating(kind):
        cells: list[Any] = values.to_pylist()
        return [cell if cell is None or math.isfinite(cell) else None for cell in cells]
    elif sql_type not in _WIDE and any(is_plain(kind) for is_plain in _PLAIN_TYPES):
        plain: list[Any] = values.to_pylist()
        return plain
    return [_json_cell(cell) for cell in _python_column(name, values, sql_type)]


def _column(values: Any, sql_type: str) -> list[Any]:
    kind = values.type
    if pa.types.is_timestamp(kind):
        # Nanoseconds and zones that pandas would be needed for are cut to what datetime holds.
        return _instants(values)
    if sql_type in _WIDE:
        # Both come as 128 bits with a sign, which a UHUGEINT does not have.
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
    """A cell that is not of a plain type, and what is nested in it."""
    if cell is None:
        return None
    if isinstance(cell, pa.MonthDayNano):
        # As DuckDB's own Python client has it: a month is 30 days.
        return timedelta(days=cell.months * 30 + cell.days, microseconds=cell.nanoseconds // 1000)
    if isinstance(cell, datetime):
        return _aware(cell)
    if isinstance(cell, Decimal):
        return float(cell)
    if pa.types.is_map(kind):
        return {_text(_value(k, kind.key_type)): _value(v, kind.item_type) for k, v in cell}
    if isinstance(cell, list):
        return [_value(item, kind.value_type) for item in cell]
    if isinstance(cell, dict):
        return {name: _value(v, kind.field(name).type) for name, v in cell.items()}
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


def _csv_cell(cell: Any) -> Any:
    plain = _json_cell(cell)
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, (list, dict)):
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    return plain
