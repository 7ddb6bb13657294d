"""Runs a query when its rows are needed, and gives them as Arrow table, data frame or records.

Rows come as an Arrow stream, and are read while they arrive.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from html import escape
from typing import TYPE_CHECKING, Any

from gpuwarden.query import ARROW_TYPE, TRUNCATED
from gpuwarden_client.http import CallError, CollectorEndpoint, timestamp_param

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from gpuwarden_client.chart import Chart

ROWS_SHOWN = 20
"""Rows that a notebook shows."""
Progress = Callable[[int, int], None]
"""Called with the number of rows and bytes that have arrived."""


class FleetQuery:
    """One SELECT. The first use fetches its rows, which are kept; `batches` keeps none."""

    def __init__(
        self,
        collector: CollectorEndpoint,
        sql: str,
        params: Mapping[str, Any],
        *,
        timeout_s: float = 60.0,
        progress: Progress | None = None,
        row_limit: int | None = None,
    ) -> None:
        """`progress`: called as rows arrive. `row_limit`: most rows; None: the collector's limit."""
        self.sql = sql
        self.params = dict(params)
        self._collector = collector
        self._timeout_s = timeout_s
        self._progress = progress
        self._row_limit = row_limit
        self._table: pyarrow.Table | None = None
        self.is_truncated: bool | None = None
        """Whether the query has more rows than the limit; None: they are not all here yet."""

    def batches(self) -> "Iterator[pyarrow.RecordBatch]":
        """The rows as they arrive, without keeping them. Raises CallError."""
        pa = _needed("pyarrow")
        document: dict[str, Any] = {
            "sql": self.sql,
            "params": {k: _param(k, v) for k, v in self.params.items()},
        }
        if self._row_limit is not None:
            document["row_limit"] = self._row_limit
        answer = self._collector.answer(
            "POST", "/v1/sql", document, accept=ARROW_TYPE, timeout_s=self._timeout_s
        )
        rows = 0
        with answer, self._collector.reading(self._timeout_s):
            is_truncated = False
            counted = _Counted(answer)
            with pa.ipc.open_stream(counted) as stream:
                self._schema = stream.schema
                while (found := _next_batch(stream)) is not None:
                    batch, said = found
                    is_truncated = is_truncated or TRUNCATED.encode() in (said or {})
                    if not batch.num_rows:
                        continue
                    rows += batch.num_rows
                    if self._progress is not None:
                        self._progress(rows, counted.bytes)
                    yield batch
            self.is_truncated = is_truncated

    def arrow(self) -> "pyarrow.Table":
        """All rows as an Arrow table. TIMESTAMP is UTC without a zone, as the collector stores it."""
        if self._table is None:
            pa = _needed("pyarrow")
            batches = list(self.batches())
            self._table = pa.Table.from_batches(batches, schema=self._schema)
        return self._table

    def df(self) -> "pandas.DataFrame":
        """All rows as a pandas data frame; times are aware, UTC."""
        _needed("pandas")
        return _aware(self.arrow()).to_pandas()

    def pl(self) -> "polars.DataFrame":
        """All rows as a Polars data frame; times are aware, UTC."""
        made: polars.DataFrame = _needed("polars").from_arrow(_aware(self.arrow()))
        return made

    def rows(self) -> list[dict[str, Any]]:
        """All rows as dictionaries; times are aware, UTC."""
        found: list[dict[str, Any]] = _aware(self.arrow()).to_pylist()
        return found

    def one(self) -> Any:
        """The value of a query with one row and one column. Raises CallError for other queries."""
        table = self.arrow()
        if table.shape != (1, 1):
            raise CallError(f"one() needs one value, and the query has {_shape(table)}")
        (row,) = self.rows()
        return next(iter(row.values()))

    def chart(self, x: str = "ts", y: str | None = None, by: str | None = None) -> "Chart":
        """An SVG chart of `y` over `x`, one line per value of `by`; a notebook shows it.

        Defaults: `y` is the first column of numbers, `by` the first of texts.
        """
        from gpuwarden_client.chart import chart_of

        return chart_of(self.rows(), x, y, by)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows())

    def __len__(self) -> int:
        return int(self.arrow().num_rows)

    def __repr__(self) -> str:
        text = " ".join(self.sql.split())
        return f"<FleetQuery {text if len(text) <= 100 else text[:99] + '…'}>"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        table = self.arrow()
        names = "".join(f"<th>{escape(name)}</th>" for name in table.column_names)
        shown = _aware(table.slice(0, ROWS_SHOWN)).to_pylist()
        lines = "".join(
            "<tr>" + "".join(f"<td>{escape(_cell(v))}</td>" for v in row.values()) + "</tr>"
            for row in shown
        )
        more = " (the collector has more)" if self.is_truncated else ""
        return (
            f"<table><thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table>"
            f"<p>{escape(_shape(table))}{more}</p>"
        )


class _Counted:
    """A file that counts what is read."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self.bytes = 0

    def read(self, size: int = -1) -> bytes:
        """As `file.read`, but with all of `size` bytes unless the end comes first."""
        parts = []
        wanted = size
        while wanted:
            part = self._file.read(wanted if size >= 0 else None)
            if not part:
                break
            parts.append(part)
            wanted -= len(part) if size >= 0 else wanted
        read = b"".join(parts)
        self.bytes += len(read)
        return read

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()


def _next_batch(stream: Any) -> tuple[Any, Any] | None:
    """The next batch and its metadata; None: there is none."""
    try:
        found: tuple[Any, Any] = stream.read_next_batch_with_custom_metadata()
    except StopIteration:
        return None
    return found


def _needed(name: str) -> Any:
    """A package of the extra `client`. Raises CallError where it is not installed."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        extra = "polars" if name == "polars" else "'gpuwarden[client]'"
        raise CallError(f"{name} is not installed: pip install {extra}") from error


def _param(name: str, value: Any) -> Any:
    """A value as the API takes it. Raises CallError for a time without a zone, which would be a guess."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise CallError(f"parameter {name} is a time without a zone: make it aware")
        return timestamp_param(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, tuple | set | frozenset):
        return [_param(name, item) for item in value]
    return value


def _aware(table: "pyarrow.Table") -> "pyarrow.Table":
    """The table with UTC as the zone of its times."""
    import pyarrow as pa

    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is None:
            kind = pa.timestamp(field.type.unit, "UTC")
            table = table.set_column(at, field.with_type(kind), table.column(at).cast(kind))
    return table


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _shape(table: "pyarrow.Table") -> str:
    rows, columns = table.shape
    return f"{rows:,} row{'s' * (rows != 1)} of {columns} column{'s' * (columns != 1)}"
