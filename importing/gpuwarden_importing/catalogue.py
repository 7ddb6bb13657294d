"""Reads CSV and Parquet with the catalogue's columns, such as output of `gpuwarden sql`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpuwarden.metrics import Type
from gpuwarden.schema import WIRE_TABLES
from gpuwarden.table import Column, Table
from gpuwarden.wire import TABLE_KEY
from gpuwarden_importing.cells import CellColumn, LineBlock, count_present, split
from gpuwarden_importing.file import LogFile
from gpuwarden_importing.instants import Instants
from gpuwarden_importing.model import (
    AGENT,
    ImportedRows,
    ImportTally,
    Origin,
    UnreadableError,
    Value,
)
from gpuwarden_importing.smi_csv import fields_in
from gpuwarden_importing.values import Converter, flag, plain

BLOCK_ROWS = 20_000
_FILLED = frozenset({"node", "simulated", "agent_id", "boot_id"})
"""Required columns that a file may lack."""
_SHARED = frozenset({"ts", "node", "gpu", "gpu_uuid", "mig_instance", "simulated", "pid"})


def table_of(names: Sequence[str], asked: str | None = None) -> Table | None:
    """The table that has the columns; None: no table has them. Raises UnreadableError."""
    if asked is not None:
        if asked not in WIRE_TABLES:
            raise UnreadableError(f"there is no table {asked!r}; known: {', '.join(WIRE_TABLES)}")
        table = WIRE_TABLES[asked]
        if lacks := _lacking(table, names):
            raise UnreadableError(f"it lacks {', '.join(lacks)}, which {asked} needs")
        return table
    scores = {
        table.name: len({*table.names} & {*names} - _SHARED)
        for table in WIRE_TABLES.values()
        if not _lacking(table, names)
    }
    best = max(scores.values(), default=0)
    if not best:
        return None
    fits = [name for name, score in scores.items() if score == best]
    if len(fits) > 1:
        raise UnreadableError(f"it may be {' or '.join(fits)}: say which with --table")
    return WIRE_TABLES[fits[0]]


def _lacking(table: Table, names: Sequence[str]) -> list[str]:
    return [
        column.name
        for column in table.columns
        if column.required and column.name not in names and column.name not in _FILLED
    ]


def is_header(line: str) -> bool:
    """Whether a line is a header with more columns of a table than fields of nvidia-smi.

    `driver_version` is both.
    """
    names = [cell.strip().strip('"') for cell in split(line, ",")]
    try:
        table = table_of(names)
    except UnreadableError:
        return True
    return table is not None and len({*table.names} & {*names}) > fields_in(line)


def read_csv(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[ImportedRows]:
    """A `Reader`."""
    header = next((line for line in lines if line.strip()), "")
    names = [cell.strip().strip('"') for cell in split(header.lstrip("\ufeff"), ",")]
    table = table_of(names, origin.table)
    if table is None:
        raise UnreadableError("its columns match no table")
    file = LogFile(origin, tally)
    columns = {
        at: CellColumn(name, _converter(table.column(name), file.instants))
        for at, name in enumerate(names)
        if name in table.names
    }
    block = LineBlock(len(names), ",")

    def rows() -> ImportedRows:
        cells, numbers = block.take()
        for at, name in enumerate(names):
            if at not in columns and (count := count_present(cells[at])):
                tally.unmapped[name] += count
        values = {names[at]: c.values(cells[at], numbers, tally) for at, c in columns.items()}
        return _filled(table, values, len(numbers), origin)

    for number, line in enumerate(lines, 2):
        if not line.strip() or line == header:
            continue
        if not block.add(line, number):
            tally.skip(f"not the {len(names)} cells of the header", number)
        elif len(block.numbers) >= BLOCK_ROWS:
            yield rows()
    if block.numbers:
        yield rows()
    file.note_zone()


def _filled(table: Table, values: dict[str, Any], count: int, origin: Origin) -> ImportedRows:
    if origin.node or "node" not in values:
        values["node"] = [origin.node_or(None)] * count
    if table.name == "nodes":
        for name in ("agent_id", "boot_id"):
            values.setdefault(name, [AGENT] * count)
    return ImportedRows(table.name, values)


def _converter(column: Column, instants: Instants) -> Converter:
    match column.type:
        case Type.TIMESTAMP:
            return lambda cell: instants.parse(cell.strip(' "\r\n'))
        case Type.STRING:
            # A text is kept, also "unknown".
            return lambda cell: cell.strip("\r\n") or None
        case Type.BOOL:
            return flag
        case Type.FLOAT32 | Type.FLOAT64:
            return lambda cell: _read(float, cell)
        case _:
            return lambda cell: _read(_whole, cell)


def _read(kind: Any, cell: str) -> Value:
    found = plain(cell)
    try:
        return None if found is None else kind(found)
    except (ValueError, OverflowError):
        raise ValueError("is not a number") from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        value = float(text)
        if value != int(value):
            raise
        return int(value)


def read_parquet(
    file: Path | IO[bytes], origin: Origin, tally: ImportTally
) -> Iterator[ImportedRows]:
    """Rows of a Parquet file. Raises UnreadableError."""
    try:
        opened = pq.ParquetFile(file)
        schema = opened.schema_arrow
        said = (schema.metadata or {}).get(TABLE_KEY.encode(), b"").decode() or None
        table = table_of(schema.names, origin.table or said)
        if table is None:
            raise UnreadableError("its columns match no table")
        known = [name for name in schema.names if name in table.names]
        others = {name for name in schema.names if name not in known}
        for piece in opened.iter_batches(BLOCK_ROWS, columns=known):
            values: dict[str, Any] = {}
            for name in known:
                column = table.column(name)
                values[name] = piece.column(name)
                if column.type is Type.TIMESTAMP:
                    values[name] = _instants(values[name], origin, tally)
            yield _filled(table, values, piece.num_rows, origin)
        for name in sorted(others):
            tally.unmapped[name] += opened.metadata.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UnreadableError(
            f"it is not a readable Parquet file: {str(error).partition(chr(10))[0][:200]}"
        ) from error


def _instants(values: Any, origin: Origin, tally: ImportTally) -> Any:
    """Timestamps in milliseconds UTC, from texts, numbers and Arrow timestamps of any unit."""
    if pa.types.is_timestamp(values.type):
        if values.type.tz is None and str(origin.zone) != "UTC":
            values = pc.assume_timezone(values, str(origin.zone))
        # Parts of a millisecond are cut.
        return values.cast(pa.timestamp("ms", tz=values.type.tz), safe=False).cast(pa.int64())
    file = LogFile(origin, tally)
    texts = {str(value) for value in values.to_pylist() if value is not None}
    memo = {text: file.time(text, 0) for text in texts}
    file.note_zone()
    return [None if v is None else memo[str(v)] for v in values.to_pylist()]
