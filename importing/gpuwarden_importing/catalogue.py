"""Reads CSV and Parquet with the catalogue's columns, such as output of `gpuwarden sql`."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gpuwarden.metrics import Type
from gpuwarden.schema import WIRE_TABLES
from gpuwarden.table import Table
from gpuwarden.wire import TABLE_KEY
from gpuwarden_importing.cells import split, split_to
from gpuwarden_importing.file import LogFile
from gpuwarden_importing.model import (
    AGENT,
    ImportTally,
    Origin,
    Row,
    TableRow,
    UnreadableError,
    Value,
)
from gpuwarden_importing.smi_fields import is_field
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
    """Whether a line is a header with the columns of a table."""
    try:
        return table_of([cell.strip().strip('"') for cell in split(line, ",")]) is not None
    except UnreadableError:
        return True


def own_names(names: Iterable[str]) -> set[str]:
    """The names that are columns of tables, and no fields of nvidia-smi."""
    columns = {name for table in WIRE_TABLES.values() for name in table.names}
    return {name for name in names if name in columns and not is_field(name)}


def read_csv(lines: Iterator[str], origin: Origin, tally: ImportTally) -> Iterator[TableRow]:
    """A `Reader`."""
    header = next((line for line in lines if line.strip()), "")
    names = [cell.strip().strip('"') for cell in split(header.lstrip("\ufeff"), ",")]
    table = table_of(names, origin.table)
    if table is None:
        raise UnreadableError("its columns match no table")
    file = LogFile(origin, tally)
    for number, line in enumerate(lines, 2):
        if not line.strip() or line == header:
            continue
        cells = split_to(len(names), line, ",")
        if cells is None:
            tally.skip(f"not the {len(names)} cells of the header", number)
            continue
        row: Row = {}
        for name, cell in zip(names, cells, strict=True):
            if name not in table.names:
                file.count_unmapped(name, cell)
            elif (column := table.column(name)).type is Type.TIMESTAMP:
                said = cell.strip(' "\r\n')
                row[name] = file.time(said, number) if said else None
            else:
                row[name] = file.read(name, cell, _CONVERTERS[column.type], number)
        yield table.name, _filled(table, row, origin)
    file.note_zone()


def _filled(table: Table, row: Row, origin: Origin) -> Row:
    node = row.get("node")
    row["node"] = origin.node_or(None if node is None else str(node))
    if table.name == "nodes":
        for name in ("agent_id", "boot_id"):
            row.setdefault(name, AGENT)
    return row


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


_CONVERTERS: dict[Type, Converter] = {
    # A text is kept, also "unknown".
    Type.STRING: lambda cell: cell.strip("\r\n") or None,
    Type.BOOL: flag,
    **{kind: lambda cell: _read(float, cell) for kind in (Type.FLOAT32, Type.FLOAT64)},
    **{kind: lambda cell: _read(_whole, cell) for kind in (Type.INT16, Type.INT32, Type.INT64)},
}


def read_parquet(file: Path | IO[bytes], origin: Origin, tally: ImportTally) -> Iterator[TableRow]:
    """Rows of a Parquet file. Raises UnreadableError."""
    log = LogFile(origin, tally)
    try:
        opened = pq.ParquetFile(file)
        schema = opened.schema_arrow
        said = (schema.metadata or {}).get(TABLE_KEY.encode(), b"").decode() or None
        table = table_of(schema.names, origin.table or said)
        if table is None:
            raise UnreadableError("its columns match no table")
        known = [name for name in schema.names if name in table.names]
        for piece in opened.iter_batches(BLOCK_ROWS, columns=known):
            columns = {
                name: _instants(piece.column(name), log)
                if table.column(name).type is Type.TIMESTAMP
                else piece.column(name).to_pylist()
                for name in known
            }
            for values in zip(*columns.values(), strict=True):
                yield table.name, _filled(table, dict(zip(known, values, strict=True)), origin)
        for name in schema.names:
            if name not in known:
                tally.unmapped[name] += opened.metadata.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UnreadableError(
            f"it is not a readable Parquet file: {str(error).partition(chr(10))[0][:200]}"
        ) from error
    log.note_zone()


def _instants(values: Any, log: LogFile) -> list[Value]:
    """Timestamps in milliseconds UTC, from texts, numbers and Arrow timestamps of any unit."""
    if pa.types.is_timestamp(values.type):
        zone = log.origin.zone
        if values.type.tz is None and str(zone) != "UTC":
            values = pc.assume_timezone(values, str(zone))
        # Parts of a millisecond are cut.
        whole = values.cast(pa.timestamp("ms", tz=values.type.tz), safe=False)
        milliseconds: list[Value] = whole.cast(pa.int64()).to_pylist()
        return milliseconds
    return [None if v is None else log.time(str(v), 0) for v in values.to_pylist()]
