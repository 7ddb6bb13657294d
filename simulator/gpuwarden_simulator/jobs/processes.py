"""Simulates the GPU processes of a job: the rows that come from /proc and the driver."""

import random
from typing import NamedTuple

from gpuwarden.process_tree import Ancestor, ancestors_text
from gpuwarden_agent.probe import Row
from gpuwarden_simulator.devices.gpu import GpuState
from gpuwarden_simulator.devices.hardware import SimulatedGpu
from gpuwarden_simulator.devices.vendors import is_nvidia
from gpuwarden_simulator.jobs.workload import JOB_MEMORY_BYTES_PER_GPU, Job, TreeLoad

CACHED_BYTES_PER_GPU = 12 * 10**9
"""Page cache of the job's cgroup."""
VOLUNTARY_SWITCHES_PER_SECOND, INVOLUNTARY_SWITCHES_PER_SECOND = 900.0, 6.0


class TreeState(NamedTuple):
    """Counters of one process tree since its job began."""

    read_bytes: float
    read_chars: float
    write_bytes: float
    active_s: float
    """CPU time of the main thread; its context switches are proportional to it."""


def start(job: Job, load: TreeLoad, at_s: float) -> TreeState:
    """A tree that had the same load since its job began, without checkpoints."""
    ran_s = max(at_s - job.started_ms / 1000, 0.0)
    chars = 2e9 + ran_s * load.read_chars_per_second
    active_s = ran_s * load.main_cpu_percent / 100
    return TreeState(1.5e9 + ran_s * load.read_bytes_per_second, chars, ran_s * 2e4, active_s)


def step(state: TreeState, load: TreeLoad, dt: float) -> TreeState:
    """The tree after `dt` seconds of `load`."""
    return TreeState(
        state.read_bytes + load.read_bytes_per_second * dt,
        state.read_chars + load.read_chars_per_second * dt,
        state.write_bytes + load.write_bytes_per_second * dt,
        state.active_s + load.main_cpu_percent * dt / 100,
    )


def process_row(
    device: SimulatedGpu,
    gpu: GpuState,
    job: Job,
    load: TreeLoad,
    state: TreeState,
    cpus_allowed: int,
    rng: random.Random,
) -> Row:
    """The row of process_samples of the job's process on `device`."""
    workers = load.loader_workers
    # Ranks of one job differ slightly.
    rank = 0.98 + 0.04 * rng.random()
    row: Row = {
        "gpu": device.index,
        "gpu_uuid": device.uuid,
        "pid": job.pids[job.gpus.index(device.index)],
        "process_name": job.process_name,
        "username": job.username,
        "job": job.slurm_job_id or job.pod,
        "container_id": job.container_id,
        "pod": job.pod,
        "started_at": job.started_ms,
        "process_type": "compute",
        "command": "python3.11 train.py" if job.process_name == "python3.11" else job.process_name,
        "state": "D" if load.is_stuck else "R" if load.main_cpu_percent > 50 else "S",
        "cgroup": _cgroup(job),
        "gpu_memory_bytes": gpu.memory_used_bytes,
        "cpu_percent": load.cpu_percent * rank,
        "main_cpu_percent": min(load.main_cpu_percent * rank, 100.0),
        "pin_cpu_percent": load.pin_cpu_percent * rank if workers else None,
        "loader_workers": workers,
        "loader_started_total": workers,
        "cpus_allowed": cpus_allowed,
        # Its launcher binds it to the GPU's socket.
        "cpu_numa_node": device.numa_node,
        "cpu_numa_nodes": str(device.numa_node),
        "memory_numa_nodes": str(device.numa_node),
        "read_bytes_total": int(state.read_bytes) // 4096 * 4096,
        "read_chars_total": int(state.read_chars),
        "write_bytes_total": int(state.write_bytes) // 4096 * 4096,
    }
    row |= {
        "children_cpu_percent": 0.0,
        "threads": 48 + 2 * workers,
        "voluntary_switches_total": int(state.active_s * VOLUNTARY_SWITCHES_PER_SECOND),
        "involuntary_switches_total": int(state.active_s * INVOLUNTARY_SWITCHES_PER_SECOND),
        "rss_bytes": int(load.memory_bytes),
        "cgroup_memory_limit_bytes": JOB_MEMORY_BYTES_PER_GPU * len(job.pids),
        "cgroup_memory_used_bytes": _cgroup_bytes(job, load),
    }
    if is_nvidia(device.model):
        row["sm_util_percent"] = float(round(gpu.util_percent))
    if job.pod:
        row["workload"] = _workload(job.pod)
        row["cgroup_cpu_limit_cores"] = float(cpus_allowed)
        row["cgroup_cpu_throttled_seconds_total"] = 0.0
    row |= _family(job, job.gpus.index(device.index), workers)
    row |= _SIGNALS | {"signals_pending": "SIGKILL" if load.is_stuck else "none"}
    if workers:
        row["loader_cpu_percent"] = min(load.loader_cpu_percent * rank, 100.0)
        row["loader_saturated_percent"] = load.loader_saturated_percent
        row["loader_blocked_percent"] = load.loader_blocked_percent
    return row


