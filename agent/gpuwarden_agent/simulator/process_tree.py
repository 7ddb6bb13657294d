"""GPU processes of a simulated job, as /proc and the driver would show them every ten seconds."""

import random
from typing import NamedTuple

from gpuwarden_agent.probe import Row
from gpuwarden_agent.simulator.gpu_physics import GpuState
from gpuwarden_agent.simulator.hardware import Device
from gpuwarden_agent.simulator.workload import Job, TreeLoad


class TreeState(NamedTuple):
    """Counters of one process tree since its job began."""

    read_bytes: float
    read_chars: float
    write_bytes: float


def start(job: Job, load: TreeLoad, at_s: float) -> TreeState:
    """A tree that did the same since its job began, written checkpoints left out."""
    ran_s = max(at_s - job.started_ms / 1000, 0.0)
    chars = 2e9 + ran_s * load.read_chars_per_second
    return TreeState(1.5e9 + ran_s * load.read_bytes_per_second, chars, ran_s * 2e4)


def step(state: TreeState, load: TreeLoad, dt: float) -> TreeState:
    """The tree after `dt` seconds of `load`."""
    return TreeState(
        state.read_bytes + load.read_bytes_per_second * dt,
        state.read_chars + load.read_chars_per_second * dt,
        state.write_bytes + load.write_bytes_per_second * dt,
    )


def process_row(
    device: Device,
    gpu: GpuState,
    job: Job,
    load: TreeLoad,
    state: TreeState,
    cpus_allowed: int,
    rng: random.Random,
) -> Row:
    """The row of process_samples of the job's process on `device`."""
    workers = load.loader_workers
    # Ranks of one job do the same, but not to the last digit.
    rank = 0.98 + 0.04 * rng.random()
    row: Row = {
        "gpu": device.index,
        "gpu_uuid": device.uuid,
        "pid": job.pids[job.gpus.index(device.index)],
        "process_name": job.process_name,
        "username": job.username,
        "slurm_job_id": job.slurm_job_id,
        "container_id": job.container_id,
        "pod": job.pod,
        "started_at": job.started_ms,
        "gpu_memory_bytes": gpu.memory_used_bytes,
        "cpu_percent": load.cpu_percent * rank,
        "main_cpu_percent": min(load.main_cpu_percent * rank, 100.0),
        "pin_cpu_percent": load.pin_cpu_percent * rank if workers else None,
        "loader_workers": workers,
        "loader_started_total": workers,
        "cpus_allowed": cpus_allowed,
        "read_bytes_total": int(state.read_bytes) // 4096 * 4096,
        "read_chars_total": int(state.read_chars),
        "write_bytes_total": int(state.write_bytes) // 4096 * 4096,
    }
    if workers:
        row["loader_cpu_percent"] = min(load.loader_cpu_percent * rank, 100.0)
        row["loader_saturated_percent"] = load.loader_saturated_percent
        row["loader_blocked_percent"] = load.loader_blocked_percent
    return row
