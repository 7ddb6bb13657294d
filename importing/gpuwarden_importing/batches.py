"""Makes batches that a collector admits from the rows of readers: types, limits, keys.

A batch has rows of one table in the file's order, cut at a fixed number, so the same file gives the same batches.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden.metrics import METRICS, Type
from gpuwarden.schema import WIRE_TABLES
from gpuwarden.table import Column, Table
from gpuwarden.wire import TABLE_KEY
from gpuwarden_importing.model import ImportedRows, ImportTally

BATCH_ROWS = 65_536
NAME_BYTES_MAX = 256
TEXT_BYTES_MAX = 65_536
"""Limits of the collector."""

ARROW_TYPES = {
    kind: pa.type_for_alias("timestamp[ms]" if kind is Type.TIMESTAMP else kind.value)
    for kind in Type
}

_WHOLE = frozenset({Type.INT16, Type.INT32, Type.INT64, Type.TIMESTAMP})
_UNKEYED = frozenset({"events", "nodes", "gpus"})
"""Tables in which a key may repeat."""


@dataclass(frozen=True, slots=True)
class ImportBatch:
    """A batch: rows of one table."""

    table: str
    data: Any

    def body(self) -> bytes:
        """The batch as an Arrow IPC stream, as on the wire."""
        named = self.data.replace_schema_metadata({TABLE_KEY: self.table})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, named.schema) as writer:
            writer.write_table(named.combine_chunks())
        return bytes(sink.getvalue())


def digest(body: bytes) -> str:
    """Identity of a batch: a hash of its rows."""
    return hashlib.sha256(body).hexdigest()[:48]


@dataclass(slots=True)
class Batcher:
    """Collects rows by table and hands them out as batches."""

    latest_ms: int
    """Rows with later timestamps are skipped."""
    pending: dict[str, list[Any]] = field(default_factory=dict)
    rows: Counter[str] = field(default_factory=Counter)
    """Rows by table, in batches or pending."""
    first_ms: int | None = None
    last_ms: int | None = None
    gaps_s: Counter[int] = field(default_factory=Counter)
    """Number of intervals between readings of a GPU, by whole seconds."""
    _last_ms: dict[str, int] = field(default_factory=dict)
    gpus: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)

    def add(self, rows: ImportedRows, tally: ImportTally) -> Iterator[ImportBatch]:
        """Add rows; the batches that are full."""
        table = WIRE_TABLES[rows.table]
        data = _typed(table, rows, tally)
        data = _admissible(table, data, self.latest_ms, tally)
        if not data.num_rows:
            return
        self.rows[table.name] += data.num_rows
        self._note(data)
        if table.name == "gpu_samples":
            self._note_gaps(data)
        pieces = self.pending.setdefault(table.name, [])
        pieces.append(data)
        while sum(piece.num_rows for piece in pieces) >= BATCH_ROWS:
            whole = pa.concat_tables(pieces, promote_options="default")
            yield from self._cut(table, whole.slice(0, BATCH_ROWS), tally)
            pieces[:] = [whole.slice(BATCH_ROWS)]

    def flush(self, tally: ImportTally) -> Iterator[ImportBatch]:
        """Batches of pending rows; nodes and GPUs first, as the collector resolves GPUs of events by them."""
        order = ("nodes", "gpus")
        first = {name: self.pending[name] for name in order if name in self.pending}
        for name, pieces in (first | self.pending).items():
            whole = pa.concat_tables(pieces, promote_options="default")
            if whole.num_rows:
                yield from self._cut(WIRE_TABLES[name], whole, tally)
        self.pending = {}

    def _cut(self, table: Table, data: Any, tally: ImportTally) -> Iterator[ImportBatch]:
        if table.name not in _UNKEYED:
            once = without_doubles(table, data)
            if double := data.num_rows - once.num_rows:
                tally.skip(f"{table.name} rows with a repeated key", 0, double)
                self.rows[table.name] -= double
                data = once
        names = [n for n in data.schema.names if data[n].null_count < data.num_rows]
        yield ImportBatch(table.name, data.select(names))

    def _note(self, data: Any) -> None:
        names = data.schema.names
        if "ts" in names:
            both = pc.min_max(data["ts"].cast(pa.int64()))
            first, last = both["min"].as_py(), both["max"].as_py()
            self.first_ms = first if self.first_ms is None else min(self.first_ms, first)
            self.last_ms = last if self.last_ms is None else max(self.last_ms, last)
        for name, seen in (("gpu_uuid", self.gpus), ("node", self.nodes)):
            if name in names:
                seen.update(v for v in pc.unique(data[name]).to_pylist() if v)

    @property
    def pace_s(self) -> int | None:
        """Median interval between readings of a GPU, in seconds; None: there is no interval."""
        left = (sum(self.gaps_s.values()) + 1) // 2
        for gap_s, count in sorted(self.gaps_s.items()):
            left -= count
            if left <= 0:
                return gap_s
        return None

    def _note_gaps(self, data: Any) -> None:
        encoded = data["gpu_uuid"].combine_chunks().dictionary_encode()
        names, gpu = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        ms = data["ts"].cast(pa.int64()).to_numpy()
        order = np.lexsort((ms, gpu))
        gpu, ms = gpu[order], ms[order]
        is_same = gpu[1:] == gpu[:-1]
        gaps = [(ms[1:] - ms[:-1])[is_same]]
        starts = np.flatnonzero(np.append(True, ~is_same))
        ends = np.append(starts[1:], len(ms)) - 1
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            name = names[gpu[start]]
            if (last_ms := self._last_ms.get(name)) is not None:
                gaps.append(ms[start : start + 1] - last_ms)
            self._last_ms[name] = int(ms[end])
        seconds, counts = np.unique(np.concatenate(gaps) // 1000, return_counts=True)
        found = zip(seconds.tolist(), counts.tolist(), strict=True)
        self.gaps_s.update({gap_s: count for gap_s, count in found if gap_s > 0})


def without_doubles(table: Table, data: Any) -> Any:
    """The first row of each key."""
    keys = [name for name in table.key if name in data.schema.names]
    numbered = data.select(keys).append_column("row", pa.array(np.arange(data.num_rows)))
    first = numbered.group_by(keys).aggregate([("row", "min")])["row_min"]
    if len(first) == data.num_rows:
        return data
    return data.take(first.combine_chunks().sort())


def _typed(table: Table, rows: ImportedRows, tally: ImportTally) -> Any:
    count = rows.count
    columns: dict[str, Any] = {}
    for column in table.columns:
        values = rows.columns.get(column.name)
        if values is not None:
            columns[column.name] = _array(table, column, values, tally)
        elif column.name == "simulated":
            columns["simulated"] = pa.array(np.zeros(count, bool))
        elif column.required:
            columns[column.name] = pa.nulls(count, ARROW_TYPES[column.type])
    return pa.table(columns)


def _array(table: Table, column: Column, values: Any, tally: ImportTally) -> Any:
    """Values in the column's type; values that do not fit become NULL and are counted."""
    wanted = ARROW_TYPES[column.type]
    try:
        if isinstance(values, pa.Array | pa.ChunkedArray):
            return values.cast(wanted)
        if column.type is Type.BOOL or column.type is Type.STRING:
            return pa.array(values, wanted)
        return pa.array(values, pa.int64() if column.type in _WHOLE else pa.float64()).cast(wanted)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, UnicodeError):
        if isinstance(values, pa.Array | pa.ChunkedArray):
            values = values.to_pylist()
    fitted = [_fitted(column, value) for value in values]
    lost = sum(a is not None and b is None for a, b in zip(values, fitted, strict=True))
    if lost:
        tally.skip(f"{table.name}.{column.name} values of another type", 0, lost)
    return pa.array(fitted, wanted)


