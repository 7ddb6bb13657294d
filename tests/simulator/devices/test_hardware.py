"""Devices look like those of their model, and give only what its driver gives."""

import pytest
from tests.each import each

from gpuwarden.models import SIMULATED, GpuModel, model_named
from gpuwarden_simulator.devices.hardware import (
    GIB,
    MIB,
    cpu_model_of,
    driver_facts,
    generation_of,
    make_device,
    rack_facts,
)


@each("model", SIMULATED)
def test_every_model_of_the_catalogue_can_be_simulated(model: GpuModel) -> None:
    device = make_device(model, "s", 0, 1)
    assert generation_of(model).throttle_celsius < generation_of(model).hardware_throttle_celsius
    assert device.memory_reserved_bytes < device.memory_total_bytes <= model.memory_gib * GIB
    # At full power a device with good cooling stays below its limit, with some to spare.
    hottest = 27 + 1.08 * 40
    assert hottest < generation_of(model).throttle_celsius
    assert cpu_model_of(model)


@pytest.mark.parametrize(
    ("name", "total_mib"), [("H100-SXM-80GB", 81559), ("H200", 143771), ("L40S", 46068)]
)
def test_memory_is_what_nvidia_smi_prints_for_that_model_within_half_a_percent(
    name: str, total_mib: int
) -> None:
    """Totals from nvidia-smi on the real devices."""
    device = make_device(model_named(name), "s", 0, 1)
    assert device.memory_total_bytes / MIB == pytest.approx(total_mib, rel=0.005)


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("H100-SXM", set()),
        ("L40S", {"memory_temperature_celsius", "nvlink_tx_bytes_total", "nvlink_rx_bytes_total"}),
        ("RTX-3090", {"memory_temperature_celsius"}),
        ("P100", {"energy_joules_total"}),
    ],
)
def test_columns_that_a_model_cannot_give_are_absent(name: str, absent: set[str]) -> None:
    assert set(make_device(model_named(name), "s", 0, 1).absent) == absent


def test_an_amd_board_has_none_of_nvidia_s_notions() -> None:
    device = make_device(model_named("MI300X"), "s", 0, 1)
    assert {"pstate", "clocks_event_reasons", "nvlink_tx_bytes_total"} <= set(device.absent)
    assert device.describe()["vendor"] == "amd"
    assert "cuda_version" not in driver_facts(model_named("MI300X"))


def test_geforce_has_no_serial_number_and_hopper_no_absolute_thresholds() -> None:
    assert make_device(model_named("RTX-4090"), "s", 0, 1).serial is None
    hopper = make_device(model_named("H100-SXM"), "s", 0, 1).describe()
    assert hopper["temperature_slowdown_celsius"] is None
    assert hopper["power_limit_min_watts"] == 200.0
    assert make_device(model_named("A100-SXM-80"), "s", 0, 1).describe()[
        "temperature_slowdown_celsius"
    ] == pytest.approx(89)


def test_bus_ids_of_a_large_node_differ() -> None:
    ids = {make_device(model_named("L4-24GB"), "s", i, 64).pci_bus_id for i in range(64)}
    assert len(ids) == 64


def test_eighteen_nodes_of_gb200_share_a_rack() -> None:
    model = model_named("GB200")
    rows = [rack_facts(model, 1, number) for number in range(19)]
    assert len({row["chassis_serial"] for row in rows[:18]}) == 1
    assert len({row["fabric_cluster_uuid"] for row in rows[:18]}) == 1
    assert [row["tray"] for row in rows] == [*range(18), 0]
    assert [row["slot"] for row in rows[:18]] == [*range(1, 9), *range(18, 28)]
    assert rows[18]["chassis_serial"] != rows[0]["chassis_serial"]
    assert rack_facts(model_named("H100-SXM-80GB"), 1, 0) == {}
