"""Lists the batches that another collector of the same lake may have stored too; pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden.wire import BatchId

DOUBTFUL_SCHEMA = pa.schema(
    [
        ("agent_id", pa.string()),
        ("boot_id", pa.string()),
        ("sequence", pa.int64()),
        ("node", pa.string()),
        ("first_ts", pa.timestamp("ms")),
        ("last_ts", pa.timestamp("ms")),
    ]
)


def doubtful_rows(batches: Sequence[tuple[BatchId, Mapping[str, Any]]]) -> Any | None:
    """Time that the rows of each batch that was sent before span, by node; None: there is none.

    `batches`: identity and Arrow tables of each.
    """
    found = [
        _spans(batch, [table for table in tables.values() if "ts" in table.schema.names])
        for batch, tables in batches
        if batch.is_sent_before
    ]
    spans = [table for table in found if table is not None]
    return pa.concat_tables(spans) if spans else None


def _spans(batch: BatchId, tables: Sequence[Any]) -> Any | None:
    parts = [table.select(["node", "ts"]) for table in tables if table.num_rows]
    if not parts:
        return None
    spans = pa.concat_tables(parts).group_by("node").aggregate([("ts", "min"), ("ts", "max")])
    rows = spans.num_rows
    columns = [
        pa.repeat(batch.agent_id, rows),
        pa.repeat(batch.boot_id, rows),
        pa.repeat(pa.scalar(batch.sequence, pa.int64()), rows),
        spans["node"],
        pc.cast(spans["ts_min"], pa.timestamp("ms")),
        pc.cast(spans["ts_max"], pa.timestamp("ms")),
    ]
    return pa.Table.from_arrays(columns, schema=DOUBTFUL_SCHEMA)
