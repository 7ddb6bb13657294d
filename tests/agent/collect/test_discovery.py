"""The probes of a host, and the line that names them."""

import os
import threading
from pathlib import Path

import pytest
from tests.agent.collect.amd.boards import RX6700XT, plant
from tests.agent.collect.nvidia.fake_driver import H100_IDLE, MISSING, Fails, FakeDevice
from tests.agent.collect.nvidia.fake_nvidia import FakeDriver

from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden_agent.collect.discovery import discover
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.nvml import GpuProcess, NvmlError, NvmlUnavailable
from gpuwarden_agent.once import read_once
from gpuwarden_agent.queue.rows import impossible_columns

NO_LIBRARY = NvmlUnavailable(
    "libnvidia-ml.so.1 not found: no NVIDIA driver on this host", nvml.LIBRARY_NOT_FOUND
)
MISMATCH = NvmlUnavailable("library and module differ: reboot", nvml.LIB_RM_VERSION_MISMATCH)


def test_auto_without_a_driver_watches_the_host_alone(clock: ManualClock) -> None:
    found = discover("auto", clock, lambda: NO_LIBRARY)
    assert [probe.name for probe in found.probes] == ["host"]
    expected = "no NVIDIA driver here (libnvidia-ml.so.1 not found): host metrics only"
    assert (found.message, found.gpus) == (expected, 0)


def test_auto_with_a_broken_driver_says_what_is_broken(clock: ManualClock) -> None:
    found = discover("auto", clock, lambda: MISMATCH)
    assert [probe.name for probe in found.probes] == ["host"]
    assert found.message == (
        "NVIDIA driver not usable (library and module differ: reboot): host metrics only"
    )


@pytest.mark.parametrize("reason", [NO_LIBRARY, MISMATCH])
def test_nvml_without_a_driver_does_not_start(clock: ManualClock, reason: NvmlUnavailable) -> None:
    with pytest.raises(StartError, match=f"^backend nvml: {reason.reason[:10]}"):
        discover("nvml", clock, lambda: reason)


def test_none_does_not_touch_the_driver(clock: ManualClock) -> None:
    def never() -> NvmlUnavailable:
        raise AssertionError("the driver was opened")

    assert [probe.name for probe in discover("none", clock, never).probes] == ["host"]


def test_each_gpu_has_a_probe_and_none_is_opened(clock: ManualClock) -> None:
    devices = [FakeDevice(index=0), FakeDevice({"open": Fails(nvml.GPU_IS_LOST)}, index=1)]
    found = discover("auto", clock, lambda: FakeDriver(*devices))
    assert [probe.name for probe in found.probes] == ["gpu0", "gpu1", "processes", "host"]
    assert (found.message, found.gpus) == ("2 GPUs, NVIDIA driver 590.48.01", 2)
    assert [device.uuid for device in devices] == [None, None]


@pytest.mark.parametrize("devices", [(), (FakeDevice(),)])
def test_the_nodes_row_gets_what_only_the_driver_knows(
    devices: tuple[FakeDevice, ...], clock: ManualClock
) -> None:
    found = discover("nvml", clock, lambda: FakeDriver(*devices))
    (row,) = found.probes[-1].describe()["nodes"]
    assert (row["gpus"], row["driver_version"]) == (len(devices), "590.48.01")
    assert row["cuda_version"] == "13.1"


def test_without_a_driver_the_count_of_gpus_is_not_the_hosts_to_tell(clock: ManualClock) -> None:
    (row,) = discover("none", clock).probes[0].describe()["nodes"]
    assert "gpus" not in row


def test_a_driver_that_does_not_tell_its_version_still_works(clock: ManualClock) -> None:
    found = discover("auto", clock, lambda: FakeDriver(FakeDevice(), version=MISSING))
    assert found.message == "1 GPU, NVIDIA driver of unknown version"
    assert found.gpus == 1


def test_a_driver_without_gpus_is_named(clock: ManualClock) -> None:
    found = discover("auto", clock, FakeDriver)
    assert found.message == "NVIDIA driver 590.48.01 here, but no GPU: host metrics only"
    assert [probe.name for probe in found.probes] == ["host"]


def plant_amd(sys: Path, *bus_ids: str) -> Path:
    """A /sys with AMD GPUs at those places, and ROCm's driver."""
    for nth, bus_id in enumerate(bus_ids):
        plant(sys, RX6700XT, bus_id, card=nth)
    (sys / "module/amdgpu").mkdir(parents=True)
    (sys / "module/amdgpu/version").write_text("6.10.5\n")
    return sys


