"""Tenstorrent cards, by files as tt-kmd's document of its sysfs attributes names them, with values of ours."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.agent.collect.vendor_host import is_what_the_simulator_tells

from gpuwarden.clock import EPOCH, ManualClock
from gpuwarden.models import find_model
from gpuwarden_agent.collect.accelerators import AcceleratorProbe, Host
from gpuwarden_agent.collect.vendors import find_accelerators
from gpuwarden_agent.probe import ProbeError

CARD = {
    "tt_aiclk": "1000",
    "tt_axiclk": "900",
    "tt_card_type": "n300",
    "tt_serial": "0100014511704021",
    "tt_asic_id": "0x2bd61a3cf91e44aa",
    "tt_fw_bundle_ver": "80.14.0.0",
    "device/numa_node": "0",
    "device/hwmon/hwmon3/name": "wormhole",
    "device/hwmon/hwmon3/temp1_input": "47125",
    "device/hwmon/hwmon3/power1_input": "36000000",
    "device/hwmon/hwmon3/in0_input": "780",
}


class Machine:
    def __init__(self, folder: Path) -> None:
        self.folder, self.sys = folder, folder / "sys"
        self.clock = ManualClock(EPOCH)
        self.host = Host(
            self.clock, "n1", lambda name: None, self.sys, folder / "dev", folder / "proc"
        )
        (folder / "proc").mkdir()

    def card(self, number: int, address: str, **changed: str | None) -> None:
        folder, device = (
            self.sys / f"class/tenstorrent/tenstorrent!{number}",
            self.sys / "devices" / address,
        )
        folder.mkdir(parents=True)
        device.mkdir(parents=True)
        (folder / "device").symlink_to(device)
        for name, text in (CARD | changed).items():
            if text is not None:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(f"{text}\n")

    def process(self, pid: int, *files: str) -> None:
        folder = self.folder / f"proc/{pid}/fd"
        folder.mkdir(parents=True)
        for number, file in enumerate(files):
            os.symlink(file, folder / str(number))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.card(0, "0000:01:00.0")
    made.card(
        10,
        "0000:02:00.0",
        tt_card_type="p150b",
        tt_asic_id=None,
        tt_serial="0x0",
        tt_fw_bundle_ver=None,
    )
    (made.sys / "module/tenstorrent").mkdir(parents=True)
    (made.sys / "module/tenstorrent/version").write_text("2.5.0\n")
    return made


def probe_of(machine: Machine) -> AcceleratorProbe:
    (found,) = find_accelerators(machine.host, 0)
    return found


def test_chips_are_described_in_the_order_of_their_files(machine: Machine) -> None:
    probe = probe_of(machine)
    assert (probe.named, probe.count) == ("2 Tenstorrent chips", 2)
    described = probe.describe()
    common = {"vendor": "tenstorrent", "kind": "npu", "numa_node": 0}
    assert described["gpus"] == [
        common
        | {
            "gpu": 0,
            "gpu_uuid": "TT-0x2bd61a3cf91e44aa",
            "model": "Tenstorrent n300",
            "serial": "0100014511704021",
            "pci_bus_id": "0000:01:00.0",
            "vbios_version": "80.14.0.0",
        },
        common
        | {
            "gpu": 1,
            "gpu_uuid": "TT-n1-0000:02:00.0",
            "model": "Tenstorrent p150b",
            "pci_bus_id": "0000:02:00.0",
        },
    ]
    assert described["nodes"] == [{"driver_version": "2.5.0"}]
    assert [getattr(find_model(str(g["model"])), "name", None) for g in described["gpus"]] == [
        "Wormhole-n300",
        "Blackhole-p150",
    ]


def test_each_file_is_in_its_column_and_utilization_is_absent(machine: Machine) -> None:
    assert probe_of(machine).read(0)["gpu_samples"][0] == {
        "gpu": 0,
        "gpu_uuid": "TT-0x2bd61a3cf91e44aa",
        "sm_clock_mhz": 1000,
        "power_watts": 36.0,
        "temperature_celsius": 47.125,
    }
    probe = probe_of(machine)
    is_what_the_simulator_tells("tenstorrent", probe.read(0), probe.describe()["gpus"])


def test_processes_are_those_that_have_the_file_open(machine: Machine) -> None:
    machine.process(77, "/dev/null", "/dev/tenstorrent/10", "/dev/tenstorrent/10")
    machine.process(78, "/dev/tenstorrent/1")
    probe = probe_of(machine)
    devices: list[Any] = []
    probe.on_device = devices.append
    probe.read(0)
    assert [[held.pid for held in device.held()] for device in devices] == [[], [77]]


def test_a_chip_that_is_reset_has_no_row_and_none_at_all_is_an_error(machine: Machine) -> None:
    probe = probe_of(machine)
    probe.read(0)
    for number in (0, 10):
        folder = machine.sys / f"class/tenstorrent/tenstorrent!{number}"
        for path in (folder / "tt_aiclk", *(folder / "device/hwmon/hwmon3").glob("*_input")):
            path.unlink()
        if number == 0:
            assert [row["gpu"] for row in probe.read(0)["gpu_samples"]] == [1]
    with pytest.raises(ProbeError, match="is tt-kmd loaded"):
        probe.read(0)
