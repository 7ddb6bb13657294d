"""Sessions as psycopg has them: values, parameters, transactions, cursors, errors, cancelling, limits."""

import threading
import time as clock
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Json
from tests.each import each

VALUES = """
SELECT 1::SMALLINT, 2::INTEGER, 3::BIGINT, 1.5::FLOAT, 2.5::DOUBLE, -1.50::DECIMAL(10, 2), 'ä\t"', true, 'a\\x00'::BLOB,
    DATE '2026-01-02', TIME '10:11:12.5', TIMESTAMP '2026-01-02 03:04:05.6', TIMESTAMPTZ '2026-01-02 03:04:05+00',
    INTERVAL '-1 month 2 days 3.5 seconds', 'fe26c6a3-6c14-4ec2-9cac-3f2ec69b0e02'::UUID, '{"a": 1}'::JSON,
    [1, 2, NULL], ['a', 'b,"c', ''], {'a': 1, 't': TIMESTAMP '2026-01-01'}, MAP {'k': 1}, (-170141183460469231731687303715884105728)::HUGEINT,
    340282366920938463463374607431768211455::UHUGEINT, NULL, [[1]], 'x'::ENUM ('x'), [TIMESTAMP '2026-01-01'],
    'nan'::DOUBLE, '-infinity'::FLOAT, 0.00012::DECIMAL(10, 5), 1::UTINYINT, []::INTEGER[], [1.5::DECIMAL(4, 1)],
    TIMESTAMP_NS '2026-01-02 03:04:05.123456789', TIMESTAMP '0001-01-01', 1e300
"""
UUID_ = UUID("fe26c6a3-6c14-4ec2-9cac-3f2ec69b0e02")


def naive(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC).replace(tzinfo=None)  # type: ignore[misc,arg-type]


EXPECTED = (
    *(1, 2, 3, 1.5, 2.5, Decimal("-1.50"), 'ä\t"', True, b"a\0", date(2026, 1, 2)),
    *(time(10, 11, 12, 500_000), naive(2026, 1, 2, 3, 4, 5, 600_000)),
    *(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), timedelta(days=-28, seconds=3.5), UUID_),
    *({"a": 1}, [1, 2, None], ["a", 'b,"c', ""], {"a": 1, "t": "2026-01-01T00:00:00.000Z"}),
    *({"k": 1}, Decimal(-(2**127)), Decimal(2**128 - 1), None, [[1]], "x", [naive(2026, 1, 1)]),
    *(float("nan"), float("-inf"), Decimal("0.00012"), 1, [], [Decimal("1.5")]),
    *(naive(2026, 1, 2, 3, 4, 5, 123_456), naive(1, 1, 1), 1e300),
)


@pytest.mark.parametrize("is_binary", [False, True])
def test_values_of_every_type_arrive_as_they_are(connect: Any, is_binary: bool) -> None:
    [row] = connect().execute(VALUES, binary=is_binary).fetchall()
    wrong = [(a, b) for a, b in zip(row, EXPECTED, strict=True) if repr(a) != repr(b)]
    assert not wrong


@pytest.mark.parametrize("is_binary", [False, True])
def test_infinite_times_and_those_that_no_text_has(connect: Any, is_binary: bool) -> None:
    connection = connect()
    for text in ("DATE 'infinity'", "TIMESTAMP '-infinity'"):
        with pytest.raises(psycopg.DataError, match=r"too large|too small"):
            connection.execute(f"SELECT {text}", binary=is_binary).fetchall()
    with pytest.raises(psycopg.Error, match=r"outside the years|too small|before year"):
        connection.execute(
            "SELECT TIMESTAMP '0044-03-15 (BC) 00:00:00'", binary=is_binary
        ).fetchall()


PARAMETERS = [
    (5, "SMALLINT"),
    (2**40, "BIGINT"),
    (1.5, "DOUBLE"),
    ("x", "VARCHAR"),
    (True, "BOOLEAN"),
    (naive(2026, 1, 1), "TIMESTAMP"),
    (date(2026, 1, 1), "DATE"),
    (time(1, 2, 3), "TIME"),
    (timedelta(days=1, seconds=3), "INTERVAL"),
    (Decimal("1.50"), "DECIMAL(3,2)"),
    (UUID_, "UUID"),
    (b"\0\xff", "BLOB"),
    ([1, 2], "SMALLINT[]"),
    ([1.5, None], "DOUBLE[]"),
]


