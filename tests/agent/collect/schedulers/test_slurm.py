"""GPUs of Slurm's jobs, from control groups and environments as Slurm leaves them on a node."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.collect.processes.made_up import MadeUpProc, process

from gpuwarden_agent.collect.processes.cgroup import V2, CgroupMount
from gpuwarden_agent.collect.processes.procfs import ProcFs
from gpuwarden_agent.collect.schedulers.slurm import (
    JobGpus,
    SlurmJobs,
    devices_allowed,
    gpus_told,
    job_folders,
    numbers_of,
)


@pytest.mark.parametrize(
    ("listed", "gpus"),
    [
        ("c 1:3 rwm\nc 195:0 rwm\nc 195:3 rw\nc 195:255 rwm\nb 195:5 r\n", ("0", "3")),
        ("c 1:3 rwm\nc 195:254 rwm\n", ()),
        ("a *:* rwm\n", None),
        ("c 195:* rwm\n", None),
        ("c *:* m\nc 195:0 rwm\n", None),
        ("", None),
        (None, None),
        ("rubbish\nc\nc x:y\n", ()),
    ],
)
def test_device_files_that_a_group_may_open(
    listed: str | None, gpus: tuple[str, ...] | None
) -> None:
    assert devices_allowed(listed) == gpus


@pytest.mark.parametrize(
    ("step", "environ", "gpus"),
    [
        ("step_batch", {"SLURM_JOB_GPUS": "0,3"}, ("0", "3")),
        ("step_interactive", {"SLURM_JOB_GPUS": "2-4"}, ("2", "3", "4")),
        # srun carries the batch node's numbers to the other nodes of a job.
        ("step_0", {"SLURM_JOB_GPUS": "0,3", "SLURM_STEP_GPUS": "1"}, ("1",)),
        ("step_0", {"SLURM_JOB_GPUS": "0,3"}, ()),
        ("step_extern", {}, ()),
        ("step_0", {"SLURM_STEP_GPUS": "1", "CUDA_VISIBLE_DEVICES": "0"}, ("1",)),
        (
            "step_0",
            {"SLURM_STEP_GPUS": "9", "CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"},
            ("MIG-a", "MIG-b"),
        ),
    ],
)
def test_what_a_process_was_given(
    step: str, environ: dict[str, str], gpus: tuple[str, ...]
) -> None:
    assert gpus_told(step, environ) == gpus


@given(st.text(max_size=20))
def test_rubbish_in_an_environment_is_few_numbers(text: str) -> None:
    assert len(list(numbers_of(text))) <= 300 * (text.count(",") + 1)


class Node:
    """A node of Slurm with control groups of version 2."""

    def __init__(self, root: Path) -> None:
        self.cgroups = root / "cgroup"
        (root / "proc").mkdir()
        self.proc = MadeUpProc(root / "proc")
        self.mounts = {V2: CgroupMount(str(self.cgroups), "/")}
        self.jobs = SlurmJobs(self.mounts, ProcFs(root / "proc"))

    def run(self, place: str, pid: int, environ: bytes = b"", uid: int = 1000) -> None:
        folder = self.cgroups / place
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "cgroup.procs").open("a") as file:
            file.write(f"{pid}\n")
        self.proc.add(process(pid), environ=environ, uid=uid)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


SCOPE = "system.slice/slurmstepd.scope"


def test_a_batch_job_has_its_gpus_before_any_step_uses_one(node: Node) -> None:
    node.run(f"{SCOPE}/job_12/step_batch/slurm", 10, uid=0)
    node.run(f"{SCOPE}/job_12/step_batch/user/task_0", 11, b"SLURM_JOB_GPUS=0,1\0SLURM_JOB_ID=12\0")
    node.run(f"{SCOPE}/job_12/step_extern/user/task_special", 12, b"", uid=1000)
    assert node.jobs.look() == [JobGpus("12", 1000, ("0", "1"))]
    assert node.jobs.unreadable == 0


def test_steps_add_up_to_what_a_job_has_on_a_node_without_its_script(node: Node) -> None:
    for task, gpu in ((0, b"2"), (1, b"3")):
        environ = b"SLURM_STEP_GPUS=" + gpu + b"\0SLURM_JOB_GPUS=0\0"
        node.run(f"{SCOPE}/job_5/step_0/user/task_{task}", 20 + task, environ)
    assert node.jobs.look() == [JobGpus("5", 1000, ("2", "3"))]


def test_a_node_with_several_slurmd_has_the_jobs_of_all(node: Node) -> None:
    for name, pid, job in (("n1_slurmstepd.scope", 10, 1), ("n2_slurmstepd.scope", 11, 2)):
        place = f"system.slice/{name}/job_{job}/step_batch/user/task_0"
        node.run(place, pid, b"SLURM_JOB_GPUS=%d\0" % job)
    assert [job.job for job in node.jobs.look()] == ["1", "2"]


def test_environments_that_may_not_be_read_are_counted(node: Node) -> None:
    node.run(f"{SCOPE}/job_5/step_0/user/task_0", 20)
    assert node.jobs.look() == []
    assert node.jobs.unreadable == 1


def test_a_job_without_gpus_is_none_of_ours(node: Node) -> None:
    node.run(f"{SCOPE}/job_5/step_batch/user/task_0", 20, b"HOME=/\0")
    assert (node.jobs.look(), node.jobs.unreadable) == ([], 0)


def test_what_ends_while_it_is_looked_at_is_left_out(node: Node) -> None:
    node.run(f"{SCOPE}/job_5/step_batch/user/task_0", 20, b"SLURM_JOB_GPUS=0\0")
    (node.proc.root / "20" / "status").unlink()
    (node.cgroups / SCOPE / "job_6").mkdir()
    assert (node.jobs.look(), node.jobs.unreadable) == ([], 0)


def test_an_environment_of_another_job_does_not_count(node: Node) -> None:
    node.run(f"{SCOPE}/job_5/step_batch/user/task_0", 20, b"SLURM_JOB_GPUS=0\0SLURM_JOB_ID=4\0")
    assert node.jobs.look() == []


def test_version_1_tells_devices_and_owner_without_any_right(tmp_path: Path) -> None:
    job = tmp_path / "devices/slurm/uid_1234/job_77"
    (job / "step_batch").mkdir(parents=True)
    (job / "devices.list").write_text("c 195:1 rwm\nc 195:255 rwm\n")
    (tmp_path / "freezer/slurm/uid_1234/job_77").mkdir(parents=True)
    mounts = {name: CgroupMount(str(tmp_path / name), "/") for name in ("freezer", "devices")}
    assert [folder.job for folder in job_folders(mounts)] == ["77"]
    jobs = SlurmJobs(mounts, ProcFs(tmp_path / "no_proc"))
    assert jobs.look() == [JobGpus("77", 1234, ("1",))]


def test_a_host_without_slurm_has_no_jobs(tmp_path: Path) -> None:
    assert job_folders({V2: CgroupMount(str(tmp_path), "/")}) == []
    assert job_folders({}) == []
