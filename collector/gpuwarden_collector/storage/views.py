"""Creates the tables, views and functions that queries see, or copies them from a file that holds them.

DuckDB binds each view that it creates, which takes most of the time to open a store; a copy takes a twentieth of
it. The files are made once a process. The fork server calls `prepare`, so that all processes that it forks have the
files' bytes.
"""

import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from gpuwarden.comments import column_comments, table_comments
from gpuwarden.query import ROLE_FUNCTIONS, role_refusal, text_sql
from gpuwarden.schema import TABLES, UPSERTED, create_sql, parsed_sql, stored_columns, views_sql
from gpuwarden.teams import OTHERS_1H
from gpuwarden_collector.storage.segment import SCHEMAS, TABLE_NAMES

NAME = "gpuwarden"
"""DuckDB's name of the database with the views."""
_HOT = "hot_"
_PUBLIC = "public_views"
_FILE = "views.duckdb"
_COMMENTS = pa.table(
    {
        name: pa.array(values, pa.string())
        for name, values in zip(
            ("table_name", "column_name", "comment"),
            zip(
                *((table, None, text) for table, text in table_comments().items()),
                *((t, c, text) for t, of in column_comments().items() for c, text in of.items()),
                strict=True,
            ),
            strict=True,
        )
    }
)
_DESCRIBED = {"duckdb_tables": "table_name", "duckdb_views": "view_name", "duckdb_columns": None}
"""Functions of DuckDB that show comments, and the column that names the described object; None: table and column."""
_LISTED = ("duckdb_databases", "duckdb_schemas", "duckdb_constraints", "duckdb_indexes")
"""Functions whose rows are limited to the store, for queries and for the views of information_schema."""
TEAM_SCHEMAS: Mapping[str, Any] = {
    **SCHEMAS,
    OTHERS_1H: pa.schema(
        {
            "ts": pa.timestamp("us"),
            "model": pa.string(),
            "category": pa.string(),
            "gpu_hours": pa.float64(),
            "usd": pa.float64(),
            "simulated": pa.bool_(),
        }
    ),
}
"""Arrow schema of each table that a process of a team gets rows of."""
_made: dict[Callable[[], bytes], bytes] = {}
"""The files' bytes, once they are made, by the function that makes them."""


def hot_table(name: str) -> str:
    """The name under which a cursor sees a table's rows in segments."""
    return f"{_HOT}{name}"


def create(connection: duckdb.DuckDBPyConnection, *, with_lake: bool = True) -> None:
    """Create tables, views and functions in the database that is in use; `with_lake`: of rows in `lake.main` too.

    Raises duckdb.Error.
    """
    _create_functions(connection)
    for name in TABLE_NAMES:
        columns = ", ".join(column.name for column in stored_columns(TABLES[name]))
        connection.register(hot_table(name), SCHEMAS[name].empty_table())
        of_lake = f"SELECT {columns} FROM lake.main.{name} UNION ALL "
        rows = f"{of_lake if with_lake else ''}SELECT {columns} FROM {hot_table(name)}"
        connection.execute(f"CREATE OR REPLACE VIEW main.{name} AS {rows}")
    for name in UPSERTED:
        connection.execute(create_sql(TABLES[name]).replace(name, f"main.{name}", 1))
    connection.execute(views_sql())


