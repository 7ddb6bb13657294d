"""Maps DuckDB's errors to the collector's: retry later, or never."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import duckdb
import pyarrow as pa

from gpuwarden.query import LakeAwayError, QueryError


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


def store_error(error: Exception) -> QueryError | None:
    """The error of a query that cannot read the lake's files; None: `error` is of another kind."""
    if why := unreachable_store(error):
        return LakeAwayError(f"the lake's files cannot be read now: {why}")
    if file := lost_file(error):
        return QueryError(
            f"{file} is missing or damaged: `gpuwarden collector check` on the collector's host says what is lost; "
            "queries that do not need the file work"
        )
    return None


def too_much_memory(error: Exception) -> str | None:
    """The reason for refusing a query that needs more memory; None: `error` is of another kind."""
    is_memory = isinstance(error, duckdb.OutOfMemoryException | MemoryError)
    # Arrow raises DuckDB's errors as OSError while rows come.
    if not is_memory and not str(error).startswith("Out of Memory Error"):
        return None
    return (
        f"the query needs more memory than the collector gives it ({one_line(error)}): "
        "select a shorter time or fewer columns, or aggregate"
    )


_HARMLESS = (
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.ConstraintException,
    duckdb.ConversionException,
    duckdb.HTTPException,
    duckdb.InterruptException,
    duckdb.InvalidInputException,
    duckdb.InvalidTypeException,
    duckdb.IOException,
    duckdb.NotImplementedException,
    duckdb.OutOfMemoryException,
    duckdb.OutOfRangeException,
    duckdb.ParserException,
    duckdb.PermissionException,
    duckdb.SequenceException,
    duckdb.SyntaxException,
    duckdb.TransactionException,
    duckdb.TypeMismatchException,
)
_HARMLESS_TEXT = re.compile(
    r"(Binder|Catalog|Constraint|Conversion|HTTP|INTERRUPT|Interrupt|Invalid Input|Invalid type|IO|Not implemented"
    r"|Out of Memory|Out of Range|Parser|Permission|Sequence|Syntax|TransactionContext|Type Mismatch|Mismatch Type) Error: "
)


def is_fault(error: Exception) -> bool:
    """Whether an error of a query is not one of those after which DuckDB continues: an internal or fatal error, or an
    unknown one.

    Arrow raises DuckDB's errors as OSError or ArrowException while rows come, with their texts.
    """
    text = str(error)
    if "has been invalidated" in text:
        return True
    if isinstance(error, duckdb.Error):
        return not isinstance(error, _HARMLESS)
    if isinstance(error, MemoryError | pa.ArrowNotImplementedError):
        return False
    return not _HARMLESS_TEXT.match(text)


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
