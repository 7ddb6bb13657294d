"""`amd-smi` as JSON. Written from the tools' documentation: no capture was available."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_importing import amd_smi
from gpuwarden_importing.model import ImportTally, Origin

AT = 1_780_000_000_000


def amount(value: object, unit: str) -> dict[str, object]:
    return {"value": value, "unit": unit}


METRIC = {
    "gpu": 1,
    "usage": {"gfx_activity": amount(97, "%"), "umc_activity": amount(12, "%"), "mm_activity": "N/A"},
    "power": {"socket_power": amount(650, "W"), "gfx_voltage": "N/A"},
    "clock": {"gfx_0": {"clk": amount(2100, "MHz"), "max_clk": amount(2100, "MHz")}, "mem_0": {"clk": amount(1300, "MHz")}},
    "temperature": {"edge": "N/A", "hotspot": amount(61, "C"), "mem": amount(48, "C")},
    "pcie": {"width": 16, "replay_count": 3},
    "ecc": {"total_correctable_count": 2, "total_uncorrectable_count": 0},
    "mem_usage": {"total_vram": amount(196592, "MB"), "used_vram": amount(1024, "MB")},
    "energy": {"total_energy_consumption": amount(1500.5, "J")},
}  # fmt: skip
STATIC = {
    "gpu": 1,
    "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": "0x79CCD55167A2124A"},
    "bus": {"bdf": "0000:0c:00.0"},
    "driver": {"name": "amdgpu", "version": "6.8.5"},
    "limit": {"max_power": amount(750, "W")},
    "numa": {"node": 1},
}
SAMPLE = {
    "ts": AT, "gpu": 1, "node": "n1", "util_percent": 97.0, "memory_util_percent": 12.0,
    "power_instant_watts": 650.0, "power_watts": 650.0, "sm_clock_mhz": 2100, "memory_clock_mhz": 1300,
    "temperature_celsius": 61.0, "memory_temperature_celsius": 48.0, "memory_total_bytes": 196592 * 2**20,
    "memory_used_bytes": 1024 * 2**20, "energy_joules_total": 1500.5,
}  # fmt: skip


@pytest.mark.parametrize("form", ["list", "gpu_data", "one after another"])
def test_json_of_metric_and_static_is_one_gpu_under_the_agents_identity(imported, form) -> None:
    both = [METRIC, STATIC]
    text = {"list": json.dumps(both), "gpu_data": json.dumps({"gpu_data": both}),
            "one after another": "\n".join(map(json.dumps, both))}[form]  # fmt: skip
    found = imported(amd_smi.read, text)
    uuid = "AMD-79ccd55167a2124a"
    assert found["gpu_samples"] == [SAMPLE | {"gpu_uuid": uuid}]
    assert found["gpu_detail_samples"][0]["pcie_replays_total"] == 3
    assert found["gpu_health_samples"][0]["ecc_corrected_volatile_total"] == 2
    (gpu,) = found["gpus"]
    assert (gpu["gpu_uuid"], gpu["model"], gpu["pci_bus_id"], gpu["numa_node"], gpu["power_limit_max_watts"]) == (
        uuid, "AMD Instinct MI300X", "0000:0c:00.0", 1, 750.0,
    )  # fmt: skip
    assert found["nodes"][0]["driver_version"] == "6.8.5"
    assert set(found.tally.unmapped) == {"clock/gfx_0/max_clk", "driver/name"}
    assert not found.tally.skipped


def test_without_a_serial_the_place_stands_for_the_uuid_and_times_are_read(imported) -> None:
    found = imported(amd_smi.read, json.dumps(METRIC | {"timestamp": 1753000000}))
    (row,) = found["gpu_samples"]
    assert (row["gpu_uuid"], row["ts"]) == ("AMD-gpu1@n1", 1753000000000)
    assert any("no asic_serial" in note for note in found.tally.notes)
    assert "an answer that names no GPU" in imported(amd_smi.read, '{"usage": {}}').tally.skipped


def dies(*percents: int) -> list[object]:
    return [*(amount(each, "%") for each in percents), "N/A"]


CUT = [
    {
        "gpu": 0,
        "bus": {"bdf": "0000:05:00.0"},
        "usage": {
            "gfx_activity": amount(60, "%"),
            "gfx_busy_inst": {"xcp_0": dies(100, 60), "xcp_1": dies(40, 40)},
        },
        "power": {"socket_power": amount(650, "W")},
        "mem_usage": {"total_vram": amount(196592, "MB"), "used_vram": amount(1024, "MB")},
    },
    {
        "gpu": 1,
        "bus": {"bdf": "0000:05:00.1"},
        "usage": {"gfx_activity": amount(41, "%")},
        "power": {"socket_power": "N/A"},
        "mem_usage": {"total_vram": amount(196592, "MB"), "used_vram": amount(1024, "MB")},
    },
]
"""Two partitions of an MI300X as `amd-smi metric --json` of ROCm 7 has them."""


@pytest.mark.parametrize("serial", ["0x79CCD55167A2124A", None])
def test_partitions_are_parts_of_one_gpu(imported, serial) -> None:
    static = [
        {"gpu": gpu, "asic": {"market_name": "AMD Instinct MI300X", **({"asic_serial": serial} if serial else {})}}
        for gpu in (0, 1)
    ]  # fmt: skip
    found = imported(amd_smi.read, json.dumps({"gpu_data": [*CUT, *static]}))
    whole = "AMD-79ccd55167a2124a" if serial else "AMD-0000:05:00.0@n1"
    rows = {str(row["gpu_uuid"]): row for row in found["gpu_samples"]}
    assert len(found["gpu_samples"]) == 3
    assert (rows[whole]["util_percent"], rows[whole]["power_watts"]) == (60.0, 650.0)
    assert rows[whole]["mig_instance"] is None
    assert {name: value for name, value in rows[f"{whole}-0"].items() if value is not None} == {
        "ts": AT, "gpu": 0, "node": "n1", "gpu_uuid": f"{whole}-0", "mig_instance": "dpx/0", "util_percent": 80.0,
    }  # fmt: skip
    assert (rows[f"{whole}-1"]["gpu"], rows[f"{whole}-1"]["util_percent"]) == (0, 40.0)
    gpus = {row["gpu_uuid"]: row for row in found["gpus"]}
    assert gpus.keys() == rows.keys()
    assert gpus[f"{whole}-1"]["parent_gpu_uuid"] == whole
    assert gpus[f"{whole}-1"]["model"] == "AMD Instinct MI300X DPX"
    assert gpus[whole]["pci_bus_id"] == "0000:05:00.0"


def test_a_partition_that_the_first_does_not_tell_of_has_its_own_utilization(imported) -> None:
    parts = [
        {"gpu": 0, "xcp": 0, "gfx": amount(10, "%"), "power_usage": amount(300, "W")},
        {"gpu": 1, "xcp": 1, "gfx": amount(20, "%"), "power_usage": "N/A", "hotspot_temperature": amount(50, "C")},
    ]  # fmt: skip
    static = [
        {"gpu": gpu, "asic": {"asic_serial": "0x1"}, "partition": {"accelerator_partition": "CPX", "partition_id": gpu}}
        for gpu in (0, 1)
    ]  # fmt: skip
    found = imported(amd_smi.read, json.dumps([*parts, *static]))
    assert [
        (row["gpu"], row.get("mig_instance"), row["util_percent"]) for row in found["gpu_samples"]
    ] == [(0, None, 10.0), (0, "cpx/1", 20.0)]


def test_limits_of_rocm_7_are_read_and_monitors_is_the_one_that_is_set(imported) -> None:
    ppt = {
        f"{name}_power_limit": amount(watts, "W")
        for name, watts in (("max", 750), ("min", 100), ("socket", 600))
    }
    static = {
        "gpu": 0, "ifwi": {"part_number": "113-M3000100-102"}, "vram": {"size": amount(196592, "MB")},
        "limit": {"ppt0": ppt, "ppt1": dict.fromkeys(ppt, "N/A"), "slowdown_hotspot_temperature": amount(100, "C")},
    }  # fmt: skip
    pcie = {
        "l0_to_recovery_count": 1,
        "replay_roll_over_count": 2,
        "nak_sent_count": 3,
        "nak_received_count": 4,
    }
    found = imported(amd_smi.read, json.dumps([static, {"gpu": 0, "pcie": pcie}]))
    (gpu,), (sample,), (detail,) = found["gpus"], found["gpu_samples"], found["gpu_detail_samples"]
    assert (gpu["power_limit_max_watts"], gpu["power_limit_min_watts"]) == (750.0, 100.0)
    assert (gpu["vbios_version"], gpu["memory_total_bytes"]) == ("113-M3000100-102", 196592 * 2**20)
    assert gpu["temperature_slowdown_celsius"] == 100.0
    assert sample["power_limit_watts"] == 600.0
    assert {detail[f"pcie_{name}_total"] for name in ("l0_to_recovery", "replay_rollovers", "naks_sent", "naks_received")} == {1, 2, 3, 4}  # fmt: skip
    (sample,) = imported(amd_smi.read, json.dumps({"gpu": 0, "max_power": amount(500, "W")}))[
        "gpu_samples"
    ]
    assert sample["power_limit_watts"] == 500.0


@given(st.recursive(st.sampled_from([5, "5 W", None, "N/A", True]), lambda inner: st.dictionaries(
    st.sampled_from(["gpu", "usage", "gfx_activity", "value", "unit", "gpu_data", "asic", "asic_serial", "bus", "bdf", "timestamp"]),
    inner, max_size=4) | st.lists(inner, max_size=3), max_leaves=12))  # fmt: skip
def test_rubbish_of_amd_smi_raises_nothing(document: object) -> None:
    lines = json.dumps([document, {"gpu": 0, "x": document}]).splitlines(keepends=True)
    list(amd_smi.read(iter(lines), Origin(node="n1", at_ms=AT), ImportTally()))
