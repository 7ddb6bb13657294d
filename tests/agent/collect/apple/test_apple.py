"""A Mac's GPU, by a macmon and a system_profiler that print what their pages show, with values of ours."""

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tests.agent.collect.vendor_host import VendorHost, is_what_the_simulator_tells, texts_with

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.accelerators import AcceleratorProbe
from gpuwarden_agent.collect.apple.reports import model_of, parse_mac, parse_report
from gpuwarden_agent.collect.apple.source import find
from gpuwarden_agent.collect.vendors import find_accelerators
from gpuwarden_agent.probe import ProbeError

UUID = "3F1C0D52-77A1-5B0E-8E9D-0A1B2C3D4E5F"
SOC = {
    "mac_model": "Mac16,5",
    "chip_name": "Apple M4 Max",
    "memory_gb": 128,
    "ecpu_cores": 4,
    "pcpu_cores": 12,
    "ecpu_label": "E",
    "pcpu_label": "P",
    "ecpu_freqs": [1020, 2592],
    "pcpu_freqs": [1260, 4512],
    "gpu_cores": 40,
    "gpu_freqs": [0, 338, 618, 1578],
}
LINE: dict[str, Any] = {
    "timestamp": "2026-07-14T08:12:38.001234+00:00",
    "temp": {"cpu_temp_avg": 61.5, "gpu_temp_avg": 57.25},
    "memory": {"ram_total": 128 << 30, "ram_usage": 70 << 30, "swap_total": 0, "swap_usage": 0},
    "fans": [{"name": "fan0", "rpm": 2310, "max_rpm": 5777}],
    "cpu_scaled_ratio": 0.11,
    "cpu_active_ratio": 0.2,
    "ecpu_freq_mhz": 1100,
    "pcpu_freq_mhz": 3000,
    "gpu_freq_mhz": 1398,
    "gpu_scaled_ratio": 0.66,
    "gpu_active_ratio": 0.75,
    "cpu_power": 8.5,
    "gpu_power": 41.5,
    "ane_power": 0.0,
    "all_power": 50.0,
    "sys_power": 68.0,
    "ram_power": 3.5,
    "gpu_ram_power": 0.25,
    "soc": SOC,
}
OLD_LINE = {
    "temp": {"cpu_temp_avg": 40.0, "gpu_temp_avg": 0.0},
    "gpu_usage": [444, 0.25],
    "cpu_power": 1.0,
    "gpu_power": 0.125,
    "ane_power": 0.0,
    "all_power": 1.125,
    "soc": {"chip_name": "Apple M1", "gpu_cores": 8, "gpu_freqs": [0, 396, 1278]},
}
COMPUTER = {
    "SPHardwareDataType": [
        {
            "_name": "hardware_overview",
            "chip_type": "Apple M4 Max",
            "machine_model": "Mac16,5",
            "number_processors": "proc 16:12:4",
            "physical_memory": "128 GB",
            "platform_UUID": UUID,
            "serial_number": "XYZ0000000",
        }
    ]
}


@pytest.fixture
def machine(tmp_path: Path, clock: ManualClock) -> VendorHost:
    made = VendorHost(tmp_path, clock, platform="darwin")
    made.answers(LINE)
    made.answers(COMPUTER, "computer")
    made.tool(
        "macmon",
        "assert 'pipe' in sys.argv and '--soc-info' in sys.argv\n"
        "while True:\n"
        "    print(said('answer'), flush=True)\n"
        "    if '-s' in sys.argv: break\n"
        "    time.sleep(0.05)",
    )
    profiler = "assert sys.argv[1:] == ['-json', 'SPHardwareDataType']\nprint(said('computer'))"
    made.tool("system_profiler", profiler)
    return made


@pytest.fixture
def probe(machine: VendorHost) -> Iterator[AcceleratorProbe]:
    (made,) = find_accelerators(machine.host, 2)
    yield made
    made.close()


def test_each_field_of_a_line_is_in_its_column(probe: AcceleratorProbe) -> None:
    identity = {"gpu": 2, "gpu_uuid": f"APPLE-{UUID}"}
    described = probe.describe()
    assert described["nodes"] == [{}]
    assert described["gpus"] == [
        identity
        | {
            "vendor": "apple",
            "kind": "gpu",
            "model": "Apple M4 Max (40-core GPU)",
            "sm_clock_max_mhz": 1578,
        }
    ]
    is_what_the_simulator_tells("apple", probe.read(0), described["gpus"])
    # Memory is the host's: the GPU has none of its own.
    assert probe.read(0)["gpu_samples"] == [
        identity
        | {
            "util_percent": 75.0,
            "power_watts": 41.5,
            "temperature_celsius": 57.25,
            "sm_clock_mhz": 1398,
        }
    ]


