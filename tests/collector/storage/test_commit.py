"""Rows reach the store whole and as they were sent, however many and in however many pieces."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.collector.made_up_store import asked

from gpuwarden_collector.ingest.decode import WIRE_SCHEMAS
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.hot import CHUNK_ROWS


def samples(wire: Any, rows: int) -> pa.Table:
    numbers = np.arange(rows)
    ts = np.datetime64(wire.now.replace(tzinfo=None), "ms") + numbers // 8
    columns = {
        "ts": pa.array(ts),
        "node": pa.array(["n1"] * rows),
        "gpu_uuid": pa.array((numbers % 8).astype(str)),
        "simulated": pa.array([True] * rows),
        "memory_used_bytes": pa.array(numbers, pa.int64()),
    }
    schema = WIRE_SCHEMAS["gpu_samples"]
    return pa.table([columns.get(f.name, pa.nulls(rows, f.type)) for f in schema], schema=schema)


def stored(database: Database) -> tuple[int, int, int]:
    (found,) = asked(
        database, "SELECT count(*), sum(memory_used_bytes), count(node) FROM gpu_samples"
    )
    return found[0], found[1], found[2]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 40, CHUNK_ROWS, CHUNK_ROWS + 1])
@pytest.mark.parametrize("pieces", [1, 700])
def test_each_row_is_stored_once(database: Database, wire: Any, rows: int, pieces: int) -> None:
    whole = samples(wire, rows)
    step = max(1, rows // pieces)
    parts = [whole.slice(start, step) for start in range(0, rows, step)]
    commit(database, Changes(appended={"gpu_samples": pa.concat_tables(parts)}))
    assert stored(database) == (rows, rows * (rows - 1) // 2, rows)


def test_a_table_without_rows_stores_none(database: Database, wire: Any) -> None:
    before = database.segment_bytes
    commit(database, Changes(appended={"gpu_samples": samples(wire, 0)}))
    assert stored(database)[0] == 0
    assert database.segment_bytes == before


def test_rows_are_in_the_order_that_they_came_in(database: Database, wire: Any) -> None:
    for part in (samples(wire, 1_000).slice(500), samples(wire, 500)):
        commit(database, Changes(appended={"gpu_samples": part}))
    found = [row[0] for row in asked(database, "SELECT memory_used_bytes FROM gpu_samples")]
    assert found == [*range(500, 1_000), *range(500)]
