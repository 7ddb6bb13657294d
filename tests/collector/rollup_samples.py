"""Samples for tests of rollups: random ones, with resets, gaps and absent values."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from tests.collector.rollup_reference import Row

from gpuwarden.metrics import METRICS, Kind, Metric, Type
from gpuwarden_collector.ingest.decode import WIRE_SCHEMAS

TOLD = {
    "gpu_samples": (
        "util_percent",
        "memory_used_bytes",
        "temperature_celsius",
        "clocks_event_reasons",
        "energy_joules_total",
        "pcie_tx_bytes_total",
    ),
    "gpu_detail_samples": ("sm_active_percent", "fan_percent", "pcie_replays_total"),
    "gpu_health_samples": ("ecc_corrected_volatile_total",),
    "host_samples": ("cpu_util_percent", "memory_available_bytes", "nfs_reads_total"),
    "process_samples": ("cpu_percent", "threads", "read_bytes_total"),
    "coverage": (),
}
"""Metrics that the samples have; the rest is absent."""
TABLES = tuple(TOLD)


def _values(metric: Metric) -> st.SearchStrategy[Any]:
    if metric.kind is Kind.FLAGS:
        return st.none() | st.integers(0, 0xFFFF)
    if metric.kind is Kind.COUNTER:
        # Small ones fall below half as often as not.
        numbers = st.integers(0, 40)
    elif metric.type in (Type.FLOAT32, Type.FLOAT64):
        return st.none() | st.sampled_from([0.0, 4.5, 5.0, 100.0]) | st.floats(0, 100, width=32)
    else:
        numbers = st.integers(0, 1 << 30)
    is_float = metric.type in (Type.FLOAT32, Type.FLOAT64)
    return st.none() | (numbers.map(float) if is_float else numbers)


@st.composite
def samples(draw: st.DrawFn, minutes: int = 6, most: int = 40) -> list[tuple[str, Row]]:
    """(table, row) with `ts` in seconds from the start; keys differ."""
    spots = st.tuples(
        st.sampled_from(TABLES),
        st.sampled_from(["a", "b"]),
        st.sampled_from([0, 1]),
        # Near each other and near the ends of minutes, or far apart.
        st.integers(0, minutes - 1).flatmap(
            lambda m: st.sampled_from([0, 1, 2, 5, 30, 58, 59]).map(lambda s: 60 * m + s)
        ),
    )
    drawn = draw(st.lists(spots, max_size=most, unique=True))
    seen: set[tuple[Any, ...]] = set()
    rows = []
    for table, node, gpu, second in drawn:
        key = (table, node, second, gpu if table != "host_samples" else None)
        if key in seen:
            continue
        seen.add(key)
        row: Row = {"ts": second, "node": node, "simulated": draw(st.booleans())}
        if table != "host_samples":
            row |= {"gpu": gpu, "gpu_uuid": f"{node}{gpu}"}
        if table == "process_samples":
            row |= {"pid": 7, "username": draw(st.none() | st.just("ada")), "process_name": "x"}
        if table == "coverage":
            counts = dict.fromkeys(("taken", "missed", "skipped", "late", "failed"), 0)
            row |= {"probe": "gpu0", "table_name": "gpu_samples", "expected": 60, **counts}
            if draw(st.booleans()):
                row |= {"gpu": None, "gpu_uuid": None}
        metrics = {m.name: m for m in METRICS.get(table, ())}
        row |= {name: draw(_values(metrics[name])) for name in TOLD[table]}
        rows.append((table, row))
    return rows


def tables_of(rows: Sequence[tuple[str, Row]], start: datetime) -> dict[str, Any]:
    """Arrow tables as agents send them, with times counted from `start`."""
    by_name: dict[str, list[Row]] = {}
    for name, row in rows:
        by_name.setdefault(name, []).append(row | {"ts": start + timedelta(seconds=row["ts"])})
    return {n: pa.Table.from_pylist(r, schema=WIRE_SCHEMAS[n]) for n, r in by_name.items()}


def assert_same(
    got: Sequence[Row], wanted: Mapping[tuple[Any, ...], Row], key: Sequence[str]
) -> None:
    """The rows by key are the same, except how sums of floats are rounded."""
    found = {tuple(row[name] for name in key): row for row in got}
    assert len(found) == len(got), "a window stands twice"
    assert found.keys() == wanted.keys(), (
        found.keys() - wanted.keys(),
        wanted.keys() - found.keys(),
    )
    for place, row in found.items():
        for name, value in wanted[place].items():
            assert is_near(row[name], value), (place, name, row[name], value)


def is_near(got: Any, wanted: Any) -> bool:
    if isinstance(got, float) and wanted is not None:
        return got == pytest.approx(wanted, rel=1e-5, abs=1e-5)
    return bool(got == wanted)
