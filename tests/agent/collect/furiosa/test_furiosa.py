"""FuriosaAI cards, by a tool that prints what its guide shows, with values of ours."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.agent.collect.vendor_host import VendorHost, is_what_the_simulator_tells, texts_with

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.accelerators import AcceleratorProbe
from gpuwarden_agent.collect.furiosa.reports import parse_npus
from gpuwarden_agent.collect.vendors import find_accelerators
from gpuwarden_agent.probe import ProbeError

GIB = 1 << 30


def info(number: int, **more: Any) -> dict[str, Any]:
    return {
        "arch": "rngd",
        "dev_name": f"npu{number}",
        "device_uuid": f"A0B1C2D3-0{number}",
        "device_sn": f"RNG2604010018{number}",
        "firmware": "2026.3.0, 2d3f72a",
        "temperature": "40.5°C",
        "power": "138.00 W",
        "core_clock": "2000MHz",
        "governor": "Performance",
        "pci_bdf": f"0000:0{number}:00.0",
        "pci_dev": "508:0",
        **more,
    }


def status(number: int, *percents: float, **more: Any) -> dict[str, Any]:
    return {
        "arch": "rngd",
        "device": f"npu{number}",
        "liveness": "alive",
        "memory": {"DRAM": {"used_size": 8 * GIB, "total_size": 48 * GIB, "used_ratio": 16.7}},
        "pe_utilizations": [
            {"pe_core": core, "pe_occupancy": True, "pe_utilization": percent}
            for core, percent in enumerate(percents)
        ],
        **more,
    }


ANSWERS = {
    "info": [info(10), info(2)],
    "status": [status(2, 100.0, 50.0, 0.0, 50.0), status(10, 0.0)],
}


@pytest.fixture
def machine(tmp_path: Path, clock: ManualClock) -> VendorHost:
    made = VendorHost(tmp_path, clock)
    for name in ("rngd!npu2mgmt", "rngd!npu10mgmt"):
        (tmp_path / "sys/class/rngd_mgmt" / name).mkdir(parents=True)
    made.tool(
        "furiosa-smi",
        "import json\n"
        "assert sys.argv[2:] == ['--format', 'json']\n"
        "try: print(json.dumps(json.loads(ANSWER)[sys.argv[1]]))\n"
        "except (ValueError, TypeError): print(ANSWER)",
    )
    made.answers(ANSWERS)
    return made


@pytest.fixture
def probe(machine: VendorHost) -> AcceleratorProbe:
    (made,) = find_accelerators(machine.host, 0)
    return made


def test_each_name_is_in_its_column(probe: AcceleratorProbe) -> None:
    assert (probe.named, probe.count) == ("2 FuriosaAI NPUs", 2)
    identity = {"gpu": 0, "gpu_uuid": "FURIOSA-A0B1C2D3-02"}
    assert probe.describe()["gpus"][0] == identity | {
        "vendor": "furiosa",
        "kind": "npu",
        "model": "FuriosaAI RNGD",
        "serial": "RNG26040100182",
        "pci_bus_id": "0000:02:00.0",
        "memory_total_bytes": 48 * GIB,
    }
    rows = probe.read(0)["gpu_samples"]
    assert rows[0] == identity | {
        "util_percent": 50.0,
        "memory_total_bytes": 48 * GIB,
        "memory_used_bytes": 8 * GIB,
        "memory_free_bytes": 40 * GIB,
        "temperature_celsius": 40.5,
        "power_watts": 138.0,
        "sm_clock_mhz": 2000,
    }
    # npu10 is after npu2.
    assert (rows[1]["gpu_uuid"], rows[1]["util_percent"]) == ("FURIOSA-A0B1C2D3-010", 0.0)
    is_what_the_simulator_tells("furiosa", probe.read(0), probe.describe()["gpus"])


def test_what_is_absent_is_no_value(machine: VendorHost, probe: AcceleratorProbe) -> None:
    broken = [{"pe_utilization": 5.0}, {"pe_utilization": "N/A"}]
    machine.answers(
        {
            "info": [{"dev_name": "npu0", "power": "N/A"}, {"arch": "no name"}, None],
            "status": [{"device": "npu0", "pe_utilizations": broken}, 5],
        }
    )
    (row,) = probe.describe()["gpus"]
    assert (row["gpu_uuid"], row["model"]) == ("FURIOSA-n1-npu0", "FuriosaAI NPU")
    # The mean of some cores is not that of the card.
    assert probe.read(0)["gpu_samples"] == [{"gpu": 0, "gpu_uuid": "FURIOSA-n1-npu0"}]


def test_rubbish_is_an_error_that_names_the_tool(
    machine: VendorHost, probe: AcceleratorProbe
) -> None:
    machine.answers("null")
    with pytest.raises(ProbeError, match="the output of furiosa-smi cannot be read"):
        probe.read(0)


def test_a_tool_without_cards_is_an_error(machine: VendorHost, probe: AcceleratorProbe) -> None:
    machine.answers({"info": [], "status": []})
    with pytest.raises(ProbeError, match="lists no card"):
        probe.describe()


KEYS = ("dev_name", "device", "memory", "DRAM", "total_size", "pe_utilizations", "power")
TEXTS = texts_with(*KEYS, "pe_utilization", "used_size")


@settings(max_examples=40)
@given(TEXTS, TEXTS)
def test_no_text_breaks_the_parser(first: str, second: str) -> None:
    with contextlib.suppress(ValueError):
        parse_npus(first, second)
