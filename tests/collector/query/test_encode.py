"""Every SQL type comes out as Python, JSON, CSV, Arrow and Parquet."""

import io
import json
import math
import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.query import TRUNCATED, QueryError
from gpuwarden_collector.query.encode import ResultRows, python_rows
from gpuwarden_collector.query.execute import Reading
from gpuwarden_collector.query.formats import encoder_of
from gpuwarden_collector.query.port import Ending
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Database]:
    """One for all tests of this module: they only read."""
    folder = tmp_path_factory.mktemp("result")
    shutil.copytree(empty_store, folder, dirs_exist_ok=True)
    opened = Database.open(folder, EngineLimits(memory="512MiB", threads=1))
    yield opened
    opened.close()


def encoded(form: str, rows: ResultRows, elapsed_s: float) -> bytes:
    """Encode all rows at once. Raises QueryError."""
    encoder = encoder_of(form, rows.data.schema, rows.types)
    body = encoder.begin()
    if rows.data.num_rows:
        body += encoder.rows(rows.data)
    return body + encoder.end(Ending(rows.data.num_rows, rows.truncated, elapsed_s))


def rows_of(database: Database, sql: str) -> ResultRows:
    reading = Reading(database)
    with reading.opened():
        return reading.run(sql, {}, 1000)


@pytest.mark.parametrize(
    ("sql", "value", "in_json"),
    [
        ("NULL", None, None),
        ("true", True, True),
        ("1::TINYINT", 1, 1),
        ("9223372036854775807", 2**63 - 1, 2**63 - 1),
        ("170141183460469231731687303715::HUGEINT", 170141183460469231731687303715, None),
        ("340282366920938463463374607431768211455::UHUGEINT", 2**128 - 1, None),
        ("1.5::FLOAT", 1.5, 1.5),
        ("1.25", 1.25, 1.25),
        ("'NaN'::DOUBLE", pytest.approx(float("nan"), nan_ok=True), None),
        ("'-inf'::DOUBLE", float("-inf"), None),
        ("'é, \"x\"'", 'é, "x"', 'é, "x"'),
        ("TIMESTAMP '2026-01-01'", AT, "2026-01-01T00:00:00.000Z"),
        ("TIMESTAMP_MS '2026-01-01'", AT, "2026-01-01T00:00:00.000Z"),
        ("TIMESTAMP_NS '2026-01-01'", AT, "2026-01-01T00:00:00.000Z"),
        ("TIMESTAMPTZ '2026-01-01 01:00:00+01'", AT, "2026-01-01T00:00:00.000Z"),
        ("DATE '2026-01-01'", date(2026, 1, 1), "2026-01-01"),
        ("TIME '10:00'", time(10), "10:00:00"),
        ("INTERVAL 90 SECOND", timedelta(seconds=90), 90.0),
        ("'\\xAA'::BLOB", b"\xaa", "aa"),
        ("[1, NULL]", [1, None], [1, None]),
        ("{'a': TIMESTAMP '2026-01-01'}", {"a": AT}, {"a": "2026-01-01T00:00:00.000Z"}),
        ("MAP {'k': 1.5}", {"k": 1.5}, {"k": 1.5}),
        ("[['NaN'::DOUBLE]]", [[pytest.approx(float("nan"), nan_ok=True)]], [[None]]),
        ("'x'::ENUM('x', 'y')", "x", "x"),
    ],
)
def test_each_type_of_value_has_its_python_and_json_form(
    database: Database, sql: str, value: Any, in_json: Any
) -> None:
    rows = rows_of(database, f"SELECT {sql} AS value")
    assert python_rows(rows) == [(value,)]
    body = json.loads(encoded("json", rows, 0.5))
    assert body["columns"] == [{"name": "value", "type": rows.types[0]}]
    assert body["rows"] == [[value if "HUGEINT" in sql else in_json]]
    assert encoded("csv", rows, 0).startswith(b"value\n")
    read = pa.ipc.open_stream(encoded("arrow", rows, 0)).read_all()
    assert (read.schema, str(read)) == (rows.data.schema, str(rows.data))
    stored = ResultRows(pq.read_table(io.BytesIO(encoded("parquet", rows, 0))), rows.types, False)
    if sql.startswith("INTERVAL"):
        assert stored.data.to_pylist() == [{"value": in_json}]
    elif "HUGEINT" in sql:
        assert stored.data.to_pylist() == [{"value": str(value)}]
    else:
        assert python_rows(stored) == [(value,)]


@pytest.mark.parametrize(
    "sql",
    [
        "TIMESTAMP 'infinity'",
        "TIMESTAMP '294247-01-10'",
        "TIMESTAMPTZ '-infinity'",
        "DATE '5877642-06-25 (BC)'",
        "INTERVAL '99999999 years'",
        "[TIMESTAMP '290308-12-21 (BC)']",
        "{'a': DATE 'infinity'}",
    ],
)
def test_what_python_cannot_hold_is_named_with_its_column(database: Database, sql: str) -> None:
    rows = rows_of(database, f"SELECT 1 AS one, {sql} AS late")
    with pytest.raises(QueryError, match="column late has a .* cast it to VARCHAR"):
        python_rows(rows)
    for form in ("csv", "json", "ndjson"):
        with pytest.raises(QueryError, match="column late has a .* cast it to VARCHAR"):
            encoded(form, rows, 0)
    assert pa.ipc.open_stream(encoded("arrow", rows, 0)).read_all().num_rows == 1


