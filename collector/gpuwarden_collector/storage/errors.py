"""Maps DuckDB's errors to the collector's: try again later, or never."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import duckdb


class StoreUnavailableError(Exception):
    """The store cannot take this now; the same may succeed later."""


class RowsRefusedError(Exception):
    """The store can never take these rows."""


def one_line(error: Exception) -> str:
    """The first line of an error's message: DuckDB adds advice and a stack below it."""
    return str(error).strip().partition("\n")[0][:500]


_LAKE_FILE = re.compile(r"""["']([^"']+\.parquet)["']""")


_NO_ANSWER = re.compile(r" error for HTTP [A-Z]+ to ")
"""Of DuckDB's httpfs where the object store is not there, or does not answer in time (1.5.5)."""


def unreachable_store(error: Exception) -> str | None:
    """What an error says of an object store that does not answer, or answers that it cannot now."""
    if isinstance(error, duckdb.HTTPException):
        return None if error.status_code == 404 else one_line(error)
    # Said again by a view of files that could not be opened: InvalidInputException.
    kinds = duckdb.IOException | duckdb.InvalidInputException | OSError
    is_away = isinstance(error, kinds) and _NO_ANSWER.search(str(error))
    return one_line(error) if is_away else None


def lost_file(error: Exception) -> str | None:
    """The file of the lake that an error is about, missing or damaged: it is none of `unreachable_store`."""
    if not isinstance(error, duckdb.IOException | duckdb.InvalidInputException | OSError):
        return None
    found = _LAKE_FILE.search(str(error))
    return found[1] if found else None


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


@contextmanager
def translating() -> Iterator[None]:
    """DuckDB's errors within become StoreUnavailableError or RowsRefusedError."""
    try:
        yield
    except duckdb.Error as error:
        raise translated(error) from error


@contextmanager
def transaction(cursor: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """All that the cursor does within is kept, or nothing, whatever is raised.

    Raises StoreUnavailableError or RowsRefusedError for DuckDB's errors.
    """
    with translating():
        cursor.execute("BEGIN")
        try:
            yield
            cursor.execute("COMMIT")
        except BaseException:
            # DuckDB has rolled back on its own after some errors.
            with suppress(duckdb.Error):
                cursor.execute("ROLLBACK")
            raise
