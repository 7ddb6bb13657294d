"""Attaches the lake as `lake` and seals rows into it: Parquet files under a DuckLake catalogue.

The catalogue is an SQLite file, or PostgreSQL for several collectors (`address.py`). The lake itself stores
which segments are sealed (`lake.main.collectors`), in the transaction that adds their rows, so a snapshot
has both or neither. Rows of that table and of `doubtful` are only added, so that collectors that seal at
the same time never change the same row.
"""

import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import duckdb

from gpuwarden.files import sync_folder
from gpuwarden.lifecycle import StartError
from gpuwarden.query import text_sql
from gpuwarden.schema import TABLES, UPSERTED, column_sql, stored_columns
from gpuwarden.table import Table
from gpuwarden_collector.storage.address import FOLDER, METADATA, LakeAddress, S3Keys
from gpuwarden_collector.storage.errors import translating
from gpuwarden_collector.storage.extensions import load_extension
from gpuwarden_collector.storage.lake_files import (
    LakeFile,
    durable_transaction,
    is_remote,
    live_files,
)
from gpuwarden_collector.storage.resent import LAKE_SQL
from gpuwarden_collector.storage.sql import scalar

SEALED_TABLES = tuple(name for name in TABLES if name not in UPSERTED)
"""Tables whose rows move to the lake: rows are only added to them."""

MERGE_BYTES_MAX = 256 * 1024 * 1024
"""Largest merge: 20 s of a processor, during which nothing is sealed. A seal writes smaller files."""
_BUSY_MS = 20_000
SEAL = "seal"
"""Commit message of a seal; the author is the collector, `extra_info` the segment."""
TRIES_MAX = 8
"""Most tries to create or change tables of a lake while another collector changes them."""


def attach(connection: duckdb.DuckDBPyConnection, address: LakeAddress) -> None:
    """Attach the lake for writing, or create it, and add missing tables and columns. Readers use `lake_reader.py`.

    Raises duckdb.Error, FileNotFoundError and OSError for a local lake, StartError for any other.
    """
    load_extension(connection, "ducklake")
    load_extension(connection, "postgres_scanner" if address.is_shared else "sqlite_scanner")
    _make_folders(address)
    attach_sql = _attach_sql(address)
    if not address.is_shared and not address.is_remote:
        connection.execute(attach_sql)
        _create(connection)
        return
    try:
        open_files(connection, address)
        _again(connection, lambda: connection.execute(attach_sql))
        _again(connection, lambda: _create(connection))
    except (duckdb.Error, FileNotFoundError) as error:
        raise not_opened(address, error) from error


def open_files(connection: duckdb.DuckDBPyConnection, address: LakeAddress) -> None:
    """Let a connection read the lake's files, local or in an object store. Raises duckdb.Error, StartError."""
    if address.keys is not None:
        load_extension(connection, "httpfs")
        _create_secret(connection, address.data, address.keys)


def not_opened(address: LakeAddress, error: Exception) -> StartError:
    """The error for a lake on servers that cannot be opened."""
    return StartError(
        f"the lake at {address.data} cannot be opened: {_why(error)}: docs/cluster.md says what"
        " its servers need"
    )


def allowed_folders(data_dir: Path, address: LakeAddress) -> list[str]:
    """Folders that DuckDB may read and write besides its database."""
    return [str(data_dir / FOLDER), address.data]


def _make_folders(address: LakeAddress) -> None:
    if not address.is_remote:
        Path(address.data).mkdir(parents=True, exist_ok=True)
    if not address.is_shared:
        Path(address.catalog).parent.mkdir(parents=True, exist_ok=True)
        if not address.is_remote:
            _refuse_lost_catalogue(address)
        for folder in (Path(address.catalog).parent, Path(address.catalog).parent.parent):
            sync_folder(folder)


def _refuse_lost_catalogue(address: LakeAddress) -> None:
    """Refuse to create a catalogue over files of a lost one, which would silently hide their rows."""
    files = Path(address.data)
    if not Path(address.catalog).exists() and next(files.rglob("*.parquet"), None) is not None:
        raise StartError(
            f"{address.catalog}, the catalogue of the files in {files}, is missing: restore it from a "
            "backup, or run `gpuwarden collector check --repair` to begin without them"
        )


def _why(error: Exception) -> str:
    """The reason, without the connection string that DuckDB puts before it, once or twice."""
    return str(error).strip().partition("\n")[0].rpartition('": ')[2][:500]


