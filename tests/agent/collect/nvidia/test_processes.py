"""Processes as a driver lists them: kinds, MIG devices, and shares of the time."""

from dataclasses import dataclass
from typing import Any

import pytest
from tests.agent.collect.nvidia.fake_driver import (
    H100_IDLE,
    MISSING,
    UNSUPPORTED,
    Fails,
    FakeDevice,
)

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.nvml import GpuProcess, ProcessUtilization
from gpuwarden_agent.collect.nvidia.processes import (
    MIG_LOOKS,
    GpuProcesses,
    HeldGpu,
    mean_sm_percent,
    merged,
)
from gpuwarden_agent.probe import ProbeError

GPU = "GPU-00000000-0000-0000-0000-000000000000"
WHOLE: dict[Any, str] = {}


def sample(pid: int, at_us: int, percent: int) -> ProcessUtilization:
    return ProcessUtilization(pid, at_us, percent, 0, 0, 0)


def gpu(clock: ManualClock, **answers: Any) -> GpuProcesses:
    return GpuProcesses(FakeDevice(H100_IDLE | answers), clock)


def test_a_process_in_several_lists_is_one_and_its_memory_counts_once() -> None:
    listed = [
        ("compute", GpuProcess(1, 5)),
        ("graphics", GpuProcess(1, 5)),
        ("graphics", GpuProcess(2, None)),
        ("mps", GpuProcess(3, 7)),
        ("compute", GpuProcess(3, None)),
    ]
    assert merged(listed, GPU, WHOLE) == [
        HeldGpu(1, GPU, "compute", 5),
        HeldGpu(2, GPU, "graphics", None),
        HeldGpu(3, GPU, "mps", 7),
    ]


def test_a_process_in_two_mig_devices_is_a_row_of_each() -> None:
    listed = [("compute", GpuProcess(1, 5, 1, 0)), ("compute", GpuProcess(1, 7, 2, 0))]
    uuids: dict[Any, str] = {(1, 0): "MIG-a", (2, 0): "MIG-b"}
    assert merged(listed, GPU, uuids) == [
        HeldGpu(1, "MIG-a", "compute", 5, "1/0"),
        HeldGpu(1, "MIG-b", "compute", 7, "2/0"),
    ]


def test_without_uuids_of_mig_devices_it_is_a_row_of_the_gpu() -> None:
    two = [("compute", GpuProcess(1, 5, 1, 0)), ("compute", GpuProcess(1, 7, 2, 0))]
    assert merged(two, GPU, WHOLE) == [HeldGpu(1, GPU, "compute", 12)]
    assert merged(two[:1], GPU, WHOLE) == [HeldGpu(1, GPU, "compute", 5, "1/0")]


def test_the_mean_leaves_out_what_cannot_be_true() -> None:
    samples = [sample(1, 1, 40), sample(1, 2, 60), sample(1, 3, 4_000_000), sample(2, 1, 7)]
    assert mean_sm_percent(samples) == {1: 50, 2: 7}


def test_shares_are_those_since_the_look_before(clock: ManualClock) -> None:
    buffer = [sample(1, 100, 90)]
    asked: list[int] = []

    def utilization(since_us: int) -> list[ProcessUtilization]:
        asked.append(since_us)
        return [s for s in buffer if s.at_us > since_us]

    processes = gpu(
        clock,
        compute_processes_v3=[GpuProcess(1, 5), GpuProcess(2, 5)],
        process_utilization=utilization,
    )
    assert [h.sm_percent for h in processes.held() or ()] == [None, None]
    buffer += [sample(1, 200, 10), sample(1, 300, 30), sample(3, 300, 99)]
    assert [h.sm_percent for h in processes.held() or ()] == [20, None]
    assert [h.sm_percent for h in processes.held() or ()] == [None, None]
    assert asked == [0, 100, 300]


def test_a_driver_that_ignores_since_does_not_count_twice(clock: ManualClock) -> None:
    buffer = [sample(1, 100, 90)]
    processes = gpu(
        clock, compute_processes_v3=[GpuProcess(1, 5)], process_utilization=lambda since_us: buffer
    )
    processes.held()
    buffer.append(sample(1, 200, 10))
    assert [h.sm_percent for h in processes.held() or ()] == [10]


@pytest.mark.parametrize("answer", [UNSUPPORTED, MISSING, Fails(nvml.UNKNOWN)])
def test_without_shares_kinds_and_mps_the_rest_is_told(answer: Fails, clock: ManualClock) -> None:
    processes = gpu(
        clock,
        compute_processes_v3=[GpuProcess(1, 5)],
        process_utilization=answer,
        graphics_processes=answer,
        mps_processes=answer,
    )
    for _ in range(2):
        assert processes.held() == [HeldGpu(1, GPU, "compute", 5)]


def test_an_idle_gpu_is_asked_for_nothing_more(clock: ManualClock) -> None:
    processes = gpu(clock)
    assert processes.held() == []
    assert processes.device.calls["process_utilization"] == 0  # type: ignore[attr-defined]


def test_a_gpu_that_does_not_tell_is_not_one_without_processes(clock: ManualClock) -> None:
    fails = Fails(nvml.UNKNOWN)
    processes = gpu(clock, compute_processes_v3=fails, compute_processes_v2=fails)
    assert processes.held() is None


def test_a_lost_gpu_is_an_error(clock: ManualClock) -> None:
    with pytest.raises(ProbeError, match="lost"):
        gpu(clock, graphics_processes=Fails(nvml.GPU_IS_LOST)).held()


@dataclass
class Mig:
    uuid: str
    gpu_instance: int
    compute_instance: int = 0


def test_mig_devices_are_found_with_the_first_process_and_again_when_they_change(
    clock: ManualClock,
) -> None:
    held = [GpuProcess(1, 5, 7, 0)]
    devices: dict[int, Any] = {0: Fails(nvml.NOT_FOUND), 1: Mig("MIG-a", 7)}
    processes = gpu(clock, compute_processes_v3=held, mig_devices_max=2, mig_device=devices)

    def uuids() -> list[str]:
        return [h.gpu_uuid for h in processes.held() or ()]

    assert uuids() == ["MIG-a"]
    held.append(GpuProcess(2, 5, 9, 0))
    devices[0] = Mig("MIG-b", 9)
    assert uuids() == ["MIG-a", "MIG-b"]
    devices[1] = Mig("MIG-c", 7)  # made again under the same number
    assert [uuids() for _ in range(MIG_LOOKS)][-1] == ["MIG-c", "MIG-b"]
