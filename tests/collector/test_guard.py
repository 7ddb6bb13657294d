"""Only reading statements pass, and each refusal names what it refuses."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwarden.query import QueryError
from gpuwarden_collector import guard
from gpuwarden_collector.store.database import Database, Limits
from gpuwarden_collector.store.reading import Reading


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Database]:
    """One for all: nothing here may change it."""
    folder = tmp_path_factory.mktemp("guarded")
    shutil.copytree(empty_store, folder, dirs_exist_ok=True)
    opened = Database.open(folder, Limits(memory="512MiB", threads=1))
    yield opened
    opened.close()


def judge(database: Database, sql: str) -> None:
    reading = Reading(database)
    with reading.opened():
        guard.check(reading.parse(sql))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "select * from gpu_samples;",
        "-- a comment\nSELECT 1 -- and another",
        "FROM gpus",
        "TABLE gpus",
        "VALUES (1), (2)",
        "WITH x AS (SELECT 1) SELECT * FROM x",
        "WITH RECURSIVE x AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM x WHERE n < 5) FROM x",
        "SELECT * FROM main.gpus_now UNION ALL SELECT * FROM gpus_now",
        "SELECT * FROM range(10), generate_series(1, 3), unnest([1, 2])",
        "SELECT unnest([1, 2])",
        "SELECT * FROM information_schema.tables",
        "DESCRIBE gpus",
        "DESCRIBE SELECT 1",
        "SHOW TABLES",
        "SUMMARIZE gpus",
        "EXPLAIN SELECT * FROM gpus",
        "/* why */ EXPLAIN /* now */ ANALYZE SELECT 1",
        "EXPLAIN (FORMAT json) SELECT 'é'",
        "EXPLAIN (ANALYZE, FORMAT json) SELECT 1",
        "EXPLAIN (SELECT 1)",
        "EXPLAIN ANALYZE (SELECT 1)",
        ";; EXPLAIN ANALYSE/* ( */((SELECT 1))",
        "PIVOT gpus ON node IN ('a', 'b') USING count(*)",
        "SELECT repeat('-', 20), lpad('x', 10, ' ')",
        "SELECT $now::TIMESTAMP - INTERVAL 1 HOUR",
        "SELECT json_extract(labels, '$.team') FROM nodes",
    ],
)
def test_reading_is_allowed(database: Database, sql: str) -> None:
    judge(database, sql)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("", "the query is empty"),
        ("-- nothing", "the query is empty"),
        ("SELECT 1; SELECT 2", "only one statement is allowed, this has 2"),
        ("SELEC 1", "syntax error"),
        ("INSERT INTO gpus VALUES (1)", "not INSERT"),
        ("UPDATE gpus SET node = 'x'", "not UPDATE"),
        ("DELETE FROM gpu_samples", "not DELETE"),
        ("CREATE TABLE x (a INT)", "not CREATE"),
        ("CREATE TEMP TABLE x AS SELECT 1", "not CREATE"),
        ("DROP TABLE gpus", "not DROP"),
        ("ALTER TABLE gpus ADD COLUMN x INT", "not ALTER"),
        ("TRUNCATE gpus", "not DELETE"),
        ("COPY gpus TO 'x.csv'", "not COPY"),
        ("COPY (SELECT 1) TO '/tmp/x'", "not COPY"),
        ("EXPORT DATABASE 'x'", "not EXPORT"),
        ("ATTACH 'x.db'", "not ATTACH"),
        ("DETACH main", "not DETACH"),
        ("USE main", "not SET"),
        ("SET threads = 1", "not SET"),
        ("RESET threads", "not SET"),
        ("SET VARIABLE x = 1", "not SET"),
        ("INSTALL httpfs", "not LOAD"),
        ("LOAD httpfs", "not LOAD"),
        ("CHECKPOINT", "not CALL"),
        ("CALL force_checkpoint()", "not CALL"),
        ("VACUUM", "not VACUUM"),
        ("ANALYZE", "not VACUUM"),
        ("BEGIN", "not TRANSACTION"),
        ("COMMIT", "not TRANSACTION"),
        ("PREPARE x AS SELECT 1", "not PREPARE"),
        ("EXECUTE x", "not EXECUTE"),
        ("PRAGMA database_list", "PRAGMA is not allowed"),
        ("PRAGMA table_info('gpus')", "PRAGMA is not allowed"),
        ("PIVOT gpus ON node USING count(*)", "PIVOT must name its values"),
        ("EXPLAIN INSERT INTO gpus VALUES (1)", "EXPLAIN of anything but a SELECT"),
        ("EXPLAIN ANALYZE DELETE FROM gpus", "EXPLAIN of anything but a SELECT"),
        ("EXPLAIN ANALYZE CREATE TABLE x AS SELECT 1", "EXPLAIN of anything but a SELECT"),
        ("SELECT * FROM read_csv('/etc/passwd')", "table function read_csv() is not allowed"),
        ("SELECT * FROM read_text('/etc/passwd')", "table function read_text() is not allowed"),
        ("SELECT * FROM READ_PARQUET('x')", "table function read_parquet() is not allowed"),
        ("SELECT * FROM glob('*')", "table function glob() is not allowed"),
        ("SELECT * FROM duckdb_settings()", "table function duckdb_settings() is not allowed"),
        ("SELECT * FROM force_checkpoint('x')", "table function force_checkpoint() is not"),
        ("SELECT * FROM query('DROP TABLE gpus')", "table function query() is not allowed"),
        ("SELECT * FROM query_table('gpus')", "table function query_table() is not allowed"),
        ("SELECT (SELECT max(size) FROM read_text('x'))", "table function read_text() is not"),
        ("WITH x AS (FROM glob('*')) FROM x", "table function glob() is not allowed"),
        ("EXPLAIN SELECT * FROM glob('*')", "table function glob() is not allowed"),
        ("EXPLAIN ANALYZE SELECT * FROM glob('*')", "table function glob() is not allowed"),
        ("EXPLAIN ANALYZE (FROM glob('*'))", "table function glob() is not allowed"),
        ("EXPLAIN ANALYZE (SELECT * FROM internal.ledger)", "schema internal is not open"),
        ("EXPLAIN ((FROM internal.ledger))", "schema internal is not open"),
        ("EXPLAIN (FORMAT json) (FROM internal.ledger)", "schema internal is not open"),
        ("EXPLAIN (ANALYZE) DELETE FROM gpus", "EXPLAIN of anything but a SELECT"),
        ("EXPLAIN -- (\n ANALYZE DELETE FROM gpus", "EXPLAIN of anything but a SELECT"),
        ("DESCRIBE SELECT * FROM glob('*')", "table function glob() is not allowed"),
        ("SELECT * FROM gpus WHERE node IN (SELECT file FROM glob('*'))", "glob() is not allowed"),
        ("PIVOT (FROM glob('*')) ON file IN ('a')", "table function glob() is not allowed"),
        ("SELECT * FROM internal.ledger", "schema internal is not open"),
        ("SELECT * FROM gpuwarden.internal.ledger", "schema gpuwarden.internal is not open"),
        ("SELECT * FROM duckdb_settings", "duckdb_settings is not open"),
        ("SELECT * FROM pg_catalog.pg_tables", "schema pg_catalog is not open"),
        ("SELECT * FROM sqlite_master", "sqlite_master is not open"),
        ("SELECT * FROM system.main.duckdb_tables", "schema system.main is not open"),
        ("DESCRIBE internal.ledger", "schema internal is not open"),
        ("SELECT getenv('HOME')", "function getenv() is not allowed"),
        ("SELECT current_setting('secret_directory')", "function current_setting() is not"),
        ("SELECT json_serialize_plan('FROM internal.ledger')", "json_serialize_plan() is not"),
        ("SELECT nextval('x')", "function nextval() is not allowed"),
        ("SELECT sleep_ms(1000)", "function sleep_ms() is not allowed"),
        ("SELECT repeat('x', 2000000000)", "function repeat() needs a constant length"),
        ("SELECT repeat('x', n) FROM range(9) t(n)", "function repeat() needs a constant length"),
        ("SELECT lpad('x', 100000000, 'y')", "function lpad() needs a constant length"),
        ("SELECT " + "abs(" * 900 + "1" + ")" * 900, "nested too deeply"),
        ("SELECT " + "abs(" * 9000 + "1" + ")" * 9000, "memory exhausted"),
    ],
)
def test_anything_else_is_refused_by_name(database: Database, sql: str, reason: str) -> None:
    with pytest.raises(QueryError) as refused:
        judge(database, sql)
    assert reason in str(refused.value)


def test_a_table_function_that_looks_like_a_file_is_not_read(database: Database) -> None:
    reading = Reading(database)
    with reading.opened(), pytest.raises(QueryError, match="disabled|does not exist"):
        reading.run("SELECT * FROM '/etc/passwd.csv'", {}, 10)


@pytest.mark.parametrize("sql", ["CREATE TABLE x (a INT)", "DELETE FROM gpus"])
def test_the_transaction_refuses_writes_even_without_the_guard(
    database: Database, sql: str
) -> None:
    reading = Reading(database)
    with reading.opened(), pytest.raises(QueryError, match="read-only"):
        reading.run(sql, {}, 10)


def test_a_text_too_long_to_parse_is_refused() -> None:
    with pytest.raises(QueryError, match="most is 100000"):
        guard.check_length("x" * 100_001)
