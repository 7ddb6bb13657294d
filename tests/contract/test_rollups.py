"""Rollup tables follow from the catalogue, and stay small enough for a large fleet."""

import pytest

from gpuwarden.metrics import CLOCKS_EVENT_REASONS, METRICS, Kind, Type
from gpuwarden.rollups import GPU_1H, GPU_1M, REASONS, ROLLUPS, Rollup
from gpuwarden.schema import TABLES, WIRE_TABLES

EACH = pytest.mark.parametrize("rollup", ROLLUPS.values(), ids=lambda r: r.table.name)


@EACH
def test_it_is_a_public_table_that_agents_cannot_send(rollup: Rollup) -> None:
    assert TABLES[rollup.table.name] is rollup.table
    assert rollup.table.name not in WIRE_TABLES
    assert rollup.table.key == (*rollup.by, "ts")


@EACH
def test_every_summary_is_a_column_of_a_metric(rollup: Rollup) -> None:
    for part in rollup.parts:
        metrics = {m.name: m for m in METRICS[part.table]}
        for summary in part.summaries:
            metric = metrics[summary.source]
            assert summary.how in metric.rollup
            assert (metric.kind is Kind.COUNTER) <= (summary.how in ("delta", "last"))
            assert (summary.how == "delta") <= (metric.kind is Kind.COUNTER)
            assert metric.kind is not Kind.FLAGS and metric.type is not Type.BOOL
            assert rollup.table.column(summary.column.name) is not None


@EACH
def test_what_is_carried_has_the_same_type_as_in_the_samples(rollup: Rollup) -> None:
    for part in rollup.parts:
        for name in part.carried:
            assert TABLES[part.table].column(name).type is rollup.table.column(name).type


def test_hours_have_the_columns_of_minutes() -> None:
    assert GPU_1H.table.names == GPU_1M.table.names
    assert GPU_1H.made_of == "gpu_1m"


def test_every_reason_but_idle_has_its_seconds() -> None:
    assert set(REASONS) == {*CLOCKS_EVENT_REASONS} - {0x1}
    assert REASONS[0x40].name == "reason_hardware_thermal_slowdown_seconds"


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        ("util_percent_p95", Type.FLOAT32),
        ("memory_used_bytes_avg", Type.FLOAT32),
        ("memory_used_bytes_max", Type.INT64),
        ("energy_joules_delta", Type.FLOAT64),
        ("pcie_replays_delta", Type.INT64),
        ("pcie_width_min", Type.INT16),
    ],
)
def test_types_follow_from_the_metric(name: str, type_: Type) -> None:
    assert GPU_1M.table.column(name).type is type_
