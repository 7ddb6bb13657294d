"""Reads from the lake's catalogue the files and inlined rows of each table, without DuckLake.

Tables of the catalogue: https://ducklake.select/docs/stable/specification/introduction
"""

import sqlite3
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb

from gpuwarden.query import text_sql
from gpuwarden_collector.storage.address import LakeAddress
from gpuwarden_collector.storage.errors import StoreUnavailableError, one_line
from gpuwarden_collector.storage.extensions import load_extension
from gpuwarden_collector.storage.lake import SEAL
from gpuwarden_collector.storage.lake_files import joined

_SERVER = "server"
"""DuckDB's name of the server's database with the catalogue."""
_BUSY_S = 20.0
_COLLECTORS = "collectors"


class Catalogue(ABC):
    """Tables of a catalogue, for one thread. Its methods raise StoreUnavailableError."""

    @contextmanager
    def moment(self) -> Iterator[None]:
        """All queries within the block read one snapshot."""
        self.ask("BEGIN")
        try:
            yield
        finally:
            self.ask("ROLLBACK")

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a query."""
        return self.ask_named(sql)[1]

    @abstractmethod
    def ask_named(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Column names and rows of a query."""

    @abstractmethod
    def names(self, beginning: str) -> list[str]:
        """Names of tables with that beginning."""


