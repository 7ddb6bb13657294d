"""Memory ages slowly and its counters add up; a model reports what it has."""

from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.models import model_named
from gpuwarden_agent.probe import Row
from gpuwarden_simulator.devices.gpu_health import (
    Errors,
    HealthTrouble,
    MemoryAging,
    health_row,
    make_memory,
)
from gpuwarden_simulator.devices.hardware import make_device

YEAR_S = 365 * 86_400.0


def memory(model: str, index: int = 0) -> MemoryAging:
    return make_memory(make_device(model_named(model), "s", index, 8), "s")


def sums_hold(row: Row) -> bool:
    return all(
        row[f"ecc_{fate}_{since}_total"]
        == row[f"dram_{fate}_{since}_total"] + row[f"sram_{fate}_{since}_total"]  # type: ignore[operator]
        for fate in ("corrected", "uncorrected")
        for since in ("volatile", "aggregate")
    )


@given(
    index=st.integers(0, 7),
    elapsed_s=st.floats(0, YEAR_S),
    more_s=st.floats(0, YEAR_S),
    errors=st.builds(Errors, *[st.integers(0, 10**6)] * 4),
)
def test_counters_grow_and_places_add_up(
    index: int, elapsed_s: float, more_s: float, errors: Errors
) -> None:
    aged = memory("H100-SXM", index)
    trouble = HealthTrouble(errors, errors)
    before = health_row(aged, elapsed_s, -1e12, trouble)
    after = health_row(aged, elapsed_s + more_s, -1e12, trouble)
    assert sums_hold(before)
    assert sums_hold(after)
    for name, value in before.items():
        if name.endswith("_total"):
            assert after[name] >= value  # type: ignore[operator]
    for fate in ("corrected", "uncorrected"):
        assert after[f"ecc_{fate}_aggregate_total"] >= after[f"ecc_{fate}_volatile_total"]  # type: ignore[operator]
