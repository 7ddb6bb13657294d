"""Finds the minutes that must be rolled up again because rows came late; pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden.rollups import ROLLUPS
from gpuwarden.schema import ALLOCATION_SAMPLES

LATE_SCHEMA = pa.schema([("node", pa.string()), ("ts", pa.timestamp("ms"))])
_SAMPLES = frozenset(part.table for rollup in ROLLUPS.values() for part in rollup.parts) | {
    ALLOCATION_SAMPLES.name
}
_COVERAGE = "coverage"
_MILLISECOND = pa.scalar(1, pa.duration("ms"))


def late_windows(tables: Mapping[str, Any], closed_until: datetime | None) -> Any | None:
    """By node the minutes before `closed_until` that have new rows; None: there are none.

    `closed_until`: the end of the rolled up minutes, naive UTC; None: nothing was rolled up yet.
    """
    if closed_until is None:
        return None
    limit = pa.scalar(closed_until, pa.timestamp("ms"))
    windows = []
    for name, table in tables.items():
        if name not in _SAMPLES and name != _COVERAGE:
            continue
        ts = table["ts"]
        # A row of coverage has the end of its minute as timestamp.
        first = _belongs(name, pc.min(ts))
        if first.as_py() >= closed_until:
            continue
        rows = pa.table({"node": table["node"], "ts": _belongs(name, ts)}, schema=LATE_SCHEMA)
        rows = rows.filter(pc.less(rows["ts"], limit))
        minutes = pc.floor_temporal(rows["ts"], unit="minute")
        windows.append(rows.set_column(1, "ts", minutes))
    if not windows:
        return None
    return pa.concat_tables(windows).group_by(["node", "ts"]).aggregate([]).select(["node", "ts"])


def _belongs(name: str, ts: Any) -> Any:
    return pc.subtract(ts, _MILLISECOND) if name == _COVERAGE else ts
