"""Minutes computed in numpy are those of the SQL that defines them, for any samples."""

import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.collector.minutes_sql import minutes_sql

from gpuwarden.metrics import Type
from gpuwarden.rollups import GPU_1M, HOST_1M, LOOKBACK_MINUTES, PROCESS_1M, Rollup
from gpuwarden.schema import TABLES, stored_columns
from gpuwarden_collector.storage.minutes import (
    COVERAGE_COLUMNS,
    columns_of,
    counters_of,
    part_rows,
    rollup_rows,
)
from gpuwarden_collector.storage.segment import SCHEMAS
from gpuwarden_collector.storage.views import hot_table

START = datetime(2026, 3, 1, 11, 57)  # noqa: DTZ001  naive UTC, as DuckDB has it
MINUTE = timedelta(minutes=1)
MINUTES = 8
KEYS = [("a", "a0"), ("a", "a1"), ("b", "b0"), ("b", "a0")]
"""Nodes and GPUs: one GPU speaks from two nodes."""
VALUES: dict[Type, list[Any]] = {
    Type.BOOL: [True, False],
    Type.INT16: [0, 1, 7, -3, 32767],
    Type.INT32: [0, 1, 100, 99, (1 << 31) - 1],
    Type.INT64: [0, 1, 12, 13, 14, 1 << 5, 0xFFFF, 80 << 30, (1 << 63) - 1],
    Type.FLOAT32: [0.0, 4.5, 5.0, 99.5, 100.0, -0.0, 3e38, math.nan, math.inf],
    Type.FLOAT64: [0.0, 0.1, 10.7, 20.9, 1e15, 1.7e308, math.nan, math.inf],
    Type.STRING: ["x", "y"],
    Type.TIMESTAMP: [START, START + MINUTE],
}
TAME = 5
"""This number of values of a type are not extremes."""


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    opened = duckdb.connect(config={"threads": 1})
    opened.execute("SET TimeZone = 'UTC'")
    yield opened
    opened.close()


def made_up(name: str, rng: np.random.Generator, rows: int, *, is_wild: bool) -> Any:
    """Samples of a table in the stored columns, with NULLs and with columns that have nothing else."""
    seconds = rng.choice([0, 1, 2, 3, 5, 10, 30, 58, 59], rows) + 60 * rng.integers(
        0, MINUTES, rows
    )
    which = rng.integers(0, len(KEYS), rows)
    chosen = sorted({(int(s), int(w)) for s, w in zip(seconds, which, strict=True)})
    if name == "host_samples":
        chosen = list({(s, KEYS[w][0]): (s, w) for s, w in chosen}.values())
    order = rng.permutation(len(chosen))
    columns: dict[str, list[Any]] = {}
    for column in stored_columns(TABLES[name]):
        pool = VALUES[column.type][: None if is_wild else TAME]
        share = rng.choice([0.0, 0.0, 0.3, 1.0])
        drawn = [None if rng.random() < share else pool[rng.integers(0, len(pool))] for _ in chosen]
        columns[column.name] = drawn
    columns["ts"] = [START + timedelta(seconds=chosen[i][0]) for i in order]
    columns["node"] = [KEYS[chosen[i][1]][0] for i in order]
    if "gpu_uuid" in columns:
        columns["gpu_uuid"] = [KEYS[chosen[i][1]][1] for i in order]
    if "pid" in columns:
        columns["pid"] = [7 + chosen[i][0] % 2 for i in order]
    if name == "coverage":
        columns["table_name"] = [
            ["gpu_samples", "host_samples"][rng.integers(0, 2)] for _ in chosen
        ]
        columns["expected"] = [int(rng.choice([60, (1 << 31) - 1], p=[0.9, 0.1])) for _ in chosen]
        columns["gpu_uuid"] = [None if rng.random() < 0.3 else u for u in columns["gpu_uuid"]]
    return pa.table(columns, schema=SCHEMAS[name])


def between(table: Any, begin: datetime, end: datetime, names: tuple[str, ...]) -> Any:
    ts = table["ts"].to_pylist()
    is_within = [begin <= at < end for at in ts]
    return table.filter(pa.array(is_within, pa.bool_())).select(names)


