"""The binding's calls with the driver's real structures, for boards of eight kinds."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.agent.collect.nvidia.fake_library import MIB, READ, compiled, run

Tables = dict[str, list[dict[str, Any]]]
Read = Callable[[str], Tables]

GPU = "GPU-5ca1ab1e-0000-0000-0000-000000000000"
GPM_SHARES = {
    "graphics_active_percent": 1,
    "sm_active_percent": 2,
    "sm_occupancy_percent": 3,
    "integer_active_percent": 4,
    "tensor_active_percent": 5,
    "tensor_half_active_percent": 7,
    "dram_active_percent": 10,
    "fp32_active_percent": 12,
    "fp16_active_percent": 13,
}
"""The metrics that the library has, by the number that it gives them: their id."""


BOARDS = ("h100", "gh200", "gb10", "gb200", "a100", "geforce", "mig", "b200")

PROCESSES = """
from gpuwarden.clock import SystemClock
from gpuwarden_agent.collect.nvidia.device import open_driver
from gpuwarden_agent.collect.nvidia.metrics import ROWS
from gpuwarden_agent.collect.nvidia.query import Query
device = open_driver().devices()[0]
device.open()
query = Query(device, SystemClock())
newest = query.ask(ROWS["process_utilization"], given=(0,))
say([
    [(p.pid, p.gpu_instance, p.compute_instance) for p in device.ask(ROWS["compute_processes_v3"])],
    [(s.pid, s.at_us, s.sm_percent, s.memory_percent, s.encoder_percent, s.decoder_percent)
     for s in newest],
    len(query.ask(ROWS["process_utilization"], given=(newest[-1].at_us,))),
    len(device.ask(ROWS["graphics_processes"])) + len(device.ask(ROWS["mps_processes"])),
])
"""

CALLS = """
import time
from gpuwarden.clock import SystemClock
from gpuwarden_agent.collect.nvidia.gpu import GpuProbe
from gpuwarden_agent.collect.nvidia.device import open_driver
probe = GpuProbe(open_driver().devices()[0], SystemClock())
probe.read(0)
time.sleep(0.12)
probe.read(0)
say({call.reading: call.call for call in probe.calls()})
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    cases = [(READ, {"FAKE_NVML_BOARD": board, "BETWEEN_S": "0.12"}) for board in BOARDS]
    cases.append((PROCESSES, {"FAKE_NVML_BOARD": "mig"}))
    cases += [(CALLS, {"FAKE_NVML_BOARD": board}) for board in ("h100", "mig")]
    return run(compiled(tmp_path_factory.mktemp("nvml-boards")), *cases)


@pytest.fixture(scope="module")
def read(answers: list[Any]) -> Read:
    tables = dict(zip(BOARDS, (answer["tables"] for answer in answers[:8]), strict=True))
    return tables.__getitem__


def one(rows: list[dict[str, Any]]) -> dict[str, Any]:
    (row,) = rows
    return {k: v for k, v in row.items() if k not in ("ts", "node", "simulated", "gpu", "gpu_uuid")}


def test_an_h100_gives_its_details(read: Read) -> None:
    assert one(read("h100")["gpu_detail_samples"]) == {
        **GPM_SHARES,
        "pcie_tx_bytes_per_second": 20 * MIB,
        "pcie_rx_bytes_per_second": 21 * MIB,
        "nvlink_rx_bytes_per_second": 60 * MIB,
        "nvlink_tx_bytes_per_second": 61 * MIB,
        "jpeg_util_percent": 13,
        "ofa_util_percent": 14,
        "graphics_clock_mhz": 2619,
        "video_clock_mhz": 2619,
        "temperature_margin_celsius": -3,
        "pcie_generation": 4,
        "pcie_width": 8,
        "pcie_replays_total": 94,
        "pcie_correctable_errors_total": 173,
        "nvlinks_active": 3,
    }


def test_memory_that_the_cpu_reaches_too_is_told_from_memory_that_is_shared(read: Read) -> None:
    """A GH200's own memory is a NUMA node of the host; a GB10 has none of its own, and NVML reports none."""
    grace, shared = read("gh200"), read("gb10")
    assert one(grace["gpus"])["memory_numa_node"] == 1
    assert {one(tables["gpus"])["addressing_mode"] for tables in (grace, shared)} == {"ats"}
    assert one(grace["gpu_samples"])["memory_total_bytes"] == 100 * MIB
    assert not [
        name for name in one(shared["gpus"]) if name.startswith("memory_") and "bytes" in name
    ]
    row = one(shared["gpu_samples"])
    assert not {"memory_total_bytes", "memory_used_bytes", "memory_free_bytes"} & row.keys()
    assert row["util_percent"] == 40


