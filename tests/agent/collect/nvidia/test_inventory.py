"""A GPU's row of `gpus`: what it is, asked once; how it is set, asked again; and who is near."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.collect.nvidia.fake_driver import (
    A100,
    A100_FIELDS,
    GB200,
    GB200_FIELDS,
    GEFORCE,
    GEFORCE_FIELDS,
    H100_BUSY,
    H100_BUSY_FIELDS,
    H100_IDLE,
    H100_IDLE_FIELDS,
    L40S_BUSY,
    L40S_BUSY_FIELDS,
    MIB,
    UNSUPPORTED,
    FakeDevice,
)

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.nvidia.gpu import GpuProbe
from gpuwarden_agent.collect.nvidia.inventory import InventoryReader, numa_node, way_to
from gpuwarden_agent.collect.nvidia.metrics import cpu_list, signed, threshold
from gpuwarden_agent.collect.nvidia.nvml import FabricInfo, PlatformInfo
from gpuwarden_agent.collect.nvidia.query import Query
from gpuwarden_agent.probe import Row

OTHER = "0000:00:0a.0"


def inventory(
    device: FakeDevice, clock: ManualClock, bus_ids: dict[str, tuple[int, str]] | None = None
) -> InventoryReader:
    device.open()
    return InventoryReader(Query(device, clock), Path("/nowhere"), bus_ids)


def test_an_h100_is_described(clock: ManualClock, tmp_path: Path) -> None:
    (tmp_path / "0000:00:09.0").mkdir()
    (tmp_path / "0000:00:09.0" / "numa_node").write_text("1\n")
    device = FakeDevice()
    device.open()
    reader = InventoryReader(Query(device, clock), tmp_path)
    assert reader.read({"nvlinks": 18, "mig_mode": False}, []) == {
        "gpu_uuid": device.uuid,
        "gpu": 0,
        "model": "NVIDIA H100 80GB HBM3",
        "vendor": "nvidia",
        "kind": "gpu",
        "serial": "1650000000000",
        "pci_bus_id": "0000:00:09.0",
        "vbios_version": "96.00.A5.00.01",
        "memory_total_bytes": 81559 * MIB,
        "power_limit_default_watts": 700.0,
        "power_limit_min_watts": 200.0,
        "power_limit_max_watts": 700.0,
        "sm_clock_max_mhz": 1980,
        "memory_clock_max_mhz": 2619,
        "pcie_generation_max": 5,
        "pcie_width_max": 16,
        "nvlinks": 18,
        "numa_node": 1,
        "mig_mode": False,
        "part_number": "692-2G520-0200-000",
        "inforom_version": "G520.0200.00.05",
        "architecture": "hopper",
        "compute_capability": "9.0",
        "margin_shutdown_celsius": -8.0,
        "margin_slowdown_celsius": -2.0,
        "margin_memory_max_celsius": 0.0,
        "margin_gpu_max_celsius": 0.0,
        "cpu_affinity": "0-19",
        "ecc_mode": True,
        "ecc_mode_pending": True,
        "persistence_mode": True,
        "compute_mode": "default",
        "addressing_mode": "hmm",
        "gsp_firmware_version": "590.48.01",
        "virtualization": "none",
        "module_id": 1,
    }


def test_a_gb200_is_of_a_rack_once_it_is_registered_with_its_fabric(clock: ManualClock) -> None:
    device = FakeDevice(GB200, GB200_FIELDS)
    reader = inventory(device, clock)
    rack = {"fabric_cluster_uuid": "00010203-0405-0607-0809-0a0b0c0d0e0f", "fabric_clique": 32766}
    row = reader.read({}, [])
    assert (row["chassis_serial"], row["tray"]) == ("1820224190105", 10)
    assert rack.items() <= row.items()
    device.answers["fabric_info"] = FabricInfo(2, 0, 0, bytes(range(16)), 32766)
    assert not rack.keys() & reader.read({}, []).keys()


@pytest.mark.parametrize("serial", [b"", b"N/A", b"0", b"\xff\xfe"])
def test_a_chassis_without_a_serial_number_has_no_trays(clock: ManualClock, serial: bytes) -> None:
    answers = GB200 | {"platform_info": PlatformInfo(serial, 0, 0, 3)}
    row = inventory(FakeDevice(answers, GB200_FIELDS), clock).read({}, [])
    assert not {"chassis_serial", "slot", "tray"} & row.keys()
    assert row["module_id"] == 3


def test_older_parts_have_temperatures_instead_of_margins(clock: ManualClock) -> None:
    row = inventory(FakeDevice(GEFORCE, GEFORCE_FIELDS), clock).read({}, [])
    assert [
        row[f"temperature_{which}_celsius"] for which in ("slowdown", "shutdown", "gpu_max")
    ] == [97, 100, 89]
    assert not [column for column in row if column.startswith("margin_")]
    assert (row["architecture"], row["compute_capability"]) == ("turing", "7.5")
    assert not {"serial", "part_number", "ecc_mode"} & row.keys()


def test_what_cannot_change_is_asked_once(clock: ManualClock) -> None:
    device = FakeDevice()
    reader = inventory(device, clock)
    first = reader.read({}, [])
    device.calls.clear()
    assert reader.read({}, []) == first
    again = dict.fromkeys(("ecc_modes", "is_persistent", "compute_mode", "fabric_info"), 1)
    assert device.calls == again


def test_a_device_that_was_opened_again_is_asked_again(clock: ManualClock) -> None:
    device = FakeDevice()
    reader = inventory(device, clock)
    reader.read({}, [])
    device.answers |= {"vbios_version": "96.00.A5.00.02", "architecture": 10}
    assert reader.read({}, [])["vbios_version"] == "96.00.A5.00.01"
    reader.forget()
    row = reader.read({}, [])
    assert (row["vbios_version"], row["architecture"]) == ("96.00.A5.00.02", "blackwell")


def test_a_changed_mode_is_in_the_next_inventory(clock: ManualClock) -> None:
    device = FakeDevice()
    reader = inventory(device, clock)
    reader.read({}, [])
    device.answers |= {"ecc_modes": (True, False), "compute_mode": 3, "is_persistent": False}
    row = reader.read({}, [])
    assert (row["ecc_mode"], row["ecc_mode_pending"]) == (True, False)
    assert (row["compute_mode"], row["persistence_mode"]) == ("exclusive_process", False)


@pytest.mark.parametrize("answers", [{"is_gsp_enabled": False}, {"is_gsp_enabled": UNSUPPORTED}])
def test_firmware_that_is_not_in_use_has_no_version(
    answers: dict[str, Any], clock: ManualClock
) -> None:
    assert "gsp_firmware_version" not in inventory(FakeDevice(H100_IDLE | answers), clock).read(
        {}, []
    )


@pytest.mark.parametrize("number", [11, 0xFFFFFFFF, UNSUPPORTED])
def test_an_architecture_that_has_no_name_is_unknown(number: Any, clock: ManualClock) -> None:
    reader = inventory(FakeDevice(H100_IDLE | {"architecture": number}), clock)
    assert reader.architecture() is None
    assert "architecture" not in reader.read({}, [])


def test_other_gpus_are_told_with_the_way_to_them(clock: ManualClock) -> None:
    device = FakeDevice()
    bus_ids: dict[str, tuple[int, str]] = {}
    reader = inventory(device, clock, bus_ids)
    assert "peers" not in reader.read({}, [])
    assert bus_ids == {"0000:00:09.0": (0, device.uuid)}
    bus_ids[OTHER] = (1, "GPU-1")
    assert json.loads(str(reader.read({}, [])["peers"])) == {OTHER: "NODE"}
    assert json.loads(str(reader.read({}, ["switch"] * 18)["peers"])) == {OTHER: "NV18"}
    assert device.calls["common_ancestor"] == 1


@pytest.mark.parametrize(
    ("level", "ways", "way"),
    [
        (0, [], "PIX"),
        (10, [], "PIX"),
        (20, [], "PXB"),
        (30, [], "PHB"),
        (40, [], "NODE"),
        (50, [], "SYS"),
        (99, [], None),
        (None, [], None),
        (50, ["switch", "switch"], "NV2"),
        (50, [OTHER, OTHER, "0000:00:0b.0"], "NV2"),
        (50, ["0000:00:0b.0", None], "SYS"),
        (None, [OTHER], "NV1"),
    ],
)
def test_the_way_is_told_in_the_words_of_nvidia_smi(
    level: int | None, ways: list[str | None], way: str | None
) -> None:
    assert way_to(OTHER, level, ways) == way


@settings(max_examples=50)
@given(st.sets(st.integers(0, 255), min_size=1))
def test_a_list_of_cpus_names_each_of_them_once(cpus: set[int]) -> None:
    words = [sum(1 << cpu % 64 for cpu in cpus if cpu // 64 == n) for n in range(4)]
    named: list[int] = []
    for part in (cpu_list(words) or "").split(","):
        first, _, last = part.partition("-")
        named += range(int(first), int(last or first) + 1)
    assert named == sorted(cpus)


@pytest.mark.parametrize(
    ("celsius", "known"), [(97, 97.0), (39, None), (151, None), (0, None), (None, None)]
)
def test_only_what_can_be_a_threshold_is_one(celsius: int | None, known: float | None) -> None:
    assert threshold(celsius) == known


@pytest.mark.parametrize(
    ("raw", "margin"), [(0, 0), (5, 5), (-8, -8), (0xFFFF_FFF8, -8), (0x8000_0000, -(2**31))]
)
def test_a_margin_below_zero_is_one_however_it_is_handed_over(raw: int, margin: int) -> None:
    assert signed(raw) == margin


@pytest.mark.parametrize(
    ("text", "node"), [("0\n", 0), ("-1\n", None), ("junk", None), (None, None)]
)
def test_numa_node_is_what_sysfs_says(text: str | None, node: int | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "0000:01:00.0").mkdir()
        (tmp_path / "0000:01:00.0" / "numa_node").write_text(text)
    assert numa_node(tmp_path, "0000:01:00.0") == node


NAMES = {
    "model": "Product Name",
    "architecture": "Product Architecture",
    "vbios_version": "VBIOS Version",
    "inforom_version": "Image Version",
    "power_limit_default_watts": "Default Power Limit",
    "power_limit_min_watts": "Min Power Limit",
    "power_limit_max_watts": "Max Power Limit",
    "margin_shutdown_celsius": "GPU Shutdown T.Limit Temp",
    "margin_slowdown_celsius": "GPU Slowdown T.Limit Temp",
    "margin_gpu_max_celsius": "GPU Max Operating T.Limit Temp",
    "temperature_shutdown_celsius": "GPU Shutdown Temp",
    "temperature_slowdown_celsius": "GPU Slowdown Temp",
    "temperature_gpu_max_celsius": "GPU Max Operating Temp",
    "temperature_margin_celsius": "GPU T.Limit Temp",
    "memory_temperature_celsius": "Memory Current Temp",
    "recovery_action": "GPU Recovery Action",
    "fan_percent": "Fan Speed",
    "jpeg_util_percent": "JPEG",
    "ofa_util_percent": "OFA",
    "ecc_mode_pending": "ECC Mode Pending",
    "remap_banks_low": "Low",
    "serial": "Serial Number",
    "part_number": "Board Part Number",
}
"""Columns, and what nvidia-smi -q calls them."""


MIG = H100_IDLE | {
    "is_mig_enabled": True,
    "remapped_rows": UNSUPPORTED,
    # nvidia-smi prints neither when the first is not supported.
    "remap_histogram": UNSUPPORTED,
}


def _told(path: Path) -> dict[str, str]:
    """What nvidia-smi -q printed when the GPU was idle, by name; the first of each."""
    text = path.read_text().split("==============NVSMI LOG==============")[1]
    told: dict[str, str] = {}
    section = ""
    for line in text.split("####")[0].splitlines():
        name, colon, value = line.partition(" : ")
        if not colon:
            section = line.strip()
            continue
        prefix = "ECC Mode " if section == "ECC Mode" else ""
        told.setdefault(prefix + name.strip(), value.strip())
    return told


@pytest.mark.parametrize(
    ("name", "answers", "fields"),
    [
        ("h100-80gb-hbm3", H100_BUSY, H100_BUSY_FIELDS),
        ("l40s", L40S_BUSY, L40S_BUSY_FIELDS),
        ("h200", H100_IDLE | {"name": "NVIDIA H200"}, H100_IDLE_FIELDS),
        ("geforce-rtx-2080-super", GEFORCE, GEFORCE_FIELDS),
        ("h100-mig", MIG, H100_IDLE_FIELDS),
    ],
)
def test_a_board_tells_what_nvidia_smi_printed_on_it_and_no_more(
    name: str,
    answers: dict[str, Any],
    fields: dict[int, Any],
    clock: ManualClock,
    captures: Path,
) -> None:
    (path,) = captures.glob(f"*nvidia-{name}__*.txt")
    told = _told(path)
    probe = GpuProbe(FakeDevice(answers, fields), clock)
    row: Row = dict(probe.describe()["gpus"][0])
    for table in ("gpu_samples", "gpu_detail_samples", "gpu_health_samples"):
        row |= probe.read(0)[table][0]
    differ = {}
    for column, printed in NAMES.items():
        there = told.get(printed, "N/A") not in ("N/A", "[N/A]")
        if there != (column in row):
            differ[column] = (told.get(printed), row.get(column))
    assert differ == {}
    for column in ("power_limit_default_watts", "margin_slowdown_celsius", "remap_banks_low"):
        if column in row:
            (number,) = re.findall(r"^-?[\d.]+", told[NAMES[column]])
            assert row[column] == float(number), column


def test_an_a100_has_thresholds_and_ecc_but_no_margins(clock: ManualClock) -> None:
    row = inventory(FakeDevice(A100, A100_FIELDS), clock).read({}, [])
    assert (row["temperature_slowdown_celsius"], row["ecc_mode"]) == (94, True)
    assert not [column for column in row if column.startswith("margin_")]
