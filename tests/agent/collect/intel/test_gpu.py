"""Intel's discrete GPUs, by files as the kernel's ABI documents name them, with values of ours."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.collect.vendor_host import is_what_the_simulator_tells

from gpuwarden.clock import EPOCH, ManualClock
from gpuwarden.models import find_model
from gpuwarden_agent.collect.accelerators import AcceleratorProbe, Host
from gpuwarden_agent.collect.intel.gpu import MODELS, busy_percent, find
from gpuwarden_agent.collect.vendors import find_accelerators
from gpuwarden_agent.probe import ProbeError

PCI = "devices/pci0000:00"
XE = {
    "vendor": "0x8086",
    "device": "0xe20b",
    "numa_node": "1",
    "tile0/gt0/gtidle/idle_residency_ms": "10000",
    "tile0/gt1/gtidle/idle_residency_ms": "20000",
    "tile0/gt0/freq0/act_freq": "2850",
    "tile0/gt1/freq0/act_freq": "1500",
    "tile0/gt0/freq0/rp0_freq": "2900",
    "hwmon/hwmon4/name": "xe",
    "hwmon/hwmon4/energy1_input": "81234567",
    "hwmon/hwmon4/power1_max": "190000000",
    "hwmon/hwmon4/power1_rated_max": "200000000",
    "hwmon/hwmon4/temp2_label": "pkg",
    "hwmon/hwmon4/temp2_input": "61000",
    "hwmon/hwmon4/temp3_label": "vram",
    "hwmon/hwmon4/temp3_input": "72000",
}
I915 = {
    "vendor": "0x8086",
    "device": "0x56c0",
    "numa_node": "-1",
    "drm/card1/gt/gt0/rc6_residency_ms": "500",
    "drm/card1/gt/gt0/rps_act_freq_mhz": "1950",
    "drm/card1/gt/gt0/rps_RP0_freq_mhz": "2050",
    "hwmon/hwmon5/name": "i915",
    "hwmon/hwmon5/energy1_input": "5000000",
    "hwmon/hwmon5/temp1_input": "48000",
}
INTEGRATED = {"vendor": "0x8086", "device": "0x9a49", "drm/card0/gt/gt0/rc6_residency_ms": "1"}


class Machine:
    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self.sys, self.clock = folder / "sys", clock
        self.host = Host(clock, "n1", lambda name: None, self.sys, folder / "dev", folder / "proc")

    def card(self, number: int, address: str, files: dict[str, str]) -> None:
        self.write(address, files)
        drm = self.sys / f"class/drm/card{number}"
        drm.mkdir(parents=True)
        (drm / "device").symlink_to(self.sys / PCI / address)
        (self.sys / f"class/drm/card{number}-DP-1").mkdir()

    def write(self, address: str, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.sys / PCI / address / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path, ManualClock(EPOCH))
    made.card(0, "0000:00:02.0", INTEGRATED)
    made.card(1, "0000:4d:00.0", I915)
    made.card(2, "0000:3a:00.0", XE)
    return made


def probe_of(machine: Machine) -> AcceleratorProbe:
    (found,) = find_accelerators(machine.host, 0)
    return found


def test_discrete_gpus_are_described_and_integrated_ones_left_out(machine: Machine) -> None:
    probe = probe_of(machine)
    assert (probe.named, probe.count) == ("2 Intel GPUs", 2)
    common = {"vendor": "intel", "kind": "gpu"}
    assert probe.describe()["gpus"] == [
        common
        | {
            "gpu": 0,
            "gpu_uuid": "INTEL-n1-0000:3a:00.0",
            "model": "Intel Arc B580",
            "pci_bus_id": "0000:3a:00.0",
            "numa_node": 1,
            "sm_clock_max_mhz": 2900,
            "power_limit_max_watts": 200.0,
        },
        common
        | {
            "gpu": 1,
            "gpu_uuid": "INTEL-n1-0000:4d:00.0",
            "model": "Intel Data Center GPU Flex 170",
            "pci_bus_id": "0000:4d:00.0",
            "sm_clock_max_mhz": 2050,
        },
    ]


def test_each_file_is_in_its_column(machine: Machine) -> None:
    probe = probe_of(machine)
    first = probe.read(0)["gpu_samples"]
    assert "util_percent" not in first[0], "it takes two readings"
    machine.clock.advance(1)
    machine.write(
        "0000:3a:00.0",
        {
            "tile0/gt0/gtidle/idle_residency_ms": "10250",
            "tile0/gt1/gtidle/idle_residency_ms": "21000",
        },
    )
    machine.write("0000:4d:00.0", {"drm/card1/gt/gt0/rc6_residency_ms": "1500"})
    reading = probe.read(0)
    assert reading["gpu_samples"] == [
        {
            "gpu": 0,
            "gpu_uuid": "INTEL-n1-0000:3a:00.0",
            "util_percent": 75.0,
            "sm_clock_mhz": 2850,
            "energy_joules_total": pytest.approx(81.234567),
            "power_limit_watts": 190.0,
            "temperature_celsius": 61.0,
            "memory_temperature_celsius": 72.0,
        },
        {
            "gpu": 1,
            "gpu_uuid": "INTEL-n1-0000:4d:00.0",
            "util_percent": 0.0,
            "sm_clock_mhz": 1950,
            "energy_joules_total": 5.0,
            "temperature_celsius": 48.0,
        },
    ]
    is_what_the_simulator_tells("intel", reading, probe.describe()["gpus"])


def test_a_gpu_that_is_gone_has_no_row_and_all_of_them_are_an_error(machine: Machine) -> None:
    probe = probe_of(machine)
    probe.read(0)
    for address in ("0000:3a:00.0", "0000:4d:00.0"):
        for path in sorted((machine.sys / PCI / address).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        if address.startswith("0000:3a"):
            assert [row["gpu"] for row in probe.read(0)["gpu_samples"]] == [1]
    with pytest.raises(ProbeError, match="is xe or i915 loaded"):
        probe.read(0)


def test_models_are_in_the_catalogue_or_have_their_number(tmp_path: Path) -> None:
    for name in MODELS.values():
        if "140" not in name and "A750" not in name and "B570" not in name:
            assert find_model(name), name
    machine = Machine(tmp_path, ManualClock(EPOCH))
    machine.card(0, "0000:03:00.0", {**XE, "device": "0xffff"})
    assert probe_of(machine).describe()["gpus"][0]["model"] == "Intel GPU 0xffff"


def test_a_host_with_an_integrated_gpu_alone_has_no_source(tmp_path: Path) -> None:
    machine = Machine(tmp_path, ManualClock(EPOCH))
    machine.card(0, "0000:00:02.0", INTEGRATED)
    assert find(machine.host) is None
    assert find_accelerators(machine.host, 0) == []


@settings(max_examples=50)
@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 10**12)),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 10**12)),
    st.floats(-1, 1e6),
)
def test_any_counters_are_a_share_or_none(before, after, elapsed_ms) -> None:
    found = busy_percent(before, after, elapsed_ms)
    assert found is None or 0 <= found <= 100
