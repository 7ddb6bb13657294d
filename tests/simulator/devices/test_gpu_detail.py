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

GPM_COLUMNS = {"sm_active_percent", "tensor_active_percent", "pcie_rx_bytes_per_second"}


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


def test_a_busy_gpu_that_only_waits_has_idle_sms() -> None:
    waiting = look("H100-SXM", GpuLoad(util_percent=100, power_share=0.03, has_context=True))
    working = look("H100-SXM", GpuLoad(util_percent=100, power_share=0.9, has_context=True))
    assert waiting["sm_active_percent"] == 0
    assert working["sm_active_percent"] > 70  # type: ignore[operator]
    assert working["tensor_active_percent"] > 30  # type: ignore[operator]


@pytest.mark.parametrize(
    ("model", "there", "absent"),
    [
        ("H100-SXM", GPM_COLUMNS | {"nvlinks_active", "pcie_bad_tlps_total"}, {"fan_percent"}),
        ("A100-SXM-80GB", {"nvlinks_active"}, GPM_COLUMNS | {"temperature_margin_celsius"}),
        ("L40S", {"temperature_margin_celsius"}, GPM_COLUMNS | {"nvlinks_active", "fan_percent"}),
        ("RTX-4090", {"fan_percent"}, GPM_COLUMNS | {"jpeg_util_percent", "nvlinks_active"}),
        ("T4", {"pcie_replays_total"}, GPM_COLUMNS | {"jpeg_util_percent", "fan_percent"}),
        ("MI300X", {"pcie_width"}, GPM_COLUMNS | {"video_clock_mhz", "nvlinks_active"}),
    ],
)
def test_a_model_gives_what_its_driver_gives(model: str, there: set[str], absent: set[str]) -> None:
    row = look(model, GpuLoad(util_percent=90, power_share=0.5, has_context=True))
    assert there <= set(row)
    assert not absent & set(row)


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
