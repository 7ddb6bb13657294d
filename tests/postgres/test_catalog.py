"""The catalogue as PostgreSQL's clients read it: psql, SQLAlchemy, pandas, asyncpg, and Grafana's queries."""

import shutil
import subprocess
from operator import attrgetter
from typing import Any

import asyncpg
import pandas as pd
import psycopg
import pytest
import sqlalchemy as sa

from gpuwarden.schema import TABLES, public_views, stored_columns
from gpuwarden_postgres.statements import split
from gpuwarden_postgres.types import column_type

VIEWS = {view.name for view in public_views()} | {"waste"}

Address = tuple[str, int]


@pytest.fixture
def psql(address: Address) -> Any:
    """What psql prints; what it complains of too."""
    if shutil.which("psql") is None:
        pytest.skip("psql is not installed (Debian: postgresql-client)")

    def ran(*commands: str, script: str = "") -> str:
        asked = [part for command in commands for part in ("-c", command)]
        base = ["psql", "-XAt", "-h", address[0], "-p", str(address[1]), "-U", "me", "gpuwarden"]
        done = subprocess.run(
            [*base, *asked], input=script, check=False, capture_output=True, text=True, timeout=120
        )
        return done.stdout + done.stderr

    return ran


def test_psql_lists_and_describes_what_there_is(psql: Any) -> None:
    relations = [line.split("|") for line in psql(r"\d").splitlines()]
    assert {(name, kind) for _, name, kind, _ in relations} == {
        *((name, "table") for name in TABLES),
        *((name, "view") for name in VIEWS),
    }
    assert {line.split("|")[1] for line in psql(r"\dt").splitlines()} == set(TABLES)
    assert {line.split("|")[1] for line in psql(r"\dv").splitlines()} == VIEWS
    assert psql(r"\l").startswith("gpuwarden|gpuwarden|UTF8|")
    assert psql(r"\dn") == "main|gpuwarden\n"
    assert psql(r"\df") == ""
    gpus = [line.split("|") for line in psql(r"\d gpus").splitlines()]
    assert ["gpu_uuid", "text", "", "not null", ""] in gpus
    assert ["last_seen_at", "timestamp without time zone", "", "", ""] in gpus
    assert [row[0] for row in gpus] == [c.name for c in stored_columns(TABLES["gpus"])]
    assert "Index on the node, for people" in psql(r"\d+ gpus")
    assert "QUALIFY" in psql(r"\sv nodes_now")


COMMANDS = (
    r"\d+ gpu_samples", r"\d+ nodes_now", r"\dt+", r"\dv+ *now", r"\l+", r"\dn+", r"\df+", r"\du", r"\dp", r"\dx", r"\di", r"\dT+",
    r"\dconfig", r"\db", r"\des", r"\do", r"\dC", r"\dd", r"\drds", r"\dP", r"\conninfo", r"\dt gpu*",
)  # fmt: skip


def test_no_command_of_psql_about_what_there_is_fails(psql: Any) -> None:
    said = psql(*COMMANDS)
    assert "ERROR" not in said and "FATAL" not in said


def test_psql_fetches_in_portions_and_prints_results(psql: Any) -> None:
    assert psql(r"\set FETCH_COUNT 10", "SELECT * FROM range(25)").count("\n") >= 25
    assert psql(script="SELECT gpu FROM gpu_samples \\gdesc") == "gpu|integer\n"
    assert psql(r"\copy (SELECT 1, NULL) TO STDOUT") == "1\t\\N\n"
    assert "LINE 1: SELECT nope" in psql("SELECT nope FROM gpus")


@pytest.fixture
def engine(address: Address) -> Any:
    made = sa.create_engine(f"postgresql+psycopg://me@{address[0]}:{address[1]}/gpuwarden")
    yield made
    made.dispose()


def test_sqlalchemy_inspects_all_of_it(engine: Any) -> None:
    inspector = sa.inspect(engine)
    assert inspector.get_schema_names() == ["information_schema", "main"]
    assert inspector.default_schema_name == "main"
    assert set(inspector.get_table_names()) == set(TABLES)
    assert set(inspector.get_view_names()) == VIEWS
    comments = {c["name"]: c["comment"] for c in inspector.get_columns("gpus")}
    assert comments["gpu"] == "Index on the node, for people; the UUID is the identity."
    assert str(inspector.get_table_comment("gpus")["text"]).startswith("One row per GPU.")
    for asked in ("indexes", "foreign_keys", "unique_constraints", "check_constraints"):
        assert getattr(inspector, f"get_{asked}")("gpus") == []
    assert inspector.has_table("gpus") and not inspector.has_table("nope")
    assert "host_samples" in inspector.get_view_definition("nodes_now")
    metadata = sa.MetaData()
    metadata.reflect(engine, views=True)
    for name, table in TABLES.items():
        columns = metadata.tables[name].columns
        assert [c.name for c in columns] == [c.name for c in stored_columns(table)]
        assert [not c.nullable for c in columns] == [c.required for c in stored_columns(table)]
    samples = metadata.tables["gpu_samples"]
    with engine.connect() as connection:
        asked = sa.select(sa.func.count()).where(samples.c.gpu.in_([1, 2]))
        assert connection.execute(asked).scalar() == 20


