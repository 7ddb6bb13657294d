"""Queries may name all that DuckDB and the store have, but for what is known to be refused."""

from gpuwarden_collector.query.allowed_names import FUNCTIONS, INFORMATION, TABLES
from gpuwarden_collector.query.execute import Reading
from gpuwarden_collector.storage.database import Database

REFUSED_FUNCTIONS = """
    col_description constant_or_null create_sort_key current_connection_id current_query
    current_query_id current_setting current_transaction_id currval format_pg_type format_type
    get_block_size getvariable in_search_path is_histogram_other_bin json_deserialize_sql
    json_serialize_plan json_serialize_sql map_to_pg_oid nextval obj_description
    parse_duckdb_log_message remap_struct setseed shobj_description sleep_ms stats
    timetz_byte_comparable txid_current variant_bytes_to_variant variant_normalize
    variant_to_parquet_variant vector_type write_log
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


def test_each_view_of_information_schema_is_open(database: Database) -> None:
    with database.reading() as cursor:
        rows = cursor.execute(
            "SELECT view_name FROM duckdb_views() WHERE schema_name = 'information_schema'"
        ).fetchall()
    assert {name for (name,) in rows} == INFORMATION
