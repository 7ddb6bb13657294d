"""Values at the edges of their types: each is stored as it is or refused with its column's name, and
never decides about the bodies of other nodes that are decoded and stored with it."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpuwarden.clock import ManualClock
from gpuwarden.metrics import Type
from gpuwarden.schema import WIRE_TABLES
from gpuwarden.table import Column, Table
from gpuwarden.wire import TABLE_KEY, BatchId
from gpuwarden_collector.ingest.admit import _OBJECTS, window, without_controls
from gpuwarden_collector.ingest.coalesce import KnownSchemas
from gpuwarden_collector.ingest.commit_plan import Batch, Stored
from gpuwarden_collector.ingest.decode import Decoded, RefusedBody
from gpuwarden_collector.ingest.decode_pool import Body, admit
from gpuwarden_collector.ingest.writer import Writer, load_known
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.rollup_schedule import Roller
from gpuwarden_collector.storage.schemas import ARROW_TYPES
from gpuwarden_collector.storage.seal import Sealer, SealPolicy

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
IDENTITIES = ("ts", "node", "gpu_uuid", "agent_id")
"""Columns that tell a row of this test from all others."""


def ms(year: int) -> int:
    return (
        int((datetime(year, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
        * 1000
    )


def _integers(bits: int) -> list[int]:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    exact = [n for n in (2**24 + 1, 2**53, 2**53 + 1, -(2**53) - 1) if least <= n <= most]
    return [least, least + 1, -1, 0, 1, most - 1, most, *exact]


def _floats(kind: Any) -> list[float]:
    info = np.finfo(kind)
    edges = [info.max, info.min, info.tiny, info.smallest_subnormal, -info.smallest_subnormal]
    return [*map(float, edges), 0.0, -0.0, 1.0, float("inf"), float("-inf"), float("nan")]


TEXTS = [
    b"",
    b" ",
    b"\0",
    b"a\0b",
    b"\0" * 256,
    b"x" * 256,
    b"x" * 257,
    b"x" * 65_536,
    b"x" * 65_537,
    "é".encode() * 32_768,
    "\ud7ff".encode(),
    "\ue000".encode(),
    "\uffff\ufffe".encode(),
    "\U0010ffff".encode(),
    b"\xed\xa0\x80",  # a surrogate
    b"\xed\xbf\xbf",
    b"\xf4\x90\x80\x80",  # beyond the last character
    b"\xc0\x80",  # NUL, overlong
    b"\xff\xfe",
    b"caf\xe9",
    b"\xe2\x82",  # cut off
    b"'",
    b'"',
    b"\\",
    b'it\'s; "DROP TABLE" -- $1 {} %s\r\n\t',
    b"NULL",
    b"{",
    b'{"a": NaN}',
    b"[[[[",
    "\u202e\u0301".encode(),
]

EDGES: dict[Type, list[Any]] = {
    Type.BOOL: [True, False],
    Type.INT16: _integers(16),
    Type.INT32: _integers(32),
    Type.INT64: _integers(64),
    Type.FLOAT32: _floats(np.float32),
    Type.FLOAT64: _floats(np.float64),
    Type.STRING: TEXTS,
    Type.TIMESTAMP: [
        *_integers(64),
        ms(1) - 1,
        ms(1),
        ms(1970) - 1,
        ms(9999),
        253_402_300_800_000,  # year 10,000
        8_210_266_876_799_999,  # the end of 262142
        8_210_266_876_800_000,
        9_223_372_036_854_775,  # the last whose microseconds are an int64, and the next
        9_223_372_036_854_776,
        -9_223_372_036_854_776,
        int(NOW.timestamp() * 1000) - 1_000_000_000,
    ],
}


@dataclass(frozen=True)
class Case:
    column: Column
    value: Any
    """None: absent."""
    number: int

    @property
    def identities(self) -> dict[str, Any]:
        return {
            "ts": int(NOW.timestamp() * 1000) - 3_000_000 + self.number * 1000,
            "node": f"node-{self.number}",
            "gpu_uuid": f"GPU-{self.number}",
            "agent_id": f"agent-{self.number}",
        }


def cases(table: Table) -> Iterator[Case]:
    every = [(c, value) for c in table.columns for value in [None, *EDGES[c.type]]]
    return (Case(c, value, number) for number, (c, value) in enumerate(every, 1))


def usual(column: Column) -> Any:
    """A value that is admitted."""
    match column.type:
        case Type.TIMESTAMP:
            return int(NOW.timestamp() * 1000)
        case Type.STRING:
            return b'{"a": "x"}' if column.name in _OBJECTS.values() else b"x"
        case Type.BOOL:
            return True
        case _:
            return int(column.limits[0]) + 1 if column.limits and column.limits[1] > 1 else 0


def array(column: Column, values: list[Any]) -> pa.Array:
    """Values as they are, texts without a look at whether they are any."""
    if column.type is Type.STRING:
        raw = [v.encode() if isinstance(v, str) else v for v in values]
        return pa.Array.from_buffers(pa.string(), len(raw), pa.array(raw, pa.binary()).buffers())
    if column.type is Type.TIMESTAMP:
        return pa.array(values, pa.int64()).cast(pa.timestamp("ms"))
    return pa.array(values, ARROW_TYPES[column.type])


def table_of(table: Table, rows: list[dict[str, Any]]) -> pa.Table:
    arrays = [array(c, [row.get(c.name, usual(c)) for row in rows]) for c in table.columns]
    fields = [pa.field(c.name, ARROW_TYPES[c.type]) for c in table.columns]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata={TABLE_KEY: table.name}))


def good_row(number: int, offset: int) -> dict[str, Any]:
    said = Case(Column("", Type.BOOL, ""), None, number).identities
    return {
        n: value + offset if n == "ts" else f"good-{offset}-{value}" for n, value in said.items()
    }


def same(column: Column, said: Any, kept: Any) -> bool:
    if said is None or kept is None:
        return said is kept
    if column.type is Type.STRING:
        return bool(without_controls(pa.array([said.decode()])).to_pylist() == [kept])
    return bool(said == kept)  # Parquet's 0.0 may have been -0.0


class Kept:
    """What the store has of a table."""

    def __init__(self, database: Database, table: Table) -> None:
        names = [n for n in IDENTITIES if n in table.names]
        shown = [
            f"epoch_ms({c.name}) AS {c.name}" if c.type is Type.TIMESTAMP else c.name
            for c in table.columns
        ]
        with database.reading() as cursor:
            rows = cursor.execute(f"SELECT {', '.join(shown)} FROM {table.name}").to_arrow_table()
        self._rows: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for row in rows.to_pylist():
            # Any identity but the one that is being tested tells which row it is.
            for left_out in [None, *names]:
                key = (left_out or "", *(str(row[n]) for n in names if n != left_out))
                self._rows.setdefault(key, []).append(row)
        self._names = names

    def of(self, case: Case) -> list[Any]:
        column = case.column.name
        left_out = column if column in self._names else ""
        wanted = (str(case.identities[n]) for n in self._names if n != left_out)
        return [row[column] for row in self._rows.get((left_out, *wanted), [])]


@pytest.mark.slow
@pytest.mark.parametrize("name", WIRE_TABLES)
async def test_a_value_at_its_edge_is_stored_or_refused_alone(
    name: str, wire: Any, database: Database, clock: ManualClock
) -> None:
    table = WIRE_TABLES[name]
    admitted = window(NOW, 7200, 300)
    schemas, stats = KnownSchemas(), Stats()
    writer = Writer(
        database, load_known(database, clock.now()), stats, clock, commit_interval_s=0.001
    )
    writer.start()
    stored: list[Case] = []
    waiting = []
    for case in cases(table):
        rows = [
            good_row(case.number, 1),
            {**case.identities, case.column.name: case.value},
            good_row(case.number, 2),
        ]
        bodies = [Body(wire.written(table_of(table, [row])), "") for row in rows]
        results = admit(bodies, admitted, schemas, stats.faults)
        assert isinstance(results[0], Decoded), (case, results)
        assert isinstance(results[2], Decoded), (case, results)
        result = results[1]
        if isinstance(result, RefusedBody):
            assert result.status in (400, 422)
            assert f"{name}.{case.column.name}" in result.reason, (case, result)
            assert "\n" not in result.reason
        else:
            stored.append(case)
        for place, decoded in enumerate(results):
            if isinstance(decoded, Decoded):
                batch = Batch(BatchId(f"{case.number}-{place}", "b", 1), decoded)
                waiting.append(asyncio.ensure_future(writer.store(batch)))
    outcomes = await asyncio.gather(*waiting)
    assert set(outcomes) == {Stored()}
    assert not stats.faults.counts

    def unequal() -> list[Any]:
        kept = Kept(database, table)
        found = [(case, kept.of(case)) for case in stored]
        return [
            (case.column.name, case.value, values)
            for case, values in found
            if len(values) != 1 or not same(case.column, case.value, values[0])
        ]

    assert unequal() == []
    # And so it continues: rolled up, and into the lake.
    clock.advance(7 * 3600)
    sealer = Sealer(database, writer, stats, clock, SealPolicy(1.0, 1000))
    await Roller(database, writer, stats, clock, sealer).roll_due()
    await sealer.seal_due(is_forced=True)
    assert (stats.rollup_failures, stats.seal_failures) == (0, 0)
    assert unequal() == []
    await writer.stop()