_SIGNALS: Row = {
    "signals_blocked": "none",
    "signals_ignored": "SIGPIPE, SIGXFSZ",
    "signals_caught": "SIGINT, SIGTERM, SIGCHLD",
}
_PIDS_OF_A_RANK = 100
"""From a rank's loader workers to those of the next."""


def _family(job: Job, place: int, workers: int) -> Row:
    """The processes above and below one of the job's; `place`: its place among these."""
    if job.slurm_job_id:
        names = ["slurmstepd", "slurm_script"]
    else:
        names = ["containerd-shim"] if job.container_id else ["sshd", "bash"]
    if len(job.pids) > 1:
        names.append("torchrun")
    first = min(job.pids) - len(names)
    above = [Ancestor(first + place, name) for place, name in enumerate(names)]
    row: Row = {"parent_pid": above[-1].pid, "ancestors": ancestors_text(above)}
    if workers:
        start = max(job.pids) + 1 + place * _PIDS_OF_A_RANK
        row["loader_pids"] = ", ".join(str(start + number) for number in range(workers))
    return row


def _cgroup(job: Job) -> str | None:
    """The cgroup that Slurm or Kubernetes uses for the processes of a job."""
    if job.slurm_job_id:
        return f"/system.slice/slurmstepd.scope/job_{job.slurm_job_id}/step_0/user/task_0"
    if job.container_id:
        return f"/kubepods.slice/cri-containerd-{job.container_id}.scope"
    return None


def _cgroup_bytes(job: Job, load: TreeLoad) -> int:
    """Memory of the job's processes, and as much page cache as fits."""
    used = int(load.memory_bytes) + CACHED_BYTES_PER_GPU
    return min(used, JOB_MEMORY_BYTES_PER_GPU) * len(job.pids)


def allocation_row(device: SimulatedGpu, job: Job, processes: int) -> Row | None:
    """The row of allocation_samples if a scheduler allocated `device` to the job, else None."""
    row: Row = {"gpu": device.index, "gpu_uuid": device.uuid, "processes": processes}
    if job.slurm_job_id:
        slurm: Row = {"scheduler": "slurm", "job": job.slurm_job_id}
        return row | slurm | {"username": job.username}
    if job.pod:
        container = job.process_name
        kubernetes: Row = {"scheduler": "kubernetes", "job": job.pod}
        namespace = job.pod.partition("/")[0]
        names: Row = {"namespace": namespace, "workload": _workload(job.pod), "team": namespace}
        return row | kubernetes | names | {"pod": job.pod, "container": container}
    return None


def _workload(pod: str) -> str:
    """The Deployment of a simulated pod, whose name starts with it."""
    return f"Deployment/{pod.partition('/')[2].rpartition('-')[0]}"