def test_pandas_reads_queries_and_tables(engine: Any) -> None:
    asked = sa.text("SELECT ts, gpu, util_percent FROM gpu_samples WHERE gpu < :most")
    frame = pd.read_sql(asked, engine, params={"most": 2})
    assert frame.shape == (20, 3)
    assert [kind.kind for kind in frame.dtypes] == ["M", "i", "f"]
    assert pd.read_sql_table("gpu_samples", engine, columns=["gpu"]).shape == (80, 1)
    assert [part.shape for part in pd.read_sql("FROM range(3)", engine, chunksize=2)] == [
        (2, 1),
        (1, 1),
    ]


async def test_asyncpg_learns_types_before_it_sends_values(address: Address) -> None:
    host, port = address
    connection = await asyncpg.connect(host=host, port=port, user="me", database="gpuwarden")
    try:
        sql = "SELECT gpu, count(*) n FROM gpu_samples WHERE gpu = ANY($1) AND node = $2 GROUP BY 1 ORDER BY 1 LIMIT $3"
        found = await connection.fetch(sql, [1, 2, 3], "n1", 2)
        assert [tuple(row) for row in found] == [(1, 10), (2, 10)]
        assert await connection.fetchval("SELECT $1", "text") == "text"
        assert await connection.fetchval("SELECT 2 * $1::INT", 4) == 8
        assert await connection.fetchval("SELECT [[1], [2]]") == "[[1], [2]]"
        assert await connection.fetchval("SELECT [DATE '2026-01-01', NULL]::VARCHAR[]") == [
            "2026-01-01",
            None,
        ]
        async with connection.transaction():
            rows = [
                row[0] async for row in connection.cursor("SELECT * FROM range(100)", prefetch=7)
            ]
        assert rows == list(range(100))
        await connection.reset()
    finally:
        await connection.close()


GRAFANA = """
-- Its query builder and health check, as its documentation and plugin have them.
SELECT current_setting('server_version_num')::int/100 as version;
SELECT quote_ident(table_name) as "table" FROM information_schema.tables WHERE
    quote_ident(table_schema) IN (SELECT CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i])
    END FROM generate_series(1, array_length(string_to_array(current_setting('search_path'),','),1))
    as i, string_to_array(current_setting('search_path'),',') s);
SELECT quote_ident(column_name) AS "column", data_type AS "type" FROM information_schema.columns
    WHERE quote_ident(table_name) = 'gpu_samples';
SELECT 1 FROM pg_extension WHERE extname = 'timescaledb';
SELECT floor(extract(epoch from ts)/60)*60 AS "time", node AS metric, avg(util_percent) AS util FROM
    gpu_samples WHERE ts BETWEEN '2026-03-01T12:00:00Z' AND '2026-03-01T13:00:00Z' GROUP BY 1, 2
    ORDER BY 1, 2;
SELECT ts AS time, util_percent FROM gpu_samples WHERE ts BETWEEN '2026-03-01T12:00:00Z' AND
    '2026-03-01T13:00:00Z' LIMIT 50;
SELECT extract(epoch from ts) >= 1772366400 AND extract(epoch from ts) <= 1772370000 FROM
    gpu_samples LIMIT 1;
SELECT DISTINCT node AS __text, node AS __value FROM gpu_samples;
"""
SUPERSET = """
-- Its charts and time filters on PostgreSQL, as its engine writes them (it lists tables through SQLAlchemy).
SELECT DATE_TRUNC('minute', ts) AS __timestamp, node AS node, AVG(util_percent) AS "AVG(util_percent)"
    FROM main.gpu_samples WHERE ts >= TO_TIMESTAMP('2026-03-01 12:00:00.000000', 'YYYY-MM-DD HH24:MI:SS.US')
    AND ts < TO_TIMESTAMP('2026-03-01 13:00:00.000000', 'YYYY-MM-DD HH24:MI:SS.US')
    GROUP BY DATE_TRUNC('minute', ts), node ORDER BY "AVG(util_percent)" DESC LIMIT 10000;
SELECT DATE_TRUNC('minute', ts) + INTERVAL '15 seconds' * FLOOR(EXTRACT(SECOND FROM ts) / 15) AS __timestamp,
    COUNT(*) AS count FROM main.gpu_samples GROUP BY 1 ORDER BY count DESC LIMIT 10000;
SELECT COUNT(*) FROM main.gpu_samples WHERE ts::DATE >= TO_DATE('2026-03-01', 'YYYY-MM-DD');
SELECT datname FROM pg_database WHERE datistemplate = false;
SELECT * FROM (SELECT node, gpu FROM gpus) AS virtual_table LIMIT 1000 OFFSET 0;
SELECT node FROM main.gpu_samples WHERE node ILIKE '%n1%' GROUP BY node ORDER BY node LIMIT 1000;
EXPLAIN SELECT count(*) FROM main.gpus;
"""
OTHERS = """
-- The drivers of Java, .NET and Python, and the tools that use them, once they have connected.
SET extra_float_digits = 3;
SELECT n.nspname = ANY(current_schemas(true)), n.nspname, t.typname FROM pg_catalog.pg_type t JOIN
    pg_catalog.pg_namespace n ON t.typnamespace = n.oid WHERE t.oid = 1114;
SELECT NULL AS TABLE_CAT, n.nspname AS TABLE_SCHEM, c.relname AS TABLE_NAME, CASE n.nspname ~ '^pg_'
    OR n.nspname = 'information_schema' WHEN true THEN 'SYSTEM TABLE' ELSE 'TABLE' END AS
    TABLE_TYPE, d.description AS REMARKS FROM pg_catalog.pg_namespace n, pg_catalog.pg_class c LEFT
    JOIN pg_catalog.pg_description d ON (c.oid = d.objoid AND d.objsubid = 0 and d.classoid =
    'pg_class'::regclass) WHERE c.relnamespace = n.oid AND c.relname LIKE 'gpu%' ORDER BY
    TABLE_TYPE, TABLE_SCHEM, TABLE_NAME;
SELECT oid, typname FROM pg_type WHERE typtype IN ('b', 'e') AND typelem = 0::oid;
SELECT a.attname, (SELECT n.nspname FROM pg_namespace n WHERE n.oid = c.relnamespace) FROM
    public.gpus g, pg_class c JOIN pg_attribute a ON a.attrelid = c.oid WHERE c.oid =
    'public.gpus'::regclass LIMIT 1;
SELECT table_schema, table_name FROM information_schema.role_table_grants WHERE privilege_type =
    'SELECT';
SELECT * FROM public.gpu_samples LIMIT 1;
SELECT public.gpu_samples.gpu FROM public.gpu_samples LIMIT 1;
SELECT current_schema(), current_database(), current_user, session_user, version();
SELECT pg_catalog.pg_get_viewdef('main.nodes_now'::regclass, true);
SELECT has_table_privilege('gpus', 'SELECT'), has_schema_privilege('main', 'USAGE');
SHOW transaction_read_only;
SELECT relname FROM pg_catalog.pg_class WHERE relkind = ANY('{r,v}') AND relname !~ '^gpu';
"""


