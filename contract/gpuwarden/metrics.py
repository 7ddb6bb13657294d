"""The catalogue: one row per metric, the single source of every column, unit and meaning.

Arrow schemas, DuckDB tables, `docs/metrics.md` and the exporters are made from it. Adding a metric
is one row here and one line in a probe. The last part of a name is its unit; `_total` marks a
counter, which only grows until its source is reset. A reading that a device cannot give is absent
(NULL), never 0.

Sources: NVML names as in nvidia-ml-py 13.615.71 and nvml.h, where "FI n" is field id n of
nvmlDeviceGetFieldValues. DCGM names: `dcgm` up to 4.8, `dcgm_49` since 4.9.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum


class Type(Enum):
    """Column types. Integers are signed so that differences in SQL cannot wrap."""

    TIMESTAMP = "timestamp"  # UTC; milliseconds on the wire, TIMESTAMP in SQL
    STRING = "string"
    BOOL = "bool"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float32"
    FLOAT64 = "float64"


class Kind(StrEnum):
    """What may be done with a metric's values."""

    GAUGE = "gauge"  # may be averaged
    COUNTER = "counter"  # only differences mean something; falls only when its source is reset
    FLAGS = "flags"  # a bit mask: decode it, never average it


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the catalogue."""

    name: str
    type: Type
    unit: str
    kind: Kind
    source: str
    """The NVML call, field id or file that the reading comes from."""
    meaning: str
    dcgm: str | None = None
    dcgm_49: str | None = None
    cadence_s: int = 1
    limits: tuple[float, float] | None = None
    """Smallest and largest value that can be true; the collector refuses rows outside."""

    @property
    def rollup(self) -> tuple[str, ...]:
        """How a window of values is summarised."""
        match self.kind:
            case Kind.GAUGE:
                return ("avg", "min", "max", "last")
            case Kind.COUNTER:
                return ("delta",)
            case Kind.FLAGS:
                return ("share",)


F32, F64, I16, I32, I64 = Type.FLOAT32, Type.FLOAT64, Type.INT16, Type.INT32, Type.INT64
GAUGE, COUNTER, FLAGS = Kind.GAUGE, Kind.COUNTER, Kind.FLAGS
PERCENT = (0.0, 100.0)
NOT_NEGATIVE = (0.0, float("inf"))

# fmt: off
GPU_METRICS: tuple[Metric, ...] = (
    Metric("util_percent", F32, "percent", GAUGE, "nvmlDeviceGetUtilizationRates.gpu",
           "Share of the last sample period (1/6 to 1 s) in which any kernel ran; 100 says nothing about how busy the SMs were.",
           "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO", limits=PERCENT),
    Metric("memory_util_percent", F32, "percent", GAUGE, "nvmlDeviceGetUtilizationRates.memory",
           "Share of the last sample period in which device memory was read or written; not memory used.",
           "DCGM_FI_DEV_MEM_COPY_UTIL", "DCGM_FI_DEV_MEMORY_UTIL_RATIO", limits=PERCENT),
    Metric("encoder_util_percent", F32, "percent", GAUGE, "nvmlDeviceGetEncoderUtilization",
           "Video encoder busy.", "DCGM_FI_DEV_ENC_UTIL", "DCGM_FI_DEV_ENC_UTIL_RATIO", limits=PERCENT),
    Metric("decoder_util_percent", F32, "percent", GAUGE, "nvmlDeviceGetDecoderUtilization",
           "Video decoder busy.", "DCGM_FI_DEV_DEC_UTIL", "DCGM_FI_DEV_DEC_UTIL_RATIO", limits=PERCENT),
    Metric("memory_total_bytes", I64, "bytes", GAUGE, "nvmlDeviceGetMemoryInfo_v2.total",
           "Device memory.", None, "DCGM_FI_DEV_FB_CAPACITY_BYTES", limits=NOT_NEGATIVE),
    Metric("memory_used_bytes", I64, "bytes", GAUGE, "nvmlDeviceGetMemoryInfo_v2.used",
           "Device memory that processes hold.", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_USED_BYTES", limits=NOT_NEGATIVE),
    Metric("memory_free_bytes", I64, "bytes", GAUGE, "nvmlDeviceGetMemoryInfo_v2.free",
           "Device memory that can be allocated.", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_FREE_BYTES", limits=NOT_NEGATIVE),
    Metric("memory_reserved_bytes", I64, "bytes", GAUGE, "nvmlDeviceGetMemoryInfo_v2.reserved",
           "Device memory that the driver and firmware keep.",
           "DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_FB_RESERVED_BYTES", limits=NOT_NEGATIVE),
    Metric("power_watts", F32, "watts", GAUGE, "FI 185, else nvmlDeviceGetPowerUsage",
           "Board power: the average of the last second on Ampere (except GA100) and newer, instantaneous before.",
           "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS", limits=NOT_NEGATIVE),
    Metric("power_instant_watts", F32, "watts", GAUGE, "FI 186",
           "Board power at the instant of reading.", limits=NOT_NEGATIVE),
    Metric("power_limit_watts", F32, "watts", GAUGE, "FI 190, else nvmlDeviceGetEnforcedPowerLimit",
           "Power limit in force.", limits=NOT_NEGATIVE),
    Metric("energy_joules_total", F64, "joules", COUNTER, "FI 83, else nvmlDeviceGetTotalEnergyConsumption",
           "Energy since the driver was loaded.",
           "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", limits=NOT_NEGATIVE),
    Metric("temperature_celsius", F32, "celsius", GAUGE, "nvmlDeviceGetTemperatureV, else nvmlDeviceGetTemperature",
           "Core temperature.", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", limits=(-60.0, 200.0)),
    Metric("memory_temperature_celsius", F32, "celsius", GAUGE, "FI 82",
           "Memory (HBM) temperature.", "DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", limits=(-60.0, 200.0)),
    Metric("sm_clock_mhz", I32, "mhz", GAUGE, "nvmlDeviceGetClockInfo(SM)",
           "Clock of the streaming multiprocessors.", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_SM_CLOCK_HERTZ", limits=NOT_NEGATIVE),
    Metric("memory_clock_mhz", I32, "mhz", GAUGE, "nvmlDeviceGetClockInfo(MEM)",
           "Clock of the device memory.", "DCGM_FI_DEV_MEM_CLOCK", "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", limits=NOT_NEGATIVE),
    Metric("clocks_event_reasons", I64, "bits", FLAGS, "nvmlDeviceGetCurrentClocksEventReasons, else ...ThrottleReasons",
           "Why the clocks are below the maximum, as a bit mask: 0x1 idle, 0x2 application clocks, 0x4 software power cap, "
           "0x8 hardware slowdown, 0x10 sync boost, 0x20 software thermal, 0x40 hardware thermal, 0x80 power brake, 0x100 display.",
           "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", None, limits=NOT_NEGATIVE),
    Metric("power_violation_seconds_total", F64, "seconds", COUNTER, "FI 74",
           "Time that clocks were held down by the power cap.",
           "DCGM_FI_DEV_POWER_VIOLATION", "DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL", limits=NOT_NEGATIVE),
    Metric("thermal_violation_seconds_total", F64, "seconds", COUNTER, "FI 75",
           "Time that clocks were held down by temperature.",
           "DCGM_FI_DEV_THERMAL_VIOLATION", "DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL", limits=NOT_NEGATIVE),
    Metric("sw_thermal_seconds_total", F64, "seconds", COUNTER, "FI 269",
           "Time in software thermal slowdown.", limits=NOT_NEGATIVE),
    Metric("hw_thermal_seconds_total", F64, "seconds", COUNTER, "FI 270",
           "Time in hardware thermal slowdown, where clocks are at most half.", limits=NOT_NEGATIVE),
    Metric("hw_power_brake_seconds_total", F64, "seconds", COUNTER, "FI 271",
           "Time in hardware power brake slowdown, which the power supply or the rack asks for.", limits=NOT_NEGATIVE),
    Metric("pstate", I16, "state", GAUGE, "nvmlDeviceGetPerformanceState",
           "Performance state, 0 (fastest) to 15; data-centre parts idle in 0.", limits=(0.0, 32.0)),
    Metric("pcie_tx_bytes_total", I64, "bytes", COUNTER, "FI 197",
           "Bytes sent over PCIe.", limits=NOT_NEGATIVE),
    Metric("pcie_rx_bytes_total", I64, "bytes", COUNTER, "FI 198",
           "Bytes received over PCIe.", limits=NOT_NEGATIVE),
    Metric("nvlink_tx_bytes_total", I64, "bytes", COUNTER, "FI 138, all links, KiB x 1024",
           "Payload bytes sent over all NVLinks.", limits=NOT_NEGATIVE),
    Metric("nvlink_rx_bytes_total", I64, "bytes", COUNTER, "FI 139, all links, KiB x 1024",
           "Payload bytes received over all NVLinks.", limits=NOT_NEGATIVE),
)

HOST_METRICS: tuple[Metric, ...] = (
    Metric("cpu_util_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time not idle and not waiting for I/O, all CPUs.", limits=PERCENT),
    Metric("cpu_user_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time in user code.", limits=PERCENT),
    Metric("cpu_nice_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time in niced user code.", limits=PERCENT),
    Metric("cpu_system_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time in the kernel.", limits=PERCENT),
    Metric("cpu_iowait_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time idle while I/O was outstanding.", limits=PERCENT),
    Metric("cpu_irq_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time in hard and soft interrupts.", limits=PERCENT),
    Metric("cpu_steal_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time that the hypervisor gave to others.", limits=PERCENT),
    Metric("cpu_idle_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time idle, I/O wait not included.", limits=PERCENT),
    Metric("load_1m", F32, "tasks", GAUGE, "/proc/loadavg", "Load average over 1 minute.", limits=NOT_NEGATIVE),
    Metric("load_5m", F32, "tasks", GAUGE, "/proc/loadavg", "Load average over 5 minutes.", limits=NOT_NEGATIVE),
    Metric("load_15m", F32, "tasks", GAUGE, "/proc/loadavg", "Load average over 15 minutes.", limits=NOT_NEGATIVE),
    Metric("tasks_running", I32, "tasks", GAUGE, "/proc/stat procs_running", "Tasks that run or wait for a CPU.", limits=NOT_NEGATIVE),
    Metric("tasks_blocked", I32, "tasks", GAUGE, "/proc/stat procs_blocked", "Tasks blocked on I/O (D state).", limits=NOT_NEGATIVE),
    Metric("memory_total_bytes", I64, "bytes", GAUGE, "/proc/meminfo", "Memory of the node.", limits=NOT_NEGATIVE),
    Metric("memory_used_bytes", I64, "bytes", GAUGE, "/proc/meminfo", "Memory that is neither available nor cache (psutil's used).", limits=NOT_NEGATIVE),
    Metric("memory_available_bytes", I64, "bytes", GAUGE, "/proc/meminfo", "Memory that can be given out without swapping.", limits=NOT_NEGATIVE),
    Metric("memory_cached_bytes", I64, "bytes", GAUGE, "/proc/meminfo", "Page cache and reclaimable slab.", limits=NOT_NEGATIVE),
    Metric("swap_used_bytes", I64, "bytes", GAUGE, "/proc/meminfo", "Swap in use.", limits=NOT_NEGATIVE),
    *(
        Metric(f"psi_{resource}_{extent}_percent", F32, "percent", GAUGE, f"/proc/pressure/{resource} {extent} avg10",
               f"Share of the last 10 s in which {who} stalled on {resource}.", limits=PERCENT)
        for resource in ("cpu", "io", "memory")
        for extent, who in (("some", "at least one task was"), ("full", "all runnable tasks were"))
    ),
    *(
        Metric(f"psi_{resource}_{extent}_seconds_total", F64, "seconds", COUNTER, f"/proc/pressure/{resource} {extent} total",
               f"Time since boot in which {who} stalled on {resource}.", limits=NOT_NEGATIVE)
        for resource in ("cpu", "io", "memory")
        for extent, who in (("some", "at least one task was"), ("full", "all runnable tasks were"))
    ),
    Metric("disk_read_bytes_total", I64, "bytes", COUNTER, "/proc/diskstats", "Bytes read from physical disks.", limits=NOT_NEGATIVE),
    Metric("disk_write_bytes_total", I64, "bytes", COUNTER, "/proc/diskstats", "Bytes written to physical disks.", limits=NOT_NEGATIVE),
    Metric("disk_busy_percent", F32, "percent", GAUGE, "/proc/diskstats io_ticks", "Busy share of the busiest physical disk.", limits=PERCENT),
    Metric("network_rx_bytes_total", I64, "bytes", COUNTER, "/proc/net/dev", "Bytes received, all interfaces but loopback.", limits=NOT_NEGATIVE),
    Metric("network_tx_bytes_total", I64, "bytes", COUNTER, "/proc/net/dev", "Bytes sent, all interfaces but loopback.", limits=NOT_NEGATIVE),
)

PROCESS_METRICS: tuple[Metric, ...] = (
    Metric("gpu_memory_bytes", I64, "bytes", GAUGE, "nvmlDeviceGetComputeRunningProcesses_v3",
           "Device memory that the process holds on this GPU.", cadence_s=10, limits=NOT_NEGATIVE),
    Metric("cpu_percent", F32, "percent", GAUGE, "/proc/PID/stat",
           "CPU of the process and its descendants; 100 is one core.", cadence_s=10, limits=NOT_NEGATIVE),
    Metric("main_cpu_percent", F32, "percent", GAUGE, "/proc/PID/task/*/stat",
           "CPU of the busiest thread of the process itself, pt_data_pin left out; 100 is one core.", cadence_s=10, limits=NOT_NEGATIVE),
    Metric("pin_cpu_percent", F32, "percent", GAUGE, "/proc/PID/task/*/stat",
           "CPU of the pinning thread pt_data_pin; 100 is one core.", cadence_s=10, limits=NOT_NEGATIVE),
    Metric("loader_workers", I32, "processes", GAUGE, "/proc/PID/task/*/comm",
           "Data-loader worker processes: pt_data_worker threads' processes, else forked children without a GPU context.",
           cadence_s=10, limits=NOT_NEGATIVE),
    Metric("loader_cpu_percent", F32, "percent", GAUGE, "/proc/PID/stat",
           "Mean CPU of a loader worker; 100 is one core.", cadence_s=10, limits=NOT_NEGATIVE),
    Metric("loader_saturated_percent", F32, "percent", GAUGE, "/proc/PID/stat",
           "Share of the loader workers that use at least 85 % of a core.", cadence_s=10, limits=PERCENT),
    Metric("loader_blocked_percent", F32, "percent", GAUGE, "/proc/PID/stat state",
           "Share of the loader workers in D state (blocked on storage).", cadence_s=10, limits=PERCENT),
    Metric("loader_started_total", I64, "processes", COUNTER, "/proc/PID/stat starttime",
           "Loader workers first seen since the process was; grows at each epoch without persistent workers.", cadence_s=10, limits=NOT_NEGATIVE),
    Metric("cpus_allowed", I32, "cpus", GAUGE, "sched_getaffinity",
           "CPUs that the process may run on.", cadence_s=10, limits=NOT_NEGATIVE),
    Metric("read_bytes_total", I64, "bytes", COUNTER, "/proc/PID/io read_bytes",
           "Bytes that the process and its descendants read from storage.", cadence_s=10, limits=NOT_NEGATIVE),
    Metric("read_chars_total", I64, "bytes", COUNTER, "/proc/PID/io rchar",
           "Bytes read by system calls, page cache included.", cadence_s=10, limits=NOT_NEGATIVE),
    Metric("write_bytes_total", I64, "bytes", COUNTER, "/proc/PID/io write_bytes",
           "Bytes written to storage.", cadence_s=10, limits=NOT_NEGATIVE),
)
# fmt: on

METRICS: dict[str, tuple[Metric, ...]] = {
    "gpu_samples": GPU_METRICS,
    "host_samples": HOST_METRICS,
    "process_samples": PROCESS_METRICS,
}

CLOCKS_EVENT_REASONS: dict[int, str] = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "voltage reliability",
}
"""Bits of `clocks_event_reasons`, nvml.h nvmlClocksEventReason*; 0x200 and 0x400 as older headers name them."""


def reason_names(bits: int) -> Iterator[str]:
    """Names of the bits that are set; an unknown bit is named by its value, never dropped."""
    remaining = bits
    while remaining:
        bit = remaining & -remaining
        yield CLOCKS_EVENT_REASONS.get(bit, f"unknown {bit:#x}")
        remaining ^= bit
