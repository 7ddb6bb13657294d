"""Namespace, workload, user, team and labels of pods in the rows of GPUs and processes."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.agent.collect.amd.boards import RX6700XT, plant
from tests.agent.collect.kubernetes.fake_cluster import (
    UID,
    Account,
    ClusterServer,
    answer_of,
    environ_of,
    owner,
    pod,
    served,
)
from tests.agent.collect.processes.made_up import MadeUpProc, process
from tests.agent.collect.processes.test_trees import device, probe_on, rows_of
from tests.agent.collect.schedulers.fake_kubelet import encoded, kubelet

from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden_agent.collect.discovery import discover
from gpuwarden_agent.collect.kubernetes.directory import PodDirectory, pod_directory
from gpuwarden_agent.collect.nvidia.nvml import LIBRARY_NOT_FOUND, GpuProcess, NvmlUnavailable
from gpuwarden_agent.collect.schedulers.allocations import AllocationProbe, allocation_probe
from gpuwarden_agent.collect.schedulers.gpu_names import GpuNames
from gpuwarden_agent.collect.schedulers.kubelet import ContainerDevices
from gpuwarden_agent.collect.shared_state import SharedState
from gpuwarden_agent.settings import AgentSettings

A = "GPU-11111111-2222-3333-4444-555555555555"
BERT = pod(
    "bert-0",
    labels={"user": "ada", "team": "ml", "app": "bert"},
    ownerReferences=[owner("PyTorchJob", "bert")],
)
CGROUP = f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{'a' * 64}.scope\n"


@pytest.fixture
def source(tmp_path: Path) -> Iterator[tuple[AgentSettings, ClusterServer]]:
    account = Account(tmp_path / "account")
    with served(account) as server:
        server.answers["/pods"] = answer_of([BERT])
        yield (
            AgentSettings(
                kubernetes="kubelet",
                node="n1",
                pod_user_labels=("user",),
                pod_team_labels=("team",),
            ),
            server,
        )


@pytest.fixture
def made(tmp_path: Path) -> MadeUpProc:
    (tmp_path / "proc").mkdir()
    return MadeUpProc(tmp_path / "proc")


def directory_of(
    source: tuple[AgentSettings, ClusterServer], tmp_path: Path, clock: ManualClock
) -> PodDirectory:
    settings, server = source
    directory = pod_directory(
        settings, clock, {}, account_dir=tmp_path / "account", kubelet=server.address
    )
    assert directory is not None
    directory.refresh()
    return directory


def allocations(socket: Path, directory: PodDirectory | None, gpus: GpuNames) -> AllocationProbe:
    probe = allocation_probe(
        gpus, SystemClock(), SharedState(), pods=directory, kubelet=socket, slurm_folders=[]
    )
    assert probe is not None
    return probe


def test_a_gpu_that_was_given_out_has_the_names_of_its_pod(
    source: tuple[AgentSettings, ClusterServer], tmp_path: Path, clock: ManualClock
) -> None:
    given = [
        ContainerDevices("research", "bert-0", "main", "nvidia.com/gpu", (A,)),
        ContainerDevices("other", "new-1", "main", "nvidia.com/gpu", (A,)),
    ]
    path = tmp_path / "kubelet.sock"
    probe = allocations(
        path, directory_of(source, tmp_path, clock), GpuNames({"0000:01:00.0": (0, A)})
    )
    with kubelet(path, lambda context: encoded(given)):
        bert, new = probe.read(0)["allocation_samples"]
    names = ("namespace", "workload", "username", "team")
    assert tuple(map(bert.get, names)) == ("research", "PyTorchJob/bert", "ada", "ml")
    assert json.loads(str(bert["pod_labels"])) == {"app": "bert", "team": "ml", "user": "ada"}
    assert tuple(map(new.get, names)) == ("other", None, None, None)


def test_amd_gpus_and_resource_claims_are_known_by_their_names(tmp_path: Path) -> None:
    given = [
        ContainerDevices("research", "amd", "main", "amd.com/gpu", ("0000:C3:00.0",)),
        ContainerDevices("research", "claim", "main", "gpu.nvidia.com", ("gpu-0",)),
    ]
    path = tmp_path / "kubelet.sock"
    gpus = GpuNames(
        {"0000:01:00.0": (0, A)}, tmp_path, others=lambda: {"0000:c3:00.0": (1, "AMD-1")}
    )
    with kubelet(path, lambda context: encoded(given, claims={"gpu.nvidia.com"})):
        rows = allocations(path, None, gpus).read(0)["allocation_samples"]
    assert [(row["pod"], row["gpu"], row["gpu_uuid"]) for row in rows] == [
        ("research/amd", 1, "AMD-1"),
        ("research/claim", 0, A),
    ]


def test_a_process_has_the_pod_of_its_control_group_and_the_pods_user(
    source: tuple[AgentSettings, ClusterServer],
    tmp_path: Path,
    made: MadeUpProc,
    clock: ManualClock,
) -> None:
    made.add(process(7), cgroup=CGROUP)
    made.add(process(8), cgroup="0::/user.slice\n")
    gpu = device(GpuProcess(7, 5), GpuProcess(8, 5))
    inside, outside = rows_of(
        probe_on(made, clock, gpu, pods=directory_of(source, tmp_path, clock))
    )
    assert (inside["pod"], inside["workload"], inside["username"]) == (
        "research/bert-0",
        "PyTorchJob/bert",
        "ada",
    )
    assert not {"pod", "workload"} & outside.keys()
    assert outside["username"] != "ada"


def test_a_pod_without_a_user_leaves_the_processs(
    source: tuple[AgentSettings, ClusterServer],
    tmp_path: Path,
    made: MadeUpProc,
    clock: ManualClock,
) -> None:
    source[1].answers["/pods"] = answer_of([pod("bert-0")])
    made.add(process(7), cgroup=CGROUP)
    gpu = device(GpuProcess(7, 5))
    (row,) = rows_of(probe_on(made, clock, gpu, pods=directory_of(source, tmp_path, clock)))
    (plain,) = rows_of(probe_on(made, clock, gpu))
    assert (row["pod"], row["username"]) == ("research/bert-0", plain["username"])
    assert "pod" not in plain


def test_an_amd_host_in_kubernetes_has_allocations_and_labels_of_the_node(
    source: tuple[AgentSettings, ClusterServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account_dir = tmp_path / "account"
    sys = tmp_path / "sys"
    plant(sys, RX6700XT, "0000:c3:00.0", card=0)
    library = NvmlUnavailable("libnvidia-ml.so.1 not found", LIBRARY_NOT_FOUND)
    kubernetes, server = source
    server.answers["/api/v1/nodes/n1"] = b'{"metadata": {"labels": {"rack": "r7"}}}'
    kubernetes = replace(kubernetes, kubernetes="auto")
    in_pod = partial(pod_directory, account_dir=account_dir, kubelet=server.address)
    monkeypatch.setattr("gpuwarden_agent.collect.kubernetes.directory.pod_directory", in_pod)
    monkeypatch.setattr("gpuwarden_agent.collect.discovery.SERVICE_ACCOUNT", account_dir)
    for name, value in environ_of(server).items():
        monkeypatch.setenv(name, value)
    clock = SystemClock()
    found = discover("auto", clock, lambda: library, node="n1", sys=sys, settings=kubernetes)
    probes = found.all_probes(tmp_path, clock, tmp_path / "no", tmp_path / "no", tmp_path / "no")
    (probe,) = [probe for probe in probes if isinstance(probe, AllocationProbe)]
    probe._pods.refresh()
    assert probe.describe() == {"nodes": [{"labels": '{"rack": "r7"}'}]}


def test_a_wrong_address_is_a_start_error_that_names_its_variable(
    source: tuple[AgentSettings, ClusterServer],
    tmp_path: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_pod = partial(pod_directory, account_dir=tmp_path / "account")
    monkeypatch.setattr("gpuwarden_agent.collect.kubernetes.directory.pod_directory", in_pod)
    monkeypatch.setattr("gpuwarden_agent.collect.discovery.SERVICE_ACCOUNT", tmp_path / "account")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "https://n1")
    with pytest.raises(StartError, match="KUBERNETES_SERVICE_HOST: .* is not a host"):
        discover("none", clock, settings=replace(source[0], kubernetes="api"))
