"""Makes batches that a collector admits from the rows of readers: types, limits, keys.

A batch has rows of one table in the file's order, cut at a fixed number, so the same file gives the same batches.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pyarrow as pa

from gpuwarden.metrics import Type
from gpuwarden.node_name import is_node_name
from gpuwarden.schema import WIRE_TABLES
from gpuwarden.table import Column, Table
from gpuwarden.wire import TABLE_KEY
from gpuwarden_importing.model import ImportTally, Row, TableRow, Value

BATCH_ROWS = 65_536
NAME_BYTES_MAX = 256
TEXT_BYTES_MAX = 65_536
"""Limits of the collector."""

ARROW_TYPES = {
    kind: pa.type_for_alias("timestamp[ms]" if kind is Type.TIMESTAMP else kind.value)
    for kind in Type
}

_UNKEYED = frozenset({"events", "nodes", "gpus"})
"""Tables in which a key may repeat."""
_IDENTITY = frozenset({"ts", "node", "gpu", "gpu_uuid", "mig_instance", "simulated"})
_READINGS = frozenset({"gpu_samples", "gpu_detail_samples", "gpu_health_samples"})
"""Tables in which a row without a reading says nothing."""
_BITS = {Type.INT16: 15, Type.INT32: 31, Type.INT64: 63}
_FLOAT_MAX = {Type.FLOAT32: 3.4028234663852886e38, Type.FLOAT64: 1e308}
_OTHER_TYPE, _IMPOSSIBLE = "of another type", "with an impossible value"


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
    pending: dict[str, dict[object, Row]] = field(default_factory=dict)
    """Rows by table and key."""
    rows: Counter[str] = field(default_factory=Counter)
    """Rows by table, in batches or pending."""
    first_ms: int | None = None
    last_ms: int | None = None
    gaps_s: Counter[int] = field(default_factory=Counter)
    """Number of intervals between readings of a GPU, by whole seconds."""
    _last_ms: dict[Value, int] = field(default_factory=dict)
    gpus: set[Value] = field(default_factory=set)
    nodes: set[Value] = field(default_factory=set)

    def add(self, rows: Iterable[TableRow], tally: ImportTally) -> Iterator[ImportBatch]:
        """Add rows; the batches that are full."""
        for name, values in rows:
            table = WIRE_TABLES[name]
            row = self._admissible(table, values, tally)
            if row is None:
                continue
            pending = self.pending.setdefault(name, {})
            is_keyed = name not in _UNKEYED
            key = tuple(map(row.get, table.key)) if is_keyed else len(pending)
            if is_keyed and key in pending:
                if pending[key] == row:
                    tally.ignore(f"{name} rows that come twice", 0)
                else:
                    tally.skip(f"{name} rows with a repeated key", 0)
                continue
            pending[key] = row
            self.rows[name] += 1
            self._note(name, row)
            if len(pending) >= BATCH_ROWS:
                yield _batch(table, self.pending.pop(name))

    def flush(self) -> Iterator[ImportBatch]:
        """Batches of pending rows; nodes and GPUs first, as the collector resolves GPUs of events by them."""
        for name in sorted(self.pending, key=lambda name: name not in ("nodes", "gpus")):
            yield _batch(WIRE_TABLES[name], self.pending[name])
        self.pending = {}

    def _admissible(self, table: Table, values: Row, tally: ImportTally) -> Row | None:
        """The row as a collector admits it; None, counted as skipped: it does not."""
        checks, required, times = _checks(table.name)
        row: Row = {}
        for name, value in values.items():
            if value is None or name not in checks:
                continue
            try:
                checked = checks[name](value)
                if name in times and not 0 <= checked <= self.latest_ms:
                    raise ValueError("in the future, or before 1970")
                row[name] = checked
            except ValueError as error:
                if name in required:
                    tally.skip(f"{table.name} rows {error}", 0)
                    return None
                tally.skip(f"{table.name}.{name} values {error}", 0)
        for name in required:
            if name not in row:
                tally.skip(f"{table.name} rows without {name}", 0)
                return None
        if table.name in _READINGS and row.keys() <= _IDENTITY:
            return None
        return row

    def _note(self, table: str, row: Row) -> None:
        self.nodes.add(row["node"])
        uuid, ts_ms = row.get("gpu_uuid"), row.get("ts")
        if uuid is not None:
            self.gpus.add(uuid)
        if not isinstance(ts_ms, int):
            return
        self.first_ms = ts_ms if self.first_ms is None else min(self.first_ms, ts_ms)
        self.last_ms = ts_ms if self.last_ms is None else max(self.last_ms, ts_ms)
        if table == "gpu_samples":
            gap_s = abs(ts_ms - self._last_ms.get(uuid, ts_ms)) // 1000
            self._last_ms[uuid] = ts_ms
            if gap_s:
                self.gaps_s[gap_s] += 1

    @property
    def pace_s(self) -> int | None:
        """Median interval between readings of a GPU, in seconds; None: there is no interval."""
        left = (sum(self.gaps_s.values()) + 1) // 2
        for gap_s, count in sorted(self.gaps_s.items()):
            left -= count
            if left <= 0:
                return gap_s
        return None


def _batch(table: Table, rows: dict[object, Row]) -> ImportBatch:
    columns, names = {}, {"simulated"}.union(*rows.values())
    for column in table.columns:
        if column.name not in names:
            continue
        values = [row.get(column.name) for row in rows.values()]
        if column.name == "simulated":
            values = [bool(value) for value in values]
        columns[column.name] = pa.array(values, ARROW_TYPES[column.type])
    return ImportBatch(table.name, pa.table(columns))


@cache
def _checks(name: str) -> tuple[dict[str, Callable[[Value], Any]], list[str], list[str]]:
    """The check of each column of a table, the columns that a row must have, and timestamps."""
    table = WIRE_TABLES[name]
    checks = {column.name: _check(table, column) for column in table.columns}
    required = [c.name for c in table.columns if c.required and c.name != "simulated"]
    return checks, required, [c.name for c in table.columns if c.type is Type.TIMESTAMP]


def _check(table: Table, column: Column) -> Callable[[Value], Value]:
    """Make a function of a value to the value in the column's type; it raises ValueError with the reason."""
    low, high = column.limits or (-math.inf, math.inf)
    match column.type:
        case Type.STRING:
            is_name = column.name in table.key or column.name in ("node", "gpu_uuid")
            most = NAME_BYTES_MAX if is_name else TEXT_BYTES_MAX

            def text(value: Value) -> Value:
                if not isinstance(value, str):
                    raise ValueError(_OTHER_TYPE)  # noqa: TRY004
                if column.name == "node" and not is_node_name(value):
                    raise ValueError("whose node cannot be the name of one")
                content = value.encode(errors="replace")
                if len(content) > most or (is_name and not content):
                    raise ValueError(f"whose {column.name} is empty or longer than {most} bytes")
                return content.decode()

            return text
        case Type.BOOL:

            def flag(value: Value) -> Value:
                # Metrics are numbers: 1 is true.
                if isinstance(value, str) or value not in (0, 1):
                    raise ValueError(_OTHER_TYPE)
                return bool(value)

            return flag
        case Type.FLOAT32 | Type.FLOAT64:
            most_float = _FLOAT_MAX[column.type]

            def number(value: Value) -> Value:
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise ValueError(_OTHER_TYPE)  # noqa: TRY004
                if not (low <= value <= high and abs(value) <= most_float):
                    raise ValueError(_IMPOSSIBLE)
                return float(value)

            return number
        case _:
            size = 1 << _BITS.get(column.type, 63)

            def whole(value: Value) -> Value:
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise ValueError(_OTHER_TYPE)  # noqa: TRY004
                if not (low <= value <= high and -size <= value < size) or value % 1:
                    raise ValueError(_IMPOSSIBLE)
                return int(value)

            return whole
