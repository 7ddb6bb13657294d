"""A Jetson's GPU, by the files that NVIDIA's guide names, with values of ours."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.collect.vendor_host import is_what_the_simulator_tells

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.accelerators import AcceleratorProbe, Host
from gpuwarden_agent.collect.discovery import discover
from gpuwarden_agent.collect.jetson.readings import (
    CHIPS,
    celsius,
    chip_of,
    highest_megahertz,
    megahertz,
    model_of,
    percent_of_load,
    rail_of,
    thousandths,
)
from gpuwarden_agent.collect.jetson.source import find
from gpuwarden_agent.collect.nvidia.discovery import Signs
from gpuwarden_agent.collect.nvidia.nvml import NvmlUnavailable
from gpuwarden_agent.collect.vendors import find_accelerators
from gpuwarden_agent.probe import ProbeError

DEVICE = "devices/platform/bus@0/17000000.gpu"
TREE = "firmware/devicetree/base"
AGX_ORIN = {
    f"{TREE}/compatible": "nvidia,p3737-0000+p3701-0005\0nvidia,p3701-0005\0nvidia,tegra234\0",
    f"{TREE}/model": "NVIDIA Jetson AGX Orin Developer Kit\0",
    f"{TREE}/serial-number": "1420022000123\0",
    f"{DEVICE}/load": "634\n",
    f"{DEVICE}/devfreq/17000000.gpu/cur_freq": "1020000000\n",
    f"{DEVICE}/devfreq/17000000.gpu/max_freq": "918000000\n",
    f"{DEVICE}/devfreq/17000000.gpu/available_frequencies": "306000000 918000000 1300500000\n",
    "class/thermal/thermal_zone0/type": "cpu-thermal\n",
    "class/thermal/thermal_zone0/temp": "61000\n",
    "class/thermal/thermal_zone1/type": "gpu-thermal\n",
    "class/thermal/thermal_zone1/temp": "52875\n",
    "class/hwmon/hwmon0/name": "nvme\n",
    "class/hwmon/hwmon3/name": "ina3221\n",
    "class/hwmon/hwmon3/in1_label": "VDD_GPU_SOC\n",
    "class/hwmon/hwmon3/in1_input": "5000\n",
    "class/hwmon/hwmon3/curr1_input": "2400\n",
    "class/hwmon/hwmon3/in2_label": "VDD_CPU_CV\n",
    "class/hwmon/hwmon3/in2_input": "5000\n",
    "class/hwmon/hwmon3/curr2_input": "700\n",
    "class/hwmon/hwmon3/in3_label": "VIN_SYS_5V0\n",
    "class/hwmon/hwmon3/in7_label": "sum of shunt voltages\n",
}
IDENTITY = {"gpu": 0, "gpu_uuid": "JETSON-1420022000123"}


class Board:
    """Files of a Jetson below a folder."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self.sys = folder
        self.clock = clock
        self.host = Host(clock, "edge1", lambda name: None, folder, folder / "dev", folder / "proc")

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.sys / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def link(self) -> None:
        device, class_ = self.sys / DEVICE, self.sys / "class/devfreq"
        class_.mkdir(parents=True)
        (class_ / "17000000.gpu").symlink_to(device / "devfreq/17000000.gpu")
        (device / "devfreq/17000000.gpu/device").symlink_to(device)

    def probe(self) -> AcceleratorProbe:
        (probe,) = find_accelerators(self.host, 0)
        return probe


@pytest.fixture
def board(tmp_path: Path, clock: ManualClock) -> Board:
    made = Board(tmp_path, clock)
    made.write(AGX_ORIN)
    made.link()
    return made


def test_each_file_is_in_its_column(board: Board) -> None:
    probe = board.probe()
    assert probe.describe()["gpus"] == [
        IDENTITY
        | {
            "vendor": "nvidia",
            "kind": "gpu",
            "model": "NVIDIA Jetson AGX Orin Developer Kit",
            "architecture": "ampere",
            "compute_capability": "8.7",
            "sm_clock_max_mhz": 1300,
        }
    ]
    is_what_the_simulator_tells("jetson", probe.read(0), probe.describe()["gpus"])
    # Memory is the host's: the GPU has none of its own.
    assert probe.read(0)["gpu_samples"] == [
        IDENTITY
        | {
            "util_percent": pytest.approx(63.4),
            "sm_clock_mhz": 1020,
            "temperature_celsius": 52.875,
            "power_watts": 12.0,
        }
    ]
    assert probe.failed == {}


def test_the_limit_of_the_power_mode_counts_where_no_frequencies_are_listed(board: Board) -> None:
    (board.sys / DEVICE / "devfreq/17000000.gpu/available_frequencies").unlink()
    assert board.probe().describe()["gpus"][0]["sm_clock_max_mhz"] == 918


@pytest.mark.parametrize(
    ("labels", "rail"),
    [
        (("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"), "VDD_GPU_SOC"),
        (("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"), "GPU"),
        (("POM_5V_IN", "POM_5V_GPU", "POM_5V_CPU"), "POM_5V_GPU"),
        # The rail of Orin NX, Orin Nano and Xavier NX feeds the CPU, too.
        (("VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"), None),
        ((), None),
    ],
)
def test_the_rail_of_the_gpu_feeds_no_cpu(labels: tuple[str, ...], rail: str | None) -> None:
    assert rail_of(labels) == rail


