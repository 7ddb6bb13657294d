"""Makes the body of a batch, as agents send it, from rows that were joined from series; pure.

A value that its column cannot hold becomes NULL, and a row without a required value is left out; both are counted.
"""

import io
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from gpuwarden.metrics import Type
from gpuwarden.schema import EVENTS, WIRE_TABLES
from gpuwarden.table import Column, Table
from gpuwarden.wire import TABLE_KEY
from gpuwarden_collector.ingest.admit import NAME_BYTES_MAX, TEXT_BYTES_MAX, Window
from gpuwarden_collector.ingest.decode import WIRE_SCHEMAS
from gpuwarden_collector.ingest.port import Value

_BITS = {Type.INT16: 15, Type.INT32: 31, Type.INT64: 63}
_FLOAT32_MAX = 3.4028234663852886e38
_NOT_KEYED = frozenset({EVENTS.name})


class BodyRows:
    """Rows of one node, by table and key: of two rows with one key the first counts."""

    def __init__(self, admitted: Window) -> None:
        self._admitted = admitted
        self._rows: dict[str, dict[Any, dict[str, Any]]] = {}
        self.lost: Counter[str] = Counter()
        """Readings and rows that are not in the body, by reason."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(len(rows) for rows in self._rows.values())

    def add(self, name: str, row: Mapping[str, Value]) -> None:
        """Add a row."""
        table = WIRE_TABLES[name]
        fitted: dict[str, Any] = {}
        for column in table.columns:
            sent = row.get(column.name)
            value = None if sent is None else _fitted(table, column, sent)
            if sent is not None and value is None:
                self.lost["impossible"] += 1
            if column.name == "simulated":
                value = bool(value)
            if value is None and column.required:
                self.lost["incomplete"] += 1
                return
            fitted[column.name] = value
        least_ms, most_ms = self._admitted.least_ms, self._admitted.most_ms
        if "ts" in fitted and not least_ms <= fitted["ts"] <= most_ms:
            self.lost["out_of_time"] += 1
            return
        rows = self._rows.setdefault(name, {})
        key = len(rows) if name in _NOT_KEYED else tuple(fitted[column] for column in table.key)
        if "ts" not in table.names:  # inventory: facts from several samples of one GPU
            known = rows.setdefault(key, fitted)
            known.update({n: v for n, v in fitted.items() if v is not None and known[n] is None})
        elif key in rows:
            self.lost["doubled"] += 1
        else:
            rows[key] = fitted

    def body(self) -> bytes:
        """The rows as Arrow IPC streams, nodes and GPUs first."""
        sink = io.BytesIO()
        for name in sorted(self._rows, key=lambda one: "ts" in WIRE_TABLES[one].names):
            schema = WIRE_SCHEMAS[name].with_metadata({TABLE_KEY: name})
            columns = {
                field.name: pa.array(
                    [row[field.name] for row in self._rows[name].values()], field.type
                )
                for field in schema
            }
            data = pa.Table.from_pydict(columns, schema=schema)
            with pa.ipc.new_stream(sink, schema) as writer:
                writer.write_table(data)
        return sink.getvalue()


def _fitted(table: Table, column: Column, value: Value) -> Any:
    """The value in the column's type; None: it cannot be that."""
    if column.type is Type.STRING:
        is_name = column.name in table.key or column.name in ("node", "gpu_uuid")
        text = str(value)
        size = len(text.encode(errors="replace"))
        is_fit = 1 <= size <= NAME_BYTES_MAX if is_name else size <= TEXT_BYTES_MAX
        return text.encode(errors="replace").decode() if is_fit else None
    try:
        number = float(value) if value is not None else math.nan
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    if column.type is Type.BOOL:
        return number != 0
    if column.limits is not None and not column.limits[0] <= number <= column.limits[1]:
        return None
    if column.type is Type.TIMESTAMP:
        return round(number) if 0 <= number <= _LAST_MS else None
    if bits := _BITS.get(column.type):
        return round(number) if -(1 << bits) <= number < 1 << bits else None
    return None if column.type is Type.FLOAT32 and abs(number) > _FLOAT32_MAX else number


_LAST_MS = 253_402_300_799_999
