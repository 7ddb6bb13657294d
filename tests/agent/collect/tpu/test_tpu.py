"""TPU chips from the kernel's files, and their metrics from a real gRPC server."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.collect.tpu.fake_libtpu import answer_of, libtpu
from tests.agent.collect.vendor_host import is_what_the_simulator_tells

from gpuwarden.clock import SystemClock
from gpuwarden_agent.collect.accelerators import AcceleratorProbe, Host
from gpuwarden_agent.collect.grpc import double, integer
from gpuwarden_agent.collect.tpu import chips
from gpuwarden_agent.collect.tpu.chips import find_chips
from gpuwarden_agent.collect.tpu.metric_service import parse_metric
from gpuwarden_agent.collect.tpu.source import TpuSource, by_chip, merged
from gpuwarden_agent.collect.vendors import find_accelerators
from gpuwarden_agent.probe import Reading

GIB = 1 << 30
TOTAL = "tpu.runtime.hbm.memory.total.bytes"
USED = "tpu.runtime.hbm.memory.usage.bytes"
DUTY = "tpu.runtime.tensorcore.dutycycle.percent"
BANDWIDTH = "tpu.runtime.hbm.utilization.percent"


class Machine:
    """Folders of a host with TPU chips."""

    def __init__(self, root: Path) -> None:
        self.sys, self.dev, self.proc = root / "sys", root / "dev", root / "proc"
        for folder in (self.sys / "bus/pci/devices", self.dev / "vfio", self.proc):
            folder.mkdir(parents=True)
        (self.proc / "self").mkdir()

    def chip(self, address: str, device: str, *, vfio: int | None = None, accel: int = 0) -> None:
        folder = self.sys / "bus/pci/devices" / address
        folder.mkdir()
        for name, text in (("vendor", "0x1ae0"), ("device", device), ("numa_node", "1")):
            (folder / name).write_text(f"{text}\n")
        if vfio is None:
            (folder / f"accel/accel{accel}").mkdir(parents=True)
            (self.dev / f"accel{accel}").touch()
            return
        (folder / "iommu_group").symlink_to(f"../../../kernel/iommu_groups/{vfio}")
        (self.dev / f"vfio/{vfio}").touch()

    def process(self, pid: int, *files: str) -> None:
        folder = self.proc / str(pid) / "fd"
        folder.mkdir(parents=True)
        for number, name in enumerate(files):
            (folder / str(number)).symlink_to(self.dev / name)

    def host(self) -> Host:
        clock = SystemClock()
        return Host(clock, "n1", lambda name: None, self.sys, self.dev, self.proc)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def v5e(machine: Machine) -> Machine:
    """Two chips, whose order on the bus is not that of their device files."""
    machine.chip("0000:00:05.0", "0x0063", vfio=10)
    machine.chip("0000:00:04.0", "0x0063", vfio=9)
    return machine


def probe_of(machine: Machine, port: int) -> AcceleratorProbe:
    source = TpuSource(machine.host(), find_chips(machine.sys, machine.dev), port)
    return AcceleratorProbe(source, 0)


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def test_chips_are_in_the_order_of_their_files(v5e: Machine) -> None:
    assert [chip.pci_bus_id for chip in find_chips(v5e.sys, v5e.dev)] == [
        "0000:00:04.0",
        "0000:00:05.0",
    ]
    (probe,) = find_accelerators(v5e.host(), 0)
    assert (probe.named, probe.count) == ("2 TPU chips", 2)
    assert probe.describe()["gpus"][0] == {
        "gpu": 0,
        "gpu_uuid": "TPU-n1-0000:00:04.0",
        "vendor": "google",
        "kind": "tpu",
        "model": "Google TPU v5e",
        "pci_bus_id": "0000:00:04.0",
        "memory_total_bytes": 16 * GIB,
        "numa_node": 1,
    }


@pytest.mark.parametrize(
    ("device", "subsystem", "model"),
    [
        ("0x005e", "", "Google TPU v4"),
        ("0x0062", "", "Google TPU v5p"),
        ("0x006f", "", "Google TPU v6e"),
        ("0x0027", "0x004f", "Google TPU v3"),
        ("0x9999", "", None),
    ],
)
def test_the_pci_device_names_the_generation(
    device: str, subsystem: str, model: str | None, machine: Machine
) -> None:
    machine.chip("0000:00:04.0", device, accel=3)
    (machine.sys / "bus/pci/devices/0000:00:04.0/subsystem_device").write_text(subsystem)
    found = find_chips(machine.sys, machine.dev)
    assert [chip.model.name for chip in found] == ([model] if model else [])
    assert all(chip.file == str(machine.dev / "accel3") for chip in found)


def test_other_devices_of_vfio_are_no_chips(machine: Machine) -> None:
    machine.chip("0000:00:04.0", "0x0063", vfio=9)
    (machine.sys / "bus/pci/devices/0000:00:04.0/vendor").write_text("0x10de\n")
    assert find_accelerators(machine.host(), 0) == []


def test_each_metric_is_in_its_column(v5e: Machine) -> None:
    v5e.process(77, "vfio/9", "vfio/10", "vfio/9")
    metrics: dict[str, dict[int, int | float]] = {
        TOTAL: {0: 16 * GIB, 1: 16 * GIB},
        USED: {0: 0, 1: 12 * GIB},
        DUTY: {1: 93.5, 0: 0.0},
        BANDWIDTH: {0: 1.5, 1: 40.25},
    }
    with libtpu(lambda: metrics) as port:
        probe = probe_of(v5e, port)
        devices: list[Any] = []
        probe.on_device = devices.append
        reading = probe.read(0)
    assert [dict(row) for row in reading["gpu_samples"]] == [
        {
            "gpu": 0,
            "gpu_uuid": "TPU-n1-0000:00:04.0",
            "util_percent": 0.0,
            "memory_total_bytes": 16 * GIB,
            "memory_used_bytes": 0,
            "memory_free_bytes": 16 * GIB,
        },
        {
            "gpu": 1,
            "gpu_uuid": "TPU-n1-0000:00:05.0",
            "util_percent": 93.5,
            "memory_total_bytes": 16 * GIB,
            "memory_used_bytes": 12 * GIB,
            "memory_free_bytes": 4 * GIB,
        },
    ]
    is_what_the_simulator_tells("libtpu", reading, probe.describe()["gpus"])
    bandwidth = [row["dram_active_percent"] for row in reading["gpu_detail_samples"]]
    assert bandwidth == [1.5, 40.25]
    assert [[held.pid for held in device.held()] for device in devices] == [[77], [77]]


def values(reading: Reading) -> list[tuple[Any, Any]]:
    rows = reading["gpu_samples"]
    return [(row.get("util_percent"), row.get("memory_used_bytes")) for row in rows]


def test_a_chip_that_nobody_has_open_does_nothing(v5e: Machine) -> None:
    v5e.process(77, "vfio/10")
    # The process has no metric service: of its own chip nothing is known.
    assert values(probe_of(v5e, free_port()).read(0)) == [(0.0, 0), (None, None)]


def test_where_files_of_others_are_closed_to_us_nothing_is_claimed(
    v5e: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    v5e.process(77)

    def refused(folder: Path) -> Iterator[str]:
        raise PermissionError(13, "Permission denied", str(folder))

    # Root, as whom tests may run, is refused nothing.
    monkeypatch.setattr(chips, "_open_files", refused)
    assert chips.owners(v5e.proc, {"/dev/vfio/9"}) is None
    assert values(probe_of(v5e, free_port()).read(0)) == [(None, None), (None, None)]


def test_a_metric_that_libtpu_does_not_have_is_absent(v5e: Machine) -> None:
    v5e.process(77, "vfio/9", "vfio/10")
    with libtpu(lambda: {USED: {0: 5, 1: 6}}) as port:
        assert values(probe_of(v5e, port).read(0)) == [(None, 5), (None, 6)]


def test_several_processes_have_a_port_each(v5e: Machine) -> None:
    v5e.process(77, "vfio/9")
    v5e.process(78, "vfio/10")
    with (
        libtpu(lambda: {USED: {0: 5}, DUTY: {0: 10.0}}) as port,
        libtpu(lambda: {USED: {1: 6}, DUTY: {1: 20.0}}, port + 1) as second,
    ):
        if second != port + 1:
            pytest.skip("the next port is in use")
        assert values(probe_of(v5e, port).read(0)) == [(10.0, 5), (20.0, 6)]


def test_two_processes_that_both_count_from_0_are_not_guessed_at() -> None:
    assert merged([{DUTY: {0: 1.0}}, {DUTY: {0: 2.0, 1: 3.0}}]) == {DUTY: {1: 3.0}}


def test_cores_of_a_chip_are_put_together() -> None:
    memory = {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0}
    assert [by_chip(memory, chip, 2, 2) for chip in (0, 1)] == [[1.0, 2.0], [3.0, 4.0]]
    assert by_chip({0: 1.0, 1: 2.0, 2: 3.0}, 1, 2, 2) == []  # a core does not tell
    assert by_chip({0: 50.0, 1: 60.0}, 1, 2, 2) == [60.0]  # a metric of whole chips


def test_another_service_on_the_port_is_none(v5e: Machine) -> None:
    v5e.process(77, "vfio/9", "vfio/10")
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.listen()

        def rude() -> None:
            with suppress(OSError):  # the probe or the test may close first
                for _ in range(2):
                    connection, _ = server.accept()
                    with closing(connection):
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=rude, daemon=True)
        thread.start()
        reading = probe_of(v5e, server.getsockname()[1]).read(0, {"gpu_samples"})
    assert values(reading) == [(None, None), (None, None)]


@settings(max_examples=50)
@given(st.dictionaries(st.integers(0, 7), st.integers(0, 1 << 50) | st.floats(0, 1e6)))
def test_what_libtpu_sends_is_what_is_read(sent: dict[int, int | float]) -> None:
    assert parse_metric(answer_of("name", sent)) == {k: float(v) for k, v in sent.items()}


@given(st.binary(max_size=60))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    try:
        parse_metric(data)
        integer(data, 1)
        double(data, 1)
    except ValueError:
        pass
