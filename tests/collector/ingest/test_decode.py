"""Bodies become tables in the catalogue's types, or are refused with table and column."""

import struct
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from gpuwarden.schema import EVENTS, GPU_SAMPLES
from gpuwarden.wire import DECODED_BYTES_MAX, ROWS_MAX
from gpuwarden_collector.ingest.decode import WIRE_SCHEMAS, Decoded, RefusedBody, decode


def replaced(wire: Any, column: str, values: Any, rows: int = 2) -> pa.Table:
    """A valid gpu_samples table with one column replaced."""
    table = wire.table("gpu_samples", [wire.gpu_row(second=s) for s in range(rows)])
    return table.set_column(table.schema.get_field_index(column), column, values)


def decoded(wire: Any, table: pa.Table, name: str = "gpu_samples") -> Decoded | RefusedBody:
    return decode(wire.zstd(wire.written(table, name)), "zstd")


def test_two_streams_of_one_table_are_one_table(wire: Any) -> None:
    body = wire.stream("gpu_samples", [wire.gpu_row(0)]) + wire.stream(
        "gpu_samples", [wire.gpu_row(1)]
    )
    result = decode(body, "identity")
    assert isinstance(result, Decoded)
    assert result.tables["gpu_samples"]["gpu_uuid"].to_pylist() == ["GPU-0", "GPU-1"]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("memory_used_bytes", pa.array([1, 2], pa.int32())),
        ("memory_used_bytes", pa.array([1, 2], pa.uint32())),
        ("energy_joules_total", pa.array([1.5, 2.5], pa.float32())),
        ("power_watts", pa.array([1.5, 2.5], pa.float16())),
        ("node", pa.array(["n1", "n1"], pa.large_string())),
        ("node", pa.array(["n1", "n1"]).dictionary_encode()),
        ("mig_instance", pa.nulls(2)),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_widening_that_loses_nothing_is_accepted(wire: Any, column: str, values: Any) -> None:
    result = decoded(wire, replaced(wire, column, values))
    assert isinstance(result, Decoded), result
    stored = result.tables["gpu_samples"][column]
    assert stored.type == WIRE_SCHEMAS["gpu_samples"].field(column).type
    assert stored.to_pylist() == values.to_pylist()


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_timestamps_in_other_units_and_zones_are_the_same_instants(
    wire: Any, unit: str, zone: str | None
) -> None:
    instants = pa.array([wire.now, wire.now + timedelta(seconds=1)], pa.timestamp(unit, "UTC"))
    sent = instants.cast(pa.timestamp(unit, zone))
    result = decoded(wire, replaced(wire, "ts", sent))
    assert isinstance(result, Decoded), result
    naive = [wire.now.replace(tzinfo=None) + timedelta(seconds=s) for s in (0, 1)]
    assert result.tables["gpu_samples"]["ts"].to_pylist() == naive


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("power_watts", pa.array(["1", "2"]), "gpu_samples.power_watts is string, must be float"),
        ("power_watts", pa.array([1.0, 2.0]), "gpu_samples.power_watts is double, must be float"),
        ("power_watts", pa.array([1, 2]), "gpu_samples.power_watts is int64, must be float"),
        ("gpu", pa.array([1, 2], pa.int64()), "gpu_samples.gpu is int64, must be int32"),
        ("node", pa.array([1, 2]), "gpu_samples.node is int64, must be string"),
        ("node", pa.array([b"a", b"b"]), "gpu_samples.node is binary, must be string"),
        ("ts", pa.array([1, 2]), "gpu_samples.ts is int64, must be timestamp[ms]"),
        (
            "memory_used_bytes",
            pa.array([1, 2**63], pa.uint64()),
            "gpu_samples.memory_used_bytes is uint64 and does not fit int64",
        ),
        (
            "ts",
            pa.array([1_772_366_400_000_001] * 2, pa.timestamp("us")),
            "gpu_samples.ts is timestamp[us] and does not fit timestamp[ms]",
        ),
        (
            "node",
            pa.array([1, 1]).dictionary_encode(),
            "gpu_samples.node is dictionary<values=int64, indices=int32, ordered=0>, must be",
        ),
    ],
)
def test_a_wrong_type_is_refused_by_name(wire: Any, column: str, values: Any, reason: str) -> None:
    result = decoded(wire, replaced(wire, column, values))
    assert isinstance(result, RefusedBody)
    assert result.status == 422
    assert result.reason.startswith(reason)


def test_unknown_columns_are_left_out_and_named(wire: Any) -> None:
    table = wire.table("gpu_samples", [wire.gpu_row()])
    newer = table.append_column("warp_factor", pa.array([9.9]))
    newer = newer.add_column(0, "nested", pa.array([{"a": [1, 2]}]))
    result = decoded(wire, newer)
    assert isinstance(result, Decoded), result
    assert result.unknown_columns == {("gpu_samples", "warp_factor"), ("gpu_samples", "nested")}
    assert result.tables["gpu_samples"].equals(table)