def computed(
    rollup: Rollup, tables: dict[str, Any], begin: datetime, end: datetime, readings: list[Any]
) -> Any:
    """Rows of the minutes from `begin` to `end`; `readings` of its parts are used, and replaced."""
    parts = []
    for number, part in enumerate(rollup.parts):
        table = tables[part.table]
        samples = between(table, begin, end, columns_of(part, rollup))
        before = readings[number]
        if before is None:
            since = begin - LOOKBACK_MINUTES * MINUTE
            before = between(table, since, begin, counters_of(part, rollup))
        made = part_rows(part, rollup, samples, before, begin)
        readings[number] = made.readings
        parts.append(made.rows)
    least = timedelta(microseconds=1)
    coverage = between(tables["coverage"], begin + least, end + least, COVERAGE_COLUMNS)
    schema = SCHEMAS[rollup.table.name]
    return rollup_rows(rollup, parts, coverage).select(schema.names).cast(schema)


def is_same(got: Any, wanted: Any, *, is_average: bool) -> bool:
    if isinstance(got, float) and isinstance(wanted, float) and not math.isnan(wanted):
        # DuckDB adds up in the order in which rows come, which is none.
        return math.isclose(got, wanted, rel_tol=2e-7) if is_average else got == wanted
    if isinstance(got, float) and isinstance(wanted, float):
        return math.isnan(got)
    return bool(got == wanted)


@pytest.mark.slow
@given(st.integers(0, 1 << 32), st.sampled_from([0, 3, 40, 300]), st.booleans(), st.integers(0, 4))
@settings(max_examples=25, deadline=None)
def test_minutes_are_those_of_the_sql(
    connection: duckdb.DuckDBPyConnection, seed: int, rows: int, is_wild: bool, first: int
) -> None:
    rng = np.random.default_rng(seed)
    names = {part.table for r in (GPU_1M, HOST_1M, PROCESS_1M) for part in r.parts}
    tables = {n: made_up(n, rng, rows, is_wild=is_wild) for n in (*sorted(names), "coverage")}
    for name, table in tables.items():
        connection.register(hot_table(name), table)
    begin, cut, end = (START + m * MINUTE for m in (first, first + 2, MINUTES))
    for rollup in (GPU_1M, HOST_1M, PROCESS_1M):
        sql = minutes_sql(rollup, begin, end)
        order = [(name, "ascending") for name in rollup.table.key]
        schema = SCHEMAS[rollup.table.name]
        found = connection.execute(sql).to_arrow_table()
        wanted = found.select(schema.names).cast(schema).sort_by(order)
        readings: list[Any] = [None] * len(rollup.parts)
        halves = [
            computed(rollup, tables, begin, cut, readings),
            computed(rollup, tables, cut, end, readings),
        ]
        got = pa.concat_tables(halves).sort_by(order)
        assert len(got) == len(wanted)
        for name in schema.names:
            pairs = zip(got[name].to_pylist(), wanted[name].to_pylist(), strict=True)
            for number, (one, other) in enumerate(pairs):
                place = {n: wanted[n][number].as_py() for n in rollup.table.key}
                assert is_same(one, other, is_average=name.endswith("_avg")), (
                    name, place, one, other,
                )  # fmt: skip


def test_a_key_that_sends_much_more_than_others_is_computed_as_they_are() -> None:
    many = [START + timedelta(milliseconds=5 * number) for number in range(12_000)]
    few = [START + timedelta(seconds=number) for number in range(60)]
    (part,) = HOST_1M.parts
    names = columns_of(part, HOST_1M)
    schema = pa.schema([SCHEMAS["host_samples"].field(name) for name in names])
    samples = pa.table(
        {
            name: pa.nulls(12_060, schema.field(name).type)
            for name in names
            if name not in ("ts", "node", "disk_read_bytes_total")
        }
        | {
            "ts": [*few, *many],
            "node": ["few"] * 60 + ["many"] * 12_000,
            "disk_read_bytes_total": [*range(60), *range(12_000)],
        }
    ).select(names).cast(schema)  # fmt: skip
    made = part_rows(
        part, HOST_1M, samples, samples.slice(0, 0).select(counters_of(part, HOST_1M)), START
    )
    rows = made.rows.select(["node", "samples", "disk_read_bytes_delta"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [
        ("few", 60, 59),
        ("many", 12_000, 11_999),
    ]
    assert sorted(made.readings["node"].to_pylist()) == ["few", "many"]
