"""Encodes rows part by part as JSON, NDJSON, CSV, Arrow or Parquet, so that no process holds all of them.

The end of each answer says whether rows were cut: JSON by `truncated`, the others by the word TRUNCATED in a
last line or in metadata, which a complete answer does not have.
"""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden.query import TRUNCATED, QueryError
from gpuwarden_collector.query.encode import (
    ResultRows,
    chunks,
    csv_cell,
    instant_texts,
    joined,
    json_bytes,
    json_column,
    json_lines,
    parquet_column,
    python_rows,
)
from gpuwarden_collector.query.port import Encoder, Ending


def encoder_of(form: str, schema: Any, types: tuple[str, ...]) -> Encoder:
    """The encoder of a format. `form`: json, ndjson, csv, parquet or arrow."""
    kinds: dict[str, Callable[[Any, tuple[str, ...]], Encoder]] = {
        "json": _Json,
        "ndjson": _Ndjson,
        "csv": _Csv,
        "parquet": _Parquet,
        "arrow": _Arrow,
    }
    return kinds[form](schema, types)


class _Json:
    """`{"columns": [{"name", "type"}], "rows": [[...]], "truncated": ..., "elapsed_s": ...}`."""

    batch_bytes = 256 * 1024

    def __init__(self, schema: Any, types: tuple[str, ...]) -> None:
        self._names, self._types = schema.names, types
        self._between = b""

    def begin(self) -> bytes:
        columns = [{"name": n, "type": t} for n, t in zip(self._names, self._types, strict=True)]
        return b'{"columns":' + json_bytes(columns) + b',"rows":['

    def rows(self, data: Any) -> bytes:
        body = bytearray()
        for cells in _json_rows(data, self._names, self._types):
            body += self._between
            body += json_bytes(cells)[1:-1]
            self._between = b","
        return bytes(body)

    def end(self, ending: Ending) -> bytes:
        tail = {"truncated": ending.truncated, "elapsed_s": round(ending.elapsed_s, 6)}
        return b"]," + json_bytes(tail)[1:]


class _Ndjson:
    """A line with a JSON object for each row."""

    batch_bytes = 256 * 1024

    def __init__(self, schema: Any, types: tuple[str, ...]) -> None:
        self._names, self._types = schema.names, types

    def begin(self) -> bytes:
        _check_names(self._names, "NDJSON")
        return b""

    def rows(self, data: Any) -> bytes:
        names = self._names
        return b"".join(
            json_lines([dict(zip(names, row, strict=True)) for row in cells])
            for cells in _json_rows(data, names, self._types)
        )

    def end(self, ending: Ending) -> bytes:
        if not ending.truncated or ending.is_own_limit:
            return b""
        return json_bytes({TRUNCATED: True, "rows": ending.rows}) + b"\n"


class _Csv:
    """RFC 4180 with a header line and lines that end with LF; NULL is an empty field, nested values are JSON."""

    batch_bytes = 256 * 1024

    def __init__(self, schema: Any, types: tuple[str, ...]) -> None:
        self._names, self._types = schema.names, types

    def begin(self) -> bytes:
        return _csv([self._names])

    def rows(self, data: Any) -> bytes:
        return b"".join(csv_rows(chunk, self._types) for chunk in chunks(data))

    def end(self, ending: Ending) -> bytes:
        if not ending.truncated or ending.is_own_limit:
            return b""
        return _csv([[f"# {TRUNCATED}: there are more rows than these {ending.rows}"]])


class _Arrow:
    """An Arrow IPC stream with DuckDB's types. A truncated one ends with an empty batch that says so."""

    batch_bytes = 1024 * 1024

    def __init__(self, schema: Any, types: tuple[str, ...]) -> None:
        self._schema = schema
        self._out = _Written()

    def begin(self) -> bytes:
        self._writer = pa.ipc.new_stream(self._out, self._schema)
        return self._out.taken()

    def rows(self, data: Any) -> bytes:
        for batch in data.combine_chunks().to_batches():
            self._writer.write_batch(batch)
        return self._out.taken()

    def end(self, ending: Ending) -> bytes:
        if ending.truncated:
            none = pa.RecordBatch.from_pylist([], self._schema)
            metadata = {TRUNCATED: "true", "rows": str(ending.rows)}
            self._writer.write_batch(none, custom_metadata=metadata)
        self._writer.close()
        return self._out.taken()


