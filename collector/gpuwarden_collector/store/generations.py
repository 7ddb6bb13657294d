"""Hot tables come in generations: one is written, older ones are frozen until the lake has them.

A generation is one table for each sealed table, in the schema `hot`. `gpu_samples` and its like are
views: the lake, and every generation that the lake does not hold yet. A frozen generation asks the
lake itself whether it was sealed, in the reader's own snapshot of it. A reader looks at the hot
tables (through the view) before it looks at the lake, so it can find a generation in both, where the
condition keeps the hot one out, but never in neither.

A table that the lake has never held a row of is left out of the view while nothing can be sealed: of
such a table DuckLake asks its catalogue for each column anew, a quarter of a second for a wide one.
"""

from collections.abc import Collection, Iterator

import duckdb

from gpuwarden.schema import TABLES, UPSERTED, create_sql, stored_columns, views_sql
from gpuwarden_collector.store.lake import SEALED_TABLES, is_not_sealed_sql, tables_with_rows


def hot_table(name: str, generation: int) -> str:
    """The table of `name` in a generation."""
    return f"hot.{name}_{generation}"


def generations(connection: duckdb.DuckDBPyConnection) -> list[int]:
    """The generations that there are, oldest first; the last one is written."""
    rows = connection.execute("SELECT generation FROM internal.generations ORDER BY 1").fetchall()
    return [int(row[0]) for row in rows]


def begin_generation(connection: duckdb.DuckDBPyConnection, generation: int) -> None:
    """Make the tables of a new generation. In the caller's transaction."""
    connection.execute("INSERT INTO internal.generations VALUES ($1)", [generation])
    for name in SEALED_TABLES:
        connection.execute(create_sql(TABLES[name], as_name=hot_table(name, generation)))


def end_generation(connection: duckdb.DuckDBPyConnection, generation: int) -> None:
    """Drop what the lake holds. In the caller's transaction, which must make the views anew."""
    for name in SEALED_TABLES:
        connection.execute(f"DROP TABLE {hot_table(name, generation)}")
    connection.execute("DELETE FROM internal.generations WHERE generation = $1", [generation])
    connection.execute("DELETE FROM internal.doubtful WHERE generation = $1", [generation])


def create_views(connection: duckdb.DuckDBPyConnection, collector: str, *, is_shared: bool) -> None:
    """Make the public tables and views over what there is now. In the caller's transaction.

    `is_shared`: others seal into the lake as well, at any time.
    """
    existing = generations(connection)
    # With one generation alone, views are made anew before anything is sealed.
    is_still = len(existing) == 1 and not is_shared
    in_lake = tables_with_rows(connection) if is_still else frozenset(SEALED_TABLES)
    for name in SEALED_TABLES:
        parts = " UNION ALL ".join(_parts(name, existing, collector, in_lake))
        connection.execute(f"CREATE OR REPLACE VIEW main.{name} AS {parts}")
    for name in UPSERTED:
        connection.execute(create_sql(TABLES[name]))
    connection.execute(views_sql())


def _parts(
    name: str, existing: list[int], collector: str, in_lake: Collection[str]
) -> Iterator[str]:
    columns = ", ".join(column.name for column in stored_columns(TABLES[name]))
    if name in in_lake:
        yield f"SELECT {columns} FROM lake.main.{name}"
    for generation in existing[:-1]:
        hot = hot_table(name, generation)
        yield f"SELECT {columns} FROM {hot} WHERE {is_not_sealed_sql(collector, generation)}"
    # What is being written is in no lake: no need to ask.
    yield f"SELECT {columns} FROM {hot_table(name, existing[-1])}"
