"""Defines the features of one GPU over a window, each with its unit, formula and source.

A feature without data is None, and a class that needs it does not apply.
"""

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any


def _feature(unit: str, words: str, formula: str, source: str) -> Any:
    meaning = {"unit": unit, "words": words, "formula": formula, "source": source}
    return field(default=None, metadata=meaning)


_GPU, _DETAIL, _TREE, _HOST = (
    "gpu_samples",
    "gpu_detail_samples",
    "process_samples",
    "host_samples",
)
_UTIL = "gpu_samples.util_percent"
_RATE = "(last - first) / seconds between"


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Measurements of one GPU in a window, of its process, its node and its job."""

    coverage: float | None = _feature("share", "part of the window with readings", "tenths of the window with a reading / all", _UTIL)
    duty: float | None = _feature("share", "time that the GPU is busy", "mean / 100", _UTIL)
    stall: float | None = _feature("share", "time without work on the GPU", "1 - duty", _UTIL)
    util_p5: float | None = _feature("percent", "utilization at the 5th percentile", "p5", _UTIL)
    util_p95: float | None = _feature("percent", "utilization at the 95th percentile", "p95", _UTIL)
    util_cv: float | None = _feature("ratio", "variation of utilization", "standard deviation / mean", _UTIL)
    busy_share: float | None = _feature("share", "time above 80 % of utilization", "share of readings >= 80", _UTIL)
    autocorrelation: float | None = _feature("ratio", "autocorrelation of utilization", "most of the detrended series at lags of 2 to 60 s", _UTIL)
    gaps: float | None = _feature("count", "pauses", "runs of >= 3 s below 10 %", _UTIL)
    gap_longest: float | None = _feature("seconds", "longest pause", "longest run below 10 %", _UTIL)
    gap_turnovers: float | None = _feature("count", "pauses in which workers were started", "readings with new workers within 5 s of a pause", f"{_UTIL}, {_TREE}.loader_started_total")
    unseen_turnovers: float | None = _feature("count", "workers started again where no pause would be seen", "readings with new workers, of a GPU without a reading a second", f"{_UTIL}, {_TREE}.loader_started_total")
    gap_write: float | None = _feature("bytes_per_second", "written to storage during a pause", "most of: bytes of the readings that touch a pause of >= 5 s / its length, at least 10 s", f"{_UTIL}, {_TREE}.write_bytes_total")
    gap_main: float | None = _feature("percent", "CPU of the main thread during pauses (100 %: a core)", "what the readings that touch pauses of >= 5 s have beyond the median of the others", f"{_UTIL}, {_TREE}.main_cpu_percent")
    quiet: float | None = _feature("seconds", "time since it last worked", "since the last minute with utilization >= 10, at most an hour", "gpu_1m.util_percent_max")
    productive: float | None = _feature("percent", "utilization within the hour before", "highest p95 of a minute of the last hour", "gpu_1m.util_percent_p95")
    spinning: float | None = _feature("seconds", "time since it last paused", "since the last minute with utilization < 95, at most an hour", "gpu_1m.util_percent_min")
    power_share: float | None = _feature("share", "power, from idle (0 %) to its limit (100 %)", "(mean power - idle) / (limit - idle); idle: the lower of the model's and the last hour's least", f"{_GPU}.power_watts, power_limit_watts")
    clock_share: float | None = _feature("share", "SM clock, of its highest", "mean / gpus.sm_clock_max_mhz", f"{_GPU}.sm_clock_mhz")
    throttled_hw: float | None = _feature("share", "time slowed down by the hardware (heat, power brake)", "share of readings with bit 0x8, 0x40 or 0x80", f"{_GPU}.clocks_event_reasons")
    throttled_thermal: float | None = _feature("share", "time slowed down by the driver because of heat", "share of readings with bit 0x20", f"{_GPU}.clocks_event_reasons")
    memory_held: float | None = _feature("bytes", "device memory in use", "mean", f"{_GPU}.memory_used_bytes")
    memory_share: float | None = _feature("share", "device memory in use, of all", "used / total", f"{_GPU}.memory_used_bytes, memory_total_bytes")
    pcie_share: float | None = _feature("share", "PCIe traffic, of what the link can do", "received rate / (lanes x rate of a lane x 0.8)", f"{_GPU}.pcie_rx_bytes_total, else {_DETAIL}; generation and width of gpus")
    nvlink_share: float | None = _feature("share", "NVLink traffic, of what the links can do", "the higher rate of both ways / (links x 25 GB/s; 50 on Blackwell)", f"{_GPU}.nvlink_*_bytes_total, else {_DETAIL}")
    sm_active: float | None = _feature("percent", "SMs active", "mean", f"{_DETAIL}.sm_active_percent")
    tensor_active: float | None = _feature("percent", "tensor cores active", "mean", f"{_DETAIL}.tensor_active_percent")
    dram_active: float | None = _feature("percent", "memory bandwidth used", "mean", f"{_DETAIL}.dram_active_percent")
    decoders: float | None = _feature("percent", "video and JPEG decoders busy", "the higher mean of both", f"{_GPU}.decoder_util_percent, {_DETAIL}.jpeg_util_percent")
    processes: float | None = _feature("count", "processes on the GPU", "those with a tenth of the largest's memory or more", _TREE)
    unreported: float | None = _feature("boolean", "nothing on the node reports processes", "1 where it is so", _TREE)
    owners: float | None = _feature("count", "jobs on the GPU", "jobs of those processes", _TREE)
    age: float | None = _feature("seconds", "since the process began", "now - started_at", f"{_TREE}.started_at")
    server: float | None = _feature("boolean", "is an inference server", "1 where name or command is that of an inference server", f"{_TREE}.process_name, command")
    tree_cpu: float | None = _feature("percent", "CPU of the process and its children (100 %: a core)", "mean", f"{_TREE}.cpu_percent")
    main_cpu: float | None = _feature("percent", "CPU of the main thread (100 %: a core)", "mean", f"{_TREE}.main_cpu_percent")
    busy_threads: float | None = _feature("ratio", "CPU of the process, by that of its busiest thread", "tree_cpu / main_cpu", _TREE)
    main_in_stall: float | None = _feature("share", "time without work on the GPU in which the main thread computes", "main_cpu / stall; absent where waiting in a spin (main_cpu = duty) would look the same", f"{_UTIL}, {_TREE}.main_cpu_percent")
    pin_cpu: float | None = _feature("percent", "CPU of the pinning thread (100 %: a core)", "mean", f"{_TREE}.pin_cpu_percent")
    blocked_main: float | None = _feature("share", "time that the main thread is blocked (D state)", "share of readings", f"{_TREE}.state")
    workers: float | None = _feature("count", "loader workers", "median", f"{_TREE}.loader_workers")
    loader_cpu: float | None = _feature("percent", "CPU of a loader worker (100 %: a core)", "mean", f"{_TREE}.loader_cpu_percent")
    loader_saturated: float | None = _feature("percent", "loader workers that are saturated", "mean; a worker is from 85 % of a core on", f"{_TREE}.loader_saturated_percent")
    loader_idle: float | None = _feature("percent", "loader workers that are idle", "mean; a worker is below 20 % of a core", f"{_TREE}.loader_idle_percent")
    loader_blocked: float | None = _feature("percent", "loader workers blocked on storage (D state)", "mean", f"{_TREE}.loader_blocked_percent")
    loader_cores_share: float | None = _feature("share", "cores that the workers may use, of the process's", "loader_cpus_allowed / cpus_allowed", _TREE)
    loader_cores_each: float | None = _feature("cores", "cores for each worker", "loader_cpus_allowed / workers", _TREE)
    loader_fill: float | None = _feature("share", "CPU that the workers use, of what they may", "workers x CPU of each / cores that they may use", _TREE)
    idle_cores: float | None = _feature("cores", "idle cores that the job may use", "least of affinity and cgroup limit less the tree's CPU, and the node's idle CPUs (waiting for I/O is idle) shared among its GPUs that wait while their processes compute", f"{_TREE}, {_HOST}, nodes.cpus")
    cgroup_throttled: float | None = _feature("share", "time that its CPU limit held it back", _RATE, f"{_TREE}.cgroup_cpu_throttled_seconds_total")
    read_rate: float | None = _feature("bytes_per_second", "read from disks", _RATE, f"{_TREE}.read_bytes_total")
    chars_rate: float | None = _feature("bytes_per_second", "read by system calls", _RATE, f"{_TREE}.read_chars_total")
    write_rate: float | None = _feature("bytes_per_second", "written", _RATE, f"{_TREE}.write_bytes_total")
    host_cpu: float | None = _feature("percent", "CPU of the node in use", "mean", f"{_HOST}.cpu_util_percent")
    psi_cpu: float | None = _feature("percent", "pressure on CPU", "mean", f"{_HOST}.psi_cpu_some_percent")
    psi_io: float | None = _feature("percent", "pressure on I/O", "mean", f"{_HOST}.psi_io_some_percent")
    disk_busy: float | None = _feature("percent", "the busiest disk is busy", "mean", f"{_HOST}.disk_busy_percent")
    network_per_worker: float | None = _feature("bytes_per_second", "network traffic received, for each worker", "rate / workers on the node", f"{_HOST}.network_rx_bytes_total")
    nfs_latency: float | None = _feature("seconds", "latency of an NFS read", "time / reads", f"{_HOST}.nfs_read_seconds_total, nfs_reads_total")
    nfs_rate: float | None = _feature("bytes_per_second", "read from NFS", _RATE, f"{_HOST}.nfs_read_bytes_total")
    peers: float | None = _feature("count", "GPUs of the job", "GPUs with the same job", _TREE)
    peers_quiet: float | None = _feature("share", "GPUs of the job without work", "share with p95 < 5", _UTIL)
    peers_spinning: float | None = _feature("share", "GPUs of the job that spin", "share with p5 >= 95 and little power", f"{_UTIL}, {_GPU}.power_watts")
# fmt: on


NAMES: tuple[str, ...] = tuple(f.name for f in fields(Features))
UNITS: dict[str, str] = {f.name: f.metadata["unit"] for f in fields(Features)}
WORDS: dict[str, str] = {f.name: f.metadata["words"] for f in fields(Features)}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInfo:
    """A GPU and the process that uses it."""

    gpu_uuid: str
    node: str
    gpu: int | None = None
    model: str | None = None
    is_mig: bool = False
    simulated: bool = False
    usd_per_hour: float | None = None
    job: str | None = None
    """What its scheduler calls it."""
    work: str | None = None
    """Name of the job for people: `job 7`, `job at 10.0.0.7:29500`, or its command."""
    username: str | None = None
    pid: int | None = None
    process_name: str | None = None
    has_process_data: bool = False
    """Whether the agent of its node reports processes."""


@dataclass(frozen=True, slots=True)
class ObservedGpu:
    """A GPU and its measurements."""

    place: GpuInfo
    features: Features
    at: datetime


def shown(name: str, value: float) -> str:
    """A feature's value as people read it."""
    match UNITS[name]:
        case "share":
            return f"{100 * value:.0f} %"
        case "percent":
            return f"{value:.0f} %"
        case "bytes_per_second":
            return f"{value / 1e6:.3g} MB/s"
        case "bytes":
            return f"{value / 1e9:.3g} GB"
        case "seconds":
            return f"{1000 * value:.3g} ms" if value < 0.5 else f"{value:.0f} s"
        case "boolean":
            return "yes" if value >= 1 else "no"
        case "count":
            return f"{value:.0f}"
        case _:
            return f"{value:.2g}"
