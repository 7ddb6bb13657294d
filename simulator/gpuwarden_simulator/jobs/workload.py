"""Computes the load of each kind of workload over time, from healthy training to a starved loader.

`demand` returns the load of each process of a job on its GPU and on the node at an instant: means over
the second that ends there. It is pure except for its random numbers.
"""

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from gpuwarden.models import GIB
from gpuwarden_simulator.devices.gpu import GpuLoad
from gpuwarden_simulator.devices.host import HostLoad

GB, MB = 1e9, 1e6

JOB_MEMORY_BYTES_PER_GPU = 240 * GIB
"""Host memory that a job may use for each of its GPUs."""


class Workload(StrEnum):
    """Kinds of use of a GPU; docs/simulator.md says how each looks."""

    FREE = "free"
    IDLE_HELD = "idle_held"
    TRAINING = "training"
    INFERENCE = "inference"
    INPUT_BOUND_CPU = "input_bound_cpu"
    INPUT_BOUND_STORAGE = "input_bound_storage"
    INPUT_BOUND_MAIN = "input_bound_main"
    HOST_BOUND = "host_bound"
    THROTTLED_THERMAL = "throttled_thermal"
    THROTTLED_POWER_BRAKE = "throttled_power_brake"
    CAPPED = "capped"
    PARTLY_IDLE = "partly_idle"
    SMALL = "small"
    COMM_BOUND = "comm_bound"
    UNUSED = "unused"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True)
class Job:
    """One job: the GPUs it holds, one process on each, and who owns it."""

    workload: Workload
    gpus: tuple[int, ...]
    started_ms: int
    ends_ms: int | None
    """None: it does not end."""
    level: float
    """0 to 1: the place of this job in the range of its kind."""
    process_name: str
    pids: tuple[int, ...]
    """One for each GPU; none where no process uses them."""
    username: str | None = None
    slurm_job_id: str | None = None
    container_id: str | None = None
    pod: str | None = None


class Stage(StrEnum):
    """What a job that trains does at a time."""

    LOADING = "loading"
    WARM_UP = "warm-up"
    TRAINING = "training"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"


EVALUATION_EACH = 4
"""Each fourth checkpoint is followed by an evaluation."""


class TreeLoad(NamedTuple):
    """Load of one process of a job and its descendants on the node. CPU: 100 is one core."""

    main_cpu_percent: float = 0.0
    pin_cpu_percent: float = 0.0
    other_cpu_percent: float = 0.0
    loader_workers: int = 0
    loader_cpu_percent: float = 0.0
    """Mean of a worker."""
    loader_saturated_percent: float = 0.0
    loader_blocked_percent: float = 0.0
    read_bytes_per_second: float = 0.0
    read_chars_per_second: float = 0.0
    write_bytes_per_second: float = 0.0
    network_bytes_per_second: float = 0.0
    memory_bytes: float = 0.0
    is_stuck: bool = False
    """The main thread waits in D state for ever."""
    is_remote: bool = False
    """Blocked tasks wait for the network, not for the node's disk."""

    @property
    def cpu_percent(self) -> float:
        """CPU of the whole tree."""
        threads = self.main_cpu_percent + self.pin_cpu_percent + self.other_cpu_percent
        return threads + self.loader_workers * self.loader_cpu_percent

    @property
    def blocked_tasks(self) -> float:
        """Mean number of tasks in D state."""
        return self.loader_workers * self.loader_blocked_percent / 100 + self.is_stuck


class Demand(NamedTuple):
    """Load of each process of a job."""

    gpu: GpuLoad
    tree: TreeLoad


NOTHING = Demand(GpuLoad(), TreeLoad())


def demand(job: Job, at_ms: int, rng: random.Random) -> Demand:
    """The load of each process of the job in the second that ends at `at_ms`."""
    return _KINDS[job.workload](job, (at_ms - job.started_ms) / 1000, rng)


def hung(asked: Demand, *, is_blocked: bool) -> Demand:
    """A job whose processes wait for each other for ever: GPU kernels spin; the main threads spin, too,
    or wait in the kernel if `is_blocked`.
    """
    gpu = GpuLoad(
        util_percent=100.0,
        power_share=0.03,
        memory_share=asked.gpu.memory_share,
        has_context=True,
    )
    tree = TreeLoad(
        main_cpu_percent=0.0 if is_blocked else 100.0,
        loader_workers=asked.tree.loader_workers,
        memory_bytes=asked.tree.memory_bytes,
        is_stuck=is_blocked,
    )
    return Demand(gpu, tree)