def test_what_parquet_and_ndjson_cannot_hold_is_said(database: Database) -> None:
    twice = rows_of(database, "SELECT 1 AS a, 2 AS a")
    for form in ("parquet", "ndjson"):
        with pytest.raises(QueryError, match="two columns have the name a"):
            encoded(form, twice, 0)
    with pytest.raises(QueryError, match="cast it to VARCHAR"):
        encoded("parquet", rows_of(database, "SELECT [INTERVAL 1 DAY] AS a"), 0)


PARTS = ResultRows(
    pa.table(
        {
            "n": pa.array(range(800)),
            "name": [f"x{n}" for n in range(800)],
            "list": [[n] for n in range(800)],
            "ts": pa.array([AT.replace(tzinfo=None)] * 800, pa.timestamp("us")),
            "took": pa.array([pa.MonthDayNano([0, n, 0]) for n in range(800)]),
            "kind": pa.array(["a", "b"] * 400).dictionary_encode(),
        }
    ),
    ("BIGINT", "VARCHAR", "BIGINT[]", "TIMESTAMP", "INTERVAL", "ENUM('a', 'b')"),
    False,
)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 400), max_size=4), st.booleans())
def test_parts_say_together_what_the_whole_says(sizes: list[int], truncated: bool) -> None:
    whole = PARTS.data.slice(0, min(sum(sizes), PARTS.data.num_rows))
    ending = Ending(whole.num_rows, truncated, 0.5)
    for form in ("json", "ndjson", "csv", "arrow", "parquet"):
        encoder = encoder_of(form, whole.schema, PARTS.types)
        body, at = encoder.begin(), 0
        for size in sizes:
            if part := whole.slice(at, size):
                body += encoder.rows(part)
            at += size
        body += encoder.end(ending)
        said = encoded(form, ResultRows(whole, PARTS.types, truncated), 0.5)
        assert read_back(form, body) == read_back(form, said)
        assert (TRUNCATED.encode() in body[-2_000:]) == (truncated and form != "json")


def read_back(form: str, body: bytes) -> Any:
    if form == "arrow":
        return pa.ipc.open_stream(body).read_all().to_pylist()
    if form == "parquet":
        return pq.read_table(io.BytesIO(body)).to_pylist()
    return body


CELLS = st.tuples(
    st.none() | st.text(),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.floats(width=32),
    st.none() | st.floats(),
    st.none() | st.booleans(),
    st.lists(st.text(), max_size=2),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(CELLS, min_size=1, max_size=5))
def test_json_is_what_a_json_reader_reads(cells: list[tuple[Any, ...]]) -> None:
    kinds = (pa.string(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.list_(pa.string()))
    columns = [pa.array(list(c), k) for c, k in zip(zip(*cells, strict=True), kinds, strict=True)]
    data = pa.table(columns, names=[f'"{n}' for n in range(len(kinds))])
    rows = ResultRows(data, ("VARCHAR", "BIGINT", "FLOAT", "DOUBLE", "BOOLEAN", "VARCHAR[]"), False)

    def known(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    expected = [[known(value) for value in row] for row in cells]
    found = json.loads(encoded("json", rows, 0))["rows"]
    for row in found:  # the shortest text of a FLOAT is not the DOUBLE that it is
        row[2] = None if row[2] is None else float(np.float32(row[2]))
    assert found == expected
    lines = [json.loads(line) for line in encoded("ndjson", rows, 0).decode().split("\n")[:-1]]
    for line in lines:
        line['"2'] = None if line['"2'] is None else float(np.float32(line['"2']))
    assert lines == [dict(zip(data.schema.names, row, strict=True)) for row in expected]


def test_a_type_that_arrow_lacks_is_an_error_of_the_query(database: Database) -> None:
    with pytest.raises(QueryError, match="VARIANT"):
        rows_of(database, "SELECT 1::VARIANT")


def test_json_says_whether_rows_were_cut(database: Database) -> None:
    rows = rows_of(database, "SELECT * FROM range(2)")
    assert json.loads(encoded("json", ResultRows(rows.data, rows.types, True), 0.25)) == {
        "columns": [{"name": "range", "type": "BIGINT"}],
        "rows": [[0], [1]],
        "truncated": True,
        "elapsed_s": 0.25,
    }


def test_csv_has_plain_values_and_others_as_they_are(database: Database) -> None:
    rows = rows_of(
        database,
        """SELECT * FROM (VALUES
            (1::TINYINT, 1.0::DOUBLE, 0.1::FLOAT, 'a,b"c', TIMESTAMP '2026-01-02 03:04:05.6789', true, [1, 2]),
            (NULL, 'nan', '-inf'::FLOAT, '', TIMESTAMP '1969-12-31 23:59:59.9999', NULL, []),
            (3, -2.5, 1e30::FLOAT, E'l\nx', NULL, false, NULL))""",
    )
    assert encoded("csv", rows, 0).decode().partition("\n")[2] == (
        '1,1.0,0.1,"a,b""c",2026-01-02T03:04:05.678Z,true,"[1,2]"\n'
        ",,,,1969-12-31T23:59:59.999Z,,[]\n"
        '3,-2.5,1e+30,"l\nx",,false,\n'
    )
    nothing = rows_of(database, "SELECT NULL AS a UNION ALL SELECT ''")
    assert encoded("csv", nothing, 0) == b'a\n""\n""\n'
