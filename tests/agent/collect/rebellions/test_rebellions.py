"""Rebellions NPUs, by a tool that prints what its guide shows, with values of ours."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.agent.collect.vendor_host import VendorHost, is_what_the_simulator_tells, texts_with

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.accelerators import AcceleratorProbe
from gpuwarden_agent.collect.rebellions.reports import parse_report
from gpuwarden_agent.collect.rebellions.source import find
from gpuwarden_agent.collect.vendors import find_accelerators
from gpuwarden_agent.probe import ProbeError

GIB = 1 << 30


def npu(number: int | str, **more: Any) -> dict[str, Any]:
    return {
        "npu": number,
        "name": "RBLN-CA22",
        "sid": f"000000002250000{number}",
        "uuid": f"c0ffee00-000{number}",
        "device": f"rbln{number}",
        "status": "normal",
        "fw_ver": "3.2.2",
        "pci": {
            "dev": "0x1220",
            "bus_id": "0000:ab:00.0",
            "numa_node": "1",
            "link_speed": "32.0 GT/s",
            "link_width": "8",
        },
        "temperature": "41C",
        "card_power": "43900mW",
        "pstate": "P2",
        "memory": {"used": str(4 * GIB), "total": str(16 * GIB)},
        "util": "98.5",
        **more,
    }


REPORT = {
    "KMD_version": "3.5.1",
    "devices": [npu("1"), npu(0)],
    "contexts": [
        {"ctx_id": "1", "npu": 0, "pid": "4100", "memalloc": "2.5GiB"},
        {"ctx_id": "2", "npu": "0", "pid": 4100, "memalloc": "512.0MiB"},
        {"ctx_id": "3", "npu": 0, "pid": 4200, "memalloc": "N/A"},
        {"ctx_id": "4", "npu": 0, "pid": "-"},
    ],
}


@pytest.fixture
def machine(tmp_path: Path, clock: ManualClock) -> VendorHost:
    made = VendorHost(tmp_path, clock)
    made.device("rbln0", "rbln1", "rblnfs")
    made.tool("rbln-smi", "assert sys.argv[1:] == ['--json']\nprint(ANSWER)")
    made.answers(REPORT)
    return made


@pytest.fixture
def probe(machine: VendorHost) -> AcceleratorProbe:
    (made,) = find_accelerators(machine.host, 0)
    return made


def test_each_name_is_in_its_column(probe: AcceleratorProbe) -> None:
    assert (probe.named, probe.count) == ("2 Rebellions NPUs", 2)
    described = probe.describe()
    assert described["nodes"] == [{"driver_version": "3.5.1"}]
    identity = {"gpu": 0, "gpu_uuid": "RBLN-c0ffee00-0000"}
    assert described["gpus"][0] == identity | {
        "vendor": "rebellions",
        "kind": "npu",
        "model": "Rebellions RBLN-CA22",
        "serial": "0000000022500000",
        "pci_bus_id": "0000:ab:00.0",
        "numa_node": 1,
        "memory_total_bytes": 16 * GIB,
    }
    assert probe.read(0)["gpu_samples"][0] == identity | {
        "util_percent": 98.5,
        "memory_total_bytes": 16 * GIB,
        "memory_used_bytes": 4 * GIB,
        "memory_free_bytes": 12 * GIB,
        "temperature_celsius": 41.0,
        "power_watts": pytest.approx(43.9),
        "pstate": 2,
    }
    is_what_the_simulator_tells("rebellions", probe.read(0), probe.describe()["gpus"])


def test_contexts_are_processes(probe: AcceleratorProbe) -> None:
    devices: list[Any] = []
    probe.on_device = devices.append
    probe.read(0)
    held = [[(each.pid, each.memory_bytes) for each in device.held()] for device in devices]
    assert held == [[(4100, 3 * GIB), (4200, None)], []]


def test_what_is_absent_is_no_value(machine: VendorHost, probe: AcceleratorProbe) -> None:
    odd = {
        "npu": 0,
        "util": "N/A",
        "card_power": "43900",
        "memory": {"used": "1", "total": "16096"},
    }
    machine.answers({"devices": [odd, {"name": "no number"}, 5], "contexts": None})
    (row,) = probe.describe()["gpus"]
    assert (row["gpu_uuid"], row["model"]) == ("RBLN-n1-0", "Rebellions NPU")
    assert probe.read(0)["gpu_samples"] == [{"gpu": 0, "gpu_uuid": "RBLN-n1-0"}]


def test_rubbish_is_an_error_that_names_the_tool(
    machine: VendorHost, probe: AcceleratorProbe
) -> None:
    machine.answers("null")
    with pytest.raises(ProbeError, match="the output of rbln-smi cannot be read"):
        probe.read(0)


def test_a_tool_without_npus_is_an_error(machine: VendorHost, probe: AcceleratorProbe) -> None:
    machine.answers({"devices": []})
    with pytest.raises(ProbeError, match="lists no NPU"):
        probe.describe()


def test_the_older_tool_serves_too_and_without_tool_or_device_there_is_no_source(
    machine: VendorHost,
) -> None:
    (machine.folder / "bin/rbln-smi").rename(machine.folder / "bin/rbln-stat")
    assert find(machine.host) is not None
    (machine.folder / "bin/rbln-stat").unlink()
    assert find(machine.host) is None
    for name in ("rbln0", "rbln1"):
        (machine.folder / "dev" / name).unlink()
    assert find_accelerators(machine.host, 0) == []


KEYS = ("devices", "npu", "memory", "total", "used", "contexts", "pid", "memalloc", "pstate")


@settings(max_examples=40)
@given(texts_with(*KEYS, "util", "pci", "numa_node"))
def test_no_text_breaks_the_parser(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_report(text)