def starved_by_network(asked: Demand, at_ms: int) -> Demand:
    """A job whose loader workers wait for a file server: two of three in D state at any time."""
    fits = math.sin(at_ms / 4_600) + math.sin(at_ms / 1_160)
    workers = asked.tree.loader_workers
    blocked = round(workers * _clip(0.68 - 0.05 * fits, 0, 1))
    util = min(asked.gpu.util_percent, 26 + 8 * fits)
    slowed = util / asked.gpu.util_percent if asked.gpu.util_percent else 1.0
    gpu = asked.gpu._replace(
        util_percent=util,
        memory_util_percent=asked.gpu.memory_util_percent * slowed,
        power_share=asked.gpu.power_share * slowed,
        pcie_tx_bytes_per_second=asked.gpu.pcie_tx_bytes_per_second * slowed,
        pcie_rx_bytes_per_second=asked.gpu.pcie_rx_bytes_per_second * slowed,
        nvlink_bytes_per_second=asked.gpu.nvlink_bytes_per_second * slowed,
    )
    tree = asked.tree._replace(
        main_cpu_percent=asked.tree.main_cpu_percent * slowed,
        pin_cpu_percent=asked.tree.pin_cpu_percent * slowed,
        loader_cpu_percent=12.0 + 2 * fits,
        loader_saturated_percent=0.0,
        loader_blocked_percent=100 * blocked / workers if workers else 0.0,
        read_bytes_per_second=0.0,
        read_chars_per_second=asked.tree.read_chars_per_second * slowed,
        network_bytes_per_second=asked.tree.read_chars_per_second * slowed,
        is_remote=True,
    )
    return Demand(gpu, tree)


def gpu_loads(job: Job, asked: Demand) -> list[tuple[int, GpuLoad]]:
    """Each GPU of the job and its load: only the first one has bad cooling, and a partly idle job uses
    only the first one.
    """
    load = asked.gpu
    loads = [(gpu, load) for gpu in job.gpus]
    if job.workload is Workload.PARTLY_IDLE:
        held = GpuLoad(has_context=True, memory_share=0.02)
        loads[1:] = [(gpu, held) for gpu in job.gpus[1:]]
    if load.cooling_factor > 1.0 and len(loads) > 1:
        load = load._replace(cooling_factor=1.0)
        loads[1:] = [(gpu, load) for gpu in job.gpus[1:]]
    return loads


def host_load(trees: Iterable[tuple[TreeLoad, int]]) -> HostLoad:
    """The sum over jobs, each as the load of one process and its number of processes."""
    cores = blocked = read = write = network = memory = remote = 0.0
    for tree, processes in trees:
        cores += processes * tree.cpu_percent / 100
        blocked += processes * tree.blocked_tasks
        read += processes * tree.read_bytes_per_second
        write += processes * tree.write_bytes_per_second
        network += processes * tree.network_bytes_per_second
        memory += processes * tree.memory_bytes
        if tree.is_remote:
            remote += processes * tree.blocked_tasks
    return HostLoad(cores, blocked, read, write, network, memory, remote)


def _spread(rng: random.Random, half_width: float) -> float:
    return (2 * rng.random() - 1) * half_width


def _clip(percent: float, low: float = 0.0, high: float = 100.0) -> float:
    return min(max(percent, low), high)


def _free(_job: Job, _t: float, _rng: random.Random) -> Demand:
    return NOTHING


def _idle_held(job: Job, _t: float, rng: random.Random) -> Demand:
    """A notebook left open: memory held, nothing runs."""
    gpu = GpuLoad(has_context=True, memory_share=0.12 + 0.6 * job.level)
    tree = TreeLoad(main_cpu_percent=0.3 * rng.random(), other_cpu_percent=0.5 * rng.random())
    return Demand(gpu, tree._replace(memory_bytes=12 * GB))


