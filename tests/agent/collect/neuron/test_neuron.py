"""Trainium and Inferentia, by tools that print what AWS's user guides show, with values of ours."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.agent.collect.vendor_host import VendorHost, is_what_the_simulator_tells, json_with

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.accelerators import AcceleratorProbe
from gpuwarden_agent.collect.neuron.reports import model_of, parse_devices, parse_report
from gpuwarden_agent.collect.vendors import find_accelerators
from gpuwarden_agent.probe import ProbeError, Reading

GIB = 1 << 30


def listed_device(index: int, **more: Any) -> dict[str, Any]:
    return {
        "neuron_device": index,
        "bdf": f"{0x10 + index:02x}:1c.0",
        "connected_to": [1 - index],
        "nc_count": 2,
        "logical_neuroncore_config": 1,
        "memory_size": 32 * GIB,
        "neuron_processes": [],
        "instance_type": "trn1.32xlarge",
        **more,
    }


DEVICES = [
    listed_device(1),
    listed_device(0, neuron_processes=[{"pid": 4100, "command": "python train.py"}]),
]


def core_memory(tensors: int, code: int = 0) -> dict[str, int]:
    return {
        "constants": 0,
        "model_code": code,
        "model_shared_scratchpad": 0,
        "runtime_memory": 0,
        "tensors": tensors,
    }


def runtime(pid: int, percents: dict[str, float], memory: dict[str, dict[str, int]]) -> Any:
    total = sum(sum(kinds.values()) for kinds in memory.values())
    return {
        "pid": pid,
        "neuron_runtime_tag": str(pid),
        "error": "",
        "report": {
            "neuroncore_counters": {
                "period": 1.0,
                "neuroncores_in_use": {
                    core: {"neuroncore_utilization": percent} for core, percent in percents.items()
                },
                "error": "",
            },
            "memory_used": {
                "period": 1.0,
                "neuron_runtime_used_bytes": {
                    "host": 600 << 20,
                    "neuron_device": total,
                    "usage_breakdown": {"host": {}, "neuroncore_memory_usage": memory},
                },
                "error": "",
            },
        },
    }


REPORT = {
    "neuron_runtime_data": [
        runtime(
            4100,
            {"0": 90.0, "1": 70.0, "2": 10.0},
            {"0": core_memory(4 * GIB, GIB), "1": core_memory(3 * GIB), "2": core_memory(GIB)},
        ),
        runtime(4200, {"3": 50.0}, {"3": core_memory(2 * GIB)}),
    ],
    "system_data": {
        "neuron_hw_counters": {
            "period": 1.0,
            "neuron_devices": [
                {
                    "neuron_device_index": 0,
                    "mem_ecc_corrected": 3,
                    "mem_ecc_uncorrected": 1,
                    "sram_ecc_corrected": 2,
                    "sram_ecc_uncorrected": 0,
                },
                {"neuron_device_index": 1, "mem_ecc_corrected": 0},
            ],
            "error": "",
        }
    },
    "neuron_hardware_info": {"neuron_device_count": 2, "neuroncore_per_device_count": 2},
}


@pytest.fixture
def machine(tmp_path: Path, clock: ManualClock) -> VendorHost:
    made = VendorHost(tmp_path, clock)
    made.device("neuron0", "neuron1", "neuronx", "null")
    made.answers(DEVICES)
    made.answers(REPORT, "report")
    made.tool("neuron-ls", "print(ANSWER)")
    made.tool(
        "neuron-monitor",
        "assert json.load(open(sys.argv[2]))['period'] == '1s'\n"
        "while True: print(said('report'), flush=True); time.sleep(0.05)",
    )
    return made


@pytest.fixture
def probe(machine: VendorHost) -> Iterator[AcceleratorProbe]:
    (made,) = find_accelerators(machine.host, 0)
    yield made
    made.close()


def read(probe: AcceleratorProbe, util: float | None = None) -> Reading:
    """A reading, once the tool has printed its (newest) report."""
    end = time.monotonic() + 20
    while True:
        try:
            reading = probe.read(0)
        except ProbeError:
            reading = {"gpu_samples": []}
        rows = reading["gpu_samples"]
        if rows and (util is None or rows[0].get("util_percent") == util):
            return reading
        assert time.monotonic() < end, reading
        time.sleep(0.02)


def test_devices_are_described_in_their_order(machine: VendorHost, probe: AcceleratorProbe) -> None:
    for index, serial in enumerate(("a1b2c3", "0000")):
        folder = machine.folder / f"sys/devices/virtual/neuron_device/neuron{index}/info"
        folder.mkdir(parents=True)
        (folder / "serial_number").write_text(f"{serial}\n")
    assert (probe.named, probe.count) == ("2 AWS Neuron devices", 2)
    rows = probe.describe()["gpus"]
    assert rows[0] == {
        "gpu": 0,
        "gpu_uuid": "NEURON-a1b2c3",
        "vendor": "aws",
        "kind": "npu",
        "model": "AWS Trainium",
        "serial": "a1b2c3",
        "pci_bus_id": "0000:10:1c.0",
        "memory_total_bytes": 32 * GIB,
    }
    # A serial number of zeros is none; the place is the identity.
    assert rows[1]["gpu_uuid"] == "NEURON-n1-0000:11:1c.0"
    assert "serial" not in rows[1]


def test_each_field_of_a_report_is_in_its_column(probe: AcceleratorProbe) -> None:
    reading = read(probe)
    identity = {"gpu": 0, "gpu_uuid": "NEURON-n1-0000:10:1c.0"}
    assert reading["gpu_samples"][0] == identity | {
        "util_percent": 80.0,
        "memory_total_bytes": 32 * GIB,
        "memory_used_bytes": 8 * GIB,
        "memory_free_bytes": 24 * GIB,
    }
    assert reading["gpu_samples"][1]["util_percent"] == 30.0
    assert reading["gpu_samples"][1]["memory_used_bytes"] == 3 * GIB
    assert reading["gpu_health_samples"][0] == identity | {
        "dram_corrected_volatile_total": 3,
        "dram_uncorrected_volatile_total": 1,
        "sram_corrected_volatile_total": 2,
        "sram_uncorrected_volatile_total": 0,
        "ecc_corrected_volatile_total": 5,
        "ecc_uncorrected_volatile_total": 1,
    }
    is_what_the_simulator_tells("neuron", reading)
    # Half of the sums is missing: they are absent, not smaller.
    assert set(reading["gpu_health_samples"][1]) == {
        "gpu",
        "gpu_uuid",
        "dram_corrected_volatile_total",
    }


def test_the_first_reading_waits_for_the_first_report(probe: AcceleratorProbe) -> None:
    """`agent once` reads once."""
    probe.describe()
    assert probe.read(0)["gpu_samples"][0]["util_percent"] == 80.0


def test_processes_are_on_the_devices_of_their_cores(probe: AcceleratorProbe) -> None:
    devices: list[Any] = []
    probe.on_device = devices.append
    read(probe)
    held = [[(each.pid, each.memory_bytes) for each in device.held()] for device in devices]
    assert held == [[(4100, 8 * GIB)], [(4100, GIB), (4200, 2 * GIB)]]


def test_idle_devices_are_at_zero_and_their_memory_is_free(
    machine: VendorHost, probe: AcceleratorProbe
) -> None:
    read(probe)
    machine.answers({"neuron_runtime_data": [], "system_data": None}, "report")
    row = read(probe, util=0.0)["gpu_samples"][0]
    assert (row["memory_used_bytes"], row["memory_free_bytes"]) == (0, 32 * GIB)


def test_a_runtime_that_does_not_tell_its_memory_leaves_it_absent(
    machine: VendorHost, probe: AcceleratorProbe
) -> None:
    silent = runtime(7, {"0": 44.0}, {})
    silent["report"]["memory_used"] = {"error": "not available"}
    machine.answers({"neuron_runtime_data": [silent]}, "report")
    row = read(probe, util=22.0)["gpu_samples"][0]
    assert "memory_used_bytes" not in row
    assert "memory_free_bytes" not in row


def test_one_device_gets_the_total_where_cores_do_not_tell(machine: VendorHost) -> None:
    devices = parse_devices(json.dumps([listed_device(0)]))
    told = runtime(7, {"0": 1.0}, {})
    told["report"]["memory_used"]["neuron_runtime_used_bytes"] = {"neuron_device": 5}
    use = parse_report(json.dumps({"neuron_runtime_data": [told]}), devices)[0]
    assert (use.memory_used_bytes, use.by_pid) == (5, {7: 5})


def test_rubbish_is_an_error_that_names_the_tool(
    machine: VendorHost, probe: AcceleratorProbe
) -> None:
    machine.answers("null")
    with pytest.raises(ProbeError, match="neuron-ls"):
        probe.describe()


@pytest.mark.parametrize(
    ("instance", "model"),
    [
        ("trn1n.32xlarge", "AWS Trainium"),
        ("trn2u.48xlarge", "AWS Trainium2"),
        ("inf2.xlarge", "AWS Inferentia2"),
        ("p5.48xlarge", None),
        (None, None),
    ],
)
def test_the_instance_type_names_the_chip(instance: str | None, model: str | None) -> None:
    assert model_of(instance) == model


KEYS = (
    *("neuron_runtime_data", "report", "neuroncore_counters", "pid", "0", "7"),
    *("neuroncores_in_use", "neuroncore_utilization", "memory_used", "system_data"),
    *("neuron_runtime_used_bytes", "usage_breakdown", "neuroncore_memory_usage"),
    *("neuron_hw_counters", "neuron_devices", "neuron_device_index", "nc_count"),
    *("neuron_device", "bdf", "memory_size", "neuron_processes", "tensors"),
)


@settings(max_examples=40)
@given(json_with(*KEYS), json_with(*KEYS))
def test_no_document_breaks_the_parsers(listing: Any, report: Any) -> None:
    devices = parse_devices(json.dumps(DEVICES))
    try:
        parse_devices(json.dumps(listing))
        parse_report(json.dumps(report), devices)
    except ValueError:
        pass
