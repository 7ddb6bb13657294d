"""Simulates CPU, memory, stalls, disks and network of a node, from the loads of its jobs.

`step` is pure. Averages (load, PSI avg10) relax exponentially as the kernel's do; counters start as
on a node that has been up for days.
"""

import math
import random
from dataclasses import dataclass
from typing import NamedTuple

from gpuwarden.models import GIB
from gpuwarden_agent.probe import Row

MIB = 1024**2

DISK_BYTES_PER_SECOND = 0.45e9
"""Throughput of the data disk for small random reads; a storage-bound loader reaches it."""

DISK_WRITE_BYTES_PER_SECOND = 3e9


@dataclass(frozen=True, slots=True)
class NodeSize:
    """CPUs and memory of a node, by its number of GPUs."""

    cpus: int
    memory_total_bytes: int

    @property
    def cpu_cores(self) -> int:
        """Physical cores; two hardware threads each."""
        return self.cpus // 2

    def affinity(self, numa_node: int, gpus: int) -> str:
        """CPUs of a GPU's socket, as the kernel lists them: cores, then their second threads."""
        sockets = 1 if gpus == 1 else 2
        cores = self.cpu_cores // sockets
        first = cores * numa_node
        second = first + self.cpu_cores
        return f"{first}-{first + cores - 1},{second}-{second + cores - 1}"