def stage(job: Job, at_ms: int) -> Stage:
    """What a job that trains does in the second that ends at `at_ms`.

    It loads for one to three minutes, warms up for as long, and then writes a checkpoint each 15 to 30 minutes;
    some are followed by an evaluation of one to two minutes.
    """
    t, level = (at_ms - job.started_ms) / 1000, job.level
    loads_s = 60 + 120 * level
    if t < 2 * loads_s:
        return Stage.LOADING if t < loads_s else Stage.WARM_UP
    period_s, writes_s = 900 + 900 * level, 8 + 10 * level
    number, since_s = divmod(t, period_s)
    if number and since_s < writes_s:
        return Stage.CHECKPOINT
    if number and number % EVALUATION_EACH == 0 and since_s < writes_s + 60 + 60 * level:
        return Stage.EVALUATION
    return Stage.TRAINING


def _training(job: Job, t: float, rng: random.Random) -> Demand:
    """Steps shorter than a second, a dip at each reading of metrics, and the stages of a job's life."""
    level = job.level
    held = 0.62 + 0.3 * level
    now = stage(job, job.started_ms + round(1000 * t))
    if now is Stage.CHECKPOINT:
        gpu = GpuLoad(6 * rng.random(), 1.0, 0.03, held, True, 2 * GB, 50 * MB)
        tree = TreeLoad(main_cpu_percent=97 - 6 * rng.random(), loader_workers=8)
        return Demand(gpu, tree._replace(write_bytes_per_second=1.2 * GB, memory_bytes=30 * GB))
    if now is Stage.LOADING:
        return _loading(held, t / (60 + 120 * level), rng)
    asked = _steps(job, t, rng, held)
    gpu = asked.gpu
    if now is Stage.WARM_UP:
        # Compilation between the first steps.
        share = 0.35 + 0.3 * rng.random()
        util, power_share = share * gpu.util_percent, share * gpu.power_share
        return asked._replace(gpu=gpu._replace(util_percent=util, power_share=power_share))
    if now is Stage.EVALUATION:
        # A forward pass alone, without gradients to exchange.
        link = 0.01 * gpu.nvlink_bytes_per_second
        power_share = 0.7 * gpu.power_share
        return asked._replace(
            gpu=gpu._replace(power_share=power_share, nvlink_bytes_per_second=link)
        )
    return asked


def _loading(held: float, share: float, rng: random.Random) -> Demand:
    """Python imports, then weights are read and copied: memory fills, no kernel runs."""
    gpu = GpuLoad(
        memory_share=held * min(1.0, 0.1 + share), has_context=True, pcie_rx_bytes_per_second=1 * GB
    )
    tree = TreeLoad(
        main_cpu_percent=92 - 8 * rng.random(),
        other_cpu_percent=40,
        read_bytes_per_second=600 * MB,
        read_chars_per_second=900 * MB,
        memory_bytes=30 * GB,
    )
    return Demand(gpu, tree)


def _steps(job: Job, t: float, rng: random.Random, held: float) -> Demand:
    level = job.level
    is_dip = t % (23 + 30 * level) < 1
    util = 84 + 8 * rng.random() if is_dip else 97.5 + 3.5 * rng.random()
    power_share = (0.43 + 0.6 * level) * (0.7 if is_dip else 1.0) + _spread(rng, 0.03)
    gpu = GpuLoad(
        util_percent=_clip(util),
        memory_util_percent=38 + 25 * level + _spread(rng, 4),
        power_share=power_share,
        memory_share=held,
        has_context=True,
        pcie_tx_bytes_per_second=(0.15 + 0.1 * level) * GB,
        pcie_rx_bytes_per_second=(0.5 + 1.5 * level) * GB,
        nvlink_bytes_per_second=(30 + 60 * level) * GB if len(job.gpus) > 1 else 0.0,
    )
    tree = TreeLoad(
        main_cpu_percent=58 + 12 * level + _spread(rng, 6),
        pin_cpu_percent=9 + _spread(rng, 3),
        other_cpu_percent=40,
        loader_workers=8,
        loader_cpu_percent=32 + 20 * level + _spread(rng, 5),
        read_bytes_per_second=20 * MB,
        read_chars_per_second=(80 + 120 * level) * MB,
        network_bytes_per_second=5 * MB,
        memory_bytes=30 * GB,
    )
    return Demand(gpu, tree)


