"""A transaction of the store, and its errors as the collector's own."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import duckdb

from gpuwarden_collector.storage.errors import translated


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
