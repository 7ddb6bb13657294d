"""Activity is consistent with load, rates with byte counters, and a model gives what it can."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.each import each

from gpuwarden.models import SIMULATED, GpuModel, model_named
from gpuwarden_agent.probe import Row
from gpuwarden_simulator import Placement, SimulatedNode, Workload
from gpuwarden_simulator.devices.gpu import GpuLoad, start, step
from gpuwarden_simulator.devices.gpu_detail import (
    PCIE_LANE_BYTES_PER_SECOND,
    PcieTrouble,
    detail_row,
    mark,
    template,
)
from gpuwarden_simulator.devices.hardware import make_device


def look(model: str, load: GpuLoad, **more: PcieTrouble) -> Row:
    device = make_device(model_named(model), "s", 0, 1)
    rng = random.Random(0)
    before = start(device, load, 0, rng)
    after = step(device, before, load, 10, 10.0, rng)
    usual = template(device)
    return detail_row(usual, device, after, load, mark(0, before), 10_000, **more)  # type: ignore[arg-type]


loads = st.builds(
    GpuLoad,
    util_percent=st.floats(0, 100),
    memory_util_percent=st.floats(0, 100),
    power_share=st.floats(0, 2),
    memory_share=st.floats(0, 1),
    has_context=st.booleans(),
    pcie_tx_bytes_per_second=st.floats(0, 5e10),
    pcie_rx_bytes_per_second=st.floats(0, 5e10),
    nvlink_bytes_per_second=st.floats(0, 4e11),
    power_limit_share=st.floats(0.3, 1),
    cooling_factor=st.floats(1, 4),
    clock_share_max=st.floats(0.3, 1),
    cooling_swing=st.floats(0, 1),
)


@given(load=loads)
def test_no_part_is_busier_than_the_whole(load: GpuLoad) -> None:
    row = look("H100-SXM", load)
    active = row["sm_active_percent"]
    assert 0 <= active <= row["graphics_active_percent"] <= 100  # type: ignore[operator]
    for part in ("tensor_active", "tensor_half_active", "fp32_active", "sm_occupancy"):
        assert 0 <= row[f"{part}_percent"] <= active  # type: ignore[operator]
    assert 0 <= row["dram_active_percent"] <= 100  # type: ignore[operator]


def test_rates_are_differences_of_the_byte_counters(start_ms: int) -> None:
    node = SimulatedNode("n", 2, model_named("H100-SXM"), 1, [Placement((0, 1), Workload.TRAINING)])
    first, later = node.read(start_ms), node.read(start_ms + 10_000)
    for gpu in range(2):
        detail = later["gpu_detail_samples"][gpu]
        for way in ("pcie_tx", "pcie_rx", "nvlink_tx", "nvlink_rx"):
            counter = f"{way}_bytes_total"
            grown = later["gpu_samples"][gpu][counter] - first["gpu_samples"][gpu][counter]  # type: ignore[operator]
            assert detail[f"{way}_bytes_per_second"] == pytest.approx(grown / 10, abs=200)


@each("model", SIMULATED)
def test_traffic_fits_the_link(model: GpuModel, start_ms: int) -> None:
    node = SimulatedNode("n", 2, model, 1, [Placement((0, 1), Workload.TRAINING)])
    node.read(start_ms)
    for detail in node.read(start_ms + 10_000)["gpu_detail_samples"]:
        if "pcie_rx_bytes_per_second" in detail:
            lane = PCIE_LANE_BYTES_PER_SECOND[int(detail["pcie_generation"])]  # type: ignore[arg-type]
            assert detail["pcie_rx_bytes_per_second"] < 16 * lane  # type: ignore[operator]
        if "nvlink_rx_bytes_per_second" in detail:
            speed = node._devices[0].generation.nvlink_bytes_per_second
            assert detail["nvlink_rx_bytes_per_second"] < model.nvlinks * speed  # type: ignore[operator]