def _thermal(job: Job, t: float, rng: random.Random) -> Demand:
    """Training on a GPU whose fan, cold plate or air flow is bad."""
    asked = _training(job, t, rng)
    return asked._replace(gpu=asked.gpu._replace(cooling_factor=2.6))


def _power_brake(job: Job, t: float, rng: random.Random) -> Demand:
    """Training on a node whose power supply pulls the brake for forty seconds of each minute."""
    asked = _training(job, t, rng)
    return asked._replace(gpu=asked.gpu._replace(is_braked=t % 60 < 40))


def _capped(job: Job, t: float, rng: random.Random) -> Demand:
    """Training under a power limit that was lowered and forgotten."""
    asked = _training(job, t, rng)
    return asked._replace(gpu=asked.gpu._replace(power_limit_share=0.5))


def _inference(job: Job, t: float, rng: random.Random) -> Demand:
    """A server: utilization follows requests, in bursts within the tide of a day."""
    tide = 0.85 + 0.15 * math.sin(2 * math.pi * t / 86_400)
    burst = math.sin(2 * math.pi * t / 97) + math.sin(2 * math.pi * t / 37 + 9 * job.level)
    util = _clip((42 + 24 * job.level + 11 * burst) * tide + _spread(rng, 20), 1)
    gpu = GpuLoad(
        util_percent=util,
        memory_util_percent=util * 0.55,
        power_share=util / 100 * 0.52,
        memory_share=0.9,
        has_context=True,
        pcie_tx_bytes_per_second=util * 0.2 * MB,
        pcie_rx_bytes_per_second=util * 0.3 * MB,
    )
    tree = TreeLoad(
        main_cpu_percent=18 + util * 0.4,
        other_cpu_percent=25 + util * 0.5,
        read_chars_per_second=0.4 * MB,
        network_bytes_per_second=util * 0.06 * MB,
        memory_bytes=24 * GB,
    )
    return Demand(gpu, tree)


def _starved_gpu(util: float, power: float, memory_share: float, pcie: float) -> GpuLoad:
    """A GPU that computes for `util` per cent of the time and waits for the rest."""
    util = _clip(util, 2, 98)
    return GpuLoad(
        util_percent=util,
        memory_util_percent=util * 0.5,
        power_share=util / 100 * power,
        memory_share=memory_share,
        has_context=True,
        pcie_tx_bytes_per_second=pcie * 0.1,
        pcie_rx_bytes_per_second=pcie,
    )


def _input_bound_cpu(job: Job, t: float, rng: random.Random) -> Demand:
    """Too few loader workers: each keeps a core busy, and the GPU waits."""
    workers = 3 + int(4 * job.level)
    util = 29 + 11 * job.level + 5 * math.sin(2 * math.pi * t / 11) + _spread(rng, 8)
    saturated = workers - (1 if rng.random() < 0.2 else 0)
    tree = TreeLoad(
        main_cpu_percent=24 + _spread(rng, 5),
        pin_cpu_percent=12 + _spread(rng, 3),
        other_cpu_percent=15,
        loader_workers=workers,
        loader_cpu_percent=97 + _spread(rng, 2.5),
        loader_saturated_percent=100 * saturated / workers,
        read_bytes_per_second=8 * MB,
        read_chars_per_second=workers * 35 * MB,
        memory_bytes=20 * GB,
    )
    return Demand(_starved_gpu(util, 0.72, 0.25 + 0.3 * job.level, 0.6 * GB), tree)


def _input_bound_storage(job: Job, t: float, rng: random.Random) -> Demand:
    """Slow storage: workers wait in D state, the GPU waits for them, in fits and starts."""
    workers = 8 + 2 * int(4 * job.level)
    fits = math.sin(2 * math.pi * t / 29) + math.sin(2 * math.pi * t / 7.3 + 5)
    util = 29 + 9 * job.level + 8 * fits + _spread(rng, 10)
    blocked = round(workers * _clip(0.62 - 0.05 * fits + _spread(rng, 0.12), 0, 1))
    tree = TreeLoad(
        main_cpu_percent=14 + _spread(rng, 4),
        pin_cpu_percent=6 + _spread(rng, 2),
        other_cpu_percent=12,
        loader_workers=workers,
        loader_cpu_percent=16 + _spread(rng, 4),
        loader_blocked_percent=100 * blocked / workers,
        read_bytes_per_second=(240 + 160 * job.level) * MB,
        read_chars_per_second=(240 + 160 * job.level) * MB,
        memory_bytes=20 * GB,
    )
    return Demand(_starved_gpu(util, 0.7, 0.3 + 0.3 * job.level, 0.4 * GB), tree)


