"""Writes a group of batches in one transaction: rows, inventory, ledger, alerts together.

DuckDB writes the transaction to its write-ahead log and calls fsync before COMMIT returns (seen
with strace, DuckDB 1.5.5), so what `commit` has returned from survives a power cut.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import duckdb
import pyarrow as pa

from gpuwarden.schema import TABLES, stored_columns
from gpuwarden_collector.store.database import ROW_GROUP_ROWS, Database
from gpuwarden_collector.store.errors import (
    RowsRefusedError,
    StoreUnavailableError,
    one_line,
    translated,
)
from gpuwarden_collector.store.generations import hot_table

# Within COMMIT it comes as a TransactionException, of which only the text tells.
_OUT_OF_MEMORY = re.compile(r"failed to (pin block|allocate)|Out of Memory")

_CHUNK_ROWS_MIN = 4_096
"""Chunks as small as an agent's batch make the insert eight times slower."""

_LEDGER_COLUMNS = ("sender", "agent_id", "boot_id", "floor", "ranges", "heard_at")
LEDGER_SCHEMA = pa.schema(
    [
        ("sender", pa.string()),
        ("agent_id", pa.string()),
        ("boot_id", pa.string()),
        ("floor", pa.int64()),
        ("ranges", pa.string()),
        ("heard_at", pa.timestamp("us")),
    ]
)
FORGOTTEN_SCHEMA = pa.schema(list(LEDGER_SCHEMA)[:3])


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What one transaction writes. Tables are Arrow tables in the stored column order."""

    appended: Mapping[str, Any] = field(default_factory=dict)
    """Rows of sample tables and events."""
    upserted: Mapping[str, Any] = field(default_factory=dict)
    """Rows of nodes, gpus and alerts, replaced by primary key."""
    ledger: Any | None = None
    forgotten: Any | None = None
    """Keys that the ledger lets go of."""
    doubtful: Any | None = None
    """Batches in `appended` that another collector may have as well (see `doubt.py`)."""
    late: Any | None = None
    """Windows (`node`, `ts`) that `appended` has rows of, to be rolled up again."""
    heard: Mapping[str, Any] = field(default_factory=dict)
    """Keys of nodes and gpus (one column) whose last_seen_at becomes `heard_at`."""
    heard_at: datetime | None = None
    forget_ledger_before: datetime | None = None


def commit(database: Database, changes: Changes) -> None:
    """Write all of it, durably, or nothing.

    Raises RowsRefusedError when the rows themselves are at fault, StoreUnavailableError otherwise.
    """
    connection = database.writing
    try:
        connection.execute("BEGIN")
        for name, rows in changes.appended.items():
            if not rows.num_rows:
                continue
            with _incoming(connection, rows):
                hot = hot_table(name, database.generations[-1])
                connection.execute(_append_sql(hot, rows.num_rows))
        for name, rows in changes.upserted.items():
            with _incoming(connection, rows):
                connection.execute(_upsert_sql(name))
        if changes.ledger is not None:
            with _incoming(connection, changes.ledger):
                connection.execute(_LEDGER_UPSERT)
        if changes.forgotten is not None:
            with _incoming(connection, changes.forgotten):
                connection.execute(
                    "DELETE FROM internal.ledger WHERE (sender, agent_id, boot_id) IN "
                    "(SELECT (sender, agent_id, boot_id) FROM incoming)"
                )
        if changes.doubtful is not None:
            with _incoming(connection, changes.doubtful):
                connection.execute(
                    "INSERT INTO internal.doubtful SELECT $1, * FROM incoming",
                    [database.generations[-1]],
                )
        if changes.late is not None:
            with _incoming(connection, changes.late):
                connection.execute("INSERT INTO internal.late (node, ts) FROM incoming")
        for name, keys in changes.heard.items():
            with _incoming(connection, keys):
                connection.execute(_heard_sql(name), [naive(changes.heard_at)])
        if changes.forget_ledger_before is not None:
            connection.execute(
                "DELETE FROM internal.ledger WHERE heard_at < $1",
                [naive(changes.forget_ledger_before)],
            )
        connection.execute("COMMIT")
    except BaseException as error:
        with suppress(duckdb.Error):
            connection.execute("ROLLBACK")
        if not isinstance(error, duckdb.Error):
            raise
        if isinstance(error, duckdb.OutOfMemoryException) or _OUT_OF_MEMORY.search(str(error)):
            raise OutOfMemoryError(one_line(error)) from error
        if isinstance(error, duckdb.InvalidInputException):
            # Nothing but rows goes in here: bytes that are no UTF-8, for one.
            raise RowsRefusedError(one_line(error)) from error
        raise translated(error) from error


class OutOfMemoryError(StoreUnavailableError):
    """DuckDB's memory limit was reached, most likely by a query beside the write."""