def test_a_gb200_tells_its_rack_and_an_h100_its_module_alone(read: Read) -> None:
    rack = {"chassis_serial", "slot", "tray", "fabric_cluster_uuid", "fabric_clique"}
    row = one(read("gb200")["gpus"])
    assert {name: row[name] for name in (*rack, "module_id")} == {
        "chassis_serial": "1820224190105",
        "slot": 17,
        "tray": 10,
        "module_id": 2,
        "fabric_cluster_uuid": "ab000000-0000-0000-0000-000000000001",
        "fabric_clique": 32766,
    }
    hopper = one(read("h100")["gpus"])
    assert hopper["module_id"] == 5
    assert not rack & hopper.keys()
    assert not {*rack, "module_id"} & one(read("a100")["gpus"]).keys()


def test_a_gpu_tells_that_it_was_given_to_a_virtual_machine(read: Read) -> None:
    assert [one(read(board)["gpus"])["virtualization"] for board in ("h100", "geforce")] == [
        "none",
        "passthrough",
    ]


def test_an_h100_gives_its_health(read: Read) -> None:
    assert one(read("h100")["gpu_health_samples"]) == {
        "recovery_action": "node_reboot",
        "fabric_state": "completed",
        "fabric_status": "success",
        "fabric_health": "healthy",
        "ecc_corrected_volatile_total": 3,
        "ecc_uncorrected_volatile_total": 4,
        "ecc_corrected_aggregate_total": 5,
        "ecc_uncorrected_aggregate_total": 6,
        "dram_corrected_volatile_total": 2000,
        "dram_uncorrected_volatile_total": 2001,
        "dram_corrected_aggregate_total": 2010,
        "dram_uncorrected_aggregate_total": 2011,
        "sram_corrected_volatile_total": 6,
        "sram_uncorrected_volatile_total": 9,
        "sram_corrected_aggregate_total": 3,
        "sram_uncorrected_aggregate_total": 3,
        "sram_threshold_exceeded": True,
        "remapped_rows_corrected_total": 0,
        "remapped_rows_uncorrected_total": 0,
        "remap_pending": False,
        "remap_failed": False,
        "remap_banks_max": 2550,
        "remap_banks_high": 6,
        "remap_banks_partial": 3,
        "remap_banks_low": 1,
        "remap_banks_none": 0,
        "memory_unrepairable": True,
        "inforom_valid": True,
    }


def test_an_h100_gives_its_links(read: Read) -> None:
    links = read("h100")["link_samples"]
    assert [(row["link"], row["active"]) for row in links] == [
        (0, True),
        (1, True),
        (2, True),
        (3, False),
    ]
    assert one(links[2:3]) == {
        "link_type": "nvlink",
        "link": 2,
        "active": True,
        "version": 4,
        "remote_type": "switch",
        "remote_pci_bus_id": "0000:ab:02.0",
        "speed_bytes_per_second": 26_562e6,
        "tx_bytes_total": 1024,
        "replay_errors_total": 20,
        "recovery_errors_total": 21,
        "crc_flit_errors_total": 22,
        "crc_data_errors_total": 23,
    }


def test_an_h100_gives_its_inventory(read: Read) -> None:
    gpu = one(read("h100")["gpus"])
    assert {
        "part_number": "692-2G520-0200-000",
        "inforom_version": "G520.0200.00.05",
        "architecture": "hopper",
        "compute_capability": "9.0",
        "margin_shutdown_celsius": -8,
        "margin_slowdown_celsius": -2,
        "margin_memory_max_celsius": 0,
        "margin_gpu_max_celsius": 0,
        "cpu_affinity": "0-7,64-71",
        "ecc_mode": True,
        "ecc_mode_pending": False,
        "persistence_mode": True,
        "compute_mode": "exclusive_process",
        "gsp_firmware_version": "590.48.01",
    }.items() <= gpu.items()


