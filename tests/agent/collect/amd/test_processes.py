"""Processes on AMD GPUs, from trees of the compute driver's files."""

import os
import shutil
from pathlib import Path

import pytest
from tests.agent.collect.amd.boards import MI100, MI300X, T, plant, probe_of

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.amd.processes import AmdProcesses, amd_process_probe
from gpuwarden_agent.collect.discovery import discover
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.nvml import NvmlUnavailable
from gpuwarden_agent.collect.nvidia.processes import HeldGpu
from gpuwarden_agent.probe import ProbeError, Row
from gpuwarden_agent.queue.rows import impossible_columns

NO_NVIDIA = NvmlUnavailable("no driver", nvml.LIBRARY_NOT_FOUND)
UUID = "AMD-b6f10ab8f7df5e3e"


def serve(sys: Path, node: int, gpu_id: int, bus: int, partition: int = 0) -> None:
    """A node of KFD's topology: a GPU in slot 0 of a bus, or a CPU (number and bus 0)."""
    folder = sys / "class/kfd/kfd/topology/nodes" / str(node)
    folder.mkdir(parents=True)
    (folder / "gpu_id").write_text(f"{gpu_id}\n")
    properties = f"cpu_cores_count 0\nlocation_id {bus << 8 | partition}\ndomain 0\n"
    (folder / "properties").write_text(properties)


def use(sys: Path, pid: int, **memory: int) -> Path:
    """A process and its memory by GPU number: `use(sys, 42, vram_7=1024)`."""
    folder = sys / "class/kfd/kfd/proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in memory.items():
        (folder / name).write_text(f"{size}\n")
    return folder


@pytest.fixture
def source(tmp_path: Path) -> AmdProcesses:
    """An MI300X at 0000:83:00.0, number 7 of KFD, beside a CPU and another GPU."""
    gpu = probe_of(plant(tmp_path, MI300X), gpu=3)
    gpu.read(T)
    serve(tmp_path, 0, gpu_id=0, bus=0)
    serve(tmp_path, 1, gpu_id=7, bus=0x83)
    serve(tmp_path, 2, gpu_id=8, bus=0x84)
    return AmdProcesses(gpu, tmp_path)


def test_a_process_is_where_it_has_memory(tmp_path: Path, source: AmdProcesses) -> None:
    use(tmp_path, 42, vram_7=1024, vram_8=0)
    use(tmp_path, 43, vram_7=0, vram_8=4096)
    use(tmp_path, 44)
    (tmp_path / "class/kfd/kfd/proc/not a pid").mkdir()
    assert source.held() == [HeldGpu(42, UUID, "compute", 1024)]


def test_a_gpu_that_is_partitioned_meanwhile_is_noticed(
    tmp_path: Path, source: AmdProcesses
) -> None:
    use(tmp_path, 42, vram_7=1024, vram_9=2048)
    assert source.held() == [HeldGpu(42, UUID, "compute", 1024)]
    serve(tmp_path, 3, gpu_id=9, bus=0x83, partition=1)
    assert source.held() == [HeldGpu(42, UUID, "compute", 3072)]


def test_a_process_that_ends_meanwhile_is_gone(tmp_path: Path, source: AmdProcesses) -> None:
    folder = use(tmp_path, 42, vram_7=1024)
    assert len(source.held()) == 1
    shutil.rmtree(folder)
    assert source.held() == []


@pytest.mark.parametrize("garbage", ["", "garbage", "-", "\x00"])
def test_garbage_for_memory_is_nobody(tmp_path: Path, source: AmdProcesses, garbage: str) -> None:
    (use(tmp_path, 42) / "vram_7").write_text(garbage)
    assert source.held() == []


def test_a_compute_driver_that_lost_the_gpu_is_an_error(
    tmp_path: Path, source: AmdProcesses
) -> None:
    source.held()
    shutil.rmtree(tmp_path / "class/kfd/kfd/topology/nodes/1")
    with pytest.raises(ProbeError, match="KFD"):
        source.held()
    serve(tmp_path, 1, gpu_id=7, bus=0x83)
    assert source.held() == []


def test_a_gpu_that_never_was_awake_has_nobody(tmp_path: Path) -> None:
    gpu = probe_of(plant(tmp_path, MI300X | {"power/runtime_status": "suspended"}))
    serve(tmp_path, 1, gpu_id=7, bus=0x83)
    use(tmp_path, 42, vram_7=1024)
    assert AmdProcesses(gpu, tmp_path).held() == []


def test_gpus_that_the_compute_driver_does_not_serve_have_no_probe(
    tmp_path: Path, clock: ManualClock
) -> None:
    gpu = probe_of(plant(tmp_path, MI300X), clock)
    assert amd_process_probe([gpu], clock, tmp_path) is None
    serve(tmp_path, 1, gpu_id=8, bus=0x84)
    assert amd_process_probe([gpu], clock, tmp_path) is None
    assert amd_process_probe([], clock, tmp_path) is None


def test_rows_have_the_gpu_the_memory_and_what_proc_knows(
    tmp_path: Path, clock: ManualClock
) -> None:
    plant(tmp_path, MI100, "0000:83:00.0", card=0)
    plant(tmp_path, MI300X, "0000:84:00.0", card=1)
    serve(tmp_path, 1, gpu_id=7, bus=0x83)
    serve(tmp_path, 2, gpu_id=8, bus=0x84)
    me = os.getpid()
    use(tmp_path, me, vram_7=0, vram_8=5 << 30)
    found = discover("auto", clock, lambda: NO_NVIDIA, node="n1", sys=tmp_path)
    assert [probe.name for probe in found.probes] == ["gpu0", "gpu1", "amd_processes", "host"]
    for probe in found.probes[:2]:
        probe.read(T)
    (row,) = found.probes[2].read(T)["process_samples"]
    assert (row["gpu"], row["gpu_uuid"], row["pid"]) == (1, UUID, me)
    assert (row["gpu_memory_bytes"], row["process_type"]) == (5 << 30, "compute")
    if "process_name" in row:  # where the tests see the host's processes
        assert str(row["process_name"]).startswith(("python", "pytest"))
    stamp: Row = {"ts": T, "node": "n1", "simulated": False}
    assert impossible_columns("process_samples", stamp | row) == ()
