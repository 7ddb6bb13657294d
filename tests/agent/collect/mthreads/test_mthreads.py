"""Moore Threads GPUs, by a tool that prints the names that are known, with values of ours."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.agent.collect.vendor_host import VendorHost, is_what_the_simulator_tells, texts_with

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.accelerators import AcceleratorProbe
from gpuwarden_agent.collect.mthreads.reports import parse_report
from gpuwarden_agent.collect.vendors import find_accelerators
from gpuwarden_agent.probe import ProbeError

MIB = 1 << 20


def gpu(number: int, **more: Any) -> dict[str, Any]:
    return {
        "Index": str(number),
        "Product Name": "MTT S4000",
        "GPU UUID": f"0e1f2a3b-000{number}",
        "FB Memory Usage": {"Total": "49152MiB", "Used": "1152MiB", "Free": "48000MiB"},
        "Utilization": {"Gpu": "37%", "Memory": "2%"},
        "Temperature": {"GPU Current Temp": "46C"},
        "Power Readings": {"Power Draw ": "131.50W"},
        **more,
    }


REPORT = {"Driver Version": "3.3.5-server", "GPU": [gpu(1), gpu(0)]}


@pytest.fixture
def machine(tmp_path: Path, clock: ManualClock) -> VendorHost:
    made = VendorHost(tmp_path, clock)
    made.device("mtgpu.0", "mtgpu.1", "mtgpu")
    made.tool("mthreads-gmi", "assert sys.argv[1:] == ['-q', '--json']\nprint(ANSWER)")
    made.answers(REPORT)
    return made


@pytest.fixture
def probe(machine: VendorHost) -> AcceleratorProbe:
    (made,) = find_accelerators(machine.host, 0)
    return made


def test_each_name_is_in_its_column(probe: AcceleratorProbe) -> None:
    assert (probe.named, probe.count) == ("2 Moore Threads GPUs", 2)
    described = probe.describe()
    assert described["nodes"] == [{"driver_version": "3.3.5-server"}]
    assert described["gpus"][0] == {
        "gpu": 0,
        "gpu_uuid": "MTT-0e1f2a3b-0000",
        "vendor": "mthreads",
        "kind": "gpu",
        "model": "Moore Threads MTT S4000",
        "memory_total_bytes": 49152 * MIB,
    }
    rows = probe.read(0)["gpu_samples"]
    assert [row["gpu"] for row in rows] == [0, 1]
    assert rows[1] == {
        "gpu": 1,
        "gpu_uuid": "MTT-0e1f2a3b-0001",
        "util_percent": 37.0,
        "memory_total_bytes": 49152 * MIB,
        "memory_used_bytes": 1152 * MIB,
        "memory_free_bytes": 48000 * MIB,
        "temperature_celsius": 46.0,
        "power_watts": 131.5,
    }
    is_what_the_simulator_tells("mthreads", probe.read(0), probe.describe()["gpus"])


def test_what_is_absent_is_no_value(machine: VendorHost, probe: AcceleratorProbe) -> None:
    silent = {"Index": 0, "Utilization": {"Gpu": "N/A"}, "Power Readings": "N/A"}
    machine.answers({"GPU": [silent, {"Product Name": "no index"}, None]})
    described = probe.describe()
    assert described["nodes"] == [{}]
    (row,) = described["gpus"]
    assert (row["gpu_uuid"], row["model"]) == ("MTT-n1-0", "Moore Threads GPU")
    assert probe.read(0)["gpu_samples"] == [{"gpu": 0, "gpu_uuid": "MTT-n1-0"}]


def test_rubbish_is_an_error_that_names_the_tool(
    machine: VendorHost, probe: AcceleratorProbe
) -> None:
    machine.answers("null")
    for call in (probe.describe, lambda: probe.read(0)):
        with pytest.raises(ProbeError, match="the output of mthreads-gmi cannot be read"):
            call()


def test_a_tool_without_gpus_is_an_error(machine: VendorHost, probe: AcceleratorProbe) -> None:
    machine.answers({"GPU": []})
    with pytest.raises(ProbeError, match="lists no GPU"):
        probe.read(0)


KEYS = ("GPU", "Index", "Product Name", "FB Memory Usage", "Total", "Used", "Utilization", "Gpu")


@settings(max_examples=40)
@given(texts_with(*KEYS, "Temperature", "Driver Version"))
def test_no_text_breaks_the_parser(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_report(text)
