"""Opens the database, owns its one writing connection, and hands out cursors for reading.

Every failure of DuckDB becomes one of two: `StoreUnavailableError` (disk full, I/O error, out of
memory: the same write may succeed later) or `RowsRefusedError` (these rows cannot be stored).
DuckDB invalidates a database after some I/O errors; `Database.recover` opens it anew.
"""

import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb

from gpuwarden.life import StartError
from gpuwarden.schema import TABLES, Table, column_sql, create_sql, stored_columns, views_sql

log = logging.getLogger(__name__)

FILE_NAME = "gpuwarden.duckdb"
SCHEMA_VERSION = 1
_CHECKPOINT_THRESHOLD = "64MiB"
_CLOSE_WAIT_S = 5.0

_INTERNAL_SQL = """
CREATE SCHEMA IF NOT EXISTS internal;
CREATE TABLE IF NOT EXISTS internal.schema_version (version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS internal.ledger (
    agent_id VARCHAR NOT NULL,
    boot_id VARCHAR NOT NULL,
    floor BIGINT NOT NULL,
    ranges VARCHAR NOT NULL,
    heard_at TIMESTAMP NOT NULL,
    PRIMARY KEY (agent_id, boot_id)
);
"""


class StoreUnavailableError(Exception):
    """The store cannot take this now; the same may succeed later."""


class RowsRefusedError(Exception):
    """The store can never take these rows."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What DuckDB may use. `threads` 0: one for each CPU."""

    memory: str = "2GiB"
    temp: str = "10GiB"
    threads: int = 0


class Database:
    """The open database. `writing` belongs to one thread; `reading` may be used from any."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path = path
        self._limits = limits
        self._condition = threading.Condition()
        self._cursors: set[duckdb.DuckDBPyConnection] = set()
        self._is_closed = False
        self.writing = _connect(path, limits)

    @classmethod
    def open(cls, data_dir: Path, limits: Limits) -> "Database":
        """Open the database in a folder, made if need be. Raises StartError."""
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
            return cls(data_dir / FILE_NAME, limits)
        except duckdb.Error as error:
            raise _start_error(data_dir / FILE_NAME, error) from error

    @property
    def size_bytes(self) -> int:
        """Database file and write-ahead log on disk."""
        total = 0
        for path in (self._path, self._path.with_name(self._path.name + ".wal")):
            with suppress(OSError):
                total += path.stat().st_size
        return total

    @contextmanager
    def reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor inside a read-only transaction. Raises StoreUnavailableError."""
        with self._condition:
            if self._is_closed:
                raise StoreUnavailableError("the database is being closed or opened again")
            try:
                cursor = self.writing.cursor()
            except duckdb.Error as error:
                raise StoreUnavailableError(one_line(error)) from error
            self._cursors.add(cursor)
        try:
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            yield cursor
        finally:
            with suppress(duckdb.Error):
                cursor.execute("ROLLBACK")
            cursor.close()
            with self._condition:
                self._cursors.discard(cursor)
                self._condition.notify_all()

    def interrupt_readers(self, wait_s: float = 0.0) -> int:
        """End all running queries, and wait until they have let go; how many there were."""
        with self._condition:
            ended = set(self._cursors)
            self._interrupt_all()
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
                try:
                    self.writing = _connect(self._path, self._limits)
                except (duckdb.Error, StartError) as error:
                    raise StoreUnavailableError(one_line(error)) from error
            finally:
                self._is_closed = False
        log.warning("database opened again after a fatal error", extra={"path": str(self._path)})

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
        with suppress(duckdb.Error):
            self.writing.close()


def _connect(path: Path, limits: Limits) -> duckdb.DuckDBPyConnection:
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": limits.memory,
        "threads": limits.threads or os.cpu_count() or 1,
        "checkpoint_threshold": _CHECKPOINT_THRESHOLD,
        "max_temp_directory_size": limits.temp,
    }
    connection = duckdb.connect(str(path), config=config)
    try:
        connection.execute("SET GLOBAL TimeZone = 'UTC'")
        _create(connection, path)
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    except BaseException:
        connection.close()
        raise
    return connection


def _create(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    connection.execute("BEGIN")
    connection.execute(_INTERNAL_SQL)
    row = connection.execute("SELECT max(version) FROM internal.schema_version").fetchone()
    version = row[0] if row else None
    if version is None:
        connection.execute("INSERT INTO internal.schema_version VALUES ($1)", [SCHEMA_VERSION])
    elif version > SCHEMA_VERSION:
        raise StartError(
            f"{path} has schema version {version}, this gpuwarden knows up to {SCHEMA_VERSION}: "
            "run the newer gpuwarden that made it, or choose another --data"
        )
    for table in TABLES.values():
        connection.execute(create_sql(table))
        _add_columns(connection, table)
    connection.execute(views_sql())
    connection.execute("COMMIT")


def _add_columns(connection: duckdb.DuckDBPyConnection, table: Table) -> None:
    """Columns that are newer than the database: NULL in the rows that are there."""
    known = connection.execute(
        "SELECT column_name FROM information_schema.columns "
        "WHERE table_schema = 'main' AND table_name = $1",
        [table.name],
    ).fetchall()
    names = {name for (name,) in known}
    for column in stored_columns(table):
        if column.name not in names:
            connection.execute(f"ALTER TABLE {table.name} ADD COLUMN {column_sql(column)}")


_NO_SPACE = re.compile(r"No space left|Disk quota exceeded|File too large")
_HELD = re.compile(r"held in (?P<name>.+?) \(PID (?P<pid>\d+)\)")


def _start_error(path: Path, error: duckdb.Error) -> StartError:
    text = one_line(error)
    if held := _HELD.search(text):
        return StartError(
            f"{path} is in use by process {held['pid']} ({held['name']}): "
            "stop it or choose another --data"
        )
    if _NO_SPACE.search(text):
        return StartError(f"{path} cannot be opened: {text}: make room on its disk")
    return StartError(
        f"{path} cannot be opened: {text}: repair or move it, or choose another --data"
    )


def one_line(error: Exception) -> str:
    """The first line of an error's message: DuckDB adds advice and a stack below it."""
    return str(error).strip().partition("\n")[0][:500]


def translated(error: duckdb.Error) -> Exception:
    """What an error while writing means for the rows."""
    lasting = (
        duckdb.ConstraintException,
        duckdb.ConversionException,
        duckdb.OutOfRangeException,
        duckdb.DataError,
        duckdb.IntegrityError,
    )
    if isinstance(error, lasting) and not isinstance(error, duckdb.TransactionException):
        return RowsRefusedError(one_line(error))
    return StoreUnavailableError(one_line(error))