def _attach_sql(address: LakeAddress) -> str:
    # A local lake may have been moved with its data folder. For a shared lake DuckLake checks that all
    # collectors give the same path.
    options = ""
    if not address.is_shared:
        # In WAL mode neither a query nor another program's DuckDB delays a seal.
        options = (
            f", OVERRIDE_DATA_PATH true, META_BUSY_TIMEOUT {_BUSY_MS}, META_JOURNAL_MODE 'WAL'"
        )
    return (
        f"ATTACH {text_sql(address.ducklake)} AS lake (DATA_PATH {text_sql(address.data)}{options})"
    )


def _create_secret(connection: duckdb.DuckDBPyConnection, scope: str, keys: S3Keys) -> None:
    options = {
        "KEY_ID": keys.key_id,
        "SECRET": keys.secret,
        "REGION": keys.region,
        "SESSION_TOKEN": keys.token,
    }
    if keys.endpoint is not None:
        scheme, _, place = keys.endpoint.rpartition("://")
        options |= {"ENDPOINT": place.rstrip("/"), "URL_STYLE": "path"}
        options["USE_SSL"] = "false" if scheme == "http" else "true"
    given = ", ".join(f"{n} {text_sql(v)}" for n, v in options.items() if v is not None)
    try:
        connection.execute(f"CREATE SECRET lake (TYPE s3, SCOPE {text_sql(scope)}, {given})")
    except duckdb.Error:
        # DuckDB's message could quote the keys.
        raise StartError(f"DuckDB does not accept the keys for {scope}") from None


def _again(connection: duckdb.DuckDBPyConnection, work: Callable[[], object]) -> None:
    """Do work, and retry it if another collector did the same at that moment."""
    for tries in range(1, TRIES_MAX + 1):
        try:
            work()
            return
        except duckdb.Error:
            with suppress(duckdb.Error):
                connection.execute("ROLLBACK")
            if tries == TRIES_MAX:
                raise
            time.sleep(random.uniform(0.5, 1) * 0.05 * 2**tries)


def sealed_segment(connection: duckdb.DuckDBPyConnection, collector: str) -> int:
    """The newest segment of the collector that the lake holds; 0: none. Raises duckdb.Error."""
    sql = "SELECT max(segment) FROM lake.main.collectors WHERE collector = $1"
    return scalar(connection, sql, [collector]) or 0


def seal(
    cursor: duckdb.DuckDBPyConnection,
    root: str,
    collector: str,
    segment: int,
    sources: Mapping[str, str],
    note: Callable[[], None] = lambda: None,
) -> dict[str, int]:
    """Copy rows into the lake and mark `segment` as sealed, in one transaction; the number of rows by table.

    `root`: the folder or prefix of the lake's files. `sources`: a SELECT of the rows of each table that has any.
    `note` runs at the end of the transaction; it may raise StoreUnavailableError. If the segment is sealed already,
    nothing changes. Raises StoreUnavailableError or RowsRefusedError, and then nothing changes either.
    """
    rows: dict[str, int] = {}
    with durable_transaction(cursor, root):
        if sealed_segment(cursor, collector) >= segment:
            return rows
        for name, source in sources.items():
            rows[name] = scalar(cursor, f"INSERT INTO lake.main.{name} BY NAME {source}") or 0
        cursor.execute(
            "INSERT INTO lake.main.collectors VALUES ($1, $2, now()::TIMESTAMP)",
            [collector, segment],
        )
        note()
        cursor.execute(
            f"CALL ducklake_set_commit_message('lake', {text_sql(collector)}, '{SEAL}',"
            f" extra_info => '{segment}')"
        )
    return rows


def damaged_file(
    cursor: duckdb.DuckDBPyConnection, root: str, collector: str, until: int
) -> LakeFile | None:
    """A missing or truncated file of the seals of segments up to `until` whose snapshots are kept (SNAPSHOTS_KEPT);
    None: there is none. Raises StoreUnavailableError."""
    if is_remote(root):
        return None
    with translating():
        snapshots = cursor.execute(
            f"SELECT snapshot_id FROM {METADATA}.ducklake_snapshot_changes WHERE author = $1 "
            f"AND commit_message = '{SEAL}' AND try_cast(commit_extra_info AS BIGINT) <= $2 "
            "ORDER BY snapshot_id DESC LIMIT 100",
            [collector, until],
        ).fetchall()
        files = live_files(cursor, root, of=[snapshot for (snapshot,) in snapshots])
    for file in files:
        try:
            size = Path(file.path).stat().st_size
        except OSError:
            return file
        if size != file.bytes:
            return file
    return None