def test_amd_gpus_alone_are_watched(tmp_path: Path, clock: ManualClock) -> None:
    sys = plant_amd(tmp_path, "0000:c3:00.0", "0000:83:00.0")
    found = discover("auto", clock, lambda: NO_LIBRARY, node="n1", sys=sys)
    assert [probe.name for probe in found.probes] == ["gpu0", "gpu1", "host"]
    assert (found.message, found.gpus) == ("2 AMD GPUs, amdgpu driver 6.10.5", 2)
    (row,) = found.probes[0].read(0)["gpu_samples"]
    assert (row["gpu"], row["gpu_uuid"]) == (0, "AMD-0000:83:00.0@n1")
    (node,) = found.probes[-1].describe()["nodes"]
    assert (node["gpus"], node["driver_version"]) == (2, "6.10.5")


def test_amd_gpus_follow_nvidias(tmp_path: Path, clock: ManualClock) -> None:
    sys = plant_amd(tmp_path, "0000:83:00.0")
    driver = FakeDriver(FakeDevice(index=0), FakeDevice(index=1))
    found = discover("auto", clock, lambda: driver, node="n1", sys=sys)
    assert [probe.name for probe in found.probes] == ["gpu0", "gpu1", "gpu2", "processes", "host"]
    assert found.message == ("2 GPUs, NVIDIA driver 590.48.01; 1 AMD GPU, amdgpu driver 6.10.5")
    assert found.gpus == 3
    (node,) = found.probes[-1].describe()["nodes"]
    assert (node["gpus"], node["driver_version"]) == (3, "590.48.01")


def test_a_broken_nvidia_driver_is_named_beside_amd_gpus(
    tmp_path: Path, clock: ManualClock
) -> None:
    sys = plant_amd(tmp_path, "0000:83:00.0")
    (sys / "module/amdgpu/version").unlink()
    found = discover("auto", clock, lambda: MISMATCH, sys=sys)
    assert found.message == (
        "1 AMD GPU, amdgpu driver of the kernel; "
        "NVIDIA driver not usable (library and module differ: reboot)"
    )
    assert found.gpus == 1


@pytest.mark.parametrize("backend", ["nvml", "none"])
def test_amd_gpus_are_watched_by_auto_only(
    tmp_path: Path, clock: ManualClock, backend: str
) -> None:
    sys = plant_amd(tmp_path, "0000:83:00.0")
    found = discover(backend, clock, lambda: FakeDriver(FakeDevice()), sys=sys)
    assert not [probe for probe in found.probes if getattr(probe, "backend", "") == "amdgpu"]


class Uncountable(FakeDriver):
    """A driver that fails to count."""

    def devices(self) -> list[FakeDevice]:
        raise NvmlError(nvml.UNKNOWN, "nvmlDeviceGetCount")


def test_gpus_that_cannot_be_counted_are_a_reason(clock: ManualClock) -> None:
    found = discover("auto", clock, Uncountable)
    assert "cannot be counted: nvmlDeviceGetCount: UNKNOWN" in found.message
    with pytest.raises(StartError, match="cannot be counted"):
        discover("nvml", clock, Uncountable)


def test_every_row_of_a_whole_host_passes_the_agents_own_check() -> None:
    clock = SystemClock()
    busy = H100_IDLE | {"compute_processes_v3": [GpuProcess(os.getpid(), 1 << 30)]}
    probes = discover("auto", clock, lambda: FakeDriver(FakeDevice(busy))).probes
    once = read_once(probes, clock, node="n", between_s=0.3)
    assert once.problems == []
    samples = {"gpu_samples", "gpu_detail_samples", "gpu_health_samples", "link_samples"}
    assert samples < once.tables.keys()
    assert {"nodes", "gpus", "host_samples", "process_samples"} < once.tables.keys()
    for table, rows in once.tables.items():
        stamp = {"agent_id": "a", "boot_id": "b"} if table == "nodes" else {}
        for row in rows:
            assert impossible_columns(table, stamp | row) == ()


