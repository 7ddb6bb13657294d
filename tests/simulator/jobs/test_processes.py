"""Process rows carry the owner, the tree's features and counters that grow with the work."""

import random

import pytest

from gpuwarden.models import model_named
from gpuwarden_simulator.devices import gpu as gpu_physics
from gpuwarden_simulator.devices.hardware import make_device
from gpuwarden_simulator.jobs import processes as process_tree
from gpuwarden_simulator.jobs.workload import Job, TreeLoad, Workload, demand

DEVICE = make_device(model_named("H100-SXM"), "s", 1, 8)
JOB = Job(Workload.INPUT_BOUND_CPU, (0, 1), 0, None, 0.5, "python3", (70, 71), "ada", "4711")


def test_each_gpu_of_a_job_has_its_own_process() -> None:
    asked = demand(JOB, 100_000, random.Random(0))
    gpu = gpu_physics.start(DEVICE, asked.gpu, 100, random.Random(0))
    tree = process_tree.start(JOB, asked.tree, 100)
    row = process_tree.process_row(DEVICE, gpu, JOB, asked.tree, tree, 24, random.Random(0))
    assert (row["pid"], row["gpu"], row["username"], row["job"]) == (71, 1, "ada", "4711")
    assert row["gpu_memory_bytes"] == gpu.memory_used_bytes > 0
    assert asked.tree.loader_workers == 5
    assert row["cpu_percent"] > row["main_cpu_percent"] + 5 * 90  # type: ignore[operator]


def test_ranks_of_a_job_have_one_launcher_and_workers_of_their_own() -> None:
    asked = demand(JOB, 100_000, random.Random(0))
    gpu = gpu_physics.start(DEVICE, asked.gpu, 100, random.Random(0))
    tree = process_tree.start(JOB, asked.tree, 100)
    other = make_device(model_named("H100-SXM"), "s", 0, 8)
    one, two = (
        process_tree.process_row(device, gpu, JOB, asked.tree, tree, 24, random.Random(0))
        for device in (DEVICE, other)
    )
    assert one["ancestors"] == "slurmstepd (67) > slurm_script (68) > torchrun (69)"
    assert one["ancestors"] == two["ancestors"] and one["parent_pid"] == two["parent_pid"] == 69
    pids = [set(str(row["loader_pids"]).split(", ")) for row in (one, two)]
    assert [len(some) for some in pids] == [5, 5] and not pids[0] & pids[1]


def test_counters_grow_by_rate_times_time() -> None:
    load = TreeLoad(
        main_cpu_percent=50.0,
        read_bytes_per_second=1e6,
        read_chars_per_second=3e6,
        write_bytes_per_second=5.0,
    )
    before = process_tree.start(JOB, load, 1000)
    after = process_tree.step(before, load, 20)
    grown = [new - old for old, new in zip(before, after, strict=True)]
    assert grown == pytest.approx([2e7, 6e7, 100, 10])
