"""Whom a process belongs to, from cgroup paths as Slurm, Docker, Kubernetes and LXC write them."""

import os
import pwd
import signal
from pathlib import Path

import pytest

from gpuwarden_agent.collect.processes.owner import (
    Launch,
    container_of,
    cpus_allowed,
    cpus_allowed_any,
    launch_of,
    owner_of,
    slurm_job_of,
    user_name,
)
from gpuwarden_agent.collect.processes.procfs import TICKS_PER_S, Process, ProcFs

ID = "3f4d" * 16
OTHER = "a0b1" * 16


@pytest.mark.parametrize(
    ("cgroup", "environ", "job"),
    [
        ("0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0", {}, "123"),
        ("9:devices:/slurm/uid_1000/job_77/step_batch\n8:cpu:/", {}, "77"),
        ("0::/system.slice/slurmstepd.scope/job_123", {"SLURM_JOB_ID": "9"}, "123"),
        ("0::/user.slice", {"SLURM_JOB_ID": "9"}, "9"),
        ("0::/user.slice", {"SLURM_JOB_ID": "$(x)"}, None),
        ("0::/my/job_x/job_12y", {}, None),
        ("0::/user.slice/job_12", {}, None),
        ("0::/system.slice/n1_slurmstepd.scope/job_12/step_0", {}, "12"),
        ("", {}, None),
    ],
)
def test_the_control_group_names_the_slurm_job_before_the_environment(
    cgroup: str, environ: dict[str, str], job: str | None
) -> None:
    assert slurm_job_of(cgroup, environ) == job


@pytest.mark.parametrize(
    ("cgroup", "container"),
    [
        (f"0::/system.slice/docker-{ID}.scope", ID),
        (f"12:memory:/docker/{ID}\n11:cpu:/docker/{ID}", ID),
        (f"0::/kubepods.slice/kubepods-pod0a.slice/cri-containerd-{ID}.scope", ID),
        (f"0::/kubepods/burstable/pod1b2c/{ID}", ID),
        (f"0::/../../kubepods-besteffort.slice/crio-{ID}.scope", ID),
        (f"0::/docker/{OTHER}/docker/{ID}", ID),
        ("0::/lxc.payload.train-1/init.scope", "train-1"),
        ("1:name=systemd:/lxc/web", "web"),
        ("0::/user.slice/user-1000.slice/session-2.scope", None),
        ("", None),
    ],
)
def test_the_innermost_container_of_a_control_group_is_named(
    cgroup: str, container: str | None
) -> None:
    assert container_of(cgroup) == container


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "16", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    ("environ", "launch"),
    [
        (TORCHRUN, Launch("10.0.0.7:29500", 3, 16)),
        (TORCHRUN | {"MASTER_ADDR": "localhost"}, Launch("gpu-7:29500", 3, 16)),
        (TORCHRUN | {"MASTER_ADDR": "127.0.0.1"}, Launch("gpu-7:29500", 3, 16)),
        (TORCHRUN | {"MASTER_ADDR": "[::1]"}, Launch("gpu-7:29500", 3, 16)),
        (TORCHRUN | {"MASTER_ADDR": "fd00::7"}, Launch("fd00::7:29500", 3, 16)),
        (TORCHRUN | {"WORLD_SIZE": "1", "RANK": "0"}, Launch(None, 0, 1)),
        (TORCHRUN | {"MASTER_PORT": ""}, Launch(None, 3, 16)),
        (TORCHRUN | {"MASTER_ADDR": "a b\n"}, Launch(None, 3, 16)),
        (TORCHRUN | {"RANK": "three"}, Launch("10.0.0.7:29500", None, 16)),
        (MPIRUN | {"PMIX_NAMESPACE": "prterun-gpu-7-19@1"}, Launch("mpi prterun-gpu-7-19@1", 0, 8)),
        (MPIRUN | {"OMPI_MCA_ess_base_jobid": "3221225473"}, Launch("mpi 3221225473", 0, 8)),
        (MPIRUN, Launch(None, 0, 8)),
        ({"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}, Launch()),
        ({}, Launch()),
    ],
)
def test_a_launcher_says_which_rank_of_what_it_is(environ: dict[str, str], launch: Launch) -> None:
    assert launch_of(environ, node="gpu-7") == launch


PROCESS = Process(42, 1, "pt_main_thread", "S", 0, 10 * TICKS_PER_S, 0, 1, 0)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "stat").write_text("cpu 1\nbtime 1000\n")
    (tmp_path / "42").mkdir()
    return tmp_path


