"""Rows reach the store whole, by whichever way DuckDB takes them."""

from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gpuwarden_collector.decode import WIRE_SCHEMAS
from gpuwarden_collector.store.commit import Changes, commit
from gpuwarden_collector.store.database import FILE_NAME, ROW_GROUP_ROWS, Database


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
    row = database.writing.execute(
        "SELECT count(*), sum(memory_used_bytes), count(node) FROM gpu_samples"
    ).fetchone()
    assert row is not None
    return row


@pytest.mark.parametrize("rows", [1, 40, ROW_GROUP_ROWS - 1, ROW_GROUP_ROWS, ROW_GROUP_ROWS + 1])
@pytest.mark.parametrize("pieces", [1, 7])
def test_each_row_is_stored_once(database: Database, wire: Any, rows: int, pieces: int) -> None:
    whole = samples(wire, rows)
    step = max(1, rows // pieces)
    parts = [whole.slice(start, step) for start in range(0, rows, step)]
    commit(database, Changes(appended={"gpu_samples": pa.concat_tables(parts)}))
    assert stored(database) == (rows, rows * (rows - 1) // 2, rows)


@pytest.mark.parametrize(
    ("rows", "is_logged"), [(ROW_GROUP_ROWS - 1, True), (ROW_GROUP_ROWS, False)]
)
def test_a_row_group_is_not_written_to_the_log(
    database: Database, wire: Any, rows: int, is_logged: bool
) -> None:
    database.checkpoint()
    commit(database, Changes(appended={"gpu_samples": samples(wire, rows)}))
    log_bytes = (database.data_dir / f"{FILE_NAME}.wal").stat().st_size
    assert (log_bytes > 8 * rows) is is_logged


def test_a_table_without_rows_stores_none(database: Database, wire: Any) -> None:
    commit(database, Changes(appended={"gpu_samples": samples(wire, 0)}))
    assert stored(database)[0] == 0


def test_rows_are_in_the_order_of_time_that_they_came_in(database: Database, wire: Any) -> None:
    commit(database, Changes(appended={"gpu_samples": samples(wire, 1_000)}))
    (first,) = database.writing.execute("SELECT ts FROM gpu_samples LIMIT 1").fetchone() or (None,)
    assert first == wire.now.replace(tzinfo=None) + timedelta(0)
