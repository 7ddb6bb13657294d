"""Shows the lake to queries without DuckLake: an empty database called `lake`, whose views read Parquet files.

DuckLake (1.5.5) copies constants of a query's conditions into SQL for the catalogue, and ends a text at a NUL
character: the rest of the text runs as statements, so a query could do more than it may. DuckLake also reads the
catalogue several times for each table of a query, and statistics of every column. Here the catalogue is read once
after each commit, on a connection that no query uses (`lake_catalogue.py`).
"""

import os
import time
from collections.abc import Collection, Iterable
from datetime import datetime
from pathlib import Path

import duckdb
import pyarrow as pa

from gpuwarden.query import text_sql
from gpuwarden.schema import TABLES, column_type, stored_columns
from gpuwarden_collector.storage.address import LakeAddress
from gpuwarden_collector.storage.errors import (
    StoreUnavailableError,
    lost_file,
    one_line,
    unreachable_store,
)
from gpuwarden_collector.storage.lake import SEALED_TABLES, not_opened, open_files
from gpuwarden_collector.storage.lake_catalogue import (
    Catalogue,
    LakeCatalogue,
    LakeChange,
    LakeTable,
    SampleFile,
    open_catalogue,
)

_ROWS = "inlined"
"""Schema of tables with the rows that are inlined in the catalogue."""
_TRIES = 3
_INLINED_ROWS = 8_192
"""Rows that are converted together: DuckDB reserves memory for this number."""