def test_missing_optional_columns_become_null(wire: Any) -> None:
    names = [c.name for c in GPU_SAMPLES.columns if c.required]
    table = wire.table("gpu_samples", [wire.gpu_row()]).select(names[::-1])
    result = decoded(wire, table)
    assert isinstance(result, Decoded)
    assert result.tables["gpu_samples"]["util_percent"].to_pylist() == [None]
    assert result.tables["gpu_samples"].schema.equals(WIRE_SCHEMAS["gpu_samples"])


@pytest.mark.parametrize("column", ["ts", "node", "gpu_uuid", "simulated"])
def test_a_missing_required_column_is_refused_by_name(wire: Any, column: str) -> None:
    table = wire.table("gpu_samples", [wire.gpu_row()])
    result = decoded(wire, table.drop_columns([column]))
    assert result == RefusedBody(422, f"gpu_samples lacks the required column {column}")


@pytest.mark.parametrize(
    ("body", "encoding", "status", "reason"),
    [
        (b"", "", 400, "the body is empty"),
        (b"", "zstd", 400, "the body is empty"),
        (b"garbage that is long enough", "", 400, "is not an Arrow IPC stream"),
        (b"garbage", "zstd", 400, "zstd frame 1 is damaged"),
        (b"x", "br", 415, "Content-Encoding 'br' is not known"),
        (bytes(DECODED_BYTES_MAX + 1), "", 413, "more than"),
    ],
)
def test_bodies_that_are_no_batches(body: bytes, encoding: str, status: int, reason: str) -> None:
    result = decode(body, encoding)
    assert isinstance(result, RefusedBody)
    assert result.status == status
    assert reason in result.reason


def test_unknown_and_unnamed_tables_are_refused(wire: Any) -> None:
    table = wire.table("gpu_samples", [wire.gpu_row()])
    unknown = decode(wire.written(table, "alerts"), "")
    assert isinstance(unknown, RefusedBody)
    assert unknown.reason.startswith("unknown table 'alerts'; known: gpu_samples")
    unnamed = decode(wire.written(table.replace_schema_metadata(None)), "")
    assert isinstance(unnamed, RefusedBody)
    assert "stream 1 has no 'gpuwarden.table'" in unnamed.reason


def test_columns_that_stand_twice_are_refused(wire: Any) -> None:
    table = wire.table("gpu_samples", [wire.gpu_row()])
    twice = table.append_column("util_percent", pa.array([1.0], pa.float32()))
    assert decoded(wire, twice) == RefusedBody(422, "gpu_samples has columns twice: util_percent")


def test_too_many_rows_are_refused(wire: Any) -> None:
    rows = ROWS_MAX + 1
    table = pa.table({"node": pa.array(["n"] * rows), "simulated": pa.array([True] * rows)})
    result = decoded(wire, table, "nodes")
    assert isinstance(result, RefusedBody)
    assert result.status == 413


def test_a_dictionary_cannot_stand_for_more_text_than_a_body_may_hold(wire: Any) -> None:
    long = pa.DictionaryArray.from_arrays(
        pa.array([0] * 1000, pa.int32()), pa.array(["x" * 1_000_000])
    )
    result = decoded(wire, replaced(wire, "node", long, rows=1000))
    assert isinstance(result, RefusedBody)
    assert result.status == 413


def overlapping(wire: Any, text_bytes: int) -> bytes:
    """An events stream whose six texts all lie in the bytes of the first.

    The writer does not make such, so the places of the buffers are changed in its metadata: there
    is an (offset, length) for validity, offsets and data of a text, validity and data of the rest.
    """
    texts = ("node", "gpu_uuid", "kind", "severity", "message", "details")
    row = {"ts": wire.now, "simulated": False, **dict.fromkeys(texts, "x")}
    raw = wire.stream("events", [{**row, "node": "x" * text_bytes}])
    start = 8 + struct.unpack_from("<i", raw, 4)[0]
    body = start + 8 + struct.unpack_from("<i", raw, start + 4)[0]
    metadata = bytearray(raw[start:body])
    at = next(
        at
        for at in range(0, len(metadata) - 15, 8)
        if struct.unpack_from("<q", metadata, at + 8)[0] == text_bytes
    )
    node = metadata[at - 16 : at + 16]  # its offsets and its data
    at -= 4 * 16  # the first buffer: validity of ts
    for column in EVENTS.columns:
        if column.name in texts:
            metadata[at + 16 : at + 48] = node
        at += 48 if column.name in texts else 32
    return raw[:start] + bytes(metadata) + raw[body:]


def test_columns_on_top_of_each_other_cannot_hold_more_than_a_body_may(wire: Any) -> None:
    few = decode(overlapping(wire, 1024), "")
    assert isinstance(few, Decoded)
    assert few.tables["events"]["details"].to_pylist() == ["x" * 1024]
    many = decode(overlapping(wire, 12_000_000), "")
    assert isinstance(many, RefusedBody)
    assert many.status == 413
