"""Opens the database with its lake, owns the one writing connection, and hands out cursors.

Every failure of DuckDB becomes one of two: `StoreUnavailableError` (disk full, I/O error, out of
memory: the same write may succeed later) or `RowsRefusedError` (these rows cannot be stored).
DuckDB invalidates a database after some I/O errors; `Database.recover` opens it anew.
"""

import logging
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb

from gpuwarden import __version__
from gpuwarden.life import StartError
from gpuwarden.schema import TABLES, UPSERTED, column_sql, create_sql, stored_columns
from gpuwarden.table import Table
from gpuwarden_collector.store import lake, spill
from gpuwarden_collector.store.address import Address, local_address
from gpuwarden_collector.store.coordination import Coordination
from gpuwarden_collector.store.doubt import HOT_SQL
from gpuwarden_collector.store.errors import StoreUnavailableError, one_line
from gpuwarden_collector.store.generations import (
    begin_generation,
    create_views,
    end_generation,
    generations,
    hot_table,
)
from gpuwarden_collector.store.transaction import translating

log = logging.getLogger(__name__)

FILE_NAME = "gpuwarden.duckdb"
SCHEMA_VERSION = 3
_NAME = Path(FILE_NAME).stem
"""What DuckDB calls the database."""
ROW_GROUP_ROWS = 16_384
"""From so many rows on an insert writes them to the database file at once, compressed, and only where
into the log. DuckDB's own 122,880 are more than a group commit has."""
_CHECKPOINT_THRESHOLD = "256MiB"
_CLOSE_WAIT_S = 5.0

