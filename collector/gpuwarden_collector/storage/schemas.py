"""Makes Arrow schemas of the metric catalogue's tables."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from gpuwarden.metrics import Type
from gpuwarden.schema import WIRE_TABLES, stored_columns
from gpuwarden.table import Column

ARROW_TYPES: dict[Type, Any] = {
    Type.TIMESTAMP: pa.timestamp("ms"),
    Type.STRING: pa.string(),
    Type.BOOL: pa.bool_(),
    Type.INT16: pa.int16(),
    Type.INT32: pa.int32(),
    Type.INT64: pa.int64(),
    Type.FLOAT32: pa.float32(),
    Type.FLOAT64: pa.float64(),
}


def arrow_schema(columns: Iterable[Column]) -> Any:
    """The Arrow schema of columns in their order."""
    return pa.schema([pa.field(c.name, ARROW_TYPES[c.type]) for c in columns])


STORED_SCHEMAS = {name: arrow_schema(stored_columns(t)) for name, t in WIRE_TABLES.items()}
