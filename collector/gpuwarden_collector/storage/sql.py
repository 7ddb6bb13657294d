"""Reads single values from DuckDB."""

from collections.abc import Sequence
from typing import Any

import duckdb


def scalar(cursor: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[Any] = ()) -> Any:
    """The first value of the first row; None: there is no row. Raises duckdb.Error."""
    row = cursor.execute(sql, list(parameters)).fetchone()
    return row[0] if row else None