_BITS = {Type.INT16: 15, Type.INT32: 31, Type.INT64: 63, Type.TIMESTAMP: 63}
_FLOAT32_MAX = 3.4028234663852886e38


def _fitted(column: Column, value: Any) -> Any:
    match column.type:
        case Type.STRING:
            is_text = isinstance(value, str)
            return value.encode(errors="replace").decode() if is_text else None
        case Type.BOOL:
            # Metrics are numbers: 1 is true.
            return (
                bool(value) if isinstance(value, bool | int | float) and value in (0, 1) else None
            )
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    if bits := _BITS.get(column.type):
        return int(value) if value == int(value) and -(1 << bits) <= value < 1 << bits else None
    if column.type is Type.FLOAT32 and abs(value) > _FLOAT32_MAX:
        return None
    return float(value) if abs(value) < 1e308 else None


def _admissible(table: Table, data: Any, latest_ms: int, tally: ImportTally) -> Any:
    """The rows and values that a collector admits."""
    for column in table.columns:
        if column.name not in data.schema.names:
            continue
        values = data[column.name]
        if column.required and values.null_count:
            tally.skip(f"{table.name} rows without {column.name}", 0, values.null_count)
            data = data.filter(pc.is_valid(values))
            values = data[column.name]
        wrong, why = _wrong(table, column, values, latest_ms)
        if wrong is None or not (count := pc.sum(wrong).as_py()):
            continue
        wrong = pc.fill_null(wrong, False)
        if column.required:
            tally.skip(f"{table.name} rows {why}", 0, count)
            data = data.filter(pc.invert(wrong))
        else:
            tally.skip(f"{table.name}.{column.name} values {why}", 0, count)
            at = data.schema.get_field_index(column.name)
            nothing = pa.scalar(None, values.type)
            data = data.set_column(at, column.name, pc.if_else(wrong, nothing, values))
    return _telling(table, data)


