"""Defines the catalogue: one row per metric, the single source of every column, unit and meaning.

Arrow schemas, DuckDB tables, `docs/metrics.md` and the exporters are made from it. Adding a metric
is one row and one line in a probe. The last part of a name is its unit; `_total` marks a counter,
which only grows until its source is reset. A reading that a device cannot give is absent (NULL),
never 0.

Sources: NVML names as in nvidia-ml-py 13.615.71 and nvml.h, where "FI n" is field id n of
nvmlDeviceGetFieldValues and "GPM n" metric n of nvmlGpmMetricsGet. DCGM names: `dcgm` up to 4.8,
`dcgm_49` since 4.9.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import partial


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
    """Which calculations make sense with a metric's values."""

    GAUGE = "gauge"  # may be averaged
    COUNTER = "counter"  # only differences are meaningful; falls only when its source is reset
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
    """Smallest and largest possible value; the collector refuses rows outside."""
    rollup: tuple[str, ...] = ()
    """Aggregates that the rollups have of it: avg, min, max, p95 or last of a gauge, delta or last of a counter. Each is a column of
    each minute that is stored: name what somebody reads."""


F32, F64, I16, I32, I64 = Type.FLOAT32, Type.FLOAT64, Type.INT16, Type.INT32, Type.INT64
BOOL = Type.BOOL
GAUGE, COUNTER, FLAGS = Kind.GAUGE, Kind.COUNTER, Kind.FLAGS
PERCENT = (0.0, 100.0)
NOT_NEGATIVE = (0.0, float("inf"))
CELSIUS = (-60.0, 200.0)
AVG, LAST, DELTA = ("avg",), ("last",), ("delta",)
AVG_MAX, MIN_MAX = ("avg", "max"), ("min", "max")

