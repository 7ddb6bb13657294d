"""Coerces values of a source to the types of the columns; what is absent or impossible is left out.

Numbers that cannot be true are left in where the column has limits: the sampler leaves those out,
counts them and says so in an event. Columns without limits hold inventory, where a number beyond
the type's range is a driver's way to say "none".
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
    """A row of `table` with those values that there are, in the columns' types.

    Raises KeyError for a column that the table does not have, TypeError for a value of another
    kind: both are bugs of the caller.
    """
    columns = _COLUMNS[table]
    fitted = ((name, _fitted(columns[name], value)) for name, value in values.items())
    return {name: value for name, value in fitted if value is not None}


def _fitted(column: Column, value: Value) -> Value:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        # Names of files and users are bytes to the kernel; what is no UTF-8 becomes "?".
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
