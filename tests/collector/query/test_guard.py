"""Only reading statements pass, and each refusal names what it refuses."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from tests.each import each

from gpuwarden.query import QueryError
from gpuwarden_collector.query import guard
from gpuwarden_collector.query.execute import Reading
from gpuwarden_collector.query.guard import Parsed
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_rules.definition.language import Rule, builtin_paths, load_all


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Database]:
    """One for all: nothing here may change it."""
    folder = tmp_path_factory.mktemp("guarded")
    shutil.copytree(empty_store, folder, dirs_exist_ok=True)
    opened = Database.open(folder, EngineLimits(memory="512MiB", threads=1))
    yield opened
    opened.close()


def judge(database: Database, sql: str) -> Parsed:
    guard.check_text(sql)
    reading = Reading(database)
    with reading.opened():
        parsed = reading.parse(sql)
    guard.check(parsed)
    return parsed


def refusal(database: Database, sql: str) -> str:
    with pytest.raises(QueryError) as refused:
        judge(database, sql)
    return str(refused.value)


@each(
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
        "SELECT node.upper() FROM gpuwarden.main.gpus",
        "SELECT column_name FROM gpuwarden.information_schema.columns",
        "SELECT * FROM (SHOW TABLES)",
        "SELECT COLUMNS(c -> c LIKE 'util%') FROM gpus_now",
        "SELECT comment FROM duckdb_columns() JOIN main.duckdb_tables() USING (table_name)",
        "SHOW ALL TABLES",
        "SHOW TABLES FROM main",
        "DESCRIBE",
        "FROM Gpus, NODES_NOW",
        'WITH "GPU hours" AS (SELECT 1), gpus AS (FROM "gpu HOURS") FROM GPUS',
        "SELECT (WITH a AS (SELECT 1) SELECT (FROM a))",
        "SELECT list_transform([1], lambda x: x + 1), [x FOR x IN [1]], {'a': 1}.a, [1][1:2]",
        "SELECT sum(1) OVER w, count(*) FILTER (true) OVER () WINDOW w AS (ORDER BY 1)",
        "SELECT 1e400, 'a' SIMILAR TO 'b', x'ff' FROM gpus_now ASOF JOIN nodes_now USING (node)",
        "\ufeffSELECT\u00a01",
    ],
)
def test_statements_that_only_read_are_allowed(database: Database, sql: str) -> None:
    judge(database, sql)


@each(
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
        ("TRUNCATE gpus", "not TRUNCATE"),
        ("COPY gpus TO 'x.csv'", "not COPY"),
        ("COPY (SELECT 1) TO '/tmp/x'", "not COPY"),
        ("EXPORT DATABASE 'x'", "not EXPORT"),
        ("ATTACH 'x.db'", "not ATTACH"),
        ("DETACH main", "not DETACH"),
        ("USE main", "not USE"),
        ("SET threads = 1", "not SET"),
        ("RESET threads", "not RESET"),
        ("SET VARIABLE x = 1", "not SET"),
        ("INSTALL httpfs", "not INSTALL"),
        ("LOAD httpfs", "not LOAD"),
        ("CHECKPOINT", "not CHECKPOINT"),
        ("CALL force_checkpoint()", "not CALL"),
        ("VACUUM", "not VACUUM"),
        ("ANALYZE", "not ANALYZE"),
        ("BEGIN", "not BEGIN"),
        ("COMMIT", "not COMMIT"),
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
        ("SELECT * FROM duckdb_settings", "table duckdb_settings does not exist or is not open"),
        ("SELECT * FROM pg_catalog.pg_tables", "schema pg_catalog is not open"),
        ("SELECT * FROM sqlite_master", "table sqlite_master does not exist or is not open"),
        ("SELECT * FROM system.main.duckdb_tables", "schema system.main is not open"),
        (
            "FROM system.main.duckdb_columns()",
            "table function duckdb_columns() may be called without a schema only",
        ),
        ("FROM described.comments", "schema described is not open"),
        ("DESCRIBE internal.ledger", "schema internal is not open"),
        ("SELECT getenv('HOME')", "function getenv() is not allowed"),
        ("SELECT current_setting('secret_directory')", "function current_setting() is not"),
        ("SELECT json_serialize_plan('FROM internal.ledger')", "json_serialize_plan() is not"),
        ("SELECT nextval('x')", "function nextval() is not allowed"),
        ("SELECT sleep_ms(1000)", "function sleep_ms() is not allowed"),
        ("SELECT repeat('x', 2000000000)", "function repeat() needs a constant length"),
        ("SELECT repeat('x', n) FROM range(9) t(n)", "function repeat() needs a constant length"),
        ("SELECT lpad('x', 100000000, 'y')", "function lpad() needs a constant length"),
        ("SELECT 1; DELETE FROM gpus", "only one statement is allowed"),
        ("WITH x AS (SELECT 1) INSERT INTO gpus FROM x", "only one statement is allowed"),
        ("EXPLAIN SELECT 1; SELECT 2", "only one statement is allowed, this has 2"),
        ("EXPLAIN", "EXPLAIN needs a SELECT after it"),
        ("EXPLAIN EXPLAIN SELECT 1", "EXPLAIN of anything but a SELECT"),
        ("EXPLAIN PIVOT gpus ON node", "PIVOT must name its values"),
        ("MERGE INTO gpus USING nodes ON true WHEN MATCHED THEN DELETE", "not MERGE"),
        ("SELECT 1\0; SELECT 2", "NUL character"),
        ("FROM lake.main.gpu_samples", "schema lake.main is not open"),
        ("FROM lake.gpu_samples", "schema lake is not open"),
        ("FROM memory.main.gpus", "schema memory.main is not open"),
        ('FROM "gpuwarden.main".gpus', "schema gpuwarden.main is not open"),
        ("FROM hot.gpu_samples_1", "schema hot is not open"),
        ("FROM lake.information_schema.tables", "schema lake.information_schema is not open"),
        ("FROM __ducklake_metadata_lake.ducklake_table", "__ducklake_metadata_lake is not open"),
        ("DESCRIBE lake.main.gpu_samples", "schema lake.main is not open"),
        ("SUMMARIZE lake.main.gpu_samples", "schema lake.main is not open"),
        ("FROM (DESCRIBE lake.main.gpu_samples)", "schema lake.main is not open"),
        ("SHOW TABLES FROM internal", "schema internal is not open"),
        ("SHOW TABLES FROM lake.main", "schema lake.main is not open"),
        ("FROM 'lake/data/x.parquet'", "table lake/data/x.parquet does not exist or is not open"),
        ("FROM '/etc/passwd.csv'", "table /etc/passwd.csv does not exist or is not open"),
        ("FROM 'x.duckdb'", "table x.duckdb does not exist or is not open"),
        ('DESCRIBE "x.parquet"', "table x.parquet does not exist or is not open"),
        ('FROM main."x.parquet"', "table x.parquet does not exist or is not open"),
        ('FROM information_schema."x.parquet"', "table x.parquet does not exist or is not open"),
        ("FROM database", "table database does not exist or is not open"),
        ("WITH a AS (SELECT 1) FROM main.a", "table a does not exist or is not open"),
        ("WITH a AS (FROM 'x.csv'), \"x.csv\" AS (SELECT 1) FROM a", "may not name a query x.csv"),
        ("WITH duckdb_logs AS (SELECT 1) SELECT 1", "may not name a query duckdb_logs"),
        ("FROM lake.set_option('a', 'b')", "table function set_option() is not allowed"),
        ("FROM lake.main.range(3)", "table function range() may be called without a schema only"),
        ("FROM ducklake_snapshots('lake')", "table function ducklake_snapshots() is not"),
        ("FROM postgres_scan('host=x', 'public', 't')", "function postgres_scan() is not allowed"),
        ("FROM enable_logging(storage_path => 'x')", "function enable_logging() is not allowed"),
        ("FROM sniff_csv('x')", "table function sniff_csv() is not allowed"),
        ("FROM duckdb_secrets()", "table function duckdb_secrets() is not allowed"),
        ("FROM histogram('gpus', 'node')", "table function histogram() is not allowed"),
        ("SELECT system.main.current_setting('threads')", "function current_setting() is not"),
        ("SELECT pg_catalog.pg_sleep(9)", "function pg_sleep() is not allowed"),
        ("SELECT no_such_function(1)", "no_such_function() is not allowed, or there is none"),
        ("SELECT " + "abs(" * 900 + "1" + ")" * 900, "nested too deeply"),
        ("SELECT " + "abs(" * 9000 + "1" + ")" * 9000, "memory exhausted"),
    ],
)
def test_anything_else_is_refused_by_name(database: Database, sql: str, reason: str) -> None:
    assert reason in refusal(database, sql)


@each(
    "around",
    [
        "SELECT {}",
        "SELECT -{}",
        "SELECT abs({})",
        "SELECT try({})",
        "SELECT CASE WHEN true THEN {} END",
        "SELECT [{}], {{'a': {}}}",
        "SELECT list_transform([1], lambda x: {})",
        "SELECT [{} FOR x IN [1]]",
        "SELECT COLUMNS(c -> {} = 'x') FROM gpus",
        "SELECT * REPLACE ({} AS node) FROM gpus",
        "SELECT DISTINCT ON ({}) 1",
        "SELECT sum(1) OVER (PARTITION BY {})",
        "SELECT sum(1) OVER w FROM gpus WINDOW w AS (ORDER BY {})",
        "SELECT lag(1, 1, {}) OVER ()",
        "SELECT array_agg(1 ORDER BY {})",
        "SELECT count(*) FILTER ({} = '1')",
        "VALUES (1), ({})",
        "FROM range({})",
        "FROM gpus JOIN nodes ON {} = '1'",
        "FROM gpus WHERE {} = '1'",
        "SELECT 1 GROUP BY GROUPING SETS (({}))",
        "SELECT 1 HAVING {} = '1'",
        "FROM gpus QUALIFY {} = '1'",
        "FROM gpus ORDER BY {}",
        "FROM gpus LIMIT {}",
        "FROM gpus OFFSET {}",
        "PIVOT gpus ON node IN ('a') USING max({})",
        "PIVOT gpus ON node || {} IN ('a') USING count(*)",
        "WITH x AS (SELECT {}) SELECT 1",
        "WITH RECURSIVE x AS (SELECT 1 UNION ALL SELECT {} FROM x) SELECT 1",
        "SELECT 1 UNION SELECT {}",
        "FROM gpus, LATERAL (SELECT {})",
        "DESCRIBE SELECT {}",
        "SUMMARIZE SELECT {}",
        "EXPLAIN ANALYZE SELECT {}",
    ],
)
def test_a_forbidden_function_is_seen_wherever_it_stands(database: Database, around: str) -> None:
    sql = around.replace("{{", "{").replace("}}", "}").replace("{}", "current_setting('threads')")
    assert "function current_setting() is not allowed" in refusal(database, sql)
    assert "function sleep_ms() is not allowed" in refusal(
        database, sql.replace("current_setting('threads')", "SLEEP_MS(1)")
    )


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT 1", set()),
        ("SELECT $a, '$b', $$ $c $$ -- $d", {"a"}),
        ("EXPLAIN ANALYZE SELECT $a LIMIT $b OFFSET $c", {"a", "b", "c"}),
        ("WITH x AS (SELECT $a) FROM x WHERE EXISTS (FROM range($b)) AND $a", {"a", "b"}),
        ("SELECT ?, ?", {"1", "2"}),
        ("SELECT sum($a) OVER (ROWS $b PRECEDING) FROM gpus USING SAMPLE 3", {"a", "b"}),
    ],
)
def test_parameters_are_those_of_the_tree(database: Database, sql: str, names: set[str]) -> None:
    assert judge(database, sql).parameters == names


@pytest.mark.parametrize(
    ("sql", "runs"),
    [
        ("SELECT 1 -- x", "SELECT 1 -- x"),
        ("\u00a0SELECT\u20031", "\u00a0SELECT\u20031"),
        ("explain select 1", "EXPLAIN select 1"),
        ("; /* a */ EXPLAIN\u00a0ANALYSE\u200b\tSELECT 1;", "EXPLAIN ANALYZE \u200b\tSELECT 1;"),
        (
            "EXPLAIN(ANALYZE, FORMAT\u00a0'JSON')FROM gpus",
            "EXPLAIN (ANALYZE, FORMAT JSON) FROM gpus",
        ),
        ("EXPLAIN -- ANALYZE\n (SELECT 1)", "EXPLAIN (SELECT 1)"),
    ],
)
def test_what_runs_is_what_was_judged_behind_an_explain_of_our_own(
    database: Database, sql: str, runs: str
) -> None:
    assert judge(database, sql).sql == runs


BLANKS = ["\u00a0", *map(chr, range(0x2000, 0x200C)), *"\u202f\u205f\u2060\u3000\ufeff"]
"""What DuckDB takes for blanks beyond ASCII."""


@each("blank", BLANKS)
@each(
    ("call", "name"),
    [
        ("ducklake_delete_orphaned_files('lake', cleanup_all => true)", "delete_orphaned_files()"),
        ("postgres_execute('__ducklake_metadata_lake', 'DROP TABLE x')", "postgres_execute()"),
        ("force_checkpoint()", "force_checkpoint()"),
    ],
)
def test_blanks_of_unicode_hide_nothing(
    database: Database, blank: str, call: str, name: str
) -> None:
    # Read without these blanks, one name and then a SELECT of a text between dollars.
    hidden = f"EXPLAIN{blank}ANALYZE{blank}SELECT{blank}$$ SELECT $$, * FROM {call} -- $$"
    for sql in (hidden, hidden.removeprefix(f"EXPLAIN{blank}ANALYZE{blank}")):
        assert name in refusal(database, sql)
        assert name in refusal(database, sql.replace(" ", blank))


@pytest.fixture(scope="module")
def called() -> Iterator[tuple[duckdb.DuckDBPyConnection, list[str]]]:
    """A database without a guard, and the calls of its function sentinel()."""
    calls: list[str] = []

    def sentinel() -> int:
        calls.append("sentinel")
        return 1

    with duckdb.connect() as connection:
        connection.create_function("sentinel", sentinel, [], "INTEGER", side_effects=True)
        connection.execute("SELECT sentinel()")
        assert calls
        yield connection, calls


HEADS = st.one_of(
    st.just("SELECT"),
    st.sampled_from(
        ["SELECT 1,", "SELECT DISTINCT", "SELECT ALL 1,", "WITH x AS (SELECT 1) SELECT"]
    ),
    st.sampled_from(
        ["PRAGMA", "CALL", "PREPARE p AS SELECT", "SELECT 1;", "SELECT 1", "(", "FROM"]
    ),
)
EXPLAINS = st.just("") | st.sampled_from(
    ["EXPLAIN", "explain analyze", "EXPLAIN ANALYSE", "EXPLAIN VERBOSE", "EXPLAIN EXPLAIN"]
    + ["EXPLAIN (ANALYZE)", "EXPLAIN(FORMAT json)", "EXPLAIN (ANALYZE, FORMAT 'text')"]
    + ["EXPLAIN --", "/* EXPLAIN", "-- \r EXPLAIN ANALYZE", "EXPLAIN /* */ ANALYZE"]
)
NOISE = st.lists(
    st.sampled_from(BLANKS)
    | st.sampled_from(" \n\r\t\v\f'\"$\\é1,;()")
    | st.sampled_from(["''", "$$", "$a$", "--", "/*", "*/", "E'", "x'", "SELECT", "AS", "EXPLAIN"]),
    max_size=2,
)
QUOTES = st.sampled_from(
    [
        ("", ""),
        ("'", "'"),
        ("$$", "$$"),
        ("$a$", "$a$"),
        ('1 AS "', '"'),
        ("1 --", "\n"),
        ("/*", "*/ 1"),
    ]
)
SPACES = st.sampled_from([" ", "\u00a0", "\u200b", "\n", ""])


def quoted(text: str, quotes: tuple[str, str]) -> str:
    return quotes[0] + text + quotes[1]


DISGUISED = st.builds(
    lambda explain, head, before, quotes, after, space: space.join(
        [explain, head, *before, quoted(" sentinel() ", quotes), *after]
    ).replace(" ", space or " "),
    *(EXPLAINS, HEADS, NOISE, QUOTES, NOISE, SPACES),
)


@settings(max_examples=200)
@given(DISGUISED)
@example("EXPLAIN\u00a0ANALYZE\u00a0SELECT\u00a0$$ SELECT $$, sentinel() -- $$")
@example("EXPLAIN ANALYZE\u2003(SELECT\u2003$$ SELECT $$, sentinel()) -- $$")
@example("EXPLAIN ANALYZE SELECT 1; SELECT sentinel()")
@example("SELECT 1 \u00a0-- \n; SELECT sentinel()")
@example("PRAGMA table_info(sentinel())")
def test_no_disguise_makes_a_forbidden_function_run(
    database: Database,
    called: tuple[duckdb.DuckDBPyConnection, list[str]],
    sql: str,
) -> None:
    unguarded, calls = called
    calls.clear()
    try:
        parsed = judge(database, sql)
    except QueryError:
        event("refused")
        return
    event("allowed")
    statements = unguarded.extract_statements(parsed.sql)
    assert [s.type.name for s in statements] == [
        "EXPLAIN" if parsed.word == "EXPLAIN" else "SELECT"
    ]
    try:
        unguarded.execute(parsed.sql).fetchall()
    except duckdb.Error:
        event("allowed, and wrong")
    assert not calls


@pytest.mark.parametrize(
    "sql",
    [
        "PRAGMA json_execute_serialized_sql(sleep_ms(20000)::VARCHAR)",
        "PRAGMA json_execute_serialized_sql(current_setting('temp_directory'))",
        "PRAGMA import_database(current_setting('temp_directory'))",
        "PRAGMA\u00a0json_execute_serialized_sql(repeat('x', 3000000000))",
        "EXPLAIN PRAGMA table_info(current_setting('temp_directory'))",
        "SELECT 1; PRAGMA json_execute_serialized_sql(current_setting('temp_directory'))",
        "CALL json_execute_serialized_sql(current_setting('temp_directory'))",
        "SET threads = current_setting('temp_directory')",
    ],
)
def test_nothing_is_run_to_judge_a_query(database: Database, sql: str) -> None:
    said = refusal(database, sql)
    assert "allowed" in said
    assert str(database.data_dir) not in said


@each("rule", load_all(builtin_paths()))
def test_each_built_in_rule_may_ask_what_it_asks(database: Database, rule: Rule) -> None:
    assert judge(database, rule.sql).sql == rule.sql


def test_each_query_that_a_page_or_remedy_gives_may_be_asked(database: Database) -> None:
    root = Path(__file__).parents[3]
    pages = [root / "README.md", *(root / "docs").rglob("*.md"), *builtin_paths()]
    asked = [
        sql for page in pages for sql in re.findall(r'gpuwarden sql "(.+?)"', page.read_text())
    ]
    assert asked
    for sql in asked:
        judge(database, sql.replace("''' || node || '''", "'n1'"))


def test_a_name_that_looks_like_a_file_is_not_read_even_without_the_guard(
    database: Database,
) -> None:
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
        guard.check_text("x" * 100_001)


def test_a_query_that_lists_tables_is_answered_by_the_engine_alone(database: Database) -> None:
    for of in ("gpus_now, duckdb_columns()", "information_schema.tables", "(SHOW TABLES)"):
        assert not guard.is_plainly_named(judge(database, f"SELECT * FROM {of}"))
    assert guard.is_plainly_named(judge(database, "SELECT * FROM gpus_now, range(3)"))


NAMES_A_ROLE = "is a function of DuckDB; the column is `username`"


@each("name", ["user", "current_user", "session_user", "current_role", "USER"])
@each("call", ["{0}", '"{0}"', "{0}()", "lower({0})"])
def test_a_function_is_no_column_of_people(database: Database, name: str, call: str) -> None:
    sql = f"SELECT {call.format(name)}, sum(usd) FROM waste_1h GROUP BY ALL"
    with pytest.raises(QueryError, match=f"^`{name.lower()}` {NAMES_A_ROLE}$") as refused:
        judge(database, sql)
    assert refused.value.offset == sql.lower().index(
        call.format(name).lower().removeprefix("lower(")
    )


@each(
    "sql",
    [
        'SELECT "user" FROM (SELECT \'ada\' AS "user")',
        'SELECT "user" FROM (VALUES (\'ada\')) v("user")',
        'WITH who("user") AS (SELECT \'ada\') SELECT "user" FROM who',
        "SELECT 'ada' AS user ORDER BY user",
    ],
)
def test_a_query_may_name_a_column_of_its_own_user(database: Database, sql: str) -> None:
    judge(database, sql)
    reading = Reading(database)
    with reading.opened():
        assert reading.run(sql, {}, 2).data.to_pylist() == [{"user": "ada"}]


@each(
    "sql",
    [
        "WITH a AS (SELECT 'ada' AS user), b AS (SELECT user FROM range(1)) FROM b",
        'SELECT (SELECT user FROM range(1)) FROM (SELECT 1 AS n) JOIN (SELECT 1 AS n) AS "user" USING (n)',
    ],
)
def test_a_column_of_another_scope_is_no_person(database: Database, sql: str) -> None:
    judge(database, sql)
    reading = Reading(database)
    with reading.opened(), pytest.raises(QueryError, match=NAMES_A_ROLE):
        reading.run(sql, {}, 2)