def make_node_size(gpus: int) -> NodeSize:
    """24 logical CPUs and 256 GiB for each GPU, as eight-GPU servers have."""
    # Kernel and firmware reserve about 1.6 % of the installed memory.
    return NodeSize(cpus=24 * gpus, memory_total_bytes=int(256 * GIB * gpus * 0.984) // 4096 * 4096)


class HostLoad(NamedTuple):
    """The load of all jobs of the node."""

    cpu_cores: float
    """Busy cores."""
    blocked_tasks: float
    read_bytes_per_second: float
    write_bytes_per_second: float
    network_bytes_per_second: float
    memory_bytes: float
    remote_tasks: float = 0.0
    """Blocked tasks that wait for the network, not for the disk."""


class Shares(NamedTuple):
    """CPU time by state, in per cent of all CPUs; they add up to 100."""

    user: float
    nice: float
    system: float
    iowait: float
    irq: float
    steal: float
    idle: float


class Stalls(NamedTuple):
    """Pressure: share of time with a stall, in per cent, in the order of the columns."""

    cpu_some: float
    cpu_full: float
    io_some: float
    io_full: float
    memory_some: float
    memory_full: float


class HostState(NamedTuple):
    """A node at an instant, and its counters since boot."""

    shares: Shares
    tasks_running: int
    tasks_blocked: int
    load_1m: float
    load_5m: float
    load_15m: float
    stalls_avg10: Stalls
    stalls_s: Stalls
    memory_used_bytes: int
    memory_cached_bytes: int
    disk_busy_percent: float
    disk_read_bytes: float
    disk_write_bytes: float
    network_rx_bytes: float
    network_tx_bytes: float


def _shares(size: NodeSize, load: HostLoad, rng: random.Random) -> Shares:
    busy = min(100 * load.cpu_cores / size.cpus + 0.5 + 0.3 * rng.random(), 99.0)
    io_share = (load.read_bytes_per_second + load.write_bytes_per_second) / 1e9
    system = busy * min(0.07 + 0.05 * io_share + 0.02 * rng.random(), 0.4)
    irq = busy * 0.006 + 0.02
    iowait = min(100 * load.blocked_tasks / size.cpus + 0.02, 100.0 - busy - irq)
    idle = 100.0 - busy - irq - iowait
    return Shares(busy - system, 0.0, system, iowait, irq, 0.0, max(idle, 0.0))


def _stalls(size: NodeSize, load: HostLoad, rng: random.Random) -> Stalls:
    """`some` saturates with the number of blocked tasks; `full` requires that no other task runs."""
    use = load.cpu_cores / size.cpus
    cpu_some = min(0.2 + 0.4 * rng.random() + 100 * max(use - 0.75, 0.0) * 3, 95.0)
    io_some = 98 * (1 - math.exp(-0.3 * load.blocked_tasks)) + 0.1 * rng.random()
    io_full = io_some * math.exp(-load.cpu_cores / 8)
    return Stalls(cpu_some, 0.0, io_some, io_full, 0.0, 0.0)


def _disk_busy(load: HostLoad) -> float:
    reads = load.read_bytes_per_second / DISK_BYTES_PER_SECOND
    writes = load.write_bytes_per_second / DISK_WRITE_BYTES_PER_SECOND
    # A loader that waits keeps requests in the queue.
    waiting = 1 - math.exp(-0.35 * max(load.blocked_tasks - load.remote_tasks, 0.0))
    return 100 * min(max(reads + writes, waiting), 1.0)


def start(size: NodeSize, load: HostLoad, rng: random.Random) -> HostState:
    """A node that has had `load` for a while and has been up for days."""
    up_s = rng.uniform(5, 40) * 86_400
    read, received = up_s * rng.uniform(2e6, 2e7), up_s * rng.uniform(1e6, 2e7)
    shares, stalls = _shares(size, load, rng), _stalls(size, load, rng)
    tasks = load.cpu_cores + load.blocked_tasks
    return HostState(
        shares=shares,
        tasks_running=0,
        tasks_blocked=0,
        load_1m=tasks,
        load_5m=tasks,
        load_15m=tasks,
        stalls_avg10=stalls,
        stalls_s=Stalls(up_s * 0.004, 0.0, up_s * 0.006, up_s * 0.002, up_s * 1e-5, up_s * 4e-6),
        memory_used_bytes=0,
        memory_cached_bytes=0,
        disk_busy_percent=0.0,
        disk_read_bytes=read,
        disk_write_bytes=read * rng.uniform(0.3, 0.9),
        network_rx_bytes=received,
        network_tx_bytes=received * rng.uniform(0.3, 0.9),
    )


def restart(size: NodeSize, load: HostLoad, rng: random.Random) -> HostState:
    """A node that has just booted: no load yet, all counters at 0."""
    none = Stalls(*(0.0,) * len(Stalls._fields))
    return start(size, load, rng)._replace(
        load_1m=0.0,
        load_5m=0.0,
        load_15m=0.0,
        stalls_avg10=none,
        stalls_s=none,
        disk_read_bytes=0.0,
        disk_write_bytes=0.0,
        network_rx_bytes=0.0,
        network_tx_bytes=0.0,
    )


def _relax(old: float, new: float, dt: float, tau_s: float) -> float:
    return new + (old - new) * math.exp(-dt / tau_s)


def step(
    size: NodeSize, state: HostState, load: HostLoad, dt: float, rng: random.Random
) -> HostState:
    """The node after `dt` seconds of `load`."""
    stalls = _stalls(size, load, rng)
    tasks = load.cpu_cores + load.blocked_tasks
    keep = math.exp(-dt / 10)
    total_bytes = size.memory_total_bytes
    used = int(total_bytes * (0.03 + 0.002 * rng.random()) + load.memory_bytes)
    used = min(used, int(total_bytes * 0.9))
    network_bytes = (load.network_bytes_per_second + 4e4 * (1 + rng.random())) * dt
    return HostState(
        shares=_shares(size, load, rng),
        tasks_running=1 + int(load.cpu_cores * (0.85 + 0.3 * rng.random())),
        tasks_blocked=round(load.blocked_tasks),
        load_1m=_relax(state.load_1m, tasks, dt, 60),
        load_5m=_relax(state.load_5m, tasks, dt, 300),
        load_15m=_relax(state.load_15m, tasks, dt, 900),
        stalls_avg10=Stalls._make(
            new + (old - new) * keep for old, new in zip(state.stalls_avg10, stalls, strict=True)
        ),
        stalls_s=Stalls._make(
            seconds + dt * now / 100 for seconds, now in zip(state.stalls_s, stalls, strict=True)
        ),
        memory_used_bytes=used,
        memory_cached_bytes=min(int(total_bytes * 0.38), total_bytes - used),
        disk_busy_percent=_disk_busy(load),
        disk_read_bytes=state.disk_read_bytes + load.read_bytes_per_second * dt,
        disk_write_bytes=state.disk_write_bytes + (load.write_bytes_per_second + 3e5) * dt,
        network_rx_bytes=state.network_rx_bytes + network_bytes,
        network_tx_bytes=state.network_tx_bytes + network_bytes * 0.6,
    )


def host_row(size: NodeSize, state: HostState) -> Row:
    """The row of host_samples."""
    shares, total_bytes = state.shares, size.memory_total_bytes
    row: Row = {
        "cpu_util_percent": max(100.0 - shares.idle - shares.iowait, 0.0),
        "load_1m": round(state.load_1m, 2),
        "load_5m": round(state.load_5m, 2),
        "load_15m": round(state.load_15m, 2),
        "tasks_running": state.tasks_running,
        "tasks_blocked": state.tasks_blocked,
        "memory_total_bytes": total_bytes,
        "memory_used_bytes": state.memory_used_bytes,
        # A tenth of the cache is dirty or mapped and not available at once.
        "memory_available_bytes": (
            total_bytes - state.memory_used_bytes - state.memory_cached_bytes // 10
        ),
        "memory_cached_bytes": state.memory_cached_bytes,
        "swap_used_bytes": 0,
        "disk_read_bytes_total": int(state.disk_read_bytes) // 512 * 512,
        "disk_write_bytes_total": int(state.disk_write_bytes) // 512 * 512,
        "disk_busy_percent": state.disk_busy_percent,
        "network_rx_bytes_total": int(state.network_rx_bytes),
        "network_tx_bytes_total": int(state.network_tx_bytes),
    }
    for name, share in zip(_SHARE_COLUMNS, shares, strict=True):
        row[name] = share
    for name, percent in zip(_STALL_COLUMNS, state.stalls_avg10, strict=True):
        row[name] = round(percent, 2)
    for name, seconds in zip(_STALL_TOTAL_COLUMNS, state.stalls_s, strict=True):
        row[name] = seconds
    return row


NFS_CALLS_PER_SECOND, NFS_SLOW_CALLS_PER_SECOND = 60.0, 25.0
NFS_LATENCY_S = 0.0009
NFS_READ_BYTES, NFS_WRITE_BYTES = 128 * 1024, 64 * 1024


class SlowColumns(NamedTuple):
    """Input of the ten-second columns."""

    up_s: float
    """Since boot."""
    loader_workers: int = 0
    is_shm_full: bool = False
    nfs_slow_s: float = 0.0
    """Part of `up_s` in which NFS was slow."""
    nfs_slow_latency_s: float = 0.0


def slow_columns(size: NodeSize, look: SlowColumns) -> Row:
    """The columns of host_samples that are read every ten seconds: /dev/shm and NFS.

    Home directories on NFS have a constant low rate of calls, so its counters are a function of time;
    data sets are on the node's own disk.
    """
    shm_bytes = size.memory_total_bytes // 2
    used = min(look.loader_workers * 384 * MIB + 24 * MIB, shm_bytes)
    swift_s = max(look.up_s - look.nfs_slow_s, 0.0)
    swift, slow = swift_s * NFS_CALLS_PER_SECOND, look.nfs_slow_s * NFS_SLOW_CALLS_PER_SECOND
    row: Row = {
        "shm_total_bytes": shm_bytes,
        "shm_used_bytes": shm_bytes if look.is_shm_full else used,
        "nfs_retransmissions_total": int(look.nfs_slow_s / 8),
    }
    for name, share in (("reads", 0.5), ("writes", 0.1), ("metadata", 0.4)):
        row[f"nfs_{name}_total"] = int((swift + slow) * share)
        seconds = swift * NFS_LATENCY_S + slow * look.nfs_slow_latency_s
        row[f"nfs_{name.removesuffix('s')}_seconds_total"] = seconds * share
    row["nfs_read_bytes_total"] = int((swift + slow) * 0.5) * NFS_READ_BYTES
    row["nfs_write_bytes_total"] = int((swift + slow) * 0.1) * NFS_WRITE_BYTES
    return row


_SHARE_COLUMNS = tuple(f"cpu_{name}_percent" for name in Shares._fields)
_STALL_COLUMNS = tuple(f"psi_{name}_percent" for name in Stalls._fields)
_STALL_TOTAL_COLUMNS = tuple(f"psi_{name}_seconds_total" for name in Stalls._fields)


class Watts(NamedTuple):
    """Power of the host without its GPUs."""

    cpu: float
    memory: float


class Joules(NamedTuple):
    """What RAPL has counted since the boot."""

    cpu: float = 0.0
    memory: float = 0.0

    def after(self, watts: Watts, dt: float) -> "Joules":
        """`dt` seconds later."""
        return Joules(self.cpu + watts.cpu * dt, self.memory + watts.memory * dt)

    def row(self) -> Row:
        """Columns of `host_samples`."""
        return {
            "cpu_energy_joules_total": round(self.cpu, 3),
            "dram_energy_joules_total": round(self.memory, 3),
        }


IDLE_WATTS_PER_CORE, BUSY_WATTS_PER_CORE = 0.8, 3.0
"""Of Xeon 8480+ and EPYC 7763 by their TDP of 350 and 280 W, and about a quarter of that at rest."""
WATTS_PER_GIB = 0.03
FANS_AND_LOSSES = 1.15
"""Fans, disks, adapters and losses of the power supplies, over what CPUs, memory and GPUs take: assumed."""
POWER_SUPPLIES = 6


def watts(size: NodeSize, row: Row) -> Watts:
    """Power of CPUs and memory in a second with that row of `host_samples`."""
    busy = float(row["cpu_util_percent"] or 0) / 100 * size.cpu_cores
    memory = size.memory_total_bytes / (1 << 30) * WATTS_PER_GIB
    return Watts(size.cpu_cores * IDLE_WATTS_PER_CORE + busy * BUSY_WATTS_PER_CORE, memory)


def bmc_columns(host: Watts, gpu_watts: float) -> Row:
    """Columns that come from the BMC: the node with its GPUs."""
    whole = FANS_AND_LOSSES * (host.cpu + host.memory + gpu_watts)
    return {
        "host_power_watts": float(round(whole)),
        "power_supplies": POWER_SUPPLIES,
        "power_supplies_failed": 0,
    }
