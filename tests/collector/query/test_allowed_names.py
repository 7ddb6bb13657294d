"""Queries may name all that DuckDB and the store have, except what is known to be refused."""

from gpuwarden_collector.query import guard
from gpuwarden_collector.query.allowed_names import FUNCTIONS, INFORMATION, TABLES
from gpuwarden_collector.query.execute import Reading
from gpuwarden_collector.storage.database import Database

REFUSED_FUNCTIONS = """
    can_cast_implicitly cast_to_type col_description combine constant_or_null create_sort_key current_connection_id current_query
    current_query_id current_setting current_transaction_id currval current_role current_user
    finalize format_pg_type format_type
    get_block_size get_type getvariable in_search_path is_histogram_other_bin json_deserialize_sql
    json_serialize_plan json_serialize_sql make_type map_to_pg_oid murmur3_32 nextval obj_description session_user
    parse_duckdb_log_message remap_struct replace_type setseed shobj_description sleep_ms stats
    timetz_byte_comparable txid_current user variant_bytes_to_variant variant_extract variant_normalize
    variant_to_parquet_variant variant_typeof vector_type write_log
"""
REFUSED_FAMILIES = ("__internal_", "has_", "icu_", "inet_", "pg_", "st_")


def test_each_function_of_duckdb_is_either_allowed_or_known_to_be_refused(
    database: Database,
) -> None:
    with database.reading() as cursor:
        rows = cursor.execute(
            "SELECT DISTINCT lower(function_name) FROM duckdb_functions() "
            "WHERE function_type IN ('scalar', 'aggregate', 'macro')"
        ).fetchall()
    there_are = {name for (name,) in rows if not name.startswith(REFUSED_FAMILIES)}
    assert there_are - FUNCTIONS == set(REFUSED_FUNCTIONS.split())
    assert FUNCTIONS - there_are == {"unlist", "unnest"}  # the binder's own


def test_all_that_show_tables_lists_is_open_and_nothing_else(database: Database) -> None:
    reading = Reading(database)
    with reading.opened():
        shown = reading.run("SHOW TABLES", {}, 1_000).data.column(0).to_pylist()
    assert set(shown) == TABLES


def rows_of(database: Database, sql: str) -> list[tuple[object, ...]]:
    """What a query says that the guard has judged."""
    reading = Reading(database)
    with reading.opened():
        guard.check(reading.parse(sql))
        data = reading.run(sql, {}, 10_000).data
    return [tuple(row.values()) for row in data.to_pylist()]


def test_every_public_table_and_column_has_a_comment_and_no_other_is_listed(
    database: Database,
) -> None:
    tables = rows_of(
        database,
        "SELECT database_name, schema_name, table_name, comment FROM duckdb_tables() UNION ALL "
        "SELECT database_name, schema_name, view_name, comment FROM duckdb_views()",
    )
    columns = rows_of(
        database,
        "SELECT database_name, schema_name, table_name, column_name, comment FROM duckdb_columns()",
    )
    assert {row[2] for row in tables} == TABLES == {row[2] for row in columns}
    assert {row[:2] for row in (*tables, *columns)} == {("gpuwarden", "main")}
    assert [row for row in (*tables, *columns) if not row[-1]] == []
    said = {(table, column): comment for _, _, table, column, comment in columns}
    of = "Board power at the instant of reading. Unit: watts. Source: NVML field 186."
    assert (
        said["gpu_samples", "power_instant_watts"] == said["gpus_now", "power_instant_watts"] == of
    )
    assert said["gpu_1m", "power_watts_max"] == "Greatest power_watts. Unit: watts."


def test_information_schema_shows_the_public_tables_and_nothing_else(database: Database) -> None:
    of = "SELECT table_catalog, table_schema, table_name FROM information_schema."
    for view in ("tables", "columns"):
        found = rows_of(database, of + view)
        assert {row[:2] for row in found} == {("gpuwarden", "main")}
        assert {row[2] for row in found} == TABLES
    schemata = "SELECT catalog_name, schema_name FROM information_schema.schemata"
    assert rows_of(database, schemata) == [("gpuwarden", "main")]
    views = rows_of(database, "SELECT view_definition FROM information_schema.views")
    assert [
        text for (text,) in views if text and ("lake." in str(text) or " hot_" in str(text))
    ] == []
    assert rows_of(database, "SELECT comment FROM duckdb_tables() WHERE table_name = 'nodes'") == [
        ("One row per node. Key: node.",)
    ]


def test_each_view_of_information_schema_is_open(database: Database) -> None:
    with database.reading() as cursor:
        rows = cursor.execute(
            "SELECT view_name FROM system.main.duckdb_views() WHERE schema_name = 'information_schema'"
        ).fetchall()
    assert {name for (name,) in rows} == INFORMATION
