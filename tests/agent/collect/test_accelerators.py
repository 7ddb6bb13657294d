"""Rows and events of the devices that a vendor's source reads."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.accelerators import (
    Accelerator,
    AcceleratorProbe,
    AcceleratorProcesses,
    Host,
    counted,
)
from gpuwarden_agent.collect.discovery import discover
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.nvml import NvmlUnavailable
from gpuwarden_agent.collect.nvidia.processes import HeldGpu
from gpuwarden_agent.collect.vendors import VENDORS, Vendor, find_accelerators
from gpuwarden_agent.probe import ProbeError, Reading


@dataclass
class FakeSource:
    devices: list[Accelerator] = field(default_factory=list)
    vendor = "acme"
    kind = "npu"
    backend = "acme"
    count = 2
    named = "2 Acme chips"
    tells_processes = True
    tables = {"gpu_samples": 1, "gpu_health_samples": 60}  # noqa: RUF012
    asked: list[Collection[str]] = field(default_factory=list)

    def describe(self) -> Sequence[Accelerator]:
        return self.devices

    def read(self, tables: Collection[str]) -> Sequence[Accelerator]:
        self.asked.append(tables)
        if not self.devices:
            raise ProbeError("acme-smi failed")
        return self.devices

    def driver_version(self) -> str | None:
        return "1.2"

    def close(self) -> None:
        self.devices = []


def chip(name: str, util: float | None = 50) -> Accelerator:
    return Accelerator(name, {"model": "Acme"}, {"gpu_samples": [{"util_percent": util}]})


def lost_and_back(reading: Reading) -> list[tuple[object, object]]:
    return [(row["kind"], row["gpu_uuid"]) for row in reading.get("events", ())]


def test_devices_are_numbered_as_they_are_first_seen() -> None:
    source = FakeSource([chip("A"), chip("B")])
    probe = AcceleratorProbe(source, 4)
    described = probe.describe()
    assert [(row["gpu"], row["gpu_uuid"]) for row in described["gpus"]] == [(4, "A"), (5, "B")]
    assert described["gpus"][0] == {
        "gpu": 4,
        "gpu_uuid": "A",
        "model": "Acme",
        "vendor": "acme",
        "kind": "npu",
    }
    assert described["nodes"] == [{"driver_version": "1.2"}]
    source.devices = [chip("C"), chip("B")]
    rows = probe.read(0, {"gpu_samples"})["gpu_samples"]
    assert [(row["gpu"], row["gpu_uuid"]) for row in rows] == [(6, "C"), (5, "B")]


def test_a_device_that_tells_nothing_has_a_sample_without_values() -> None:
    source = FakeSource([chip("A", util=None)])
    reading = AcceleratorProbe(source, 0).read(0, {"gpu_samples", "gpu_health_samples", "events"})
    assert reading == {
        "gpu_samples": [{"gpu": 0, "gpu_uuid": "A"}],
        "gpu_health_samples": [],
        "events": [],
    }
    assert source.asked == [{"gpu_samples", "gpu_health_samples"}]


def test_processes_of_a_device_are_those_of_its_last_reading() -> None:
    source = FakeSource([chip("A"), replace(chip("B"), processes=((7, 1 << 30), (8, None)))])
    probe = AcceleratorProbe(source, 3)
    devices: list[AcceleratorProcesses] = []
    probe.on_device = devices.append
    probe.describe()
    assert [(device.index, device.uuid) for device in devices] == [(3, "A"), (4, "B")]
    assert [device.held() for device in devices] == [[], []]
    probe.read(0)
    assert devices[0].held() is None
    held = devices[1].held()
    assert held == [
        HeldGpu(7, "B", "compute", 1 << 30),
        HeldGpu(8, "B", "compute", None),
    ]


@settings(max_examples=50)
@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_a_device_that_goes_is_lost_once_and_back_once(seen: list[bool]) -> None:
    source = FakeSource([chip("A"), chip("B")])
    probe = AcceleratorProbe(source, 0)
    probe.describe()
    told, missing, is_lost = [], 0, False
    for is_seen in seen:
        source.devices = [chip("A"), chip("B")] if is_seen else [chip("A")]
        events = lost_and_back(probe.read(0, {"gpu_samples"}))
        missing = 0 if is_seen else missing + 1
        expected = []
        if missing == 3:
            is_lost, expected = True, [("gpu_lost", "B")]
        elif is_seen and is_lost:
            is_lost, expected = False, [("gpu_appeared", "B")]
        assert events == expected
        told += events
    assert len(told) <= len(seen)


def test_a_source_that_fails_loses_no_device() -> None:
    source = FakeSource([chip("A")])
    probe = AcceleratorProbe(source, 0)
    probe.describe()
    source.devices = []
    for _ in range(5):
        with pytest.raises(ProbeError):
            probe.read(0)
    source.devices = [chip("A")]
    assert lost_and_back(probe.read(0)) == []


def test_a_module_is_loaded_only_where_its_sign_is(clock: ManualClock) -> None:
    host = Host(clock, "n1", which=lambda name: None)
    assert find_accelerators(host, 0, [Vendor("not.a.module", lambda host: False)]) == []
    with pytest.raises(ModuleNotFoundError):
        find_accelerators(host, 0, [Vendor("no_such_module_here", lambda host: True)])


def test_a_host_without_devices_has_no_vendors_probe(clock: ManualClock, tmp_path: object) -> None:
    empty = Host(
        clock, "n1", which=lambda name: "/bin/false", sys=tmp_path, dev=tmp_path, proc=tmp_path
    )  # type: ignore[arg-type]
    assert find_accelerators(empty, 0, VENDORS) == []


def test_a_device_whose_vendors_tool_is_not_there_has_no_probe(
    clock: ManualClock, tmp_path: Path
) -> None:
    for name in ("davinci0", "neuron0", "cambricon_dev0", "mtgpu.0", "rbln0"):
        (tmp_path / "dev" / name).mkdir(parents=True)
    (tmp_path / "sys/class/rngd_mgmt/rngd!npu0mgmt").mkdir(parents=True)
    (tmp_path / "sys/class/accel/accel0/device").mkdir(parents=True)
    (tmp_path / "sys/class/accel/accel0/device/vendor").write_text("0x1da3\n")
    host = Host(clock, "n1", lambda name: None, tmp_path / "sys", tmp_path / "dev", tmp_path)
    assert sum(vendor.has_sign(host) for vendor in VENDORS) == 7
    assert find_accelerators(host, 0, VENDORS) == []


def test_a_host_names_and_counts_vendors_devices(clock: ManualClock) -> None:
    missing = NvmlUnavailable("libnvidia-ml.so.1 not found", nvml.LIBRARY_NOT_FOUND)
    source = FakeSource([chip("A"), chip("B")])
    found = discover(
        "auto",
        clock,
        lambda: missing,
        accelerators=lambda host, first: [AcceleratorProbe(source, first)],
    )
    assert (found.message, found.gpus) == ("2 Acme chips", 2)
    assert [probe.name for probe in found.probes] == ["acme", "accelerator_processes", "host"]
    assert counted(1, "TPU chip") == "1 TPU chip"
