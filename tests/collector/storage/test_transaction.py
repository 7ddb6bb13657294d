"""A transaction of the store: all or nothing, and errors that say what to do with the rows."""

import duckdb
import pytest

from gpuwarden_collector.storage.errors import (
    RowsRefusedError,
    StoreUnavailableError,
    transaction,
    translating,
)


@pytest.fixture
def cursor() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE kept (n INTEGER NOT NULL)")
    return connection


def kept(cursor: duckdb.DuckDBPyConnection) -> list[int]:
    return [n for (n,) in cursor.execute("SELECT n FROM kept ORDER BY n").fetchall()]


def test_what_was_done_within_is_kept(cursor: duckdb.DuckDBPyConnection) -> None:
    with transaction(cursor):
        cursor.execute("INSERT INTO kept VALUES (1)")
    assert kept(cursor) == [1]


@pytest.mark.parametrize("raised", [StoreUnavailableError("stopping"), KeyboardInterrupt()])
def test_nothing_is_kept_whatever_is_raised_within(
    cursor: duckdb.DuckDBPyConnection, raised: BaseException
) -> None:
    with pytest.raises(type(raised)), transaction(cursor):
        cursor.execute("INSERT INTO kept VALUES (1)")
        raise raised
    with transaction(cursor):
        cursor.execute("INSERT INTO kept VALUES (2)")
    assert kept(cursor) == [2]


def test_rows_that_can_never_be_taken_are_refused_and_the_cursor_serves_on(
    cursor: duckdb.DuckDBPyConnection,
) -> None:
    with pytest.raises(RowsRefusedError, match="NOT NULL"), transaction(cursor):
        cursor.execute("INSERT INTO kept VALUES (1)")
        cursor.execute("INSERT INTO kept VALUES (NULL)")
    assert kept(cursor) == []


def test_an_error_of_duckdb_outside_a_transaction_is_the_collectors_own(
    cursor: duckdb.DuckDBPyConnection,
) -> None:
    with pytest.raises(StoreUnavailableError, match="missing"), translating():
        cursor.execute("SELECT * FROM missing")
