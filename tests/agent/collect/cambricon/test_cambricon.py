"""Cambricon cards, by a tool that writes the names that are known, with values of ours."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.agent.collect.vendor_host import VendorHost, is_what_the_simulator_tells, texts_with

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.accelerators import AcceleratorProbe
from gpuwarden_agent.collect.cambricon.reports import parse_cards
from gpuwarden_agent.collect.vendors import find_accelerators
from gpuwarden_agent.probe import ProbeError

MIB = 1 << 20


def card(number: int, **more: Any) -> dict[str, Any]:
    return {
        "CardNum": number,
        "ProductName": "MLU370-M8",
        "UUID": f"9a8b7c6d-000{number}",
        "PhysicalMemUsage": {"Total": "42396", "Used": "396"},
        "Utilization": {"MLUAverage": "81"},
        "Temperature": {"Board": "40", "Chip": "52"},
        "Power": {"Usage": "143", "Cap": "300"},
        "PCI": {
            "DomainID": "0000",
            "Bus": "6b",
            "Device": "00",
            "Function": "0",
            "CurrentSpeed": "8 GT/s",
            "MaxSpeed": "16 GT/s",
            "CurrentWidth": "x16",
            "MaxWidth": "x16",
        },
        **more,
    }


REPORT = {"CnmonInfo": [card(1), card(0)]}
WRITES = (
    "assert sys.argv[1:] == ['info', '-j']\n"
    "print('Saved')\n"
    "open('cnmon_info.json', 'w').write(ANSWER)"
)


@pytest.fixture
def machine(tmp_path: Path, clock: ManualClock) -> VendorHost:
    made = VendorHost(tmp_path, clock)
    made.device("cambricon_dev0", "cambricon_dev1", "cambricon_ctl")
    made.tool("cnmon", WRITES)
    made.answers(REPORT)
    return made


@pytest.fixture
def probe(machine: VendorHost) -> AcceleratorProbe:
    (made,) = find_accelerators(machine.host, 0)
    return made


def test_each_name_is_in_its_column(probe: AcceleratorProbe) -> None:
    assert (probe.named, probe.count) == ("2 Cambricon MLUs", 2)
    assert probe.describe()["gpus"][0] == {
        "gpu": 0,
        "gpu_uuid": "MLU-9a8b7c6d-0000",
        "vendor": "cambricon",
        "kind": "npu",
        "model": "Cambricon MLU370-M8",
        "pci_bus_id": "0000:6b:00.0",
        "memory_total_bytes": 42396 * MIB,
        "pcie_generation_max": 4,
        "pcie_width_max": 16,
    }
    reading = probe.read(0)
    identity = {"gpu": 1, "gpu_uuid": "MLU-9a8b7c6d-0001"}
    assert reading["gpu_samples"][1] == identity | {
        "util_percent": 81.0,
        "memory_total_bytes": 42396 * MIB,
        "memory_used_bytes": 396 * MIB,
        "memory_free_bytes": 42000 * MIB,
        "temperature_celsius": 52.0,
        "power_watts": 143.0,
    }
    assert reading["gpu_detail_samples"][1] == identity | {"pcie_generation": 3, "pcie_width": 16}
    is_what_the_simulator_tells("cambricon", probe.read(0), probe.describe()["gpus"])


def test_only_the_tables_that_are_due_are_filled(probe: AcceleratorProbe) -> None:
    reading = probe.read(0, {"gpu_samples"})
    assert set(reading) == {"gpu_samples"}


def test_what_is_absent_is_no_value(machine: VendorHost, probe: AcceleratorProbe) -> None:
    odd_place = {"DomainID": 0, "Bus": 107, "Device": 0, "Function": 0, "MaxSpeed": "9 GT/s"}
    silent = {"CardNum": "0", "UUID": "N/A", "Utilization": {"MLUAverage": "N/A"}, "PCI": odd_place}
    machine.answers({"CnmonInfo": [silent, {"ProductName": "no number"}, "text"]})
    assert probe.describe()["gpus"] == [
        {
            "gpu": 0,
            "gpu_uuid": "MLU-n1-0",
            "vendor": "cambricon",
            "kind": "npu",
            "model": "Cambricon MLU",
        }
    ]
    reading = probe.read(0)
    assert reading["gpu_samples"] == [{"gpu": 0, "gpu_uuid": "MLU-n1-0"}]
    assert reading["gpu_detail_samples"] == []


def test_rubbish_is_an_error_that_names_the_tool(
    machine: VendorHost, probe: AcceleratorProbe
) -> None:
    machine.answers("null")
    for call in (probe.describe, lambda: probe.read(0)):
        with pytest.raises(ProbeError, match=r"the cnmon_info.json of cnmon cannot be read"):
            call()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("print('done')", "wrote no cnmon_info.json"),
        ("sys.exit('no driver')", "cnmon failed with exit status 1: no driver"),
        ("open('cnmon_info.json', 'w').write('{\"CnmonInfo\": []}')", "lists no card"),
    ],
)
def test_a_tool_that_tells_nothing_is_an_error(
    body: str, expected: str, machine: VendorHost, probe: AcceleratorProbe
) -> None:
    machine.tool("cnmon", body)
    with pytest.raises(ProbeError, match=expected):
        probe.read(0)


KEYS = ("CnmonInfo", "CardNum", "ProductName", "UUID", "PhysicalMemUsage", "Total", "Used", "PCI")
PLACES = ("Utilization", "MLUAverage", "Bus", "Device", "Function", "DomainID", "MaxWidth")


@settings(max_examples=40)
@given(texts_with(*KEYS, *PLACES))
def test_no_text_breaks_the_parser(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_cards(text)