def _create(connection: duckdb.DuckDBPyConnection) -> None:
    known = _columns(connection)
    in_order = _tables_in_order(connection)
    statements = [] if "collectors" in known else list(_FIRST)
    if "doubtful" not in known:
        statements.append(LAKE_SQL)
    for name in SEALED_TABLES:
        if name not in known:
            statements += _create_table_sql(TABLES[name])
            continue
        statements += [
            f"ALTER TABLE lake.main.{name} ADD COLUMN {column_sql(column)}"
            for column in stored_columns(TABLES[name])
            if column.name not in known[name]
        ]
        if name not in in_order:
            statements.append(_order_sql(TABLES[name]))
    if statements:
        connection.execute("BEGIN")
        for statement in statements:
            connection.execute(statement)
        connection.execute("COMMIT")
    _set_row_groups(connection)


def _set_row_groups(connection: duckdb.DuckDBPyConnection) -> None:
    """Set options of tables; DuckLake accepts them only after the table is committed."""
    rows = connection.execute(
        f"SELECT t.table_name FROM {METADATA}.ducklake_metadata m "
        f"JOIN {METADATA}.ducklake_table t ON t.table_id = m.scope_id AND t.end_snapshot IS NULL "
        "WHERE m.scope = 'table' AND m.key = 'parquet_row_group_size'"
    ).fetchall()
    for name in _ROW_GROUP_ROWS.keys() - {table for (table,) in rows}:
        connection.execute(
            f"CALL lake.set_option('parquet_row_group_size', {_ROW_GROUP_ROWS[name]}, table_name => '{name}')"
        )


_FIRST = (
    """CREATE TABLE lake.main.collectors (
        collector VARCHAR NOT NULL, segment BIGINT NOT NULL, sealed_at TIMESTAMP NOT NULL
    )""",
    "CALL lake.set_option('parquet_compression', 'zstd')",
    "CALL lake.set_option('parquet_version', '2')",
    "CALL lake.set_option('parquet_compression_level', 6)",
    # DuckDB makes a dictionary for each row group. Where a table repeats each value a few times, as
    # link_samples does, a large dictionary takes five times the bytes of an encoding by differences.
    "CALL lake.set_option('parquet_row_group_size', 61440)",
    f"CALL lake.set_option('target_file_size', '{MERGE_BYTES_MAX // 1024}KiB')",
)


_ROW_GROUP_ROWS = {"link_samples": 30_720}
"""Tables that need smaller row groups than the lake's option."""


def _create_table_sql(table: Table) -> tuple[str, ...]:
    columns = ", ".join(column_sql(column) for column in stored_columns(table))
    return (
        f"CREATE TABLE lake.main.{table.name} ({columns})",
        f"ALTER TABLE lake.main.{table.name} SET PARTITIONED BY (year(ts), month(ts), day(ts))",
        _order_sql(table),
    )


def _order_sql(table: Table) -> str:
    """Sort files by the key when they are written and merged."""
    return f"ALTER TABLE lake.main.{table.name} SET SORTED BY ({', '.join(table.key)})"


def _tables_in_order(connection: duckdb.DuckDBPyConnection) -> set[str]:
    rows = connection.execute(
        f"SELECT t.table_name FROM {METADATA}.ducklake_sort_info s "
        f"JOIN {METADATA}.ducklake_table t USING (table_id) "
        "WHERE s.end_snapshot IS NULL AND t.end_snapshot IS NULL"
    ).fetchall()
    return {table for (table,) in rows}


def _columns(connection: duckdb.DuckDBPyConnection) -> dict[str, set[str]]:
    known: dict[str, set[str]] = {}
    # duckdb_columns() would read the statistics of all tables.
    rows = connection.execute(
        f"SELECT t.table_name, c.column_name FROM {METADATA}.ducklake_column c "
        f"JOIN {METADATA}.ducklake_table t USING (table_id) "
        "WHERE c.end_snapshot IS NULL AND t.end_snapshot IS NULL AND c.parent_column IS NULL"
    ).fetchall()
    for table, column in rows:
        known.setdefault(table, set()).add(column)
    return known
