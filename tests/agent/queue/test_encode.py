"""Bodies of batches, read back with the library that collectors use."""

import math
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.fakes import decode_body

from gpuwarden.metrics import Type
from gpuwarden.schema import WIRE_TABLES
from gpuwarden.table import Column
from gpuwarden_agent.queue.encode import encode
from gpuwarden_agent.queue.rows import RowError

ARROW = {
    Type.TIMESTAMP: pa.timestamp("ms"),
    Type.STRING: pa.string(),
    Type.BOOL: pa.bool_(),
    Type.INT16: pa.int16(),
    Type.INT32: pa.int32(),
    Type.INT64: pa.int64(),
    Type.FLOAT32: pa.float32(),
    Type.FLOAT64: pa.float64(),
}
VALUES: dict[Type, st.SearchStrategy[Any]] = {
    Type.TIMESTAMP: st.integers(0, 4_000_000_000_000),
    Type.STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    Type.BOOL: st.booleans(),
    Type.INT16: st.integers(-(2**15), 2**15 - 1),
    Type.INT32: st.integers(-(2**31), 2**31 - 1),
    Type.INT64: st.integers(-(2**63), 2**63 - 1),
    Type.FLOAT32: st.floats(width=32, allow_nan=False, allow_infinity=False),
    Type.FLOAT64: st.floats(allow_nan=False, allow_infinity=False),
}


def cells(column: Column) -> st.SearchStrategy[Any]:
    return VALUES[column.type] if column.required else st.none() | VALUES[column.type]


def rows_of(name: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    columns = WIRE_TABLES[name].columns
    row = st.fixed_dictionaries(
        {c.name: cells(c) for c in columns if c.required},
        optional={c.name: cells(c) for c in columns if not c.required},
    )
    return st.lists(row, min_size=1, max_size=4)


BATCHES = st.fixed_dictionaries({}, optional={name: rows_of(name) for name in WIRE_TABLES})


@given(batch=BATCHES)
@settings(max_examples=12, deadline=None)
def test_what_goes_in_comes_out_with_the_contracts_schema(
    batch: dict[str, list[dict[str, Any]]],
) -> None:
    tables = decode_body(encode(batch))
    assert set(tables) == set(batch)
    for name, rows in batch.items():
        columns = WIRE_TABLES[name].columns
        assert [(f.name, f.type) for f in tables[name].schema] == [
            (c.name, ARROW[c.type]) for c in columns
        ]
        for column in columns:
            values = tables[name].column(column.name)
            got = (values.cast(pa.int64()) if column.type is Type.TIMESTAMP else values).to_pylist()
            assert got == [row.get(column.name) for row in rows]


HOST = {"ts": 1, "node": "n", "simulated": False}


@pytest.mark.parametrize(
    ("table", "row", "named"),
    [
        ("host_samples", {**HOST, "gpu_uuid": "x"}, "gpu_uuid"),
        ("host_samples", {**HOST, "load_1m": "1.5"}, "load_1m"),
        ("host_samples", {**HOST, "load_1m": True}, "load_1m"),
        ("host_samples", {**HOST, "node": None}, "node"),
        ("host_samples", {**HOST, "ts": 1.0}, "ts"),
        ("host_samples", {**HOST, "node": "\udc80"}, "node"),
        ("alerts", HOST, "alerts"),
        ("gpu_samples", {**HOST, "gpu_uuid": "g", "gpu": 2**40}, "gpu"),
    ],
)
def test_a_row_that_no_table_has_is_named(table: str, row: dict[str, Any], named: str) -> None:
    with pytest.raises(RowError, match=named):
        encode({table: [row]})


def test_tables_without_rows_are_left_out() -> None:
    assert list(decode_body(encode({"events": [], "host_samples": [HOST]}))) == ["host_samples"]


def test_a_flipped_bit_is_noticed_by_the_checksum() -> None:
    body = bytearray(encode({"host_samples": [{**HOST, "node": "n" * 2000}]}))
    body[-1] ^= 1
    with pytest.raises(Exception, match="(?i)checksum|corrupt"):
        decode_body(bytes(body))


def test_float32_columns_keep_float32_precision() -> None:
    row = {**HOST, "gpu_uuid": "g", "power_watts": 312.7}
    got = decode_body(encode({"gpu_samples": [row]}))["gpu_samples"]["power_watts"][0].as_py()
    assert got == struct.unpack("f", struct.pack("f", 312.7))[0]
    assert math.isclose(got, 312.7, rel_tol=1e-6)