_LEDGER_SQL = """CREATE TABLE IF NOT EXISTS internal.ledger (
    sender VARCHAR NOT NULL,
    agent_id VARCHAR NOT NULL,
    boot_id VARCHAR NOT NULL,
    floor BIGINT NOT NULL,
    ranges VARCHAR NOT NULL,
    heard_at TIMESTAMP NOT NULL,
    PRIMARY KEY (sender, agent_id, boot_id)
);
"""
_INTERNAL_SQL = (
    """
CREATE SCHEMA IF NOT EXISTS internal;
CREATE TABLE IF NOT EXISTS internal.schema_version (version INTEGER NOT NULL);
"""
    + _LEDGER_SQL
    + """
CREATE TABLE IF NOT EXISTS internal.identity (collector VARCHAR NOT NULL);
CREATE TABLE IF NOT EXISTS internal.generations (generation BIGINT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS internal.rollup (
    closed_until TIMESTAMP, minutes_until TIMESTAMP, hours_until TIMESTAMP
);
INSERT INTO internal.rollup SELECT NULL, NULL, NULL WHERE NOT EXISTS (FROM internal.rollup);
CREATE SEQUENCE IF NOT EXISTS internal.late_number;
CREATE TABLE IF NOT EXISTS internal.late (
    number BIGINT DEFAULT nextval('internal.late_number'), node VARCHAR, ts TIMESTAMP
);
CREATE SCHEMA IF NOT EXISTS hot;
"""
    + HOT_SQL
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What DuckDB may use. `threads` 0: one for every two CPUs.

    A thread that waits for another to finish its part of a statement does not sleep (DuckDB 1.5.5),
    so with two threads an insert of a single table costs twice the CPU of one, and takes as long.
    """

    memory: str = "2GiB"
    temp: str = "10GiB"
    threads: int = 0
    spill_dir: Path | None = None
    """Where queries spill to; None: a folder in the data folder."""


class Database:
    """The open database. `writing` belongs to one thread; `reading` may be used from any."""

    def __init__(self, path: Path, limits: Limits, address: Address | None = None) -> None:
        self._path = path
        self._limits = limits
        self.address = address or local_address(path.parent)
        """Where its lake is."""
        self.coordination = Coordination(self.address)
        """Agreement with the other collectors of the lake."""
        self._condition = threading.Condition()
        self._cursors: set[duckdb.DuckDBPyConnection] = set()
        self._maintaining: set[duckdb.DuckDBPyConnection] = set()
        self._is_closed = False
        self.writing, self.spill_dir = _connect(path, limits, self.address)
        """`spill_dir`: the folder that holds what this opening spills, and nothing else."""
        self.collector = _identity(self.writing)
        """Identity of this collector in the lake."""
        self.generations = generations(self.writing)
        """Generations of hot tables, oldest first; the last is written."""

    @classmethod
    def open(cls, data_dir: Path, limits: Limits, address: Address | None = None) -> "Database":
        """Open the database in a folder, made if need be, with the lake at `address`; None: the one
        beside it. Raises StartError."""
        try:
            data_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StartError(
                f"data folder {data_dir}: {error.strerror}: choose another with --data"
            ) from error
        if not os.access(data_dir, os.W_OK | os.X_OK):
            raise StartError(
                f"data folder {data_dir} is not writable by this user: choose another with --data"
            )
        try:
            return cls(data_dir / FILE_NAME, limits, address)
        except duckdb.Error as error:
            raise start_error(data_dir / FILE_NAME, error) from error
        except OSError as error:
            raise StartError(f"lake in {data_dir}: {error}") from error

    @property
    def data_dir(self) -> Path:
        """The folder of database and lake."""
        return self._path.parent

    @property
    def lake_root(self) -> str:
        """The folder or prefix of the lake's files."""
        return self.address.data.rstrip("/")

    @property
    def size_bytes(self) -> int:
        """Database file and write-ahead log on disk."""
        total = 0
        for path in (self._path, self._path.with_name(self._path.name + ".wal")):
            with suppress(OSError):
                total += path.stat().st_size
        return total

    def reusable_bytes(self) -> int:
        """Bytes of the database's file that are unused; 0 while the database cannot be asked."""
        sql = "SELECT block_size * free_blocks FROM pragma_database_size() WHERE database_name = $1"
        try:
            with self._cursor() as cursor:
                row = cursor.execute(sql, [_NAME]).fetchone()
        except (duckdb.Error, StoreUnavailableError):
            return 0
        return int(row[0]) if row else 0

    def limit_spill(self, bytes_max: int) -> None:
        """Let queries spill no more than that in all, nor more than the limit of this database.

        DuckDB does not go below what is spilled already; the next call may.
        """
        sql = "SELECT least($1, parse_formatted_bytes($2))"
        with suppress(duckdb.Error, StoreUnavailableError), self._cursor() as cursor:
            row = cursor.execute(sql, [bytes_max, self._limits.temp]).fetchone()
            if row:
                cursor.execute(f"SET GLOBAL max_temp_directory_size = '{int(row[0])}B'")

    @contextmanager
    def reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor inside a read-only transaction. Raises StoreUnavailableError."""
        with self._cursor() as cursor:
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            try:
                yield cursor
            finally:
                with suppress(duckdb.Error):
                    cursor.execute("ROLLBACK")

    @contextmanager
    def _cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._condition:
            if self._is_closed:
                raise StoreUnavailableError("the database is being closed or opened again")
            try:
                cursor = self.writing.cursor()
                cursor.execute(f"USE {_NAME}")
            except duckdb.Error as error:
                raise StoreUnavailableError(one_line(error)) from error
            self._cursors.add(cursor)
        try:
            yield cursor
        finally:
            cursor.close()
            with self._condition:
                self._cursors.discard(cursor)
                self._condition.notify_all()

    def interrupt_readers(self, wait_s: float = 0.0) -> int:
        """End all running queries, and wait until they have let go; how many there were."""
        with self._condition:
            ended = set(self._cursors) - self._maintaining
            for cursor in ended:
                with suppress(duckdb.Error):
                    cursor.interrupt()
            self._condition.wait_for(lambda: not ended & self._cursors, wait_s)
            return len(ended)

    def _interrupt_all(self) -> None:
        for cursor in self._cursors:
            # A reader closes its cursor before it takes it off the list.
            with suppress(duckdb.Error):
                cursor.interrupt()

    def recover(self, timeout_s: float = 10.0) -> None:
        """Open the database again, after DuckDB has declared it invalid.

        All cursors must go first, as DuckDB shares one instance among them: running queries are
        interrupted. Raises StoreUnavailableError while it cannot be opened.
        """
        with self._condition:
            self._is_closed = True
            try:
                self._interrupt_all()
                if not self._condition.wait_for(lambda: not self._cursors, timeout_s):
                    raise StoreUnavailableError("queries hold the invalid database")
                with suppress(duckdb.Error):
                    self.writing.close()
                spill.end(self.spill_dir)
                try:
                    self.writing, self.spill_dir = _connect(self._path, self._limits, self.address)
                except (duckdb.Error, StartError) as error:
                    raise StoreUnavailableError(one_line(error)) from error
            finally:
                self._is_closed = False
        log.warning("database opened again after a fatal error", extra={"path": str(self._path)})

    def roll(self) -> int:
        """Freeze the generation that is written and begin the next; the frozen one.

        For the thread that owns `writing`. Raises StoreUnavailableError.
        """
        frozen = self.generations[-1]
        with self._writing():
            begin_generation(self.writing, frozen + 1)
            self._create_views()
        self.generations = generations(self.writing)
        return frozen

    def drop(self, generation: int) -> None:
        """Drop a generation that the lake holds. As `roll`."""
        with self._writing():
            end_generation(self.writing, generation)
            self._create_views()
        self.generations = generations(self.writing)

    def count_rows(self, generation: int) -> int:
        """Rows in a generation; DuckDB has the number of each table at hand. As `roll`."""
        # Not from duckdb_tables(), which asks the catalogue of the lake as well.
        counts = " UNION ALL ".join(
            f"SELECT count(*) AS rows FROM {hot_table(name, generation)}"
            for name in lake.SEALED_TABLES
        )
        try:
            row = self.writing.execute(f"SELECT sum(rows) FROM ({counts})").fetchone()
        except duckdb.Error as error:
            raise StoreUnavailableError(one_line(error)) from error
        return int(row[0] or 0) if row else 0

    def _create_views(self) -> None:
        create_views(self.writing, self.collector, is_shared=self.address.is_shared)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction of the writing connection. Raises StoreUnavailableError."""
        try:
            self.writing.execute("BEGIN")
            yield
            self.writing.execute("COMMIT")
        except duckdb.Error as error:
            with suppress(duckdb.Error):
                self.writing.execute("ROLLBACK")
            raise StoreUnavailableError(one_line(error)) from error

    @contextmanager
    def maintaining(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor for the lake, beside the writer. Raises StoreUnavailableError, and for what DuckDB
        raises within RowsRefusedError too."""
        with self._cursor() as cursor:
            self._maintaining.add(cursor)
            try:
                with translating():
                    yield cursor
            finally:
                self._maintaining.discard(cursor)

    def interrupt_maintenance(self) -> None:
        """End what runs on the cursors of `maintaining`, and waiting for a turn at sealing."""
        self.coordination.interrupt()
        for cursor in list(self._maintaining):
            with suppress(duckdb.Error):
                cursor.interrupt()

    def checkpoint(self) -> None:
        """Move the write-ahead log into the database file. Raises StoreUnavailableError."""
        try:
            self.writing.execute("CHECKPOINT")
        except duckdb.Error as error:
            raise StoreUnavailableError(one_line(error)) from error

    def close(self) -> None:
        """Checkpoint as DuckDB does on closing, and let go of the file.

        Queries are ended first: DuckDB holds the file for as long as a cursor is open.
        """
        with self._condition:
            self._is_closed = True
            self._interrupt_all()
            self._condition.wait_for(lambda: not self._cursors, _CLOSE_WAIT_S)
        self.coordination.close()
        with suppress(duckdb.Error):
            self.writing.close()
        spill.end(self.spill_dir)


def _connect(
    path: Path, limits: Limits, address: Address
) -> tuple[duckdb.DuckDBPyConnection, Path]:
    """The connection, and the folder that it spills to."""
    own = spill.begin(path.parent, limits.spill_dir)
    try:
        connection = _attached(path, limits, address, own)
    except BaseException:
        spill.end(own)
        raise
    spill.empty_others(path.parent, own)
    # Where versions before this one have spilled to.
    shutil.rmtree(f"{path}.tmp", ignore_errors=True)
    return connection, own


def _attached(
    path: Path, limits: Limits, address: Address, spill_dir: Path
) -> duckdb.DuckDBPyConnection:
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": limits.memory,
        "threads": limits.threads or max(1, (os.cpu_count() or 1) // 2),
        "checkpoint_threshold": _CHECKPOINT_THRESHOLD,
        "temp_directory": str(spill_dir),
        # Names of tables are never those of variables of this process; without access to files
        # DuckDB does not look there either.
        "python_enable_replacements": False,
    }
    connection = duckdb.connect(config=config)
    try:
        # Given with the configuration it would be shown, and not kept to (1.5.5).
        connection.execute(f"SET GLOBAL max_temp_directory_size = {_text(limits.temp)}")
        # Only of an attached database can the size of row groups be chosen.
        connection.execute(
            f"ATTACH {_text(str(path))} AS {_NAME} (ROW_GROUP_SIZE {ROW_GROUP_ROWS})"
        )
        connection.execute(f"USE {_NAME}")
        connection.execute("SET GLOBAL TimeZone = 'UTC'")
        lake.attach(connection, address)
        _create(connection, path, is_shared=address.is_shared)
        allowed = lake.allowed_folders(path.parent, address)
        connection.execute("SET allowed_directories = $1", [allowed])
        connection.execute("SET enable_external_access = false")
        # `limit_spill` changes it; of those who query only statements that read are taken.
        connection.execute("SET allowed_configs = ['max_temp_directory_size']")
        connection.execute("SET lock_configuration = true")
    except BaseException:
        connection.close()
        raise
    return connection


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _create(connection: duckdb.DuckDBPyConnection, path: Path, *, is_shared: bool) -> None:
    connection.execute("BEGIN")
    connection.execute(_INTERNAL_SQL)
    row = connection.execute("SELECT max(version) FROM internal.schema_version").fetchone()
    version = row[0] if row else None
    if version is None:
        connection.execute("INSERT INTO internal.schema_version VALUES ($1)", [SCHEMA_VERSION])
    elif version > SCHEMA_VERSION:
        raise newer_error(path, version)
    _migrate(connection, version)
    for name in UPSERTED:
        connection.execute(create_sql(TABLES[name]))
        _add_columns(connection, TABLES[name], "main", name)
    if not generations(connection):
        begin_generation(connection, 1)
    for generation in generations(connection):
        for name in lake.SEALED_TABLES:
            schema, _, table = hot_table(name, generation).partition(".")
            connection.execute(create_sql(TABLES[name], as_name=f"{schema}.{table}"))
            _add_columns(connection, TABLES[name], schema, table)
    connection.execute(
        "INSERT INTO internal.identity SELECT uuid()::VARCHAR WHERE NOT EXISTS "
        "(FROM internal.identity)"
    )
    collector = _identity(connection)
    _catch_up(connection, collector)
    create_views(connection, collector, is_shared=is_shared)
    connection.execute("COMMIT")


def _catch_up(connection: duckdb.DuckDBPyConnection, collector: str) -> None:
    """Never write a generation whose number the lake has: it would be dropped as sealed.

    A database is behind its lake when an older copy of it was put back, or when its disk lost what
    it had promised to keep.
    """
    newest, sealed = generations(connection)[-1], lake.sealed_generation(connection, collector)
    if newest <= sealed:
        begin_generation(connection, sealed + 1)
        log.warning(
            "the database is older than its lake; it goes on behind it",
            extra={"generation": newest, "sealed": sealed},
        )


def _identity(connection: duckdb.DuckDBPyConnection) -> str:
    row = connection.execute("SELECT collector FROM internal.identity").fetchone()
    assert row is not None
    return str(row[0])


def _migrate(connection: duckdb.DuckDBPyConnection, version: int | None) -> None:
    """Bring a database of an older version up to this one, in the transaction that opens it."""
    if version == 1:
        # Sample tables were main's own; they become the first generation.
        connection.execute("INSERT INTO internal.generations VALUES (1)")
        views = connection.execute(
            "SELECT view_name FROM duckdb_views() WHERE schema_name = 'main' AND NOT internal "
            "AND database_name = current_database()"
        ).fetchall()
        for (view,) in views:
            connection.execute(f"DROP VIEW main.{view}")
        existing = {
            name
            for (name,) in connection.execute(
                "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'main' "
                "AND database_name = current_database()"
            ).fetchall()
        }
        for name in set(lake.SEALED_TABLES) & existing:
            connection.execute(f"CREATE TABLE {hot_table(name, 1)} AS FROM main.{name}")
            connection.execute(f"DROP TABLE main.{name}")
    if version in (1, 2):
        # The ledger did not tell senders apart; what it has is nobody's, and counts for each.
        connection.execute("CREATE TEMP TABLE ledger_before AS FROM internal.ledger")
        connection.execute("DROP TABLE internal.ledger")
        connection.execute(_LEDGER_SQL)
        connection.execute(
            "INSERT INTO internal.ledger BY NAME SELECT '' AS sender, "
            "agent_id, boot_id, floor, ranges, heard_at FROM temp.ledger_before"
        )
        connection.execute("DROP TABLE temp.ledger_before")
    connection.execute("UPDATE internal.schema_version SET version = $1", [SCHEMA_VERSION])


def _add_columns(
    connection: duckdb.DuckDBPyConnection, table: Table, schema: str, name: str
) -> None:
    """Columns that are newer than the database: NULL in the rows that are there."""
    known = connection.execute(
        "SELECT column_name FROM duckdb_columns() WHERE database_name = current_database() "
        "AND schema_name = $1 AND table_name = $2",
        [schema, name],
    ).fetchall()
    names = {column for (column,) in known}
    for column in stored_columns(table):
        if column.name not in names:
            connection.execute(f"ALTER TABLE {schema}.{name} ADD COLUMN {column_sql(column)}")


def newer_error(path: Path, version: int) -> StartError:
    """A store that a newer gpuwarden has changed; opening it would lose what this one does not know."""
    return StartError(
        f"{path} has schema version {version}, this gpuwarden ({__version__}) knows up to {SCHEMA_VERSION}: "
        "nothing is changed; install the newer gpuwarden again, or choose another --data-dir"
    )


_NO_SPACE = re.compile(r"No space left|Disk quota exceeded|File too large")
_HELD = re.compile(r"held in (?P<name>.+?) \(PID (?P<pid>\d+)\)")


def start_error(path: Path, error: duckdb.Error) -> StartError:
    """Why a database cannot be opened, for the person who starts the collector."""
    text = one_line(error)
    if held := _HELD.search(text):
        return StartError(
            f"{path} is in use by process {held['pid']} ({held['name']}): "
            "stop it or choose another --data"
        )
    if _NO_SPACE.search(text):
        return StartError(f"{path} cannot be opened: {text}: make room on its disk")
    return StartError(
        f"{path} cannot be opened: {text}: `gpuwarden collector check --data-dir {path.parent}` says "
        "what can be repaired"
    )