def test_queries_of_other_clients_are_answered(connect: Any) -> None:
    connection, failures = connect(), []
    for sql in map(attrgetter("sql"), split(GRAFANA + SUPERSET + OTHERS)):
        try:
            connection.execute(sql, prepare=True)
        except Exception as error:  # noqa: BLE001  in every case the next one is tried
            failures.append((sql, str(error)))
    assert not failures


def test_times_that_are_read_by_a_format_are_those_times(connect: Any) -> None:
    sql = "SELECT count(*) FROM gpu_samples WHERE ts >= TO_TIMESTAMP('2026-03-01 12:00:08.500000', '{}')"
    connection = connect()
    assert connection.execute(sql.format("YYYY-MM-DD HH24:MI:SS.US")).fetchall() == [(8,)]
    with pytest.raises(psycopg.Error, match="to_timestamp"):
        connection.execute(sql.format("DD.MM.YYYY"))


def test_only_public_tables_are_shown(connect: Any) -> None:
    connection = connect()
    for sql in (
        "SELECT relname FROM pg_class",
        "SELECT table_name FROM information_schema.tables",
        "SELECT tablename FROM pg_tables UNION SELECT viewname FROM pg_views",
    ):
        assert {name for (name,) in connection.execute(sql)} == set(TABLES) | VIEWS


def test_types_of_columns_are_those_of_the_rows(connect: Any) -> None:
    connection = connect()
    told: dict[str, list[int]] = {}
    for name, oid in connection.execute(
        "SELECT c.relname, a.atttypid FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid ORDER BY 1, a.attnum"
    ):
        told.setdefault(name, []).append(oid)
    for name in sorted(set(TABLES) | VIEWS):
        described = connection.execute(f"SELECT * FROM {name} LIMIT 0").description
        assert [column.type_code for column in described] == told[name], name


def test_a_type_that_postgresql_lacks_is_text_or_json() -> None:
    kinds = {
        "VARCHAR": 25,
        "BIT": 25,
        "TIME WITH TIME ZONE": 25,
        "ENUM('a[]', 'b')": 25,
        "STRUCT(a INTEGER[])": 114,
        "STRUCT(a INTEGER)[]": 114,
        "INTEGER[][3]": 114,
        "INTEGER[3]": 1007,
        "JSON[]": 199,
        "DECIMAL(38,2)[]": 1231,
    }
    assert {name: column_type(name).oid for name in kinds} == kinds