def test_mig_devices_are_rows_of_their_own(read: Read) -> None:
    tables = read("mig")
    whole, *parts = tables["gpus"]
    assert (whole["gpu_uuid"], whole["mig_mode"]) == (GPU, True)
    assert [(p["mig_instance"], p["model"], p["parent_gpu_uuid"]) for p in parts] == [
        ("2/0", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", GPU),
        ("3/0", "NVIDIA H100 80GB HBM3 MIG 2g.20gb", GPU),
        ("9/0", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", GPU),
        ("10/0", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", GPU),
    ]
    whole, *parts = tables["gpu_samples"]
    assert whole["power_watts"] == 301
    assert "util_percent" not in whole
    assert [p["memory_total_bytes"] // MIB for p in parts] == [40448, 20096, 9984, 9984]
    assert not [p for p in parts if {"power_watts", "util_percent"} & p.keys()]


def test_gpm_in_mig_mode_is_that_of_each_gpu_instance(read: Read) -> None:
    whole, *parts = read("mig")["gpu_detail_samples"]
    assert "sm_active_percent" not in whole
    assert [p["sm_active_percent"] for p in parts] == [2 + 2, 2 + 3, 2 + 9, 2 + 10]


def test_in_mig_mode_neither_links_nor_remapped_rows_are_told(read: Read) -> None:
    tables = read("mig")
    assert tables["link_samples"] == []
    health = one(tables["gpu_health_samples"])
    assert "remap_pending" not in health
    assert health["remap_banks_max"] == 2550
    assert health["fabric_status"] == "gpu_is_lost"
    assert health["fabric_health"] == "bandwidth_degraded,incorrect_configuration"


def test_an_a100_has_no_gpm_and_older_calls_for_sram(read: Read) -> None:
    tables = read("a100")
    assert not GPM_SHARES.keys() & one(tables["gpu_detail_samples"]).keys()
    health = one(tables["gpu_health_samples"])
    assert health["sram_uncorrected_aggregate_total"] == 7011
    assert health["inforom_valid"] is False
    assert not {"fabric_state", "sram_threshold_exceeded"} & health.keys()
    assert {row.get("version") for row in tables["link_samples"]} == {3, None}


def test_a_geforce_has_no_memory_errors_to_tell(read: Read) -> None:
    tables = read("geforce")
    assert one(tables["gpu_health_samples"]) == {"recovery_action": "none", "inforom_valid": True}
    assert tables["link_samples"] == []
    assert one(tables["gpu_detail_samples"])["fan_percent"] == 39


def test_blackwell_has_the_counters_of_nvlink_5_and_a_link_to_the_cpu(read: Read) -> None:
    *links, c2c = read("b200")["link_samples"]
    link = one(links[:1])
    assert (link["version"], link["malformed_packets_total"]) == (5, 206)
    assert link["effective_bit_error_rate"] == 5e-12
    assert link["symbol_bit_error_rate"] == 15e-255
    assert "replay_errors_total" not in link
    assert one([c2c]) == {
        "link_type": "c2c",
        "link": 0,
        "remote_type": "cpu",
        "active": True,
        "speed_bytes_per_second": 44_712e6,
    }


def test_processes_are_told_with_mig_device_and_utilization_since(answers: list[Any]) -> None:
    processes, samples, later, others = answers[8]
    assert processes == [[4194200, 9, 0], [4194201, None, None]]
    # The place of the buffer that the driver left zero is not a sample.
    assert samples == [[4194200, 1_700_000_000_000_000, 55, 21, 3, 4]]
    assert (later, others) == (0, 0)


def test_reports_name_calls_as_nvml_does(answers: list[Any]) -> None:
    h100, mig = answers[9:]
    assert {
        "memory_v2": "nvmlDeviceGetMemoryInfo",
        "fast_fields": "nvmlDeviceGetFieldValues",
        "power_watts": "nvmlDeviceGetFieldValues(185)",
        "gpm_sample": "nvmlGpmSampleAlloc",
        "gpm_take": "nvmlGpmSampleGet",
        "gpm_metrics": "nvmlGpmMetricsGet",
        "sm_active_percent": "nvmlGpmMetricsGet(2)",
        "nvlink_errors": "nvmlDeviceGetNvLinkErrorCounter",
        "validate_inforom": "nvmlDeviceValidateInforom",
    }.items() <= h100.items()
    assert mig["mig_device"] == "nvmlDeviceGetMigDeviceHandleByIndex"
    assert mig["mig_memory"] == "nvmlDeviceGetMemoryInfo"
