"""Maps DuckDB's errors to the collector's: retry later, or never."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import duckdb


class StoreUnavailableError(Exception):
    """The operation failed now, and may succeed later."""


class RowsRefusedError(Exception):
    """The store can never take these rows."""


def one_line(error: Exception) -> str:
    """The first line of an error's message: DuckDB adds advice and a stack below it."""
    return str(error).strip().partition("\n")[0][:500]


_LAKE_FILE = re.compile(r"""["']([^"']+\.parquet)["']""")
_NO_ANSWER = re.compile(r" error for HTTP [A-Z]+ to ")
"""Message of DuckDB's httpfs when the object store does not answer in time (1.5.5)."""


def unreachable_store(error: Exception) -> str | None:
    """The message, if the error means that the object store does not answer or fails now; else None."""
    if isinstance(error, duckdb.HTTPException):
        return None if error.status_code == 404 else one_line(error)
    # A view whose files could not be opened raises the message as InvalidInputException.
    kinds = duckdb.IOException | duckdb.InvalidInputException | OSError
    is_away = isinstance(error, kinds) and _NO_ANSWER.search(str(error))
    return one_line(error) if is_away else None


def lost_file(error: Exception) -> str | None:
    """The lake's file that is missing or damaged, for an error that `unreachable_store` does not cover."""
    if not isinstance(error, duckdb.IOException | duckdb.InvalidInputException | OSError):
        return None
    found = _LAKE_FILE.search(str(error))
    return found[1] if found else None


def translated(error: duckdb.Error) -> Exception:
    """The collector's error for an error of DuckDB while writing."""
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


@contextmanager
def translating() -> Iterator[None]:
    """Raise DuckDB's errors within the block as StoreUnavailableError or RowsRefusedError."""
    try:
        yield
    except duckdb.Error as error:
        raise translated(error) from error


@contextmanager
def transaction(cursor: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """A transaction of the cursor, rolled back if the block raises.

    Raises StoreUnavailableError or RowsRefusedError for DuckDB's errors.
    """
    with translating():
        cursor.execute("BEGIN")
        try:
            yield
            cursor.execute("COMMIT")
        except BaseException:
            # After some errors DuckDB has already rolled back.
            with suppress(duckdb.Error):
                cursor.execute("ROLLBACK")
            raise