def is_usable(database: Database) -> bool:
    """Whether DuckDB still takes statements; after some I/O errors it takes none."""
    try:
        database.writing.execute("SELECT count(*) FROM internal.schema_version").fetchone()
    except duckdb.Error:
        return False
    return True


def load_rows(database: Database, name: str) -> list[dict[str, Any]]:
    """All rows of a small table (`nodes`, `gpus`, `internal.ledger`), timestamps naive UTC.

    Raises StoreUnavailableError.
    """
    try:
        table = database.writing.execute(f"SELECT * FROM {name}").to_arrow_table()
    except duckdb.Error as error:
        raise StoreUnavailableError(one_line(error)) from error
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


@contextmanager
def _incoming(connection: duckdb.DuckDBPyConnection, rows: Any) -> Iterator[None]:
    chunks = rows.column(0).num_chunks
    is_small = chunks > 1 and rows.num_rows < chunks * _CHUNK_ROWS_MIN
    connection.register("incoming", rows.combine_chunks() if is_small else rows)
    try:
        yield
    finally:
        with suppress(duckdb.Error):
            connection.unregister("incoming")


def _append_sql(hot: str, rows: int) -> str:
    """Rows are at least one. From a row group on DuckDB writes them to the database file at once.
    Below, the same way costs several threads three times the CPU of one; a positional join is what
    keeps them from it (1.5.5).
    """
    one_thread = "" if rows >= ROW_GROUP_ROWS else " POSITIONAL JOIN (VALUES (1))"
    return f"INSERT INTO {hot} BY NAME SELECT incoming.* FROM incoming{one_thread}"


def _upsert_sql(name: str) -> str:
    table = TABLES[name]
    names = [column.name for column in stored_columns(table)]
    changed = ", ".join(
        # Who changes a row need not have heard of the thing itself.
        f"{n} = greatest({name}.{n}, excluded.{n})"
        if n == "last_seen_at"
        else f"{n} = excluded.{n}"
        for n in names
        if n not in table.key
    )
    return (
        f"INSERT INTO {name} ({', '.join(names)}) SELECT {', '.join(names)} FROM incoming "
        f"ON CONFLICT ({', '.join(table.key)}) DO UPDATE SET {changed}"
    )


_LEDGER_UPSERT = (
    f"INSERT INTO internal.ledger SELECT {', '.join(_LEDGER_COLUMNS)} FROM incoming "
    "ON CONFLICT (sender, agent_id, boot_id) DO UPDATE SET "
    "floor = excluded.floor, ranges = excluded.ranges, heard_at = excluded.heard_at"
)


def _heard_sql(name: str) -> str:
    key = TABLES[name].key[0]
    return f"UPDATE {name} SET last_seen_at = $1 WHERE {key} IN (SELECT {key} FROM incoming)"


def naive(instant: datetime | None) -> datetime | None:
    """As the store has it: UTC, without saying so."""
    return instant.replace(tzinfo=None) if instant else None