class SqliteCatalogue(Catalogue):
    """A catalogue in a file."""

    def __init__(self, path: Path) -> None:
        """Raises StoreUnavailableError."""
        try:
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro",
                uri=True,
                timeout=_BUSY_S,
                isolation_level=None,
            )
        except sqlite3.Error as error:
            raise StoreUnavailableError(f"{path}: {error}") from error

    def ask_named(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Column names and rows of a query."""
        try:
            cursor = self._connection.execute(sql)
            return [column[0] for column in cursor.description or ()], cursor.fetchall()
        except sqlite3.Error as error:
            raise StoreUnavailableError(str(error)) from error

    def names(self, beginning: str) -> list[str]:
        """Names of tables with that beginning."""
        pattern = text_sql(f"{beginning}*")
        return _first(self.ask(f"SELECT name FROM sqlite_master WHERE name GLOB {pattern}"))


class PostgresCatalogue(Catalogue):
    """A catalogue in PostgreSQL, read through a DuckDB instance of its own."""

    def __init__(self, conninfo: str) -> None:
        """Raises duckdb.Error."""
        self._duckdb = duckdb.connect(config={"threads": 1, "memory_limit": "256MiB"})
        load_extension(self._duckdb, "postgres_scanner")
        self._duckdb.execute(f"ATTACH {text_sql(conninfo)} AS {_SERVER} (TYPE postgres, READ_ONLY)")

    @contextmanager
    def moment(self) -> Iterator[None]:
        """All queries within the block read one snapshot."""
        self._run("BEGIN TRANSACTION READ ONLY")
        try:
            yield
        finally:
            self._run("ROLLBACK")

    def ask_named(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Column names and rows of a query."""
        found = self._run(f"FROM postgres_query('{_SERVER}', {text_sql(sql)})")
        return [column[0] for column in found.description or ()], found.fetchall()

    def names(self, beginning: str) -> list[str]:
        """Names of tables with that beginning."""
        where = f"starts_with(table_name, {text_sql(beginning)})"
        return _first(self.ask(f"SELECT table_name FROM information_schema.tables WHERE {where}"))

    def _run(self, sql: str) -> duckdb.DuckDBPyConnection:
        try:
            return self._duckdb.execute(sql)
        except duckdb.Error as error:
            raise StoreUnavailableError(one_line(error)) from error


def open_catalogue(address: LakeAddress) -> Catalogue:
    """The catalogue of a lake. Raises StoreUnavailableError, duckdb.Error."""
    if address.is_shared:
        return PostgresCatalogue(address.catalog)
    return SqliteCatalogue(Path(address.catalog))


@dataclass(frozen=True, slots=True)
class SampleFile:
    """A file of a table, with its first and last instant; None: unknown."""

    path: str
    first: datetime | None
    last: datetime | None
    deleted_in: tuple[str, ...] = ()
    """Files with the numbers, from 0, of its deleted rows."""
    deleted: tuple[int, ...] = ()
    """Numbers of more deleted rows."""


@dataclass(frozen=True, slots=True)
class LakeTable:
    """Files and inlined rows of a table at a commit."""

    files: tuple[SampleFile, ...] = ()
    columns: tuple[str, ...] = ()
    field_ids: tuple[int, ...] = ()
    """Parquet field id of each column."""
    is_uneven: bool = False
    """Whether a file may be older than one of the columns."""
    rows: tuple[tuple[Any, ...], ...] = ()
    """Rows that are inlined in the catalogue: values of `columns`, most of them as texts."""


@dataclass(frozen=True, slots=True)
class LakeChange:
    """A commit to the lake."""

    number: int
    is_own_seal: bool
    """Whether it sealed a segment of this collector, and did nothing else."""
    changes: str
    """DuckLake's note: `inserted_into_table:26,inline_flush:22`."""
    tables: Mapping[int, str]
    """Names of all tables by number."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Number, folder and columns of a table in a version of the lake's schema."""

    number: int
    folder: tuple[tuple[str, bool], ...]
    columns: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Number, and the commit that added it, by name."""


_Span = tuple[datetime | None, datetime | None]


class LakeCatalogue:
    """Caches what was read from the catalogue, for one thread. Files never change, so each is read once."""

    def __init__(self, catalogue: Catalogue, root: str, collector: str) -> None:
        """`root`: the folder or prefix of the lake's files."""
        self._catalogue = catalogue
        self._root = root
        self._collector = collector
        self._schema = -1
        self._layouts: dict[str, _Layout] = {}
        self._inlined: Mapping[int, Sequence[str]] = {}
        """Names of the catalogue's tables of inlined rows, by number of the lake's table."""
        self._spans: dict[str, dict[int, _Span]] = {}
        self._tables: dict[str, tuple[int, LakeTable]] = {}
        self.snapshot = -1
        """The newest commit at the last `look`."""
        self.sealed = 0
        """The newest sealed segment of the collector; 0: none."""

    def table(self, name: str) -> LakeTable:
        """A table as of the last `look` that named it."""
        return self._tables[name][1]

    def look(self, names: Collection[str]) -> None:
        """Read these tables as of the newest commit. Raises StoreUnavailableError."""
        with self._catalogue.moment():
            self._look()
            lacking = [n for n in names if self._tables.get(n, (-1,))[0] != self.snapshot]
            if lacking:
                self._read(lacking)

    def changes_since(self, snapshot: int) -> list[LakeChange]:
        """Commits after that one that the lake keeps; `snapshot` and `sealed` are of the same moment.

        Raises StoreUnavailableError.
        """
        with self._catalogue.moment():
            self._look()
            rows = self._catalogue.ask(
                "SELECT snapshot_id, coalesce(changes_made, ''), coalesce(author, ''), "
                "coalesce(commit_message, '') "
                f"FROM ducklake_snapshot_changes WHERE snapshot_id > {snapshot}"
            )
        names = {layout.number: name for name, layout in self._layouts.items()}
        own = self._collector, SEAL
        return [LakeChange(n, (by, message) == own, what, names) for n, what, by, message in rows]

    def _look(self) -> None:
        found = self._catalogue.ask(
            "SELECT snapshot_id, schema_version FROM ducklake_snapshot "
            "ORDER BY snapshot_id DESC LIMIT 1"
        )
        if not found:
            raise StoreUnavailableError("the lake's catalogue is empty")
        snapshot, schema = found[0]
        if snapshot == self.snapshot:
            return
        if schema != self._schema:
            self._layouts, self._schema = self._read_layouts(), schema
            self._tables, self._spans = {}, {}
        self._inlined = self._read_inlined()
        self.sealed = self._read_sealed()
        self.snapshot = snapshot

    def _read_layouts(self) -> dict[str, _Layout]:
        ask = self._catalogue.ask
        found = {
            name: _Layout(number, ((above, bool(is_above)), (folder, bool(is_folder))))
            for number, name, above, is_above, folder, is_folder in ask(
                "SELECT t.table_id, t.table_name, s.path AS above, s.path_is_relative AS is_above_relative, "
                "t.path AS folder, t.path_is_relative AS is_folder_relative "
                "FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id "
                "WHERE s.schema_name = 'main' AND t.end_snapshot IS NULL AND s.end_snapshot IS NULL"
            )
        }
        by_number = {layout.number: layout for layout in found.values()}
        for number, name, column, since in ask(
            "SELECT table_id, column_name, column_id, begin_snapshot FROM ducklake_column "
            "WHERE end_snapshot IS NULL AND parent_column IS NULL"
        ):
            if number in by_number:
                by_number[number].columns[name] = column, since
        return found

    def _read_inlined(self) -> dict[int, list[str]]:
        """Each version of the schema has tables of its own, which a flush removes."""
        found = defaultdict(list)
        for number, name in self._catalogue.ask(
            "SELECT table_id, table_name FROM ducklake_inlined_data_tables"
        ):
            found[number].append(name)
        return found

    def _read_sealed(self) -> int:
        # Maintenance never flushes these rows to a file (see `lake_maintenance.py`). After a client of the lake did,
        # the notes of the seals have the number until they expire, long after the sealed segments were deleted.
        rows = self._rows(self._layouts[_COLLECTORS], ("collector", "segment"))
        return max(
            (int(s) for collector, s in rows if collector == self._collector), default=0
        ) or max(self.sealed, self._read_noted())

    def _read_noted(self) -> int:
        rows = self._catalogue.ask(
            "SELECT commit_extra_info FROM ducklake_snapshot_changes "
            f"WHERE author = {text_sql(self._collector)} AND commit_message = {text_sql(SEAL)}"
        )
        return max((int(segment) for (segment,) in rows if segment), default=0)

    def _read(self, names: Sequence[str]) -> None:
        layouts = {name: self._layouts[name] for name in names if name in self._layouts}
        files, deleted_in, deleted = self._read_files(layouts.values())
        filled = self._filled(layouts.values())
        for name in names:
            layout = layouts.get(name)
            if layout is None:
                self._tables[name] = self.snapshot, LakeTable()
                continue
            own = files[layout.number]
            spans = self._read_spans(name, layout, [number for number, _, _ in own])
            columns = tuple(layout.columns)
            field_ids = tuple(number for number, _ in layout.columns.values())
            newest = max(since for _, since in layout.columns.values())
            table = LakeTable(
                tuple(
                    SampleFile(path, *spans[number], tuple(deleted_in[number]), deleted[number])
                    for number, path, _ in own
                ),
                columns,
                field_ids,
                any(since < newest for *_, since in own),
                tuple(self._rows(layout, columns, filled)),
            )
            before = self._tables.get(name)
            # Keep the object if nothing has changed, so that its view is not created again.
            same = before[1] if before is not None and before[1] == table else table
            self._tables[name] = self.snapshot, same

    def _read_files(
        self, layouts: Collection[_Layout]
    ) -> tuple[
        Mapping[int, list[tuple[int, str, int]]],
        Mapping[int, list[str]],
        Mapping[int, tuple[int, ...]],
    ]:
        """By number of the table: number, path and commit of each file. By number of the file: its delete files, and
        numbers of its deleted rows. Raises StoreUnavailableError."""
        of = ", ".join(str(layout.number) for layout in layouts) or "-1"
        folders = {layout.number: layout.folder for layout in layouts}
        live = f"WHERE end_snapshot IS NULL AND table_id IN ({of})"
        files = defaultdict(list)
        for table, number, path, is_relative, since, form in self._catalogue.ask(
            "SELECT table_id, data_file_id, path, path_is_relative, begin_snapshot, file_format "
            f"FROM ducklake_data_file {live} ORDER BY data_file_id"
        ):
            _check_format(form, path)
            files[table].append(
                (number, joined(self._root, (*folders[table], (path, bool(is_relative)))), since)
            )
        deleted_in = defaultdict(list)
        for table, number, path, is_relative, form in self._catalogue.ask(
            "SELECT table_id, data_file_id, path, path_is_relative, format "
            f"FROM ducklake_delete_file {live}"
        ):
            _check_format(form, path)
            deleted_in[number].append(
                joined(self._root, (*folders[table], (path, bool(is_relative))))
            )
        deleted: dict[int, tuple[int, ...]] = defaultdict(tuple)
        known = set(self._catalogue.names("ducklake_inlined_delete_"))
        for layout in layouts:
            name = f"ducklake_inlined_delete_{layout.number}"
            if name in known:
                for number, row in self._catalogue.ask(
                    f'SELECT file_id, row_id FROM "{name}" ORDER BY file_id, row_id'
                ):
                    deleted[number] += (row,)
        return files, deleted_in, deleted

    def _read_spans(
        self, name: str, layout: _Layout, numbers: Sequence[int]
    ) -> Mapping[int, _Span]:
        before = self._spans.get(name, {})
        lacking = set(numbers) - before.keys()
        found: dict[int, _Span] = {}
        if lacking and "ts" in layout.columns:
            column, _ = layout.columns["ts"]
            rows = self._catalogue.ask(
                "SELECT data_file_id, min_value, max_value FROM ducklake_file_column_stats "
                f"WHERE table_id = {layout.number} AND column_id = {column} "
                f"AND data_file_id >= {min(lacking)}"
            )
            found = {number: (_instant(first), _instant(last)) for number, first, last in rows}
        nothing = (None, None)
        self._spans[name] = {n: before.get(n) or found.get(n, nothing) for n in numbers}
        return self._spans[name]

    def _filled(self, layouts: Collection[_Layout]) -> frozenset[str]:
        """Names of the catalogue's tables that hold inlined rows."""
        counts = [
            f"SELECT '{name}', count(*) FROM \"{name}\" WHERE end_snapshot IS NULL"
            for layout in layouts
            for name in self._inlined.get(layout.number, ())
        ]
        rows = self._catalogue.ask(" UNION ALL ".join(counts)) if counts else []
        return frozenset(name for name, count in rows if count)

    def _rows(
        self, layout: _Layout, columns: Sequence[str], filled: Collection[str] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """Inlined rows. `filled`: tables of the catalogue that have any; None: maybe all."""
        for name in self._inlined.get(layout.number, ()):
            if filled is not None and name not in filled:
                continue
            names, rows = self._catalogue.ask_named(
                f'SELECT * FROM "{name}" WHERE end_snapshot IS NULL ORDER BY row_id'
            )
            # The lake may have had fewer columns when this table was created.
            places = [names.index(column) if column in names else None for column in columns]
            for row in rows:
                yield tuple(None if at is None else _plain(row[at]) for at in places)


def _check_format(form: str, path: str) -> None:
    if form != "parquet":
        raise StoreUnavailableError(f"the lake's file {path} has the format {form}, not parquet")


def _plain(value: Any) -> Any:
    """PostgreSQL stores texts as bytes, because a text of DuckDB may hold NUL."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _instant(value: str | None) -> datetime | None:
    try:
        return None if value is None else datetime.fromisoformat(value).replace(tzinfo=None)
    except ValueError:
        return None


def _first(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    return [str(row[0]) for row in rows]