def create_of_team(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """As `create`, for a process that gets the rows of each table, and of `others_1h`, as `hot_table(name)`. `folder`: for
    a file that is written and removed here. Raises duckdb.Error."""
    _create_functions(connection)
    for name, schema in TEAM_SCHEMAS.items():
        connection.register(hot_table(name), schema.empty_table())
    for name in TABLES:
        connection.execute(
            f"CREATE VIEW main.{name} AS SELECT {parsed_sql(TABLES[name])} FROM {hot_table(name)}"
        )
    copy_public(connection, folder)
    create_public(connection, NAME)
    connection.execute(
        f"CREATE OR REPLACE VIEW main.{OTHERS_1H} AS SELECT * FROM {hot_table(OTHERS_1H)}"
    )


def _create_functions(connection: duckdb.DuckDBPyConnection) -> None:
    # SHOW TABLES calls this function to find tables. The macro hides the views that cursors register.
    connection.execute(f"CREATE MACRO main.in_search_path(d, s) AS (d = '{NAME}' AND s = 'main')")
    # DuckDB calls these where a scope has no column of the name: the guard does not know scopes.
    for name in ROLE_FUNCTIONS:
        connection.execute(f'CREATE MACRO main."{name}"() AS error({text_sql(role_refusal(name))})')
    _describe(connection)


def copy(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """As `create`, from a file that is written to the folder for that moment. Raises OSError, duckdb.Error."""
    _copy(connection, NAME, folder, _store_file)


def copy_public(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """Create a database of the public views without their tables, for `create_public`, if the folder has room."""
    connection.execute(f"ATTACH ':memory:' AS {_PUBLIC}")
    try:
        _copy(connection, _PUBLIC, folder, _public_file)
    except (OSError, duckdb.Error):
        connection.execute(f"DETACH {_PUBLIC}")


def create_public(connection: duckdb.DuckDBPyConnection, database: str) -> None:
    """Create the public views in the database in use, which has their tables; copies, after `copy_public`.

    Raises duckdb.Error.
    """
    found = connection.execute(
        "SELECT count(*) FROM system.main.duckdb_databases() WHERE database_name = $1", [_PUBLIC]
    ).fetchall()
    can_copy = bool(found[0][0])
    connection.execute(f"COPY FROM DATABASE {_PUBLIC} TO {database}" if can_copy else views_sql())


def _copy(
    connection: duckdb.DuckDBPyConnection, database: str, folder: Path, make: Callable[[], bytes]
) -> None:
    if make not in _made:
        _made[make] = make()
    path = folder / _FILE
    try:
        path.write_bytes(_made[make])
        connection.execute(f"ATTACH {text_sql(str(path))} AS template (READ_ONLY)")
        try:
            connection.execute(f"COPY FROM DATABASE template TO {database}")
        finally:
            connection.execute("DETACH template")
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def prepare() -> None:
    """Make the files' bytes in a forked process: DuckDB's threads must not run in a process that forks others."""
    makers = (_store_file, _public_file)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            os.close(reader)
            with os.fdopen(writer, "wb") as stream:
                pickle.dump([make() for make in makers], stream)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        made = stream.read()
    os.waitpid(pid, 0)
    if made:  # else each process makes its own
        _made.update(zip(makers, pickle.loads(made), strict=True))


def _store_file() -> bytes:
    with _writing() as (path, connection):
        connection.execute("ATTACH ':memory:' AS lake")
        for name in TABLE_NAMES:
            connection.execute(create_sql(TABLES[name]).replace(name, f"lake.main.{name}", 1))
        create(connection)
        return _written(path, connection)


def _public_file() -> bytes:
    with _writing() as (path, connection):
        for table in TABLES.values():
            connection.execute(create_sql(table))
        connection.execute(views_sql())
        for name in TABLES:
            connection.execute(f"DROP TABLE {name}")
        return _written(path, connection)


@contextmanager
def _writing() -> Iterator[tuple[Path, duckdb.DuckDBPyConnection]]:
    """A new file, and a connection that uses it as the store's database."""
    with tempfile.TemporaryDirectory() as folder, _connected() as connection:
        path = Path(folder) / _FILE
        connection.execute(f"ATTACH {text_sql(str(path))} AS {NAME}")
        connection.execute(f"USE {NAME}; SET GLOBAL TimeZone = 'UTC'")
        yield path, connection


def _written(path: Path, connection: duckdb.DuckDBPyConnection) -> bytes:
    connection.execute(f"USE memory; DETACH {NAME}")
    return path.read_bytes()


@contextmanager
def _connected() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect(config={"threads": 1, "python_enable_replacements": False})
    try:
        yield connection
    finally:
        connection.close()


def _describe(connection: duckdb.DuckDBPyConnection) -> None:
    """Replace DuckDB's functions that list tables and columns: show only the public ones, with comments.

    COMMENT ON statements would take longer, and each new version of a table would lose its comments. DuckDB's views
    of information_schema and pg_catalog use these functions too.
    """
    connection.execute("CREATE SCHEMA described")
    connection.register("given", _COMMENTS)
    connection.execute("CREATE TABLE described.comments AS FROM given")
    connection.unregister("given")
    public = f"database_name = '{NAME}' AND schema_name = 'main'"
    for function, name in _DESCRIBED.items():
        on = "d.column_name IS NULL" if name else "d.column_name = c.column_name"
        # Do not show how a table is built from lake and segments.
        unsaid = f", if(contains(c.sql, ' {_HOT}'), NULL, c.sql) AS sql"
        plain = unsaid if "views" in function else ""
        connection.execute(
            f"CREATE MACRO main.{function}() AS TABLE SELECT c.* REPLACE (d.comment AS comment{plain}) "
            f"FROM system.main.{function}() c LEFT JOIN {NAME}.described.comments d "
            f"ON d.table_name = c.{name or 'table_name'} AND {on} WHERE {public} AND NOT c.internal"
        )
    for function in _LISTED:
        where = public if function != "duckdb_databases" else f"database_name = '{NAME}'"
        connection.execute(
            f"CREATE MACRO main.{function}() AS TABLE "
            f"SELECT * FROM system.main.{function}() WHERE {where}"
        )
