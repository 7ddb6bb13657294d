"""Finds which GPUs Slurm gave to the jobs of this node, from files on the node.

squeue and scontrol are not called, because each node would load the controller. A job is a folder of
the control groups. Its GPUs come, best source first, from

- what the prolog of `gpuwarden slurm install` noted (`slurm_notes.py`);
- the device group of version 1, where the node denies all devices that are not listed;
- the environment of its processes: SLURM_STEP_GPUS of the steps, which slurmstepd sets on each node;
  SLURM_JOB_GPUS only of the batch or interactive step, because srun carries it to other nodes, where
  the numbers mean nothing.

All are numbers of device files (/dev/nvidia3), not of CUDA. GPUs of a job without any source (an
allocation in which no step has run yet) are unknown. Reading the environment of other users' processes
needs CAP_SYS_PTRACE.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gpuwarden_agent.collect.files import read_text
from gpuwarden_agent.collect.processes.cgroup import V2, CgroupMount, number
from gpuwarden_agent.collect.processes.owner import parse_environ, real_uid
from gpuwarden_agent.collect.processes.procfs import ProcFs

INSTALLED = tuple(
    Path(path) for path in ("/var/spool/slurmd", "/var/spool/slurm", "/etc/slurm", "/run/slurm")
)
"""If one of these exists, the host is, or may become, a node of Slurm."""
JOB_STEPS = ("step_batch", "step_interactive")
"""Steps that have all GPUs of their job on this node."""
PROCESSES_A_GROUP = 4
"""Number of a group's processes to read: all inherited the same environment."""

_JOB = re.compile(r"job_(\d+)")
_UID = re.compile(r"uid_(\d+)")
_NVIDIA_MAJOR = "195"
_GPU_MINOR_MAX = 247
"""Device files above this are the driver's own: nvidiactl, nvidia-modeset."""


@dataclass(frozen=True, slots=True)
class JobFolder:
    """A job's folder in the control groups."""

    job: str
    folder: str
    uid: int | None = None
    """Version 1 names the owner."""


@dataclass(frozen=True, slots=True)
class JobGpus:
    """GPUs of a job on this node."""

    job: str
    uid: int | None
    gpus: tuple[str, ...]
    """As Slurm names them: numbers of device files, or UUIDs of MIG devices."""


def devices_allowed(devices_list: str | None) -> tuple[str, ...] | None:
    """GPUs in a devices.list of version 1; None if it does not constrain them."""
    if not devices_list:
        return None
    minors = []
    for line in devices_list.splitlines():
        kind, _, rest = line.partition(" ")
        major, _, minor = rest.partition(" ")[0].partition(":")
        if kind == "a" or (kind == "c" and major in ("*", _NVIDIA_MAJOR) and minor == "*"):
            return None
        gpu = number(minor)
        if kind == "c" and major == _NVIDIA_MAJOR and gpu is not None and gpu <= _GPU_MINOR_MAX:
            minors.append(gpu)
    return tuple(str(minor) for minor in sorted(set(minors)))


def gpus_told(step: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """GPUs in the environment of a step's process; MIG devices by UUID, because their numbers are not
    those of device files.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if all(name.startswith("MIG-") for name in visible):
        return tuple(visible)
    told = environ.get("SLURM_JOB_GPUS" if step in JOB_STEPS else "SLURM_STEP_GPUS", "")
    return tuple(numbers_of(told))


def numbers_of(text: str) -> Iterator[str]:
    """ "0,2-4" as 0, 2, 3, 4; other parts are skipped."""
    for part in text.split(","):
        begin, _, end = part.strip().partition("-")
        first, last = number(begin), number(end or begin)
        if first is not None and last is not None:
            yield from map(str, range(first, min(last, _GPU_MINOR_MAX) + 1))


def job_folders(mounts: Mapping[str, CgroupMount]) -> list[JobFolder]:
    """Jobs on this node, each once."""
    found: dict[str, JobFolder] = {}
    for folder in _scopes(mounts):
        for entry in _folders(folder):
            if (uid := _UID.fullmatch(entry)) is not None:
                for job in _folders(f"{folder}/{entry}"):
                    _add(found, job, f"{folder}/{entry}/{job}", int(uid.group(1)))
            else:
                _add(found, entry, f"{folder}/{entry}", None)
    return list(found.values())


def _add(found: dict[str, JobFolder], name: str, folder: str, uid: int | None) -> None:
    if (job := _JOB.fullmatch(name)) is not None:
        found.setdefault(job.group(1), JobFolder(job.group(1), folder, uid))


def _scopes(mounts: Mapping[str, CgroupMount]) -> Iterator[str]:
    """Folders that hold jobs. A node may run several slurmd: each has its name in its own."""
    # If version 1 constrains devices, its folder has the GPUs.
    for controller in ("devices", "freezer", "memory", "cpuset"):
        if controller in mounts:
            root = mounts[controller].folder
            yield from (f"{root}/{name}" for name in _folders(root) if name.startswith("slurm"))
    if V2 in mounts:
        root = f"{mounts[V2].folder}/system.slice"
        yield from (f"{root}/{n}" for n in _folders(root) if n.endswith("slurmstepd.scope"))


def _folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


class SlurmJobs:
    """The jobs of this node."""

    def __init__(
        self,
        mounts: Mapping[str, CgroupMount],
        proc: ProcFs,
        noted: Callable[[], Sequence[JobGpus]] = tuple,
    ) -> None:
        """`noted`: jobs whose GPUs the prolog noted; they need no other source."""
        self._mounts = mounts
        self._proc = proc
        self._noted = noted
        self.unreadable = 0
        """Jobs in the last reading whose processes' environments could not be read."""

    def look(self) -> list[JobGpus]:
        """Jobs whose GPUs are known."""
        self.unreadable = 0
        noted = {job.job: job for job in self._noted()}
        jobs = [
            self._job(folder) for folder in job_folders(self._mounts) if folder.job not in noted
        ]
        return [job for job in (*noted.values(), *jobs) if job.gpus]

    def _job(self, job: JobFolder) -> JobGpus:
        allowed = devices_allowed(read_text(f"{job.folder}/devices.list"))
        gpus: dict[str, None] = {}
        uid, processes, is_readable = job.uid, 0, False
        for step, pid in self._processes(job.folder):
            owner = real_uid(self._proc.text_or_empty(f"{pid}/status"))
            if not owner:
                continue  # slurmstepd, or an ended process
            uid, processes = owner, processes + 1
            environ = parse_environ(self._proc.text_or_empty(f"{pid}/environ"))
            is_readable = is_readable or bool(environ)
            if environ.get("SLURM_JOB_ID", job.job) == job.job:
                gpus |= dict.fromkeys(gpus_told(step, environ))
        if allowed is None and processes and not is_readable:
            self.unreadable += 1
        return JobGpus(job.job, uid, allowed if allowed is not None else tuple(gpus))

    def _processes(self, folder: str) -> Iterator[tuple[str, int]]:
        """Some processes of every step and task."""
        for step in _folders(folder):
            if step.startswith("step_"):
                for group in _groups(f"{folder}/{step}"):
                    pids = map(number, (read_text(f"{group}/cgroup.procs") or "").split())
                    for pid in islice(pids, PROCESSES_A_GROUP):
                        if pid is not None:
                            yield step, pid


def _groups(step: str) -> Sequence[str]:
    """A step's own group, its user's and its tasks'."""
    users = [step, f"{step}/user"]
    tasks = [f"{user}/{t}" for user in users for t in _folders(user) if t.startswith("task_")]
    return [*users, *tasks]
