"""Coerces values of a source to the types of the columns, without absent and invalid values.

Numbers outside the limits of a column stay: the sampler removes and counts them, and writes an event.
Columns without limits hold inventory, in which a number beyond the type's range means "none".
"""

import math
from collections.abc import Mapping

from gpuwarden.metrics import Type
from gpuwarden.schema import WIRE_TABLES
from gpuwarden.table import Column
from gpuwarden_agent.probe import Row, Value

_INTEGER_BITS = {Type.INT16: 15, Type.INT32: 31, Type.INT64: 63, Type.TIMESTAMP: 63}

_COLUMNS: dict[str, dict[str, Column]] = {
    name: {column.name: column for column in table.columns} for name, table in WIRE_TABLES.items()
}


def coerce(table: str, values: Mapping[str, Value]) -> Row:
    """A row of `table` with the values that are present, in the columns' types.

    Raises KeyError for an unknown column and TypeError for a value of another type: both are bugs of
    the caller.
    """
    columns = _COLUMNS[table]
    coerced = ((name, _coerced(columns[name], value)) for name, value in values.items())
    return {name: value for name, value in coerced if value is not None}


def _coerced(column: Column, value: Value) -> Value:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        # To the kernel, names of files and users are bytes; invalid UTF-8 becomes "?".
        return value.encode(errors="replace").decode() or None
    if not math.isfinite(value):
        return None
    if column.type is Type.BOOL:
        return value != 0
    bits = _INTEGER_BITS.get(column.type)
    if bits is None:
        return float(value)
    is_in_range = column.limits is not None or abs(value) < 1 << bits
    return int(value) if is_in_range else None
