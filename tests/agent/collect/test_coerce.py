"""Values take the schema's types; what is absent leaves no cell."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.metrics import METRICS, Type
from gpuwarden_agent.collect.coerce import coerce
from gpuwarden_agent.queue.rows import impossible_columns


def test_absent_leaves_no_cell() -> None:
    values = {"gpu_uuid": "", "power_watts": None, "util_percent": math.nan}
    assert coerce("gpu_samples", values) == {}


def test_zero_and_false_are_not_absent() -> None:
    assert coerce("gpus", {"gpu": 0, "mig_mode": False}) == {"gpu": 0, "mig_mode": False}


def test_a_sentinel_beyond_the_type_is_absent_in_the_inventory() -> None:
    assert coerce("gpus", {"pcie_width_max": 0xFFFFFFFF, "nvlinks": 18}) == {"nvlinks": 18}


def test_an_impossible_sample_is_left_for_the_sampler_to_report() -> None:
    assert coerce("gpu_samples", {"util_percent": 255}) == {"util_percent": 255.0}


def test_a_name_that_is_no_utf8_still_becomes_text() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert coerce("process_samples", {"process_name": name}) == {"process_name": "caf?"}


def test_an_unknown_column_is_a_bug() -> None:
    with pytest.raises(KeyError):
        coerce("gpu_samples", {"power_mw": 1})


CELLS = [(table, metric) for table, metrics in METRICS.items() for metric in metrics]


@given(
    st.sampled_from(CELLS),
    st.integers(-(2**70), 2**70) | st.floats() | st.none() | st.integers(0, 100),
)
def test_whatever_a_source_says_the_row_has_the_right_type(cell, value) -> None:  # type: ignore[no-untyped-def]
    table, metric = cell
    row = coerce(table, {metric.name: value})
    is_float = metric.type in (Type.FLOAT32, Type.FLOAT64)
    kind = bool if metric.type is Type.BOOL else float if is_float else int
    for fitted in row.values():
        assert type(fitted) is kind
        if metric.limits and metric.limits[0] <= fitted <= metric.limits[1]:
            assert is_float or fitted == int(value)


def test_a_fitted_row_passes_the_agents_own_check() -> None:
    identity = {"ts": 1, "node": "n", "gpu_uuid": "GPU-1", "simulated": False}
    row = coerce("gpu_samples", identity | {"energy_joules_total": 1, "pcie_tx_bytes_total": 2**63})
    assert impossible_columns("gpu_samples", row) == ("pcie_tx_bytes_total",)
