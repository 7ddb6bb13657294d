"""GPUs that were given out: rows for Kubernetes and Slurm, with or without processes."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.agent.collect.nvidia.fake_driver import FakeDevice
from tests.agent.collect.schedulers.fake_kubelet import encoded, kubelet
from tests.agent.collect.schedulers.test_slurm import SCOPE, Node

from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden_agent.collect.discovery import Discovery
from gpuwarden_agent.collect.nvidia.gpu import GpuProbe
from gpuwarden_agent.collect.schedulers.allocations import AllocationProbe, allocation_probe
from gpuwarden_agent.collect.schedulers.gpu_names import GpuNames
from gpuwarden_agent.collect.schedulers.kubelet import ContainerDevices
from gpuwarden_agent.collect.shared_state import SharedReading, SharedState
from gpuwarden_agent.probe import ProbeError, Row

A, B = "GPU-11111111-2222-3333-4444-555555555555", "GPU-aaaaaaaa-2222-3333-4444-555555555555"
MIG = "MIG-11111111-2222-3333-4444-555555555555"
BUS_IDS = {"0000:01:00.0": (0, A), "0000:02:00.0": (1, B)}


def probe_of(shared: SharedState | None = None, **sources: Any) -> AllocationProbe:
    return AllocationProbe(
        GpuNames(BUS_IDS, Path("/nonexistent")),
        SystemClock(),
        shared or SharedState(),
        name_of=lambda uid: f"user{uid}",
        **sources,
    )


def rows_of(probe: AllocationProbe) -> list[Row]:
    return list(probe.read(0, {"allocation_samples"})["allocation_samples"])


def pod(name: str, *ids: str, resource: str = "nvidia.com/gpu") -> ContainerDevices:
    return ContainerDevices("research", name, "main", resource, ids)


def test_what_pods_have_is_told_whether_they_use_it_or_not(tmp_path: Path) -> None:
    shared = SharedState()
    shared.processes = SharedReading(SystemClock().monotonic(), {A: 0})
    given = [
        pod("bert", A),
        pod("shared", f"{B}::0", f"{B}::1"),
        pod("slice", MIG, resource="nvidia.com/mig-1g.10gb"),
        pod("nic", "nic0", resource="example.com/nic"),
    ]
    path = tmp_path / "kubelet.sock"
    with kubelet(path, lambda context: encoded(given)):
        rows = rows_of(probe_of(shared, kubelet=path))
    common = {"scheduler": "kubernetes", "container": "main", "namespace": "research"}
    assert rows == [
        common
        | {
            "gpu": 0,
            "gpu_uuid": A,
            "job": "research/bert",
            "pod": "research/bert",
            "processes": 0,
        },
        common | {"gpu": 1, "gpu_uuid": B, "job": "research/shared", "pod": "research/shared"},
        common | {"gpu_uuid": MIG, "job": "research/slice", "pod": "research/slice"},
    ]
    assert shared.only_pod_on(A, SystemClock().monotonic()) == "research/bert"


def test_what_jobs_have_is_told_with_their_owner(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run(f"{SCOPE}/job_12/step_batch/user/task_0", 11, b"SLURM_JOB_GPUS=1\0")
    assert rows_of(probe_of(jobs=node.jobs)) == [
        {
            "gpu": 1,
            "gpu_uuid": B,
            "scheduler": "slurm",
            "username": "user1000",
            "job": "12",
        }
    ]


def test_a_device_that_is_none_of_ours_is_counted(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run(f"{SCOPE}/job_12/step_batch/user/task_0", 11, b"SLURM_JOB_GPUS=0,7\0")
    probe = probe_of(jobs=node.jobs)
    assert [row["gpu"] for row in rows_of(probe)] == [0]
    assert list(probe.failed) == ["slurm gave out an unknown device: 7"]


def test_a_kubelet_that_does_not_answer_is_an_error_and_not_no_pods(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    path.write_text("")
    with pytest.raises(ProbeError, match="kubelet.sock: Connection refused"):
        probe_of(kubelet=path).read(0)


def test_one_scheduler_that_does_not_answer_does_not_hide_the_other(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run(f"{SCOPE}/job_12/step_batch/user/task_0", 11, b"SLURM_JOB_GPUS=1\0")
    path = tmp_path / "kubelet.sock"
    path.write_text("")
    probe = probe_of(kubelet=path, jobs=node.jobs)
    assert len(rows_of(probe)) == 1
    assert len(probe.failed) == 1


def test_jobs_that_may_not_be_read_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.run(f"{SCOPE}/job_12/step_batch/user/task_0", 11)
    with pytest.raises(ProbeError, match="give the agent CAP_SYS_PTRACE"):
        probe_of(jobs=node.jobs).read(0)


def test_a_node_that_gave_out_nothing_has_no_rows(tmp_path: Path) -> None:
    assert rows_of(probe_of(kubelet=tmp_path / "kubelet.sock", jobs=Node(tmp_path).jobs)) == []


@pytest.mark.parametrize(("installed", "is_there"), [("", False), ("pods", True), ("slurm", True)])
def test_a_host_without_schedulers_has_no_such_probe(
    installed: str, is_there: bool, tmp_path: Path
) -> None:
    if installed:
        (tmp_path / installed).mkdir()
    probe = allocation_probe(
        GpuNames(BUS_IDS),
        SystemClock(),
        SharedState(),
        kubelet=tmp_path / "pods" / "kubelet.sock",
        slurm_folders=[tmp_path / "slurm"],
    )
    assert (probe is not None) is is_there
    assert probe is None or probe.describe() == {}


def test_the_probe_comes_with_the_first_gpu_and_once(tmp_path: Path, clock: ManualClock) -> None:
    probe = probe_of(kubelet=tmp_path / "kubelet.sock")
    without = Discovery((), "", 0, allocations=probe)
    assert probe not in without.all_probes(tmp_path, clock, tmp_path / "no", tmp_path / "no")
    found = Discovery((GpuProbe(FakeDevice(), clock),), "", 1, allocations=probe)
    told = [found.all_probes(tmp_path, clock, tmp_path / "no", tmp_path / "no") for _ in range(2)]
    assert [probe in probes for probes in told] == [True, False]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_kubelet_that_may_not_be_looked_at_is_told_of(tmp_path: Path) -> None:
    closed = tmp_path / "kubelet"
    (closed / "pod-resources").mkdir(parents=True)
    closed.chmod(0o700)
    path = closed / "pod-resources" / "kubelet.sock"
    os.seteuid(65534)
    try:
        probe = allocation_probe(
            GpuNames(BUS_IDS), SystemClock(), SharedState(), kubelet=path, slurm_folders=[]
        )
        assert probe is not None
        with pytest.raises(ProbeError, match="kubelet.sock: Permission denied"):
            probe.read(0)
    finally:
        os.seteuid(0)