@pytest.mark.parametrize("form", ["%t", "%b"])
def test_parameters_have_their_types(connect: Any, form: str) -> None:
    connection = connect()
    for value, sql_type in PARAMETERS:
        sql = f"SELECT {form}, typeof({form})"
        assert connection.execute(sql, (value, value)).fetchall() == [(value, sql_type)]
    json = connection.execute("SELECT %s::JSON->>'a'", (Json({"a": 1}),)).fetchall()
    assert json == [("1",)]


@each(
    "sql, params, count",
    [
        ("ts >= %s", (datetime(2026, 3, 1, 12, 0, 8, tzinfo=UTC),), 16),
        ("ts >= %s AND gpu = %s", ("2026-03-01T12:00:08Z", "3"), 2),
        ("gpu = ANY(%s)", ([1, 2],), 20),
        ("gpu_uuid = ANY(%s)", (["GPU-1", "GPU-2"],), 20),
        ("gpu_uuid = ANY('{GPU-1,GPU-2}')", (), 20),
        ("ts > %s::TIMESTAMP + %s", ("2026-03-01 12:00:00", timedelta(seconds=8)), 8),
        ("node LIKE %s AND gpu IN (%s, %s)", ("n%", 1, 2), 20),
    ],
)
def test_parameters_narrow_what_is_read(connect: Any, sql: str, params: Any, count: int) -> None:
    connection = connect()
    found = connection.execute(f"SELECT count(*) FROM gpu_samples WHERE {sql}", params)
    assert found.fetchall() == [(count,)]
    connection.close()


ERRORS = [
    ("SELECT * FRM gpus", "42601"),
    ("SELECT nope FROM gpus", "42703"),
    ("SELECT * FROM nope", "42P01"),
    ("SELECT sum(node) FROM gpus", "42883"),
    ("SELECT 'x'::INT", "22P02"),
    ("SELECT 'x'::TIMESTAMP", "22007"),
    ("SELECT 'pg_nope'::regclass", "42P01"),
    ("SELECT current_setting('nope')", "42704"),
    ("SELECT * FROM range(200000)", "54000"),
    ("INSERT INTO gpus VALUES (1)", "25006"),
    ("DROP TABLE gpus", "25006"),
    ("PRAGMA version", "25006"),
    ("ATTACH 'x'", "25006"),
    ("SET nope = 1", "42704"),
    ("SET default_transaction_read_only = off", "25006"),
    ("SET client_encoding = 'LATIN1'", "22023"),
    ("SET server_version = '1'", "55P02"),
    ("SELECT * FROM read_csv('/etc/passwd')", "42501"),
    ("SELECT * FROM lake.main.gpu_samples", "3F000"),
    ("SELECT * FROM own_settings", "42P01"),
    ("SELECT * FROM pg_catalog.own_settings", "3F000"),
    ("SELECT getenv('HOME')", "42501"),
    ("SELECT version(), getenv('HOME')", "42501"),
    ("SELECT * FROM pg_class, read_text('/etc/passwd')", "42501"),
    ("SELECT * FROM pg_class, duckdb_settings()", "42501"),
    ("COPY (SELECT getenv('HOME')) TO STDOUT", "42501"),
    ("COPY gpus TO '/tmp/x'", "0A000"),
]


def test_errors_have_their_sqlstate_and_leave_the_session_as_it_was(connect: Any) -> None:
    connection = connect()
    wrong = []
    for sql, sqlstate in ERRORS:
        for prepare in (False, True):
            with pytest.raises(psycopg.Error) as failed:
                connection.execute(sql, prepare=prepare)
            if failed.value.sqlstate != sqlstate:
                wrong.append((sql, failed.value.sqlstate, str(failed.value)))
    assert not wrong
    assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_an_error_points_at_its_place_in_what_was_sent(connect: Any) -> None:
    with pytest.raises(psycopg.Error) as failed:
        connect().execute("SELECT 1;\n SELECT\n  nope FROM gpus")
    assert failed.value.diag.statement_position == "21"
    assert failed.value.diag.message_hint == "did you mean node?"


def test_what_the_guard_refuses_is_refused_by_every_way(connect: Any) -> None:
    connection = connect(autocommit=False)
    forbidden = "SELECT * FROM read_text('/etc/passwd')"
    ways: list[Callable[[psycopg.Cursor[Any]], object]] = [
        lambda c: c.execute(forbidden),
        lambda c: c.execute(forbidden, prepare=True),
        lambda c: c.execute(f"SELECT 1; {forbidden}"),
        lambda c: c.execute(f"DECLARE c CURSOR FOR {forbidden}"),
        lambda c: c.execute(f"EXPLAIN ANALYZE {forbidden}"),
        lambda c: c.execute(f"SELECT oid::regclass FROM pg_class, ({forbidden})"),
        lambda c: list(c.stream(forbidden)),
        lambda c: c.copy(f"COPY ({forbidden}) TO STDOUT").__enter__().read(),
    ]
    for way in ways:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            way(connection.cursor())
        connection.rollback()


