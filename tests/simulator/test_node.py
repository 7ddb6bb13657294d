"""A simulated node is a probe whose rows are true to the contract, repeatable and free of leaps."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.models import SIMULATED, GpuModel, find_model, model_named
from gpuwarden_agent.probe import Reading, Row
from gpuwarden_simulator import (
    Placement,
    SimulatedNode,
    Workload,
)

H100 = model_named("H100-SXM-80GB")


@st.composite
def nodes(draw: st.DrawFn) -> SimulatedNode:
    """A node of any model with any workload on each of its GPUs."""
    gpus = draw(st.integers(1, 4))
    kinds = st.sampled_from([None, *Workload])
    placements = [Placement((index,), draw(kinds)) for index in range(gpus)]
    model = draw(st.sampled_from(SIMULATED))
    return SimulatedNode("n", gpus, model, draw(st.integers(0, 1000)), placements)


spans_ms = st.lists(
    st.one_of(st.just(1000), st.integers(1, 30_000), st.integers(1, 10**7)), min_size=1, max_size=8
)


@settings(max_examples=60, deadline=None)
@given(node=nodes(), spans=spans_ms)
def test_rows_keep_types_limits_and_monotonic_counters_over_any_ticks(
    node: SimulatedNode,
    spans: list[int],
    start_ms: int,
    check_reading: Callable[[Reading], None],
    check_counters: Callable[[str, Row, Row], None],
) -> None:
    check_reading(node.describe())
    ts_ms, last = start_ms, node.read(start_ms)
    check_reading(last)
    for span in spans:
        ts_ms += span
        reading = node.read(ts_ms)
        check_reading(reading)
        for table in ("gpu_samples", "host_samples"):
            for before, after in zip(last[table], reading[table], strict=True):
                check_counters(table, before, after)
        (host,) = reading["host_samples"]
        states = ("user", "nice", "system", "iowait", "irq", "steal", "idle")
        assert sum(host[f"cpu_{s}_percent"] for s in states) == pytest.approx(100, abs=1e-6)  # type: ignore[misc]
        for gpu in reading["gpu_samples"]:
            assert gpu["power_watts"] <= gpu["power_limit_watts"]  # type: ignore[operator]
            assert gpu["memory_used_bytes"] <= gpu["memory_total_bytes"]  # type: ignore[operator]
        last = reading


def walk(seed: int, start_ms: int, model: GpuModel = H100) -> list[Reading]:
    node = SimulatedNode("n", 8, model, seed)
    return [node.read(start_ms + ms) for ms in (0, 1000, 2000, 9000, 10_000, 700_000)]


def test_same_seed_and_ticks_give_the_same_rows_and_another_seed_does_not(start_ms: int) -> None:
    assert walk(1, start_ms) == walk(1, start_ms)
    assert walk(1, start_ms) != walk(2, start_ms)


def test_ticks_of_ten_seconds_give_the_counters_that_ticks_of_one_second_give(
    start_ms: int,
) -> None:
    fine, coarse = SimulatedNode("n", 8, H100, 5), SimulatedNode("n", 8, H100, 5)
    first_fine, first_coarse = fine.read(start_ms), coarse.read(start_ms)
    assert first_fine == first_coarse
    for second in range(1, 901):
        last_fine = fine.read(start_ms + 1000 * second)
    for second in range(10, 901, 10):
        last_coarse = coarse.read(start_ms + 1000 * second)

    def growth(first: Reading, last: Reading, gpu: int, column: str) -> float:
        return last["gpu_samples"][gpu][column] - first["gpu_samples"][gpu][column]  # type: ignore[operator,return-value]

    for gpu in range(8):
        for column in ("energy_joules_total", "pcie_rx_bytes_total"):
            one = growth(first_fine, last_fine, gpu, column)
            assert growth(first_coarse, last_coarse, gpu, column) == pytest.approx(one, rel=0.03)
    for column in ("sw_thermal_seconds_total", "hw_thermal_seconds_total"):
        one = growth(first_fine, last_fine, 3, column)
        assert one > 60
        assert growth(first_coarse, last_coarse, 3, column) == pytest.approx(one, rel=0.1)


def test_a_gap_of_an_hour_still_integrates_power_over_the_hour(start_ms: int) -> None:
    node = SimulatedNode("n", 1, H100, 1, [Placement((0,), Workload.TRAINING)])
    before = node.read(start_ms)["gpu_samples"][0]
    after = node.read(start_ms + 3_600_000)["gpu_samples"][0]
    joules = after["energy_joules_total"] - before["energy_joules_total"]  # type: ignore[operator]
    assert joules / 3600 == pytest.approx(after["power_watts"], rel=0.15)


def test_a_node_started_again_finds_the_same_jobs_and_its_counters_reset(start_ms: int) -> None:
    later_ms = start_ms + 5_000_000
    first = SimulatedNode("n", 12, H100, 9)
    first.read(start_ms)
    before, again = first.read(later_ms), SimulatedNode("n", 12, H100, 9).read(later_ms)
    identity = [(r["gpu_uuid"], r["pid"], r["started_at"]) for r in before["process_samples"]]
    assert identity == [
        (r["gpu_uuid"], r["pid"], r["started_at"]) for r in again["process_samples"]
    ]
    for old, new in zip(before["gpu_samples"], again["gpu_samples"], strict=True):
        assert new["energy_joules_total"] < old["energy_joules_total"]  # type: ignore[operator]
        assert new["sw_thermal_seconds_total"] <= old["sw_thermal_seconds_total"] + 1  # type: ignore[operator]


def test_a_clock_that_is_set_back_does_not_set_back_what_is_simulated(start_ms: int) -> None:
    steady = SimulatedNode("n", 1, H100, 1)
    wanted = [steady.read(start_ms + 1_000 * second) for second in range(4)]
    node = SimulatedNode("n", 1, H100, 1)
    clock = (0, 1_000, -3_600_000, -3_599_000)
    assert [node.read(start_ms + at) for at in clock] == wanted


def test_inventory_is_stable_unique_and_in_the_driver_s_format() -> None:
    first, again = (SimulatedNode("n", 16, H100, 7).describe() for _ in range(2))
    assert first == again
    uuids = {str(row["gpu_uuid"]) for row in first["gpus"]}
    other = {str(row["gpu_uuid"]) for row in SimulatedNode("m", 16, H100, 7).describe()["gpus"]}
    assert len(uuids) == 16
    assert not uuids & other
    pattern = r"GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    assert all(re.fullmatch(pattern, uuid) for uuid in uuids)
    assert len({row["pci_bus_id"] for row in first["gpus"]}) == 16
    assert find_model(str(first["gpus"][0]["model"])) is H100
