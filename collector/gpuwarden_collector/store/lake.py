"""The lake: sealed samples as Parquet files under a DuckLake catalogue, attached as `lake`.

The catalogue is a file beside the database; the extension comes from PyPI with the package
`duckdb-extension-ducklake`, so nothing is downloaded at run time. What a collector has sealed stands
in the lake itself (`lake.main.collectors`), written by the transaction that adds the rows: whoever
sees the rows sees that they are sealed.
"""

from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import duckdb

from gpuwarden.schema import TABLES, UPSERTED, Table, column_sql, stored_columns
from gpuwarden_collector.store.errors import translated

FOLDER = "lake"
CATALOGUE = "catalog.ducklake"
FILES = "data"

SEALED_TABLES = tuple(name for name in TABLES if name not in UPSERTED)
"""Tables whose rows move to the lake: all that are only ever appended to."""


def extension_path() -> Path:
    """The DuckLake extension for this DuckDB. Raises FileNotFoundError."""
    spec = find_spec("duckdb_extension_ducklake")
    places = list(spec.submodule_search_locations or ()) if spec else []
    name = f"extensions/v{duckdb.__version__}/ducklake.duckdb_extension"
    for place in places:
        if (path := Path(place) / name).is_file():
            return path
    raise FileNotFoundError(
        f"no DuckLake extension for DuckDB {duckdb.__version__}: "
        f"install duckdb-extension-ducklake=={duckdb.__version__}"
    )


def attach(connection: duckdb.DuckDBPyConnection, data_dir: Path) -> None:
    """Attach the lake under `data_dir`, made if need be, and give it its tables and columns.

    Raises duckdb.Error, FileNotFoundError and OSError.
    """
    folder = data_dir / FOLDER
    (folder / FILES).mkdir(parents=True, exist_ok=True)
    connection.execute(f"LOAD {_text(extension_path())}")
    connection.execute(
        f"ATTACH {_text(f'ducklake:{folder / CATALOGUE}')} AS lake "
        # The folder may have been moved: it is where the database is, not where it was.
        f"(DATA_PATH {_text(folder / FILES)}, OVERRIDE_DATA_PATH true)"
    )
    _create(connection)


def sealed_generation(connection: duckdb.DuckDBPyConnection, collector: str) -> int:
    """The newest generation of the collector that the lake holds; 0: none."""
    row = connection.execute(
        "SELECT max(generation) FROM lake.main.collectors WHERE collector = $1", [collector]
    ).fetchone()
    return int(row[0]) if row and row[0] is not None else 0


def is_not_sealed_sql(collector: str, generation: int) -> str:
    """A condition that holds for as long as the lake does not have the generation."""
    return (
        f"{generation} > coalesce((SELECT max(generation) FROM lake.main.collectors "
        f"WHERE collector = {_text(collector)}), 0)"
    )


def seal(
    cursor: duckdb.DuckDBPyConnection, collector: str, generation: int, sources: Mapping[str, str]
) -> dict[str, int]:
    """Copy a frozen generation into the lake, all its tables in one transaction; rows by table.

    `sources`: the hot table of each sealed table. A generation that is sealed already changes
    nothing. Raises StoreUnavailableError or RowsRefusedError, and then has changed nothing.
    """
    rows: dict[str, int] = {}
    try:
        cursor.execute("BEGIN")
        if sealed_generation(cursor, collector) >= generation:
            cursor.execute("ROLLBACK")
            return rows
        for name, source in sources.items():
            count = cursor.execute(
                f"INSERT INTO lake.main.{name} BY NAME SELECT * FROM {source} "
                f"ORDER BY {', '.join(TABLES[name].key)}"
            ).fetchone()
            rows[name] = int(count[0]) if count else 0
        cursor.execute("DELETE FROM lake.main.collectors WHERE collector = $1", [collector])
        cursor.execute(
            "INSERT INTO lake.main.collectors VALUES ($1, $2, now()::TIMESTAMP)",
            [collector, generation],
        )
        cursor.execute("COMMIT")
    except duckdb.Error as error:
        with suppress(duckdb.Error):
            cursor.execute("ROLLBACK")
        raise translated(error) from error
    return rows


def _create(connection: duckdb.DuckDBPyConnection) -> None:
    known = _columns(connection)
    statements = [] if "collectors" in known else list(_FIRST)
    for name in SEALED_TABLES:
        if name not in known:
            statements += _create_table_sql(TABLES[name])
            continue
        statements += [
            f"ALTER TABLE lake.main.{name} ADD COLUMN {column_sql(column)}"
            for column in stored_columns(TABLES[name])
            if column.name not in known[name]
        ]
    if not statements:
        return
    connection.execute("BEGIN")
    for statement in statements:
        connection.execute(statement)
    connection.execute("COMMIT")


_FIRST = (
    """CREATE TABLE lake.main.collectors (
        collector VARCHAR NOT NULL, generation BIGINT NOT NULL, sealed_at TIMESTAMP NOT NULL
    )""",
    "CALL lake.set_option('parquet_compression', 'zstd')",
    "CALL lake.set_option('parquet_version', '2')",
)


def _create_table_sql(table: Table) -> tuple[str, str]:
    columns = ", ".join(column_sql(column) for column in stored_columns(table))
    return (
        f"CREATE TABLE lake.main.{table.name} ({columns})",
        f"ALTER TABLE lake.main.{table.name} SET PARTITIONED BY (year(ts), month(ts), day(ts))",
    )


def _columns(connection: duckdb.DuckDBPyConnection) -> dict[str, set[str]]:
    known: dict[str, set[str]] = {}
    rows = connection.execute(
        "SELECT table_name, column_name FROM duckdb_columns() WHERE database_name = 'lake'"
    ).fetchall()
    for table, column in rows:
        known.setdefault(table, set()).add(column)
    return known


def _text(value: object) -> str:
    """A text as SQL writes it."""
    return "'" + str(value).replace("'", "''") + "'"
