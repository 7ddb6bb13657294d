"""Checks every row before it enters a batch.

A wrong column or type is a bug of the code that made the row and raises RowError. A number outside
the catalogue's limits comes from a source that is wrong, which happens on real hardware: the caller
gets the columns and removes them. The collector would refuse the whole batch for either.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuwarden.metrics import Type
from gpuwarden.schema import WIRE_TABLES
from gpuwarden.table import Column
from gpuwarden_agent.probe import Value

_FLOAT32_MAX = 3.4028234663852886e38
_FLOAT64_MAX = 1.7976931348623157e308
_INTEGER = frozenset({int})
_NUMBER = frozenset({int, float})

_TYPES: dict[Type, tuple[frozenset[type], float, float]] = {
    Type.TIMESTAMP: (_INTEGER, -(2**63), 2**63 - 1),
    Type.INT16: (_INTEGER, -(2**15), 2**15 - 1),
    Type.INT32: (_INTEGER, -(2**31), 2**31 - 1),
    Type.INT64: (_INTEGER, -(2**63), 2**63 - 1),
    Type.FLOAT32: (_NUMBER, -_FLOAT32_MAX, _FLOAT32_MAX),
    Type.FLOAT64: (_NUMBER, -_FLOAT64_MAX, _FLOAT64_MAX),
    Type.STRING: (frozenset({str}), 0, 0),
    Type.BOOL: (frozenset({bool}), 0, 0),
}


class RowError(ValueError):
    """A row does not fit its table; the message names table, column and value."""


@dataclass(frozen=True, slots=True)
class _Cell:
    types: frozenset[type]
    lowest: float
    highest: float
    is_limited: bool

    @classmethod
    def of(cls, column: Column) -> "_Cell":
        types, lowest, highest = _TYPES[column.type]
        if column.limits is None:
            return cls(types, lowest, highest, False)
        low, high = column.limits
        return cls(types, max(lowest, low), min(highest, high), True)


_CELLS = {
    table.name: {column.name: _Cell.of(column) for column in table.columns}
    for table in WIRE_TABLES.values()
}
_REQUIRED = {
    table.name: tuple(column.name for column in table.columns if column.required)
    for table in WIRE_TABLES.values()
}


def impossible_columns(table: str, row: Mapping[str, Value]) -> tuple[str, ...]:
    """Columns whose value is outside the catalogue's limits (NaN included); usually none.

    Raises RowError for an unknown table or column, a value of the wrong type or outside the
    range of its type, text that is not UTF-8, and a required column without a value.
    """
    cells = _CELLS.get(table)
    if cells is None:
        raise RowError(f"no agent may send table {table!r}")
    outside: tuple[str, ...] = ()
    for name, value in row.items():
        cell = cells.get(name)
        if cell is None:
            raise RowError(f"{table} has no column {name!r}")
        if value is None:
            continue
        kind = type(value)
        if kind not in cell.types:
            raise RowError(f"{table}.{name} = {value!r} has type {kind.__name__}")
        if kind is str:
            _check_text(table, name, str(value))
        elif kind is not bool and not cell.lowest <= value <= cell.highest:  # type: ignore[operator]
            if not cell.is_limited:
                raise RowError(f"{table}.{name} = {value!r} is outside the range of its type")
            outside = (*outside, name)
    for name in _REQUIRED[table]:
        if row.get(name) is None:
            raise RowError(f"{table}.{name} is required and has no value")
    return outside


def _check_text(table: str, name: str, value: str) -> None:
    if value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RowError(f"{table}.{name} = {value!r} is not valid text: {error.reason}") from error