def _wrong(table: Table, column: Column, values: Any, latest_ms: int) -> tuple[Any, str]:
    """Mask of the values that are not admitted, and the reason."""
    match column.type:
        case Type.TIMESTAMP:
            ms = values.cast(pa.int64())
            return (
                pc.or_(pc.less(ms, 0), pc.greater(ms, latest_ms)),
                "in the future, or before 1970",
            )
        case Type.STRING:
            is_name = column.name in table.key or column.name in ("node", "gpu_uuid")
            size = pc.binary_length(values)
            most = NAME_BYTES_MAX if is_name else TEXT_BYTES_MAX
            too_long = pc.greater(size, most)
            wrong = pc.or_(too_long, pc.equal(size, 0)) if is_name else too_long
            return wrong, f"whose {column.name} is empty or longer than {most} bytes"
        case Type.FLOAT32 | Type.FLOAT64:
            wrong = pc.invert(pc.is_finite(values))
            if column.limits:
                wrong = pc.or_(wrong, _outside(values, column.limits))
            return wrong, "with an impossible value"
    if column.limits is None:
        return None, ""
    return _outside(values, column.limits), "with an impossible value"


def _outside(values: Any, limits: Sequence[float]) -> Any:
    low, high = limits
    if pa.types.is_integer(values.type):
        # Arrow would compare as floats, which cannot represent every integer.
        most = (1 << (values.type.bit_width - 1)) - 1
        low = pa.scalar(math.ceil(max(low, -most - 1)), values.type)
        high = pa.scalar(math.floor(min(high, most)), values.type)
    return pc.or_(pc.less(values, low), pc.greater(values, high))


def _telling(table: Table, data: Any) -> Any:
    """The rows that have a metric, in tables of metrics."""
    metrics = [m.name for m in METRICS.get(table.name, ()) if m.name in data.schema.names]
    if table.name not in ("gpu_samples", "gpu_detail_samples", "gpu_health_samples") or any(
        data[name].null_count == 0 for name in metrics
    ):
        return data
    own = [
        c.name
        for c in table.columns
        if c.name in data.schema.names
        and c.name not in ("ts", "node", "gpu", "gpu_uuid", "mig_instance", "simulated")
    ]
    if not own:
        return data.slice(0, 0)
    tells = pc.is_valid(data[own[0]])
    for name in own[1:]:
        tells = pc.or_(tells, pc.is_valid(data[name]))
    return data.filter(tells)