# fmt: off
GPU_METRICS: tuple[Metric, ...] = (
    Metric("util_percent", F32, "percent", GAUGE, "nvmlDeviceGetSamples; else nvmlDeviceGetUtilizationRates.gpu",
           "Share of the time since the last reading in which any kernel ran, by the driver's samples; else of its last sample period (1/6 to 1 s). 100 says nothing about how busy the SMs were.",
           "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO", limits=PERCENT, rollup=("avg", "min", "max", "p95")),
    Metric("memory_util_percent", F32, "percent", GAUGE, "nvmlDeviceGetSamples; else nvmlDeviceGetUtilizationRates.memory",
           "As `util_percent`: share of the time in which device memory was read or written; not memory used.",
           "DCGM_FI_DEV_MEM_COPY_UTIL", "DCGM_FI_DEV_MEMORY_UTIL_RATIO", limits=PERCENT),
    Metric("encoder_util_percent", F32, "percent", GAUGE, "nvmlDeviceGetEncoderUtilization",
           "Video encoder busy.", "DCGM_FI_DEV_ENC_UTIL", "DCGM_FI_DEV_ENC_UTIL_RATIO", limits=PERCENT),
    Metric("decoder_util_percent", F32, "percent", GAUGE, "nvmlDeviceGetDecoderUtilization",
           "Video decoder busy.", "DCGM_FI_DEV_DEC_UTIL", "DCGM_FI_DEV_DEC_UTIL_RATIO", limits=PERCENT),
    Metric("memory_total_bytes", I64, "bytes", GAUGE, "nvmlDeviceGetMemoryInfo_v2.total",
           "Device memory.", None, "DCGM_FI_DEV_FB_CAPACITY_BYTES", limits=NOT_NEGATIVE, rollup=LAST),
    Metric("memory_used_bytes", I64, "bytes", GAUGE, "nvmlDeviceGetMemoryInfo_v2.used",
           "Device memory that processes hold.", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_USED_BYTES", limits=NOT_NEGATIVE, rollup=("avg", "min", "max", "last")),
    Metric("memory_free_bytes", I64, "bytes", GAUGE, "nvmlDeviceGetMemoryInfo_v2.free",
           "Device memory that can be allocated.", "DCGM_FI_DEV_FB_FREE", "DCGM_FI_DEV_FB_FREE_BYTES", limits=NOT_NEGATIVE),
    Metric("memory_reserved_bytes", I64, "bytes", GAUGE, "nvmlDeviceGetMemoryInfo_v2.reserved",
           "Device memory that the driver and firmware keep.",
           "DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_FB_RESERVED_BYTES", limits=NOT_NEGATIVE, rollup=LAST),
    Metric("power_watts", F32, "watts", GAUGE, "FI 185, else nvmlDeviceGetPowerUsage, else FI 186",
           "Board power: the average of the last second on Ampere (except GA100) and newer, instantaneous on others.",
           "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS", limits=NOT_NEGATIVE, rollup=("avg", "min", "max")),
    Metric("power_instant_watts", F32, "watts", GAUGE, "FI 186",
           "Board power at the instant of reading.", limits=NOT_NEGATIVE),
    Metric("power_limit_watts", F32, "watts", GAUGE, "FI 190, else nvmlDeviceGetEnforcedPowerLimit",
           "Power limit in force.", limits=NOT_NEGATIVE, rollup=LAST),
    Metric("energy_joules_total", F64, "joules", COUNTER, "FI 83, else nvmlDeviceGetTotalEnergyConsumption",
           "Energy since the driver was loaded.",
           "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", limits=NOT_NEGATIVE, rollup=("delta", "last")),
    Metric("temperature_celsius", F32, "celsius", GAUGE, "nvmlDeviceGetTemperatureV, else nvmlDeviceGetTemperature",
           "Core temperature.", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", limits=CELSIUS, rollup=AVG_MAX),
    Metric("memory_temperature_celsius", F32, "celsius", GAUGE, "FI 82",
           "Memory (HBM) temperature.", "DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", limits=CELSIUS, rollup=AVG_MAX),
    Metric("sm_clock_mhz", I32, "mhz", GAUGE, "nvmlDeviceGetClockInfo(SM)",
           "Clock of the streaming multiprocessors.", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_SM_CLOCK_HERTZ", limits=NOT_NEGATIVE, rollup=AVG),
    Metric("memory_clock_mhz", I32, "mhz", GAUGE, "nvmlDeviceGetClockInfo(MEM)",
           "Clock of the device memory.", "DCGM_FI_DEV_MEM_CLOCK", "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", limits=NOT_NEGATIVE, rollup=AVG),
    Metric("clocks_event_reasons", I64, "bits", FLAGS, "nvmlDeviceGetCurrentClocksEventReasons, else ...ThrottleReasons",
           "Why the clocks are below the maximum, as a bit mask: 0x1 idle, 0x2 application clocks, 0x4 software power cap, "
           "0x8 hardware slowdown, 0x10 sync boost, 0x20 software thermal, 0x40 hardware thermal, 0x80 power brake, 0x100 display.",
           "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", None, limits=NOT_NEGATIVE),
    Metric("power_violation_seconds_total", F64, "seconds", COUNTER, "FI 74",
           "Time that clocks were held down by the power cap.",
           "DCGM_FI_DEV_POWER_VIOLATION", "DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL", limits=NOT_NEGATIVE, rollup=DELTA),
    Metric("thermal_violation_seconds_total", F64, "seconds", COUNTER, "FI 75",
           "Time that clocks were held down by temperature.",
           "DCGM_FI_DEV_THERMAL_VIOLATION", "DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL", limits=NOT_NEGATIVE, rollup=DELTA),
    Metric("sw_thermal_seconds_total", F64, "seconds", COUNTER, "FI 269",
           "Time in software thermal slowdown.", limits=NOT_NEGATIVE, rollup=DELTA),
    Metric("hw_thermal_seconds_total", F64, "seconds", COUNTER, "FI 270",
           "Time in hardware thermal slowdown, where clocks are at most half.", limits=NOT_NEGATIVE, rollup=DELTA),
    Metric("hw_power_brake_seconds_total", F64, "seconds", COUNTER, "FI 271",
           "Time in hardware power brake slowdown, which the power supply or the rack asks for.", limits=NOT_NEGATIVE, rollup=DELTA),
    Metric("pstate", I16, "state", GAUGE, "nvmlDeviceGetPerformanceState",
           "Performance state, 0 (fastest) to 15; data-centre parts idle in 0.", limits=(0.0, 32.0)),
    Metric("pcie_tx_bytes_total", I64, "bytes", COUNTER, "FI 197",
           "Bytes sent over PCIe.", limits=NOT_NEGATIVE, rollup=DELTA),
    Metric("pcie_rx_bytes_total", I64, "bytes", COUNTER, "FI 198",
           "Bytes received over PCIe.", limits=NOT_NEGATIVE, rollup=DELTA),
    Metric("nvlink_tx_bytes_total", I64, "bytes", COUNTER, "FI 138, all links, KiB x 1024",
           "Payload bytes sent over all NVLinks.", limits=NOT_NEGATIVE, rollup=DELTA),
    Metric("nvlink_rx_bytes_total", I64, "bytes", COUNTER, "FI 139, all links, KiB x 1024",
           "Payload bytes received over all NVLinks.", limits=NOT_NEGATIVE, rollup=DELTA),
)

_slow = partial(Metric, cadence_s=10, limits=NOT_NEGATIVE)
_share = partial(Metric, cadence_s=10, limits=PERCENT)

GPU_DETAIL_METRICS: tuple[Metric, ...] = (
    _share("graphics_active_percent", F32, "percent", GAUGE, "GPM 1 GRAPHICS_UTIL",
           "Time that the compute or graphics engine was active.",
           "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", rollup=AVG),
    _share("sm_active_percent", F32, "percent", GAUGE, "GPM 2 SM_UTIL",
           "Share of cycles in which an SM had a warp, averaged over the SMs: how much of the GPU works, where util_percent says only whether it does.",
           "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO", rollup=AVG),
    _share("sm_occupancy_percent", F32, "percent", GAUGE, "GPM 3 SM_OCCUPANCY",
           "Warps resident on the SMs, of the most that there can be.",
           "DCGM_FI_PROF_SM_OCCUPANCY", "DCGM_FI_PROF_SM_OCCUPANCY_RATIO", rollup=AVG),
    _share("integer_active_percent", F32, "percent", GAUGE, "GPM 4 INTEGER_UTIL", "Integer pipe active.", rollup=AVG),
    _share("tensor_active_percent", F32, "percent", GAUGE, "GPM 5 ANY_TENSOR_UTIL",
           "Any tensor core pipe active.",
           "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO", rollup=AVG),
    _share("tensor_fp64_active_percent", F32, "percent", GAUGE, "GPM 6 DFMA_TENSOR_UTIL", "Tensor cores active in FP64."),
    _share("tensor_half_active_percent", F32, "percent", GAUGE, "GPM 7 HMMA_TENSOR_UTIL", "Tensor cores active in FP16, BF16 and FP8.", rollup=AVG),
    _share("tensor_integer_active_percent", F32, "percent", GAUGE, "GPM 9 IMMA_TENSOR_UTIL", "Tensor cores active in integers."),
    _share("dram_active_percent", F32, "percent", GAUGE, "GPM 10 DRAM_BW_UTIL",
           "Device memory bandwidth used, of the maximum.",
           "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO", rollup=AVG),
    _share("fp64_active_percent", F32, "percent", GAUGE, "GPM 11 FP64_UTIL", "FP64 pipe active.",
           "DCGM_FI_PROF_PIPE_FP64_ACTIVE", "DCGM_FI_PROF_FP64_UTIL_RATIO", rollup=AVG),
    _share("fp32_active_percent", F32, "percent", GAUGE, "GPM 12 FP32_UTIL", "FP32 pipe active.",
           "DCGM_FI_PROF_PIPE_FP32_ACTIVE", "DCGM_FI_PROF_FP32_UTIL_RATIO", rollup=AVG),
    _share("fp16_active_percent", F32, "percent", GAUGE, "GPM 13 FP16_UTIL", "FP16 pipe active.",
           "DCGM_FI_PROF_PIPE_FP16_ACTIVE", "DCGM_FI_PROF_FP16_UTIL_RATIO", rollup=AVG),
    _slow("pcie_tx_bytes_per_second", F64, "bytes_per_second", GAUGE, "GPM 20, MiB x 1048576", "Sent over PCIe, headers included.",
          "DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_TX_BYTES", rollup=AVG),
    _slow("pcie_rx_bytes_per_second", F64, "bytes_per_second", GAUGE, "GPM 21, MiB x 1048576", "Received over PCIe, headers included.",
          "DCGM_FI_PROF_PCIE_RX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES", rollup=AVG),
    _slow("nvlink_rx_bytes_per_second", F64, "bytes_per_second", GAUGE, "GPM 60, MiB x 1048576", "Received over all NVLinks.", rollup=AVG),
    _slow("nvlink_tx_bytes_per_second", F64, "bytes_per_second", GAUGE, "GPM 61, MiB x 1048576", "Sent over all NVLinks.", rollup=AVG),
    _share("jpeg_util_percent", F32, "percent", GAUGE, "nvmlDeviceGetJpgUtilization", "JPEG decoder busy."),
    _share("ofa_util_percent", F32, "percent", GAUGE, "nvmlDeviceGetOfaUtilization", "Optical flow engine busy."),
    _slow("graphics_clock_mhz", I32, "mhz", GAUGE, "nvmlDeviceGetClockInfo(GRAPHICS)", "Graphics clock."),
    _slow("video_clock_mhz", I32, "mhz", GAUGE, "nvmlDeviceGetClockInfo(VIDEO)", "Clock of the video engines."),
    _slow("fan_percent", F32, "percent", GAUGE, "nvmlDeviceGetFanSpeed_v2", "Intended speed of the fastest fan; may be above 100. Absent on passive boards."),
    _slow("voltage_volts", F32, "volts", GAUGE, "amdgpu in0_input", "Voltage of the graphics core. Absent on NVIDIA's GPUs: NVML has no call for it."),
    _slow("bar1_total_bytes", I64, "bytes", GAUGE, "nvmlDeviceGetBAR1MemoryInfo.bar1Total",
          "Window through which the host and network adapters reach the GPU's memory (BAR1); on AMD's GPUs visible VRAM."),
    _slow("bar1_used_bytes", I64, "bytes", GAUGE, "nvmlDeviceGetBAR1MemoryInfo.bar1Used",
          "What is mapped in that window; once it is full, GPUDirect RDMA cannot register more memory."),
    Metric("temperature_margin_celsius", F32, "celsius", GAUGE, "nvmlDeviceGetMarginTemperature",
           "T.Limit: how far the hottest sensor is from the temperature at which clocks are held down; negative: above it.",
           cadence_s=10, limits=CELSIUS),
    Metric("pcie_generation", I16, "generation", GAUGE, "nvmlDeviceGetCurrPcieLinkGeneration",
           "PCIe generation now; many boards drop to 1 when idle.", cadence_s=10, limits=(1.0, 15.0), rollup=MIN_MAX),
    Metric("pcie_width", I16, "lanes", GAUGE, "nvmlDeviceGetCurrPcieLinkWidth", "PCIe lanes now.", cadence_s=10, limits=(1.0, 64.0), rollup=MIN_MAX),
    _slow("pcie_replays_total", I64, "replays", COUNTER, "FI 94, else nvmlDeviceGetPcieReplayCounter", "PCIe packets that were sent again.",
          "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_PCIE_REPLAY_TOTAL", rollup=DELTA),
    _slow("pcie_replay_rollovers_total", I64, "rollovers", COUNTER, "FI 95", "Times that four replays in a row made the link retrain."),
    _slow("pcie_l0_to_recovery_total", I64, "transitions", COUNTER, "FI 169", "Times that the PCIe link left its working state to recover."),
    _slow("pcie_correctable_errors_total", I64, "errors", COUNTER, "FI 173", "PCIe errors that the link corrected."),
    _slow("pcie_naks_received_total", I64, "errors", COUNTER, "FI 174", "PCIe packets that the other side did not accept."),
    _slow("pcie_receiver_errors_total", I64, "errors", COUNTER, "FI 175", "PCIe receiver errors."),
    _slow("pcie_bad_tlps_total", I64, "errors", COUNTER, "FI 176", "Damaged PCIe transaction packets."),
    _slow("pcie_naks_sent_total", I64, "errors", COUNTER, "FI 177", "PCIe packets that this side did not accept."),
    _slow("pcie_bad_dllps_total", I64, "errors", COUNTER, "FI 178", "Damaged PCIe data link packets."),
    _slow("pcie_nonfatal_errors_total", I64, "errors", COUNTER, "FI 179", "Uncorrected PCIe errors that the link survived."),
    _slow("pcie_fatal_errors_total", I64, "errors", COUNTER, "FI 180", "PCIe errors after which the link is not reliable."),
    _slow("pcie_unsupported_requests_total", I64, "errors", COUNTER, "FI 181", "PCIe requests that the GPU does not support."),
    _slow("pcie_lcrc_errors_total", I64, "errors", COUNTER, "FI 182", "PCIe packets with a wrong checksum."),
    _slow("pcie_lane_errors_total", I64, "errors", COUNTER, "FI 183", "PCIe lane errors."),
    _slow("sync_boost_violation_seconds_total", F64, "seconds", COUNTER, "FI 76", "Time that clocks were held down by the sync boost group.",
          "DCGM_FI_DEV_SYNC_BOOST_VIOLATION"),
    _slow("board_limit_violation_seconds_total", F64, "seconds", COUNTER, "FI 77", "Time that clocks were held down by the board's limit.",
          "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION"),
    _slow("low_util_violation_seconds_total", F64, "seconds", COUNTER, "FI 78", "Time that clocks were down because little was asked for.",
          "DCGM_FI_DEV_LOW_UTIL_VIOLATION"),
    _slow("reliability_violation_seconds_total", F64, "seconds", COUNTER, "FI 79", "Time that clocks were held down by the voltage reliability limit.",
          "DCGM_FI_DEV_RELIABILITY_VIOLATION"),
    _slow("app_clocks_violation_seconds_total", F64, "seconds", COUNTER, "FI 80", "Time below the application clocks, for any reason."),
    _slow("base_clocks_violation_seconds_total", F64, "seconds", COUNTER, "FI 81", "Time below the base clocks, for any reason."),
    Metric("nvlinks_active", I16, "links", GAUGE, "nvmlDeviceGetNvLinkState", "NVLinks that are up.", cadence_s=10, limits=(0.0, 64.0), rollup=MIN_MAX),
)

_health = partial(Metric, cadence_s=60)
_count = partial(Metric, cadence_s=60, limits=NOT_NEGATIVE)

GPU_HEALTH_METRICS: tuple[Metric, ...] = (
    _count("ecc_corrected_volatile_total", I64, "errors", COUNTER, "FI 3, else nvmlDeviceGetTotalEccErrors",
           "Memory errors corrected since the driver was loaded.", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", rollup=DELTA),
    _count("ecc_uncorrected_volatile_total", I64, "errors", COUNTER, "FI 4, else nvmlDeviceGetTotalEccErrors",
           "Memory errors that could not be corrected, since the driver was loaded.", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", rollup=DELTA),
    _count("ecc_corrected_aggregate_total", I64, "errors", COUNTER, "FI 5, else nvmlDeviceGetTotalEccErrors",
           "Memory errors corrected in the GPU's life.", "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL"),
    _count("ecc_uncorrected_aggregate_total", I64, "errors", COUNTER, "FI 6, else nvmlDeviceGetTotalEccErrors",
           "Memory errors that could not be corrected, in the GPU's life.", "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL"),
    *(
        _count(f"{place}_{fate}_{since}_total", I64, "errors", COUNTER, source,
               f"{place.upper()} errors that {'were' if fate == 'corrected' else 'could not be'} corrected, {period}.")
        for place, source in (("dram", "nvmlDeviceGetMemoryErrorCounter(DRAM)"),
                              ("sram", "nvmlDeviceGetSramEccErrorStatus, else nvmlDeviceGetMemoryErrorCounter(SRAM)"))
        for since, period in (("volatile", "since the driver was loaded"), ("aggregate", "in the GPU's life"))
        for fate in ("corrected", "uncorrected")
    ),
    _health("sram_threshold_exceeded", BOOL, "boolean", GAUGE, "nvmlDeviceGetSramEccErrorStatus.bThresholdExceeded",
            "SRAM errors are above NVIDIA's threshold: replace the board."),
    _count("remapped_rows_corrected_total", I64, "rows", COUNTER, "FI 142, else nvmlDeviceGetRemappedRows",
           "Rows remapped because of corrected errors.", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL", rollup=DELTA),
    _count("remapped_rows_uncorrected_total", I64, "rows", COUNTER, "FI 143, else nvmlDeviceGetRemappedRows",
           "Rows remapped because of uncorrected errors.", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL", rollup=DELTA),
    _health("remap_pending", BOOL, "boolean", GAUGE, "FI 144, else nvmlDeviceGetRemappedRows",
            "A row waits to be remapped: reset the GPU."),
    _health("remap_failed", BOOL, "boolean", GAUGE, "FI 145, else nvmlDeviceGetRemappedRows",
            "A row could not be remapped: replace the board.", "DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED"),
    *(
        _count(f"remap_banks_{left}", I32, "banks", GAUGE, f"nvmlDeviceGetRowRemapperHistogram.{left}", f"Memory banks with {words} spare rows.")
        for left, words in (("max", "all their"), ("high", "most of their"), ("partial", "some"), ("low", "one"), ("none", "no"))
    ),
    _count("retired_pages_corrected_total", I64, "pages", COUNTER, "FI 29, else nvmlDeviceGetRetiredPages",
           "Pages retired because of repeated corrected errors (Volta and older).", "DCGM_FI_DEV_RETIRED_SBE", "DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL"),
    _count("retired_pages_uncorrected_total", I64, "pages", COUNTER, "FI 30, else nvmlDeviceGetRetiredPages",
           "Pages retired because of an uncorrected error (Volta and older; AMD).", "DCGM_FI_DEV_RETIRED_DBE", "DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL"),
    _health("retired_pages_pending", BOOL, "boolean", GAUGE, "FI 31, else nvmlDeviceGetRetiredPagesPendingStatus",
            "A page waits to be retired: reboot.", "DCGM_FI_DEV_RETIRED_PENDING", "DCGM_FI_DEV_PAGE_RETIRED_PENDING"),
    _health("memory_unrepairable", BOOL, "boolean", GAUGE, "nvmlDeviceGetUnrepairableMemoryFlag_v1",
            "Device memory has a fault that cannot be repaired: replace the board."),
    _health("inforom_valid", BOOL, "boolean", GAUGE, "nvmlDeviceValidateInforom",
            "The board's own record of itself has the right checksum."),
)

LINK_METRICS: tuple[Metric, ...] = (
    Metric("active", BOOL, "boolean", GAUGE, "nvmlDeviceGetNvLinkState, FI 171 for C2C", "The link is up.", cadence_s=10),
    _slow("speed_bytes_per_second", F64, "bytes_per_second", GAUGE, "FI 164, FI 172 for C2C, MB x 1000000", "Speed of the link, one way."),
    _slow("tx_bytes_total", I64, "bytes", COUNTER, "FI 138 with the link as scope, KiB x 1024, else FI 202", "Payload sent."),
    _slow("rx_bytes_total", I64, "bytes", COUNTER, "FI 139 with the link as scope, KiB x 1024, else FI 204", "Payload received."),
    _slow("replay_errors_total", I64, "errors", COUNTER, "nvmlDeviceGetNvLinkErrorCounter(DL_REPLAY), FI 232 for C2C", "Packets sent again."),
    _slow("recovery_errors_total", I64, "errors", COUNTER, "nvmlDeviceGetNvLinkErrorCounter(DL_RECOVERY)", "Recoveries of the link."),
    _slow("crc_flit_errors_total", I64, "errors", COUNTER, "nvmlDeviceGetNvLinkErrorCounter(DL_CRC_FLIT)", "Flow control units with a wrong checksum."),
    _slow("crc_data_errors_total", I64, "errors", COUNTER, "nvmlDeviceGetNvLinkErrorCounter(DL_CRC_DATA)", "Data with a wrong checksum."),
    _slow("ecc_data_errors_total", I64, "errors", COUNTER, "nvmlDeviceGetNvLinkErrorCounter(DL_ECC_DATA)", "Errors that ECC found on the link."),
    _slow("malformed_packets_total", I64, "errors", COUNTER, "FI 206, NVLink 5", "Malformed packets."),
    _slow("buffer_overruns_total", I64, "errors", COUNTER, "FI 207, NVLink 5", "Packets dropped because a buffer was full."),
    _slow("rx_errors_total", I64, "errors", COUNTER, "FI 208, NVLink 5", "Packets received with an error."),
    _slow("rx_remote_errors_total", I64, "errors", COUNTER, "FI 209, NVLink 5", "Packets received with an error that the other side marked."),
    _slow("rx_general_errors_total", I64, "errors", COUNTER, "FI 210, NVLink 5", "Other errors at reception."),
    _slow("local_integrity_errors_total", I64, "errors", COUNTER, "FI 211, NVLink 5", "Times that local errors passed the threshold."),
    _slow("tx_discards_total", I64, "errors", COUNTER, "FI 212, NVLink 5", "Packets that were not sent."),
    _slow("recoveries_successful_total", I64, "recoveries", COUNTER, "FI 213, NVLink 5", "Link recoveries that worked."),
    _slow("recoveries_failed_total", I64, "recoveries", COUNTER, "FI 214, NVLink 5", "Link recoveries that failed."),
    _slow("effective_errors_total", I64, "errors", COUNTER, "FI 219, NVLink 5", "Errors left after forward error correction."),
    _slow("effective_bit_error_rate", F64, "ratio", GAUGE, "FI 220, NVLink 5, decoded", "Bit error rate after forward error correction."),
    _slow("symbol_errors_total", I64, "errors", COUNTER, "FI 221, NVLink 5", "Symbol errors."),
    _slow("symbol_bit_error_rate", F64, "ratio", GAUGE, "FI 222, NVLink 5, decoded", "Symbol error rate."),
)

HOST_METRICS: tuple[Metric, ...] = (
    Metric("cpu_util_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time not idle and not waiting for I/O, all CPUs.", limits=PERCENT, rollup=AVG_MAX),
    Metric("cpu_user_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time in user code.", limits=PERCENT, rollup=AVG),
    Metric("cpu_nice_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time in niced user code.", limits=PERCENT),
    Metric("cpu_system_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time in the kernel.", limits=PERCENT, rollup=AVG),
    Metric("cpu_iowait_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time idle while I/O was outstanding.", limits=PERCENT, rollup=AVG),
    Metric("cpu_irq_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time in hard and soft interrupts.", limits=PERCENT),
    Metric("cpu_steal_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time that the hypervisor gave to others.", limits=PERCENT),
    Metric("cpu_idle_percent", F32, "percent", GAUGE, "/proc/stat", "CPU time idle, I/O wait not included.", limits=PERCENT),
    Metric("load_1m", F32, "tasks", GAUGE, "/proc/loadavg", "Load average over 1 minute.", limits=NOT_NEGATIVE, rollup=AVG),
    Metric("load_5m", F32, "tasks", GAUGE, "/proc/loadavg", "Load average over 5 minutes.", limits=NOT_NEGATIVE),
    Metric("load_15m", F32, "tasks", GAUGE, "/proc/loadavg", "Load average over 15 minutes.", limits=NOT_NEGATIVE),
    Metric("tasks_running", I32, "tasks", GAUGE, "/proc/stat procs_running", "Tasks that run or wait for a CPU.", limits=NOT_NEGATIVE),
    Metric("tasks_blocked", I32, "tasks", GAUGE, "/proc/stat procs_blocked", "Tasks blocked on I/O (D state).", limits=NOT_NEGATIVE),
    Metric("memory_total_bytes", I64, "bytes", GAUGE, "/proc/meminfo", "Memory of the node.", limits=NOT_NEGATIVE, rollup=LAST),
    Metric("memory_used_bytes", I64, "bytes", GAUGE, "/proc/meminfo", "Memory that is neither available nor cache (psutil's used).", limits=NOT_NEGATIVE, rollup=AVG_MAX),
    Metric("memory_available_bytes", I64, "bytes", GAUGE, "/proc/meminfo", "Memory that can be given out without swapping.", limits=NOT_NEGATIVE, rollup=("avg", "min")),
    Metric("memory_cached_bytes", I64, "bytes", GAUGE, "/proc/meminfo", "Page cache and reclaimable slab.", limits=NOT_NEGATIVE, rollup=AVG),
    Metric("swap_used_bytes", I64, "bytes", GAUGE, "/proc/meminfo", "Swap in use.", limits=NOT_NEGATIVE),
    *(
        Metric(f"psi_{resource}_{extent}_percent", F32, "percent", GAUGE, f"/proc/pressure/{resource} {extent} avg10",
               f"Share of the last 10 s in which {who} stalled on {resource}.", limits=PERCENT, rollup=AVG if extent == "some" else ())
        for resource in ("cpu", "io", "memory")
        for extent, who in (("some", "at least one task was"), ("full", "all runnable tasks were"))
    ),
    *(
        Metric(f"psi_{resource}_{extent}_seconds_total", F64, "seconds", COUNTER, f"/proc/pressure/{resource} {extent} total",
               f"Time since boot in which {who} stalled on {resource}.", limits=NOT_NEGATIVE)
        for resource in ("cpu", "io", "memory")
        for extent, who in (("some", "at least one task was"), ("full", "all runnable tasks were"))
    ),
    Metric("disk_read_bytes_total", I64, "bytes", COUNTER, "/proc/diskstats", "Bytes read from physical disks.", limits=NOT_NEGATIVE, rollup=DELTA),
    Metric("disk_write_bytes_total", I64, "bytes", COUNTER, "/proc/diskstats", "Bytes written to physical disks.", limits=NOT_NEGATIVE, rollup=DELTA),
    Metric("disk_busy_percent", F32, "percent", GAUGE, "/proc/diskstats io_ticks", "Busy share of the busiest physical disk.", limits=PERCENT),
    Metric("network_rx_bytes_total", I64, "bytes", COUNTER, "/proc/net/dev", "Bytes received, all interfaces but loopback.", limits=NOT_NEGATIVE, rollup=DELTA),
    Metric("network_tx_bytes_total", I64, "bytes", COUNTER, "/proc/net/dev", "Bytes sent, all interfaces but loopback.", limits=NOT_NEGATIVE, rollup=DELTA),
    Metric("cpu_energy_joules_total", F64, "joules", COUNTER, "powercap intel-rapl package-N energy_uj", "Energy of the CPU packages, all sockets of Intel and AMD; only for agents that may read it.", limits=NOT_NEGATIVE, rollup=DELTA),
    Metric("dram_energy_joules_total", F64, "joules", COUNTER, "powercap intel-rapl dram energy_uj", "Energy of the host's memory, where its CPUs count it.", limits=NOT_NEGATIVE, rollup=DELTA),
    _slow("host_power_watts", F32, "watts", GAUGE, "hwmon power_meter, else ipmitool dcmi power reading", "Power of the whole node with its GPUs, as its power supplies or its BMC measure it.", rollup=AVG_MAX),
    _slow("power_supplies", I16, "supplies", GAUGE, "ipmitool sdr type Power Supply", "Power supplies that are plugged in."),
    _slow("power_supplies_failed", I16, "supplies", GAUGE, "ipmitool sdr type Power Supply", "Of these, those without input or with a failure."),
    _slow("shm_total_bytes", I64, "bytes", GAUGE, "statvfs /dev/shm", "Size of /dev/shm, through which data-loader workers hand over batches."),
    _slow("shm_used_bytes", I64, "bytes", GAUGE, "statvfs /dev/shm", "Used of /dev/shm.", rollup=AVG_MAX),
    _slow("nfs_reads_total", I64, "operations", COUNTER, "/proc/self/mountstats READ", "NFS reads, all mounts."),
    _slow("nfs_read_seconds_total", F64, "seconds", COUNTER, "/proc/self/mountstats READ", "Time that NFS reads took, queueing included; divided by nfs_reads_total it is their latency."),
    _slow("nfs_read_bytes_total", I64, "bytes", COUNTER, "/proc/self/mountstats bytes", "Bytes read from NFS servers."),
    _slow("nfs_writes_total", I64, "operations", COUNTER, "/proc/self/mountstats WRITE", "NFS writes, all mounts."),
    _slow("nfs_write_seconds_total", F64, "seconds", COUNTER, "/proc/self/mountstats WRITE", "Time that NFS writes took, queueing included."),
    _slow("nfs_write_bytes_total", I64, "bytes", COUNTER, "/proc/self/mountstats bytes", "Bytes written to NFS servers."),
    _slow("nfs_metadata_total", I64, "operations", COUNTER, "/proc/self/mountstats LOOKUP, GETATTR, ACCESS, OPEN, READDIR*", "NFS metadata calls, all mounts: many small files."),
    _slow("nfs_metadata_seconds_total", F64, "seconds", COUNTER, "/proc/self/mountstats, as nfs_metadata_total", "Time that NFS metadata calls took."),
    _slow("nfs_retransmissions_total", I64, "operations", COUNTER, "/proc/self/mountstats", "NFS requests sent again: the network or the server loses them."),
    Metric("spool_batches", I32, "batches", GAUGE, "the agent's spool", "Batches that waited in the agent's spool when this row was put into it; in the newest host row of each batch.",
           limits=NOT_NEGATIVE),
    Metric("spool_bytes", I64, "bytes", GAUGE, "the agent's spool", "Size of these batches; at spool_bytes_max the oldest is dropped.", limits=NOT_NEGATIVE),
)

PROCESS_METRICS: tuple[Metric, ...] = (
    _slow("gpu_memory_bytes", I64, "bytes", GAUGE, "nvmlDeviceGetComputeRunningProcesses_v3",
          "Device memory that the process holds on this GPU.", rollup=AVG_MAX),
    _slow("cpu_percent", F32, "percent", GAUGE, "/proc/PID/stat",
          "CPU of the process and its descendants; 100 is one core.", rollup=AVG),
    _slow("main_cpu_percent", F32, "percent", GAUGE, "/proc/PID/task/*/stat",
          "CPU of the busiest thread of the process itself, pt_data_pin and NCCL's left out; 100 is one core.", rollup=AVG),
    _slow("pin_cpu_percent", F32, "percent", GAUGE, "/proc/PID/task/*/stat",
          "CPU of the pinning thread pt_data_pin; 100 is one core.", rollup=AVG),
    _slow("loader_workers", I32, "processes", GAUGE, "/proc/PID/task/*/comm",
          "Data-loader worker processes: pt_data_worker threads' processes, else forked children without a GPU context.", rollup=AVG_MAX),
    _slow("loader_cpu_percent", F32, "percent", GAUGE, "/proc/PID/stat",
          "Mean CPU of a loader worker; 100 is one core.", rollup=AVG),
    Metric("loader_saturated_percent", F32, "percent", GAUGE, "/proc/PID/stat",
           "Share of the loader workers that use at least 85 % of a core.", cadence_s=10, limits=PERCENT, rollup=AVG),
    _slow("loader_idle_percent", F32, "percent", GAUGE, "/proc/PID/stat",
          "Share of the loader workers that use less than 20 % of a core: they wait for their consumer.", limits=PERCENT),
    Metric("loader_blocked_percent", F32, "percent", GAUGE, "/proc/PID/stat state",
           "Share of the loader workers in D state (blocked on storage).", cadence_s=10, limits=PERCENT, rollup=AVG),
    _slow("loader_started_total", I64, "processes", COUNTER, "/proc/PID/stat starttime",
          "Loader workers first seen since the process was; grows at each epoch without persistent workers."),
    _slow("cpus_allowed", I32, "cpus", GAUGE, "sched_getaffinity",
          "CPUs that the process may run on."),
    _slow("loader_cpus_allowed", I32, "cpus", GAUGE, "sched_getaffinity",
          "CPUs that any of the loader workers may run on; far below their number: an affinity that a library set."),
    _slow("read_bytes_total", I64, "bytes", COUNTER, "/proc/PID/io read_bytes",
          "Bytes that the process and its descendants read from storage."),
    _slow("read_chars_total", I64, "bytes", COUNTER, "/proc/PID/io rchar",
          "Bytes read by system calls, page cache included.", rollup=DELTA),
    _slow("write_bytes_total", I64, "bytes", COUNTER, "/proc/PID/io write_bytes",
          "Bytes written to storage.", rollup=DELTA),
    _slow("sm_util_percent", F32, "percent", GAUGE, "nvmlDeviceGetProcessUtilization.smUtil",
          "Share of the time in which a kernel of this process ran; absent in MIG mode.", rollup=AVG),
    _slow("children_cpu_percent", F32, "percent", GAUGE, "/proc/PID/stat",
          "CPU of descendants that are not loader workers; 100 is one core."),
    _slow("threads", I32, "threads", GAUGE, "/proc/PID/stat", "Threads of the process itself."),
    _slow("voluntary_switches_total", I64, "switches", COUNTER, "/proc/PID/task/*/status voluntary_ctxt_switches",
          "Times that a thread of the process gave up the CPU to wait."),
    _slow("involuntary_switches_total", I64, "switches", COUNTER, "/proc/PID/task/*/status nonvoluntary_ctxt_switches",
          "Times that a thread of the process was taken off the CPU for another."),
    _slow("rss_bytes", I64, "bytes", GAUGE, "/proc/PID/stat rss", "Host memory of the process and its descendants, shared pages counted in each.", rollup=AVG_MAX),
    _slow("cgroup_cpu_limit_cores", F32, "cores", GAUGE, "cpu.max, else cpu.cfs_quota_us",
          "CPUs' worth of time that its cgroup may use; absent: no limit."),
    _slow("cgroup_cpu_throttled_seconds_total", F64, "seconds", COUNTER, "cpu.stat throttled_usec, else throttled_time",
          "Time that its cgroup was kept from running by that limit."),
    _slow("cgroup_memory_limit_bytes", I64, "bytes", GAUGE, "memory.max, else memory.limit_in_bytes",
          "Memory that its cgroup may use; absent: no limit."),
    _slow("cgroup_memory_used_bytes", I64, "bytes", GAUGE, "memory.current, else memory.usage_in_bytes",
          "Memory that its cgroup uses, page cache included."),
)

INFINIBAND_METRICS: tuple[Metric, ...] = (
    _slow("rate_bits_per_second", F64, "bits_per_second", GAUGE, "ports/N/rate", "Signalling rate of the port; absent without a link."),
    _slow("tx_bytes_total", I64, "bytes", COUNTER, "ports/N/counters/port_xmit_data x 4, else hw_counters/tx_bytes", "Bytes sent; on Ethernet those of RDMA."),
    _slow("rx_bytes_total", I64, "bytes", COUNTER, "ports/N/counters/port_rcv_data x 4, else hw_counters/rx_bytes", "Bytes received; on Ethernet those of RDMA."),
    _slow("tx_packets_total", I64, "packets", COUNTER, "ports/N/counters/port_xmit_packets", "Packets sent."),
    _slow("rx_packets_total", I64, "packets", COUNTER, "ports/N/counters/port_rcv_packets", "Packets received."),
    _slow("tx_waits_total", I64, "ticks", COUNTER, "ports/N/counters/port_xmit_wait", "Ticks in which the port had data and could not send: congestion."),
    _slow("tx_discards_total", I64, "packets", COUNTER, "ports/N/counters/port_xmit_discards", "Packets given up because the port was down or congested."),
    _slow("rx_errors_total", I64, "packets", COUNTER, "ports/N/counters/port_rcv_errors", "Packets received with an error."),
    _slow("symbol_errors_total", I64, "errors", COUNTER, "ports/N/counters/symbol_error", "Errors on the wire."),
    _slow("link_downed_total", I64, "times", COUNTER, "ports/N/counters/link_downed", "Times that the link failed to recover and went down."),
    _slow("link_recoveries_total", I64, "times", COUNTER, "ports/N/counters/link_error_recovery", "Times that the link recovered."),
    _slow("local_integrity_errors_total", I64, "errors", COUNTER, "ports/N/counters/local_link_integrity_errors", "Times that local errors passed the threshold."),
    _slow("buffer_overruns_total", I64, "errors", COUNTER, "ports/N/counters/excessive_buffer_overrun_errors", "Times that the port's buffers overran."),
    _slow("out_of_sequence_total", I64, "packets", COUNTER, "ports/N/hw_counters/out_of_sequence", "RDMA packets that came out of order."),
    _slow("ack_timeouts_total", I64, "timeouts", COUNTER, "ports/N/hw_counters/local_ack_timeout_err", "RDMA packets that were not acknowledged in time."),
    _slow("roce_slow_restarts_total", I64, "times", COUNTER, "ports/N/hw_counters/roce_slow_restart", "Times that RoCE fell back to its slow start."),
)
# fmt: on

METRICS: dict[str, tuple[Metric, ...]] = {
    "gpu_samples": GPU_METRICS,
    "gpu_detail_samples": GPU_DETAIL_METRICS,
    "gpu_health_samples": GPU_HEALTH_METRICS,
    "link_samples": LINK_METRICS,
    "host_samples": HOST_METRICS,
    "infiniband_samples": INFINIBAND_METRICS,
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
THROTTLED_BY = 0x8 | 0x20 | 0x40 | 0x80
"""Those by which heat and the power supply hold clocks down: slowdown by hardware, thermal slowdown by software and hardware, power brake."""


def reason_names(bits: int) -> Iterator[str]:
    """Names of the bits that are set; the name of an unknown bit is its value."""
    remaining = bits
    while remaining:
        bit = remaining & -remaining
        yield CLOCKS_EVENT_REASONS.get(bit, f"unknown {bit:#x}")
        remaining ^= bit
