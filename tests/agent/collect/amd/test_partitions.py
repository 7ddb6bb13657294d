"""Compute partitions of an MI300X have rows of their own, as long as its mode makes them."""

import shutil
from pathlib import Path

import pytest
from tests.agent.collect.amd.boards import MI300X, T, gpu_metrics, plant
from tests.agent.collect.amd.test_processes import serve, use

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.amd.gpu import AmdGpuProbe, Card
from gpuwarden_agent.collect.amd.gpu_metrics import parse_gpu_metrics, partition_busy
from gpuwarden_agent.collect.amd.processes import AmdProcesses
from gpuwarden_agent.collect.amd.smi import only_numbers
from gpuwarden_agent.collect.nvidia.processes import HeldGpu
from gpuwarden_agent.queue.rows import impossible_columns

UUID = "AMD-b6f10ab8f7df5e3e"
STAMP = {"node": "n1", "simulated": False}
GIB = 1024**3
XCP_BYTES = {(1, 6): 168, (1, 7): 232, (1, 8): 440}


def cut(sys: Path, mode: str, number: int, bus: int = 0x83) -> None:
    """Cut the GPU on that bus into equal partitions."""
    device = next((sys / "devices").rglob("0000:83:00.0"))
    (device / "current_compute_partition").write_text(f"{mode}\n")
    (device / "available_compute_partition").write_text("SPX, DPX, QPX, CPX\n")
    for partition in range(number):
        serve(sys, 1 + partition, gpu_id=7 + partition, bus=bus, partition=partition)
        bank = sys / f"class/kfd/kfd/topology/nodes/{1 + partition}/mem_banks/0"
        bank.mkdir(parents=True)
        (bank / "properties").write_text(f"heap_type 2\nsize_in_bytes {192 * GIB // number}\n")


def metrics_of(version: tuple[int, int], busy: list[list[int]]) -> bytes:
    """Metrics of partitions whose compute dies are so busy."""
    size = XCP_BYTES[version]
    stats = b""
    for dies in busy:
        words = b"".join(die.to_bytes(4, "little") for die in dies)
        stats += words.ljust(size, b"\xff")
    words = [int.from_bytes(stats[at : at + 8], "little") for at in range(0, len(stats), 8)]
    return gpu_metrics(version, xcp_stats=words, average_gfx_activity=50)


@pytest.mark.parametrize("version", XCP_BYTES)
def test_the_metrics_have_the_utilization_of_each_partition(version: tuple[int, int]) -> None:
    metrics = parse_gpu_metrics(metrics_of(version, [[100, 50], [0, 0], [25]]))
    assert partition_busy(metrics) == {0: 75.0, 1: 0.0, 2: 25.0}
    assert metrics["average_gfx_activity"] == 50


def test_amds_package_gives_the_same() -> None:
    busy = [[100, 50, "N/A"], [0, "N/A", "N/A"], ["N/A"] * 3]
    assert partition_busy(only_numbers({"xcp_stats.gfx_busy_inst": busy})) == {0: 75.0, 1: 0.0}
    assert partition_busy(only_numbers({"xcp_stats.gfx_busy_inst": "N/A"})) == {}


@pytest.fixture
def probe(tmp_path: Path, clock: ManualClock) -> AmdGpuProbe:
    device = plant(tmp_path, MI300X)
    return AmdGpuProbe(Card(device, device.name), 3, clock, "n1", tmp_path)


def test_each_partition_has_rows_beside_those_of_the_gpu(
    tmp_path: Path, probe: AmdGpuProbe
) -> None:
    cut(tmp_path, "DPX", 2)
    (probe.device / "gpu_metrics").write_bytes(metrics_of((1, 6), [[100] * 4, [20] * 4]))
    probe.read(T)
    whole, *parts = probe.describe()["gpus"]
    assert (whole["mig_mode"], whole["gpu_uuid"]) == (True, UUID)
    assert parts == [
        {
            "gpu": 3,
            "gpu_uuid": f"{UUID}-{number}",
            "mig_instance": f"dpx/{number}",
            "model": "AMD Instinct MI300X OAM DPX",
            "vendor": "amd",
            "kind": "gpu",
            "memory_total_bytes": 96 * GIB,
            "parent_gpu_uuid": UUID,
        }
        for number in range(2)
    ]
    sample, *rows = probe.read(T, {"gpu_samples"})["gpu_samples"]
    assert sample["power_watts"] == 724.0
    assert [(row["mig_instance"], row["util_percent"]) for row in rows] == [
        ("dpx/0", 100.0),
        ("dpx/1", 20.0),
    ]
    assert not any("power_watts" in row or "memory_used_bytes" in row for row in rows)
    for row in (whole, *parts):
        assert impossible_columns("gpus", {**STAMP, **row}) == ()


def test_a_mode_that_changes_makes_other_partitions_and_spx_none(
    tmp_path: Path, probe: AmdGpuProbe
) -> None:
    cut(tmp_path, "CPX", 8)
    assert len(probe.describe()["gpus"]) == 9
    (probe.device / "current_compute_partition").write_text("SPX\n")
    for node in range(2, 9):
        shutil.rmtree(tmp_path / f"class/kfd/kfd/topology/nodes/{node}")
    (whole,) = probe.describe()["gpus"]
    assert whole["mig_mode"] is False
    assert len(probe.read(T, {"gpu_samples"})["gpu_samples"]) == 1


@pytest.mark.parametrize("mode", [None, "UNKNOWN", ""])
def test_a_gpu_of_unknown_mode_is_whole(
    tmp_path: Path, probe: AmdGpuProbe, mode: str | None
) -> None:
    cut(tmp_path, mode or "", 8)
    if mode is None:
        (probe.device / "current_compute_partition").unlink()
    (whole,) = probe.describe()["gpus"]
    assert whole["mig_mode"] is False


def test_the_mode_is_read_once_as_that_wakes_the_gpu_up(tmp_path: Path, probe: AmdGpuProbe) -> None:
    cut(tmp_path, "DPX", 2)
    assert len(probe.describe()["gpus"]) == 3
    (probe.device / "current_compute_partition").unlink()
    assert len(probe.describe()["gpus"]) == 3
    # A whole GPU is not asked at all.
    shutil.rmtree(tmp_path / "class/kfd/kfd/topology/nodes/2")
    (probe.device / "current_compute_partition").write_text("garbage\n")
    assert len(probe.describe()["gpus"]) == 1


def test_older_metrics_tell_no_utilization_of_partitions(
    tmp_path: Path, probe: AmdGpuProbe
) -> None:
    cut(tmp_path, "QPX", 4)
    (probe.device / "gpu_metrics").write_bytes(gpu_metrics((1, 5)))
    probe.describe()
    _, *rows = probe.read(T, {"gpu_samples"})["gpu_samples"]
    assert [row.get("util_percent") for row in rows] == [None] * 4
    assert {row["memory_total_bytes"] for row in rows} == {48 * GIB}


def test_a_process_is_on_the_partitions_where_it_has_memory(
    tmp_path: Path, probe: AmdGpuProbe
) -> None:
    cut(tmp_path, "CPX", 8)
    probe.read(T)
    use(tmp_path, 42, vram_7=1024, vram_9=2048, vram_10=0)
    assert AmdProcesses(probe, tmp_path).held() == [
        HeldGpu(42, f"{UUID}-0", "compute", 1024, "cpx/0"),
        HeldGpu(42, f"{UUID}-2", "compute", 2048, "cpx/2"),
    ]
