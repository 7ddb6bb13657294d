"""Devices look like those of their model, and give only what its driver gives."""

import pytest
from tests.each import each

from gpuwarden.models import SIMULATED, GpuModel, model_named
from gpuwarden_simulator.devices.hardware import (
    GIB,
    MIB,
    cpu_model_of,
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


def test_eighteen_nodes_of_gb200_share_a_rack() -> None:
    model = model_named("GB200")
    rows = [rack_facts(model, 1, number) for number in range(19)]
    assert len({row["chassis_serial"] for row in rows[:18]}) == 1
    assert len({row["fabric_cluster_uuid"] for row in rows[:18]}) == 1
    assert [row["tray"] for row in rows] == [*range(18), 0]
    assert [row["slot"] for row in rows[:18]] == [*range(1, 9), *range(18, 28)]
    assert rows[18]["chassis_serial"] != rows[0]["chassis_serial"]
    assert rack_facts(model_named("H100-SXM-80GB"), 1, 0) == {}