def test_an_owner_is_what_may_be_read(proc: Path) -> None:
    files = proc / "42"
    (files / "status").write_text("Name:\tx\nUid:\t4242\t0\t0\t0\n")
    (files / "cgroup").write_text(f"0::/kubepods/pod1/{ID}\n")
    (files / "environ").write_text("HOSTNAME=bert-0\0SLURM_JOB_ID=5\0RANK=1\0WORLD_SIZE=2\0")
    secrets = files / "root/var/run/secrets/kubernetes.io/serviceaccount"
    secrets.mkdir(parents=True)
    (secrets / "namespace").write_text("research\n")
    (files / "exe").symlink_to("/opt/conda/bin/python3.11 (deleted)")
    owner = owner_of(PROCESS, ProcFs(proc), name_of=lambda uid: f"user{uid}")
    assert owner.process_name == "python3.11"
    assert owner.username == "user4242"
    assert (owner.slurm_job_id, owner.container_id, owner.pod) == ("5", ID, "research/bert-0")
    assert owner.started_at_ms == 1_010_000
    assert owner.launch == Launch(None, 1, 2)


def test_without_permission_only_the_name_is_known(proc: Path) -> None:
    owner = owner_of(PROCESS, ProcFs(proc))
    assert owner.process_name == "pt_main_thread"
    rest = (owner.username, owner.slurm_job_id, owner.container_id, owner.pod)
    assert rest == (None, None, None, None)


def test_a_pod_on_the_hosts_network_is_not_named_after_the_node(proc: Path) -> None:
    secrets = proc / "42/root/var/run/secrets/kubernetes.io/serviceaccount"
    secrets.mkdir(parents=True)
    (secrets / "namespace").write_text("research\n")
    (proc / "42/environ").write_text(f"HOSTNAME={os.uname().nodename}\0")
    (proc / "42/cgroup").write_text("0::/kubepods/pod1\n")
    assert owner_of(PROCESS, ProcFs(proc)).pod is None


def test_the_host_name_outside_kubernetes_is_no_pod(proc: Path) -> None:
    (proc / "42/environ").write_text("HOSTNAME=login1\0")
    (proc / "42/cgroup").write_text("0::/user.slice\n")
    assert owner_of(PROCESS, ProcFs(proc)).pod is None


def test_a_user_that_the_host_does_not_know_is_named_by_number() -> None:
    known = {entry.pw_uid for entry in pwd.getpwall()}
    unknown = next(uid for uid in range(60_000, 70_000) if uid not in known)
    assert user_name(unknown) == str(unknown)
    assert user_name(os.getuid()) == pwd.getpwuid(os.getuid()).pw_name


def test_cpus_allowed_follows_affinity_and_is_absent_for_no_process() -> None:
    assert cpus_allowed(os.getpid()) == len(os.sched_getaffinity(0))
    assert cpus_allowed(2**22 + 1) is None


def test_cpus_of_several_are_those_of_any() -> None:
    every = os.sched_getaffinity(0)
    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, {min(every)})
        os.write(_READY[1], b"x")
        signal.pause()
    try:
        os.read(_READY[0], 1)
        assert cpus_allowed_any([child, 2**22 + 1]) == 1
        assert cpus_allowed_any([child, os.getpid()]) == len(every)
        assert cpus_allowed_any([2**22 + 1]) is None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


_READY = os.pipe()
