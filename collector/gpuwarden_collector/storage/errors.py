"""Maps DuckDB's errors to the collector's: try again later, or never."""

import re

import duckdb


class StoreUnavailableError(Exception):
    """The store cannot take this now; the same may succeed later."""


class RowsRefusedError(Exception):
    """The store can never take these rows."""


def one_line(error: Exception) -> str:
    """The first line of an error's message: DuckDB adds advice and a stack below it."""
    return str(error).strip().partition("\n")[0][:500]


_LAKE_FILE = re.compile(r"""["']([^"']+\.parquet)["']""")


def lost_file(error: Exception) -> str | None:
    """The file of the lake that an error is about, missing or damaged."""
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