def _input_bound_main(job: Job, t: float, rng: random.Random) -> Demand:
    """No loader workers: the main thread reads and decodes between two steps."""
    util = 30 + 10 * job.level + 4 * math.sin(2 * math.pi * t / 17) + _spread(rng, 7)
    tree = TreeLoad(
        main_cpu_percent=97.5 + _spread(rng, 2),
        other_cpu_percent=70,
        read_bytes_per_second=6 * MB,
        read_chars_per_second=25 * MB,
        memory_bytes=10 * GB,
    )
    return Demand(_starved_gpu(util, 0.7, 0.2 + 0.3 * job.level, 0.25 * GB), tree)


def _host_bound(job: Job, t: float, rng: random.Random) -> Demand:
    """Tiny kernels: the main thread launches as fast as it can, the loader is far ahead."""
    util = 45 + 20 * job.level + 2 * math.sin(2 * math.pi * t / 61) + _spread(rng, 2.5)
    tree = TreeLoad(
        main_cpu_percent=98 + _spread(rng, 1.5),
        pin_cpu_percent=2.0,
        other_cpu_percent=20,
        loader_workers=4,
        loader_cpu_percent=4 + _spread(rng, 1.5),
        read_chars_per_second=0.3 * MB,
        memory_bytes=10 * GB,
    )
    return Demand(_starved_gpu(util, 0.4, 0.2 + 0.2 * job.level, 30 * MB), tree)


def _small(job: Job, t: float, rng: random.Random) -> Demand:
    """A small model on a large card: short steps, with long pauses."""
    util = 11 + 4 * job.level + 2 * math.sin(2 * math.pi * t / 41) + _spread(rng, 2)
    tree = TreeLoad(
        main_cpu_percent=35 + _spread(rng, 5),
        other_cpu_percent=20,
        loader_workers=2,
        loader_cpu_percent=6 + _spread(rng, 2),
        read_chars_per_second=0.3 * MB,
        memory_bytes=6 * GB,
    )
    return Demand(_starved_gpu(util, 0.4, 0.06, 20 * MB), tree)


def _comm_bound(job: Job, t: float, rng: random.Random) -> Demand:
    """Training that mostly exchanges gradients: the links are busy, the arithmetic waits."""
    asked = _training(job, t, rng)
    nvlink = 230 * GB if len(job.gpus) > 1 else 0.0
    gpu = asked.gpu._replace(util_percent=98.0, power_share=0.3 + _spread(rng, 0.02))
    return asked._replace(gpu=gpu._replace(nvlink_bytes_per_second=nvlink))


def _blocked(job: Job, _t: float, _rng: random.Random) -> Demand:
    """A process that waits in the kernel for a file server that does not answer."""
    gpu = GpuLoad(has_context=True, memory_share=0.3 + 0.4 * job.level)
    return Demand(gpu, TreeLoad(memory_bytes=20 * GB, is_stuck=True))


_KINDS: dict[Workload, Callable[[Job, float, random.Random], Demand]] = {
    Workload.FREE: _free,
    Workload.IDLE_HELD: _idle_held,
    Workload.TRAINING: _training,
    Workload.INFERENCE: _inference,
    Workload.INPUT_BOUND_CPU: _input_bound_cpu,
    Workload.INPUT_BOUND_STORAGE: _input_bound_storage,
    Workload.INPUT_BOUND_MAIN: _input_bound_main,
    Workload.HOST_BOUND: _host_bound,
    Workload.THROTTLED_THERMAL: _thermal,
    Workload.THROTTLED_POWER_BRAKE: _power_brake,
    Workload.CAPPED: _capped,
    Workload.PARTLY_IDLE: _training,
    Workload.SMALL: _small,
    Workload.COMM_BOUND: _comm_bound,
    Workload.UNUSED: _free,
    Workload.BLOCKED: _blocked,
}