def test_a_gpu_without_power_has_no_temperature(board: Board) -> None:
    board.write(
        {
            "class/thermal/thermal_zone1/temp": "-256000\n",
            f"{DEVICE}/load": "0\n",
            f"{DEVICE}/devfreq/17000000.gpu/cur_freq": "0\n",
            "class/hwmon/hwmon3/curr1_input": "-8\n",
        }
    )
    (row,) = board.probe().read(0)["gpu_samples"]
    assert row == IDENTITY | {"util_percent": 0.0, "power_watts": 0.0}


def test_rubbish_is_absent_and_counted(board: Board) -> None:
    board.write({f"{DEVICE}/load": "63.4%\n", "class/hwmon/hwmon3/in1_input": "\n"})
    probe = board.probe()
    (row,) = probe.read(0)["gpu_samples"]
    assert set(row) == {*IDENTITY, "sm_clock_mhz", "temperature_celsius"}
    assert probe.failed == {
        "load: is not a whole number": 1,
        "in1_input: is not a whole number": 1,
    }


def test_the_driver_may_come_after_the_agent(tmp_path: Path, clock: ManualClock) -> None:
    board = Board(tmp_path, clock)
    board.write({name: text for name, text in AGX_ORIN.items() if name.startswith(TREE)})
    probe = board.probe()
    assert probe.describe()["gpus"][0]["architecture"] == "ampere"
    with pytest.raises(ProbeError, match="no readings in /sys"):
        probe.read(0)
    board.write(AGX_ORIN)
    board.link()
    assert probe.read(0)["gpu_samples"][0]["power_watts"] == 12.0


def test_older_boards_and_kernels_have_other_names(tmp_path: Path, clock: ManualClock) -> None:
    board = Board(tmp_path, clock)
    board.write(
        {
            "devices/soc0/family": "Tegra\n",
            "devices/soc0/soc_id": "25\n",
            "devices/gpu.0/load": "500\n",
            "class/thermal/thermal_zone2/type": "GPU-therm\n",
            "class/thermal/thermal_zone2/temp": "31000\n",
        }
    )
    probe = board.probe()
    described = probe.describe()["gpus"][0]
    # In a container the device tree cannot be read: neither board nor serial number.
    assert described["model"] == "NVIDIA Jetson Xavier"
    assert described["gpu_uuid"] == "JETSON-edge1"
    (row,) = probe.read(0)["gpu_samples"]
    assert (row["util_percent"], row["temperature_celsius"]) == (50.0, 31.0)


@pytest.mark.parametrize(
    ("compatible", "family", "soc_id", "chip"),
    [
        ("nvidia,p3834-0008\0nvidia,tegra264\0", "Tegra", "38", None),  # Thor: NVML reads it
        ("raspberrypi,5-model-b\0brcm,bcm2712\0", None, None, None),
        (None, "Tegra", "35", "tegra234"),
        (None, "i.MX", "35", None),
        (None, None, None, None),
        ("nvidia,p2771-0000\0nvidia,tegra186\0", None, None, "tegra186"),
    ],
)
def test_the_chip_is_known_by_the_device_tree_or_the_kernel(
    compatible: str | None, family: str | None, soc_id: str | None, chip: str | None
) -> None:
    assert chip_of(compatible, family, soc_id) == (CHIPS[chip] if chip else None)


def test_other_boards_have_no_source(tmp_path: Path, clock: ManualClock) -> None:
    board = Board(tmp_path, clock)
    board.write({f"{TREE}/compatible": "nvidia,tegra264\0"})
    assert find(board.host) is None
    assert model_of("Orin NX\0", CHIPS["tegra234"]) == "NVIDIA Orin NX"


def test_nvml_is_not_opened_beside_it(board: Board, clock: ManualClock) -> None:
    opened: list[bool] = []

    def open_driver() -> NvmlUnavailable:
        opened.append(True)
        return NvmlUnavailable("must not be asked", 0)

    found = discover(
        "auto",
        clock,
        open_driver,
        sys=board.sys,
        signs=lambda: Signs("540.4.0"),
        node="edge1",
    )
    try:
        assert (found.message, found.gpus, opened) == ("1 Jetson GPU", 1, [])
        assert [probe.name for probe in found.probes] == ["jetson", "host"]
        clock.advance(120)
        assert found.rediscover() == []
        assert opened == []
    finally:
        for probe in found.probes:
            probe.close()


@settings(max_examples=50)
@given(st.text(max_size=40) | st.integers().map(str))
def test_no_text_breaks_the_parsers(text: str) -> None:
    for parse in (percent_of_load, megahertz, highest_megahertz, celsius, thousandths):
        with contextlib.suppress(ValueError):
            value = parse(text)
            assert value is None or isinstance(value, float)
    chip_of(text, text, text)
    model_of(text, CHIPS["tegra234"])
