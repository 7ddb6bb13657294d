"""Finds rows that come after their minute was rolled up: pure, from tables to minutes of nodes."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gpuwarden.rollups import ROLLUPS

LATE_SCHEMA = pa.schema([("node", pa.string()), ("ts", pa.timestamp("ms"))])
_SAMPLES = frozenset(part.table for rollup in ROLLUPS.values() for part in rollup.parts)
_COVERAGE = "coverage"
_MILLISECOND = pa.scalar(1, pa.duration("ms"))


def late_windows(tables: Mapping[str, Any], closed_until: datetime | None) -> Any | None:
    """The minutes before `closed_until` that rows of `tables` belong to, by node; None: none.

    `closed_until`: naive UTC; None: nothing was rolled up yet.
    """
    if closed_until is None:
        return None
    limit = pa.scalar(closed_until, pa.timestamp("ms"))
    found = []
    for name, table in tables.items():
        if name not in _SAMPLES and name != _COVERAGE:
            continue
        ts = table["ts"]
        # A row of coverage counts the minute that it ends.
        first = _belongs(name, pc.min(ts))
        if first.as_py() >= closed_until:
            continue
        rows = pa.table({"node": table["node"], "ts": _belongs(name, ts)}, schema=LATE_SCHEMA)
        rows = rows.filter(pc.less(rows["ts"], limit))
        minutes = pc.floor_temporal(rows["ts"], unit="minute")
        found.append(rows.set_column(1, "ts", minutes))
    if not found:
        return None
    return pa.concat_tables(found).group_by(["node", "ts"]).aggregate([]).select(["node", "ts"])


def _belongs(name: str, ts: Any) -> Any:
    return pc.subtract(ts, _MILLISECOND) if name == _COVERAGE else ts
