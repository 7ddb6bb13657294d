"""Texts are cut where PostgreSQL's lexer would, and statements about the session are understood."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.each import each

from gpuwarden_postgres.statements import (
    STATEMENTS_MAX,
    CommandKind,
    StatementError,
    command_of,
    split,
    tokens_of,
    without_type_schema,
)


@each(
    "sql, found",
    [
        ("select 1; select 2", ["select 1", "select 2"]),
        (" ; ;select 1;; ", ["select 1"]),
        ("select ';' ; select \"a;b\"", ["select ';'", 'select "a;b"']),
        ("select 'it''s; ok'", ["select 'it''s; ok'"]),
        ("select E'a\\';b'; select 2", ["select E'a\\';b'", "select 2"]),
        ("select $$a;b$$; select $x$ ; $$ ; $x$", ["select $$a;b$$", "select $x$ ; $$ ; $x$"]),
        ("select 1 -- ; no\n; select 2", ["select 1", "select 2"]),
        ("select /* ; /* ; */ ; */ 1; select 2", ["select /* ; /* ; */ ; */ 1", "select 2"]),
        ("select $1; select $2", ["select $1", "select $2"]),
        ("select 'open; select 2", ["select 'open", "select 2"]),
        ("", []),
        ("-- nothing", []),
    ],
)
def test_statements_are_cut_at_semicolons_that_are_none_of_a_text(
    sql: str, found: list[str]
) -> None:
    assert [statement.sql for statement in split(sql)] == found
    assert all(sql[s.start :].startswith(s.sql) for s in split(sql))


@given(st.text(max_size=60))
def test_tokens_of_any_text_are_where_they_say(sql: str) -> None:
    tokens = tokens_of(sql)
    assert all(sql[token.start : token.end] == token.text for token in tokens)
    split(sql)


def test_a_long_text_that_nearly_fits_takes_no_longer_than_one_that_does() -> None:
    for sql in ("'" * 100_001, "$" * 100_000, "/*" * 50_000, "a$" * 50_000, '"' * 100_001):
        tokens_of(sql)


def test_statements_are_bounded_in_number() -> None:
    with pytest.raises(StatementError, match="most is"):
        split("select 1;" * (STATEMENTS_MAX + 1))


@each(
    "sql, kind, name, value",
    [
        ("BEGIN READ ONLY", CommandKind.BEGIN, "", None),
        ("start transaction isolation level serializable", CommandKind.BEGIN, "", None),
        ("end", CommandKind.COMMIT, "", None),
        ("ABORT", CommandKind.ROLLBACK, "", None),
        ("rollback to savepoint a", CommandKind.ROLLBACK_TO, "", None),
        ("release savepoint a", CommandKind.SAVEPOINT, "", None),
        ("SET application_name = 'a b'", CommandKind.SET, "application_name", "a b"),
        ('SET SESSION search_path TO a, "B"', CommandKind.SET, "search_path", "a, B"),
        ("set local timezone to default", CommandKind.SET, "timezone", None),
        ("SET TIME ZONE 'UTC'", CommandKind.SET, "timezone", "UTC"),
        ("SET NAMES 'utf8'", CommandKind.SET, "client_encoding", "utf8"),
        ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", CommandKind.NOTHING, "", None),
        ("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", CommandKind.NOTHING, "", None),
        ("SHOW TRANSACTION ISOLATION LEVEL", CommandKind.SHOW, "transaction_isolation", None),
        ("show all", CommandKind.SHOW, "", None),
        ("SHOW TABLES", CommandKind.QUERY, "", None),
        ("RESET ALL", CommandKind.RESET, "", None),
        ('DEALLOCATE PREPARE "A b"', CommandKind.DEALLOCATE, "A b", None),
        ("UNLISTEN *", CommandKind.NOTHING, "", None),
        ("CLOSE ALL", CommandKind.CLOSE, "", None),
        ("insert into gpus values (1)", CommandKind.QUERY, "", None),
        ("(select 1)", CommandKind.QUERY, "", None),
    ],
)
def test_a_statement_about_the_session_is_recognised(
    sql: str, kind: CommandKind, name: str, value: str | None
) -> None:
    command = command_of(split(sql)[0])
    assert (command.kind, command.name, command.value) == (kind, name, value)


def test_cursors_and_copies_name_their_query() -> None:
    declared = command_of(split('DECLARE "c" NO SCROLL CURSOR FOR select 1')[0])
    assert (declared.name, declared.sql, declared.start) == ("c", "select 1", 33)
    fetched = command_of(split("FETCH FORWARD 100 FROM c")[0])
    assert (fetched.name, fetched.rows_max) == ("c", 100)
    assert command_of(split("FETCH ALL c")[0]).rows_max == 0
    assert command_of(split("COPY (select ';') TO STDOUT")[0]).sql == "select ';'"
    assert command_of(split('COPY main."gpus" TO STDOUT')[0]).sql == 'FROM main."gpus"'


@each(
    "sql, sqlstate",
    [
        ("BEGIN READ WRITE", "25006"),
        ("DECLARE c SCROLL CURSOR FOR select 1", "0A000"),
        ("DECLARE c CURSOR WITH HOLD FOR select 1", "0A000"),
        ("DECLARE c CURSOR FOR", "42601"),
        ("FETCH BACKWARD 1 FROM c", "0A000"),
        ("MOVE 1 FROM c", "0A000"),
        ("COPY gpus FROM STDIN", "0A000"),
        ("COPY gpus TO '/tmp/x'", "0A000"),
        ("COPY gpus TO STDOUT WITH CSV", "0A000"),
        ("PREPARE a AS select 1", "0A000"),
        ("LISTEN x", "0A000"),
        ("SET x", "42601"),
        ("SET ROLE admin", "42501"),
    ],
)
def test_what_is_not_known_is_refused_by_its_sqlstate(sql: str, sqlstate: str) -> None:
    with pytest.raises(StatementError) as refused:
        command_of(split(sql)[0])
    assert refused.value.sqlstate == sqlstate


def test_blanks_stand_for_the_schema_of_a_type_and_nothing_moves() -> None:
    sql = "select a::pg_catalog.text, cast(b as pg_catalog.text), 'x::pg_catalog.text' from pg_catalog.pg_class"
    blank = " " * len("pg_catalog.")
    expected = sql.replace("a::pg_catalog.", f"a::{blank}").replace("as pg_catalog.", f"as {blank}")
    assert without_type_schema(sql) == expected
