"""Rollup tables follow from the catalogue, and stay small enough for a large fleet."""

from tests.each import each

from gpuwarden.metrics import METRICS, Kind, Type
from gpuwarden.rollups import GPU_1M, ROLLUPS, Rollup


@each("rollup", ROLLUPS.values())
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


@each(
    "name, type_",
    [
        ("util_percent_p95", Type.FLOAT32),
        ("memory_used_bytes_max", Type.INT64),
        ("energy_joules_delta", Type.FLOAT64),
        ("pcie_width_min", Type.INT16),
    ],
)
def test_types_follow_from_the_metric(name: str, type_: Type) -> None:
    assert GPU_1M.table.column(name).type is type_