class LakeReader:
    """Reads the lake for one thread. Its tables are as of the last `look`."""

    def __init__(self, address: LakeAddress, collector: str) -> None:
        """Raises StartError for a shared lake, StoreUnavailableError, duckdb.Error."""
        self._address = address
        self._mark = CatalogMark(address)
        self._seen: bytes | None = None
        self._named: set[str] = set()
        """Tables that were read as of `_seen`."""
        self._catalogue = LakeCatalogue(_opened(address), address.data, collector)
        self._shown: dict[str, LakeTable] = {}
        self._filled: dict[str, LakeTable] = {}

    def attach(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Create `lake` with all tables, still empty. Raises duckdb.Error, StartError."""
        open_files(connection, self._address)
        connection.execute(f"ATTACH ':memory:' AS lake; CREATE SCHEMA lake.{_ROWS}")
        for name in SEALED_TABLES:
            self._create(connection, name, LakeTable())

    def mark(self) -> bytes | None:
        """A value that changes with each commit, as `CatalogMark.look`."""
        return self._mark.look()

    @property
    def sealed(self) -> int:
        """The newest sealed segment of the collector at the last `look`."""
        return self._catalogue.sealed

    def look(self, names: Collection[str]) -> None:
        """Read the files of these tables from the catalogue, at one moment. Raises StoreUnavailableError."""
        mark = self._mark.look()
        if mark is not None and mark == self._seen and self._named.issuperset(names):
            return
        self._catalogue.look(names)
        if mark is None or mark != self._seen:
            self._named = set()
        # If a commit came in between, the next `look` reads again.
        self._seen = mark if mark == self._mark.look() else None
        self._named |= set(names)

    def changes_since(self, snapshot: int) -> tuple[int, list[LakeChange]]:
        """The newest sealed segment, and the commits after that snapshot that the lake keeps.

        Raises StoreUnavailableError.
        """
        self._seen = None
        changes = self._catalogue.changes_since(snapshot)
        return self._catalogue.sealed, changes

    def is_readable(self) -> bool:
        """Whether the catalogue answers now."""
        try:
            self._catalogue.look(())
        except StoreUnavailableError:
            return False
        return True

    def show(self, cursor: duckdb.DuckDBPyConnection, names: Iterable[str]) -> None:
        """Show all rows of these tables in `lake.main`. Call it outside of a transaction. Raises duckdb.Error."""
        for name in names:
            table = self._catalogue.table(name)
            if self._shown.get(name) is not table:
                self._shown.pop(name, None)
                if self._create(cursor, name, table):
                    self._shown[name] = table

    def table(
        self, cursor: duckdb.DuckDBPyConnection, name: str
    ) -> tuple[LakeTable, pa.Table | None]:
        """What a table is made of as of the last `look`, and its inlined rows, if it has any. Call it outside of a
        transaction. Raises duckdb.Error."""
        table = self._catalogue.table(name)
        self._fill(cursor, name, table)
        rows = f"SELECT * FROM lake.{_ROWS}.{name}"
        return table, cursor.execute(rows).to_arrow_table(_INLINED_ROWS) if table.rows else None

    def rows_sql(
        self,
        cursor: duckdb.DuckDBPyConnection,
        name: str,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> str:
        """SQL that selects a table's rows, without files outside of that time (naive UTC, both ends included); ""
        if none are left. Call it outside of a transaction. Raises duckdb.Error."""
        table = self._catalogue.table(name)
        self._fill(cursor, name, table)
        return _rows_sql(name, table, since, until)

    def _create(self, cursor: duckdb.DuckDBPyConnection, name: str, table: LakeTable) -> bool:
        self._fill(cursor, name, table)
        sql = _rows_sql(name, table) or _no_rows_sql(name)
        return create_view(cursor, f"VIEW lake.main.{name}", name, sql)

    def _fill(self, cursor: duckdb.DuckDBPyConnection, name: str, table: LakeTable) -> None:
        """Create a table of the rows that are inlined in the catalogue."""
        if not table.rows or self._filled.get(name) is table:
            return
        self._filled.pop(name, None)
        columns = zip(table.columns, zip(*table.rows, strict=True), strict=True)
        cursor.register("given", pa.table({column: pa.array(of) for column, of in columns}))
        cursor.execute(
            f"CREATE OR REPLACE TABLE lake.{_ROWS}.{name} AS SELECT {_listed(name, table, is_cast=True)} FROM given"
        )
        cursor.unregister("given")
        self._filled[name] = table


def create_view(cursor: duckdb.DuckDBPyConnection, view: str, name: str, sql: str) -> bool:
    """Create or replace a view of a table's rows. False: files cannot be opened; then reading the view raises why.

    `view`: `VIEW` or `TEMP VIEW`, and its name. Raises duckdb.Error.
    """
    try:
        cursor.execute(f"CREATE OR REPLACE {view} AS {sql}")
        return True
    except duckdb.Error as error:
        if not unreachable_store(error) and not lost_file(error):
            raise
        reason = text_sql(one_line(error))
        cursor.execute(
            f"CREATE OR REPLACE {view} AS {_nulls_sql(name)} "
            f"FROM (SELECT error({reason}) AS reason) WHERE reason IS NOT NULL"
        )
        return False


def may_hold(file: SampleFile, since: datetime | None, until: datetime | None) -> bool:
    """Whether a file may hold rows of that time, both ends included; None: unbounded."""
    is_before = since is not None and file.last is not None and file.last < since
    is_behind = until is not None and file.first is not None and file.first > until
    return not is_before and not is_behind


def _opened(address: LakeAddress) -> Catalogue:
    if not address.is_shared:
        return open_catalogue(address)
    tries = 0
    while True:
        tries += 1
        try:
            return open_catalogue(address)
        except duckdb.Error as error:
            # Fail soon: a query waits.
            if tries == _TRIES:
                raise not_opened(address, error) from error
            time.sleep(0.05 * 2**tries)


def files_sql(
    name: str,
    table: LakeTable,
    since: datetime | None = None,
    until: datetime | None = None,
    columns: Collection[str] | None = None,
) -> list[str]:
    """SELECTs of a table's rows in its files that may hold rows of that time, as `may_hold`. `columns`: which; None:
    all."""
    files = [file for file in table.files if may_hold(file, since, until)]
    plain = [file.path for file in files if not file.deleted and not file.deleted_in]
    options = ", hive_partitioning = false"
    if table.is_uneven:
        options += f", schema = {_schema_sql(name, table)}"
    sources = []
    if plain:
        sources.append(f"read_parquet([{', '.join(map(text_sql, plain))}]{options})")
    for file in files:
        conditions = [
            f"file_row_number NOT IN (SELECT pos FROM read_parquet({text_sql(path)}))"
            for path in file.deleted_in
        ]
        if file.deleted:
            conditions.append(f"file_row_number NOT IN ({', '.join(map(str, file.deleted))})")
        if conditions:
            sources.append(
                f"read_parquet({text_sql(file.path)}, file_row_number = true{options}) "
                f"WHERE {' AND '.join(conditions)}"
            )
    listed = _listed(name, table, columns)
    return [f"SELECT {listed} FROM {source}" for source in sources]


def _rows_sql(
    name: str, table: LakeTable, since: datetime | None = None, until: datetime | None = None
) -> str:
    selects = files_sql(name, table, since, until)
    if table.rows:
        names = ", ".join(f'"{column.name}"' for column in stored_columns(TABLES[name]))
        selects.append(f"SELECT {names} FROM lake.{_ROWS}.{name}")
    return " UNION ALL ".join(selects)


def _schema_sql(name: str, table: LakeTable) -> str:
    """Parquet columns by field id, NULL where a file lacks one. Planning takes twice as long as with names."""
    types = {column.name: column_type(column) for column in stored_columns(TABLES[name])}
    fields = (
        f"{number}: {{name: '{column}', type: '{types[column]}', default_value: NULL}}"
        for column, number in zip(table.columns, table.field_ids, strict=True)
        if column in types
    )
    return f"MAP {{{', '.join(fields)}}}"


def _listed(
    name: str, table: LakeTable, columns: Collection[str] | None = None, *, is_cast: bool = False
) -> str:
    """The SELECT list of these columns of a table; NULL for columns that the lake does not have yet."""
    listed = []
    for column in stored_columns(TABLES[name]):
        if columns is not None and column.name not in columns:
            continue
        quoted, kind = f'"{column.name}"', column_type(column)
        if column.name not in table.columns:
            listed.append(f"CAST(NULL AS {kind}) AS {quoted}")
        else:
            listed.append(f"CAST({quoted} AS {kind}) AS {quoted}" if is_cast else quoted)
    return ", ".join(listed)


def _no_rows_sql(name: str) -> str:
    return f"{_nulls_sql(name)} LIMIT 0"


def _nulls_sql(name: str) -> str:
    return f"SELECT {_listed(name, LakeTable())}"


_HEADER_BYTES = 48
"""Size of each of the two header copies at the start of the file; a writer changes the second one first."""
_IS_FILLED = 12


class CatalogMark:
    """Detects commits to a local catalogue by reading 96 bytes, where a query of SQLite costs milliseconds.

    The catalogue is an SQLite file in WAL mode. A commit becomes visible when the header in the `-shm` file changes.
    The header never has the same content twice (a counter of transactions, and check sums):
    https://www.sqlite.org/walformat.html#the_wal_index_header. File times do not work: a commit may wait for its disk
    between writing them and becoming visible. Any thread may use this.
    """

    def __init__(self, address: LakeAddress) -> None:
        is_local = not address.is_shared and not address.is_remote
        self._path = Path(f"{address.catalog}-shm") if is_local else None
        self._file = -1
        self._inode = 0

    def look(self) -> bytes | None:
        """The header: equal to an earlier one only if nothing was committed since. None: it cannot be read now."""
        if self._path is None:
            return None
        try:
            inode = self._path.stat().st_ino
            if inode != self._inode:
                # Do not close the old file: that would drop SQLite's locks on it in this process.
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                self._inode = os.fstat(self._file).st_ino
            content = os.pread(self._file, 2 * _HEADER_BYTES, 0)
        except OSError:
            return None
        first, second = content[:_HEADER_BYTES], content[_HEADER_BYTES:]
        if first != second or len(first) < _HEADER_BYTES or not first[_IS_FILLED]:
            return None
        return first + self._inode.to_bytes(8, "little")