def test_a_driver_that_never_answers_holds_up_nothing(clock: ManualClock) -> None:
    """nvmlInit can block for ever on a broken host; the agent starts with what it has."""
    release = threading.Event()

    def hang() -> NvmlUnavailable:
        release.wait(30)
        return NvmlUnavailable("late", 0)

    try:
        found = discover("auto", clock, hang, limit_s=0.05)
        assert [probe.name for probe in found.probes] == ["host"]
        assert "has not answered for 0.05 s" in found.message
        with pytest.raises(StartError, match="backend nvml: it has not answered"):
            discover("nvml", clock, hang, limit_s=0.05)
    finally:
        release.set()


def test_gpu_probes_tell_the_kernels_log_which_gpu_is_where(
    clock: ManualClock, tmp_path: Path
) -> None:
    found = discover("nvml", clock, lambda: FakeDriver(FakeDevice()))
    row = next(p for p in found.probes if p.name == "gpu0").describe()["gpus"][0]
    assert found.bus_ids == {row["pci_bus_id"]: (0, row["gpu_uuid"])}
    names = [probe.name for probe in found.all_probes(tmp_path, clock)]
    assert ("kmsg" in names) == Path("/dev/kmsg").exists()


def test_the_kernels_log_is_read_where_only_nvidias_module_is_left(
    clock: ManualClock, tmp_path: Path
) -> None:
    found = discover("none", clock)
    assert [p.name for p in found.all_probes(tmp_path, clock, tmp_path / "none")] == ["host"]
    names = [probe.name for probe in found.all_probes(tmp_path, clock, tmp_path)]
    assert names == (["host", "kmsg"] if Path("/dev/kmsg").exists() else ["host"])


def serve(sys: Path, bus_id: str, gpu_id: int) -> None:
    """AMD's compute driver serves the GPU at that place."""
    domain, bus, device = (int(part, 16) for part in bus_id.split(".")[0].split(":"))
    folder = sys / f"class/kfd/kfd/topology/nodes/{gpu_id}"
    folder.mkdir(parents=True)
    (folder / "gpu_id").write_text(f"{gpu_id}\n")
    (folder / "properties").write_text(f"location_id {bus << 8 | device << 3}\ndomain {domain}\n")


def test_amd_gpus_that_come_later_get_probes_once_and_free_indices(
    tmp_path: Path, clock: ManualClock
) -> None:
    sys = tmp_path / "sys"
    driver = FakeDriver(FakeDevice(index=0))
    found = discover("auto", clock, lambda: driver, node="n1", sys=sys)
    found.all_probes(tmp_path, clock, kmsg=tmp_path / "none", sys=sys)
    assert found.rediscover() == []
    plant_amd(sys, "0000:83:00.0")
    (card,) = found.rediscover()
    assert (card.name, found.rediscover()) == ("gpu1", [])
    assert card.describe()["gpus"][0]["gpu"] == 1
    assert "nodes" not in card.describe()  # the driver of the node is NVIDIA's
    # The compute driver serves it a while later, with its processes.
    serve(sys, "0000:83:00.0", 5)
    (processes,) = found.rediscover()
    assert processes.name == "amd_processes"
    plant(sys, RX6700XT, "0000:c3:00.0", card=1)
    serve(sys, "0000:c3:00.0", 6)
    assert [probe.name for probe in found.rediscover()] == ["gpu2"]
    assert found.rediscover() == []


def test_amd_gpus_that_come_to_a_node_without_any_bring_its_driver(
    tmp_path: Path, clock: ManualClock
) -> None:
    sys = tmp_path / "sys"
    found = discover("auto", clock, lambda: NO_LIBRARY, node="n1", sys=sys)
    plant_amd(sys, "0000:83:00.0", "0000:c3:00.0")
    first, second = found.rediscover()
    assert [first.name, second.name] == ["gpu0", "gpu1"]
    assert first.describe()["nodes"] == [{"driver_version": "6.10.5"}]


@pytest.mark.parametrize("backend", ["auto", "none"])
def test_network_adapters_that_come_later_are_read(
    tmp_path: Path, clock: ManualClock, backend: str
) -> None:
    sys = tmp_path / "sys"
    found = discover(backend, clock, lambda: NO_LIBRARY, node="n1", sys=sys)
    found.all_probes(tmp_path, clock, kmsg=tmp_path / "none", sys=sys)
    assert found.rediscover() == []
    (sys / "class/infiniband").mkdir(parents=True)
    assert [probe.name for probe in found.rediscover()] == ["infiniband"]
    assert found.rediscover() == []
