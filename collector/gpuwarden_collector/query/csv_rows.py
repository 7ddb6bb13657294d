"""Encodes rows as CSV column by column: what most columns hold is never made into Python values.

RFC 4180 but for lines, which end with LF as a shell's tools expect: a field is quoted where it must be, NULL is an
empty one. Instants are UTC with milliseconds, durations seconds, nested values JSON. Texts that a spreadsheet
would run have `'` before them, as of `without_formula`.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden_collector.query.encode import (
    ResultRows,
    csv_cell,
    instant_texts,
    joined,
    python_rows,
)

LINE_END = b"\n"
_QUOTED = '[",\r\n]'
_ODD = r'^[=+\-@\t\r]|[",\r\n]'
_FORMULA = r"^[=+\-@\t\r]"
_PLAIN = r"^([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+@-]|--?[A-Za-z][0-9A-Za-z_-]*)\z"


def csv_rows(data: Any, types: Sequence[str]) -> bytes:
    """The lines of an Arrow table. Raises QueryError."""
    cells: list[Any] = []
    for at, sql_type in enumerate(types):
        column = data.column(at).combine_chunks()
        text = _plain(column)
        if text is None:
            text = _quoted(_by_value(data.select([at]), sql_type))
        cells += [text.fill_null("").cast(pa.binary()), b","]
    if not cells:
        return b""
    if len(types) == 1:  # an empty line would be no row
        cells[0] = pc.if_else(pc.equal(pc.binary_length(cells[0]), 0), b'""', cells[0])
    return joined(*cells[:-1], LINE_END)


def _plain(column: Any) -> Any:
    """The text of each value; None for what is not plain."""
    kind = column.type
    if pa.types.is_integer(kind):
        return column.cast(pa.string())
    if pa.types.is_string(kind):
        return _quoted(column)
    if pa.types.is_boolean(kind):
        return pc.if_else(column, "true", "false")
    if pa.types.is_floating(kind):
        known = pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind))
        text = known.cast(pa.string())
        # As Python writes them: a reader takes a column of 1 and 2 for integers.
        if not pc.any(pc.equal(pc.floor(known), known)).as_py():
            return text
        is_whole = pc.match_substring_regex(text, r"^-?[0-9]+$")
        return pc.if_else(is_whole, pc.binary_join_element_wise(text, ".0", ""), text)
    return instant_texts(column) if pa.types.is_timestamp(kind) else None


def _by_value(data: Any, sql_type: str) -> Any:
    rows = python_rows(ResultRows(data, (sql_type,), False))
    cells = (csv_cell(cell) for (cell,) in rows)
    return pa.array([None if cell is None else str(cell) for cell in cells], pa.string())


def _quoted(text: Any) -> Any:
    if not pc.any(pc.match_substring_regex(text, _ODD)).as_py():
        return text
    is_formula = pc.and_not(
        pc.match_substring_regex(text, _FORMULA), pc.match_substring_regex(text, _PLAIN)
    )
    if pc.any(is_formula).as_py():
        text = pc.if_else(is_formula, pc.binary_join_element_wise("'", text, ""), text)
    is_quoted = pc.match_substring_regex(text, _QUOTED)
    if not pc.any(is_quoted).as_py():
        return text
    escaped = pc.replace_substring(text, '"', '""')
    return pc.if_else(is_quoted, pc.binary_join_element_wise('"', escaped, '"', ""), text)