def test_readings_go_on_with_the_lines_of_the_running_tool(
    machine: VendorHost, probe: AcceleratorProbe
) -> None:
    probe.describe()
    machine.answers(LINE | {"gpu_active_ratio": 0.5})
    end = time.monotonic() + 20
    while True:
        try:
            if probe.read(0)["gpu_samples"][0]["util_percent"] == 50.0:
                return
        except ProbeError:
            pass
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_answer_of_the_start_gets_old(machine: VendorHost, clock: ManualClock) -> None:
    (probe,) = find_accelerators(machine.host, 0)
    probe.describe()
    machine.answers("")
    clock.advance(5)
    with pytest.raises(ProbeError, match="macmon"):
        probe.read(0)
    probe.close()


def test_before_08_macmon_tells_no_share_of_time() -> None:
    report = parse_report(json.dumps(OLD_LINE))
    assert report.is_old
    assert report.sample == {
        "util_percent": None,
        "power_watts": 0.125,
        "temperature_celsius": None,
        "sm_clock_mhz": 444,
    }
    assert model_of(report.chip, report.gpu_cores) == "Apple M1 (8-core GPU)"


def test_a_gpu_that_did_nothing_has_no_clock() -> None:
    idle = LINE | {"gpu_freq_mhz": 0, "gpu_active_ratio": 0.0, "gpu_power": 0.0}
    sample = parse_report(json.dumps(idle)).sample
    assert (sample["util_percent"], sample["power_watts"], sample["sm_clock_mhz"]) == (0, 0, None)


@pytest.mark.parametrize("absent", ["temp", "gpu_power", "gpu_active_ratio", "soc"])
@pytest.mark.parametrize("value", [None, "N/A", [], {}, -1, float("nan"), 10**400])
def test_what_is_absent_or_no_number_is_no_value(absent: str, value: Any) -> None:
    whole = parse_report(json.dumps(LINE)).sample
    column = {
        "temp": "temperature_celsius",
        "gpu_power": "power_watts",
        "gpu_active_ratio": "util_percent",
    }.get(absent)
    sample = parse_report(json.dumps(LINE | {absent: value})).sample
    assert sample == whole | ({column: None} if column else {})


def test_rubbish_is_an_error_that_names_the_tool(
    machine: VendorHost, probe: AcceleratorProbe
) -> None:
    machine.answers("null")
    with pytest.raises(ProbeError, match="a line of macmon cannot be read"):
        probe.describe()
    machine.answers(LINE)
    (second,) = find_accelerators(machine.host, 0)
    machine.answers("null", "computer")
    with pytest.raises(ProbeError, match="system_profiler cannot be read"):
        second.describe()


@pytest.mark.parametrize("chip", ["Unknown", "", None])
def test_an_unknown_chip_has_the_name_of_its_maker(chip: str | None) -> None:
    entry = COMPUTER["SPHardwareDataType"][0] | {"chip_type": chip}
    mac = parse_mac(json.dumps({"SPHardwareDataType": [entry]}))
    assert (mac.uuid, model_of(mac.chip, None)) == (UUID, "Apple GPU")


def test_only_a_mac_with_macmon_has_a_source(machine: VendorHost) -> None:
    assert find(replace(machine.host, platform="linux")) is None
    (machine.folder / "bin/macmon").unlink()
    assert find_accelerators(machine.host, 0) == []


def test_homebrews_folder_need_not_be_on_the_path(machine: VendorHost) -> None:
    tool = machine.which("macmon")
    asked: list[str] = []

    def which(name: str) -> str | None:
        asked.append(name)
        return tool if name == "/opt/homebrew/bin/macmon" else None

    source = find(replace(machine.host, which=which))
    assert source is not None
    assert asked[0] == "macmon"


KEYS = ("temp", "gpu_temp_avg", "gpu_usage", "gpu_power", "gpu_freq_mhz", "gpu_active_ratio")
PLACES = ("soc", "gpu_freqs", "gpu_cores", "chip_name", "SPHardwareDataType", "platform_UUID")


@settings(max_examples=40)
@given(texts_with(*KEYS, *PLACES))
def test_no_text_breaks_the_parsers(text: str) -> None:
    for parse in (parse_report, parse_mac):
        with contextlib.suppress(ValueError):
            parse(text)