def test_a_transaction_that_has_failed_takes_nothing_until_it_ends(connect: Any) -> None:
    connection = connect(autocommit=False)
    with pytest.raises(psycopg.errors.UndefinedColumn):
        connection.execute("SELECT nope FROM gpus")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        connection.execute("SELECT 1")
    connection.rollback()
    assert connection.execute("SELECT 1").fetchall() == [(1,)]
    connection.commit()
    with connection.transaction():
        with pytest.raises(psycopg.Error), connection.transaction():
            connection.execute("SELECT nope")
        assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_rows_come_in_portions_of_cursors_and_portals(connect: Any) -> None:
    connection = connect(autocommit=False)
    with connection.cursor("portions") as cursor:
        cursor.itersize = 100
        cursor.execute("SELECT * FROM range(1050)")
        assert [row[0] for row in cursor] == list(range(1050))
    with connection.cursor("missing") as cursor, pytest.raises(psycopg.errors.InvalidCursorName):
        connection.execute("FETCH 1 FROM nobody")
    connection.rollback()
    with pytest.raises(psycopg.errors.NoActiveSqlTransaction):
        connect().execute("DECLARE c CURSOR FOR SELECT 1")


def test_statements_in_a_pipeline_are_answered_in_their_order(connect: Any) -> None:
    connection = connect()
    with connection.pipeline() as pipeline:
        first = connection.execute("SELECT 1")
        pipeline.sync()
        wrong = connection.execute("SELECT nope")
        skipped = connection.execute("SELECT 2")
        with pytest.raises(psycopg.errors.UndefinedColumn):
            pipeline.sync()
        last = connection.execute("SELECT 3")
        pipeline.sync()
        assert first.fetchall() == [(1,)]
        assert last.fetchall() == [(3,)]
    assert wrong.statusmessage is None and skipped.statusmessage is None


def test_several_statements_are_answered_and_an_error_ends_them(connect: Any) -> None:
    cursor = connect().execute("SELECT 1; SHOW server_version; BEGIN; SELECT 2; COMMIT")
    found = [cursor.statusmessage]
    while cursor.nextset():
        found.append(cursor.statusmessage)
    assert found == ["SELECT 1", "SHOW", "BEGIN", "SELECT 1", "COMMIT"]


def test_rows_are_copied_out_as_text(connect: Any) -> None:
    with connect().cursor().copy("COPY (SELECT 1, 'a\tb\\', NULL) TO STDOUT") as copy:
        assert b"".join(copy) == b"1\ta\\tb\\\\\t\\N\n"
    with connect().cursor().copy("COPY gpus TO STDOUT") as copy:
        assert len(list(copy.rows())) == 0


def test_settings_are_kept_and_told(connect: Any) -> None:
    connection = connect(application_name="mine")
    assert connection.execute("SHOW application_name").fetchall() == [("mine",)]
    connection.execute("SET application_name = 'other'")
    assert connection.info.parameter_status("application_name") == "other"
    notices: list[str] = []
    connection.add_notice_handler(lambda said: notices.append(str(said.message_primary)))
    connection.execute("SET TimeZone = 'Europe/Berlin'")
    assert notices == ["times are always shown as UTC, whatever timezone is"]
    assert connection.info.parameter_status("TimeZone") == "UTC"
    connection.execute("DISCARD ALL")
    assert connection.execute("SHOW application_name").fetchall() == [("",)]
    assert connection.info.server_version == 150_000


ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b"


def test_a_query_is_cancelled_within_a_second_and_the_session_goes_on(connect: Any) -> None:
    connection = connect()
    threading.Timer(0.3, connection.cancel_safe).start()
    began_s = clock.monotonic()
    with pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute(ENDLESS)
    assert clock.monotonic() - began_s < 2  # of which a second is for a machine that is busy
    assert connection.execute("SELECT 1").fetchall() == [(1,)]


def test_a_query_ends_after_the_time_that_the_client_gives_it(connect: Any) -> None:
    connection = connect()
    connection.execute("SET statement_timeout = '200ms'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute(ENDLESS)
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        connection.execute("SET statement_timeout = 'soon'")