class _Parquet:
    """A Parquet file. Types that Parquet lacks are as in JSON: durations are seconds; wide integers are text."""

    batch_bytes = 16 * 1024 * 1024
    """Size of a row group before compression."""

    def __init__(self, schema: Any, types: tuple[str, ...]) -> None:
        self._schema, self._types = schema, types
        self._out = _Written()

    def begin(self) -> bytes:
        import pyarrow.parquet as pq  # 20 MB that few query processes need

        _check_names(self._schema.names, "Parquet")
        with _naming_what_parquet_lacks():
            empty = self._kept(self._schema.empty_table())
            self._writer = pq.ParquetWriter(self._out, empty.schema, compression="zstd")
        return self._out.taken()

    def rows(self, data: Any) -> bytes:
        with _naming_what_parquet_lacks():
            self._writer.write_table(self._kept(data), row_group_size=max(1, data.num_rows))
        return self._out.taken()

    def end(self, ending: Ending) -> bytes:
        if ending.truncated:
            self._writer.add_key_value_metadata({TRUNCATED: "true"})
        self._writer.close()
        return self._out.taken()

    def _kept(self, data: Any) -> Any:
        columns = zip(self._schema.names, data.columns, self._types, strict=True)
        return pa.table([parquet_column(*of) for of in columns], names=self._schema.names)


@contextmanager
def _naming_what_parquet_lacks() -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise QueryError(f"Parquet cannot hold this: {error}; cast it to VARCHAR") from error


class _Written(io.RawIOBase):
    """A file object whose content is taken while it is written."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._at = 0

    def taken(self) -> bytes:
        """The bytes that were written since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._at += len(part)
        return len(part)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at


def _check_names(names: list[str], form: str) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise QueryError(f"two columns have the name {twice}: {form} needs different names (AS)")


def _json_rows(
    data: Any, names: list[str], types: tuple[str, ...]
) -> Iterator[list[tuple[Any, ...]]]:
    for chunk in chunks(data):
        cells = [
            json_column(name, values, sql_type)
            for name, values, sql_type in zip(names, chunk.columns, types, strict=True)
        ]
        yield list(zip(*cells, strict=True))


def _csv(rows: Any) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=LINE_END.decode()).writerows(rows)
    return text.getvalue().encode()


LINE_END = b"\n"
_QUOTED = '[",\r\n]'
_ODD = r'^[=+\-@\t\r]|[",\r\n]'
_FORMULA = r"^[=+\-@\t\r]"
_PLAIN = r"^([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+@-]|--?[A-Za-z][0-9A-Za-z_-]*)\z"


def csv_rows(data: Any, types: Sequence[str]) -> bytes:
    """The lines of an Arrow table, encoded column by column, mostly without Python values.

    RFC 4180, but lines end with LF, as shell tools expect: fields are quoted where needed, NULL is an empty field.
    Instants are UTC with milliseconds, durations seconds, nested values JSON. Texts that a spreadsheet would run as a
    formula get a `'` before them, as by `without_formula`. Raises QueryError.
    """
    cells: list[Any] = []
    for at, sql_type in enumerate(types):
        column = data.column(at).combine_chunks()
        text = _plain(column)
        if text is None:
            text = _quoted(_by_value(data.select([at]), sql_type))
        cells += [text.fill_null("").cast(pa.binary()), b","]
    if not cells:
        return b""
    if len(types) == 1:  # readers skip an empty line
        cells[0] = pc.if_else(pc.equal(pc.binary_length(cells[0]), 0), b'""', cells[0])
    return joined(*cells[:-1], LINE_END)


def _plain(column: Any) -> Any:
    """The text of each value; None: the type needs Python values."""
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
        # With `.0`, as Python writes them, so that readers see no integers.
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
