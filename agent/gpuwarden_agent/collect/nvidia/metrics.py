"""Lists every reading of an NVIDIA GPU: its column, the NVML call or field id, arguments, scale and tier.

This is the one list of NVML readings. `query.py` reads the rows, `device.py` makes the calls; reports of
`agent doctor`, the fake driver of the tests and docs/metrics.md are made from it. To add a metric, add
its row to the catalogue and a row here.

Rows are grouped by the table that they fill, and so by tier. Successive rows of one table with the
same columns are alternatives, newest call first: the agent uses the first that the driver supports. A row
whose columns are already known, for example from a field, is skipped. `plain` converts an answer that is
not a plain number into plain types, `value` converts it into the column's value.
"""

from collections.abc import Sequence
from ctypes import c_uint
from dataclasses import dataclass
from itertools import groupby
from struct import Struct
from typing import Any
from uuid import UUID

import pynvml

from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.nvml import (
    ALL_LINKS,
    BLANK,
    Call,
    FabricInfo,
    Field,
    GpuProcess,
    MemoryInfo,
    PlatformInfo,
    ProcessUtilization,
    SramErrors,
)
from gpuwarden_agent.collect.nvidia.session import hold
from gpuwarden_agent.probe import Value

NS = 10**9
KIB = 1024
MIB = 1 << 20
MEGA = 10**6


@dataclass(frozen=True, slots=True)
class GpmMetric:
    """A metric of GPM, its column, and the factor to the column's unit; 1: a percentage."""

    column: str
    id: int
    times: int = 1


# Conversion of answers.


def first(answer: Sequence[int]) -> int:
    """The value of a value and its sample period."""
    return int(answer[0])


def memory(info: Any) -> MemoryInfo:
    """Structure to plain numbers; version 1 has nothing reserved."""
    return MemoryInfo(info.total, info.free, info.used, getattr(info, "reserved", None))


def bus_id(pci: Any) -> str:
    """As the kernel writes it: 0000:01:00.0."""
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def processes(listed: Sequence[Any]) -> Sequence[GpuProcess]:
    """Structures to plain ones; the binding has turned NVML_VALUE_NOT_AVAILABLE into None."""
    return [
        GpuProcess(
            process.pid,
            process.usedGpuMemory,
            _instance(process.gpuInstanceId),
            _instance(process.computeInstanceId),
        )
        for process in listed
    ]


def _instance(number: int) -> int | None:
    return None if number == BLANK else number


def utilizations(samples: Sequence[Any]) -> Sequence[ProcessUtilization]:
    """Structures to plain ones; the driver leaves places that it did not fill zero."""
    return [
        ProcessUtilization(s.pid, s.timeStamp, s.smUtil, s.memUtil, s.encUtil, s.decUtil)
        for s in samples
        if s.timeStamp
    ]


def sram_errors(status: Any) -> SramErrors:
    """Structure to plain numbers."""
    return SramErrors(
        status.volatileCor,
        status.volatileUncParity + status.volatileUncSecDed,
        status.aggregateCor,
        status.aggregateUncParity + status.aggregateUncSecDed,
        bool(status.bThresholdExceeded),
    )


def number_or_none(answer: int) -> int | None:
    """None for 0, which some guests return for an unknown generation or width of a link."""
    return answer or None


def bit_error_rate(encoded: int) -> float | None:
    """A rate as NVLink 5 encodes it: mantissa in bits 8 to 11, and in bits 0 to 7 the power of ten
    that it is divided by. Best is 15e-255: no error was seen yet.
    """
    if not 0 <= encoded <= 0xFFF:
        return None
    return float(f"{encoded >> 8}e-{encoded & 0xFF}")


def signed(raw: int) -> int:
    """A margin below 0, which the driver may hand over as an unsigned int."""
    return raw - (1 << 32) if raw >> 31 == 1 else raw


def thousandth(value: int | None) -> float | None:
    """A thousandth of the value; None if the driver has no value."""
    return None if value in (None, BLANK) else value / 1000


def threshold(celsius: int | None) -> float | None:
    """Ada and newer have margins instead of thresholds, for which this call is deprecated: only
    what can be the temperature of a slowdown is treated as one.
    """
    return float(celsius) if celsius is not None and 40 <= celsius <= 150 else None


def cpu_list(words: Sequence[int]) -> str | None:
    """A bit for each CPU, in words of 64, as the kernel writes lists: 0-31,64-95."""
    cpus = [64 * n + bit for n, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    if not cpus:
        return None
    starts = [cpu for before, cpu in zip([-2, *cpus], cpus, strict=False) if cpu != before + 1]
    ends = [cpu for cpu, after in zip(cpus, [*cpus[1:], -2], strict=True) if cpu + 1 != after]
    return ",".join(
        str(start) if start == end else f"{start}-{end}"
        for start, end in zip(starts, ends, strict=True)
    )


RECOVERY_ACTIONS = {
    0: "none",
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}
"""nvmlDeviceGpuRecoveryAction_t."""


def recovery_action(number: int) -> str:
    """Name of the action that the driver asks for; an action that is not in this list, by its number."""
    return RECOVERY_ACTIONS.get(number, f"unknown_{number}")


FABRIC_STATES = {1: "not_started", 2: "in_progress", 3: "completed"}
FABRIC_COMPLETED = 3
FABRIC_FAULTS = (
    (0, "bandwidth_degraded"),
    (2, "route_recovery"),
    (4, "route_unhealthy"),
    (6, "access_timeout_recovery"),
)
"""Shift of the two bits of each fault in the health mask: 0 unknown, 1 yes, 2 no."""
FABRIC_CONFIGURATION_SHIFT = 8
"""Four bits: 0 unknown, 1 correct, others incorrect."""


def fabric_health(mask: int) -> str | None:
    """Names of the faults in the health mask; None: unknown."""
    told = [(mask >> shift & 0x3, fault) for shift, fault in FABRIC_FAULTS]
    configuration = mask >> FABRIC_CONFIGURATION_SHIFT & 0xF
    if configuration == 0 and not any(answer for answer, _ in told):
        return None
    faults = [fault for answer, fault in told if answer == 1]
    if configuration > 1:
        faults.append("incorrect_configuration")
    return ",".join(faults) or "healthy"


def fabric(info: FabricInfo) -> tuple[str, str | None, str | None] | None:
    """State, health and status; the status is valid only once registration has completed."""
    state = FABRIC_STATES.get(info.state)
    if state is None:
        return None
    status = None
    if info.state == FABRIC_COMPLETED:
        status = nvml.CODE_NAMES.get(info.status, f"code_{info.status}").lower()
    return state, fabric_health(info.health_mask), status


def fabric_domain(info: FabricInfo) -> tuple[str, int] | None:
    """Cluster UUID and clique of an NVLink domain of several nodes; None: not registered, or a fabric of one node,
    whose UUID is all zeroes.
    """
    if info.state != FABRIC_COMPLETED or not any(info.cluster_uuid):
        return None
    return str(UUID(bytes=info.cluster_uuid)), info.clique


def fabric_info(info: Any) -> FabricInfo:
    """Of nvmlGpuFabricInfoV_t."""
    return FabricInfo(
        info.state, info.status, info.healthMask, bytes(info.clusterUuid), info.cliqueId
    )


def platform_info(info: Any) -> PlatformInfo:
    """Of nvmlPlatformInfo_t, whose versions differ in names alone.

    From its bytes: the binding decodes characters as UTF-8, which 255 is not.
    """
    serial, slot, tray, module = PLATFORM.unpack_from(bytes(info))
    return PlatformInfo(serial.partition(b"\0")[0], slot, tray, module)


PLATFORM = Struct("=20x16sBB2xB")
"""Serial number, slot, tray and module; not read: version and GUID, host in the tray and type of the peer."""
PLATFORM_COLUMNS = ("chassis_serial", "slot", "tray", "module_id")


def platform(info: PlatformInfo) -> tuple[str | None, int | None, int | None, int | None]:
    """Values of PLATFORM_COLUMNS. Slot and tray are those of a chassis: without its serial number they are not told.
    Modules are counted from 1.
    """
    serial = info.chassis_serial.decode("ascii", "replace").strip()
    module = info.module_id if info.module_id not in (0, NO_PLACE) else None
    if (
        not serial
        or not (serial.isascii() and serial.isprintable())
        or serial.upper() in ("N/A", "0")
    ):
        return None, None, None, module
    slot, tray = (each if each != NO_PLACE else None for each in (info.slot, info.tray))
    return serial, slot, tray, module


# Numbers of nvml.h.

NO_PLACE = 0xFF
GPU_SENSOR = pynvml.NVML_TEMPERATURE_GPU
GRAPHICS, SM, MEM, VIDEO = (
    pynvml.NVML_CLOCK_GRAPHICS,
    pynvml.NVML_CLOCK_SM,
    pynvml.NVML_CLOCK_MEM,
    pynvml.NVML_CLOCK_VIDEO,
)
CORRECTED, UNCORRECTED = 0, 1
VOLATILE, AGGREGATE = 0, 1
DRAM, SRAM = 2, 7
"""nvmlMemoryErrorType_t, nvmlEccCounterType_t, nvmlMemoryLocation_t."""

UTILIZATION_SAMPLES = {
    "util_percent": pynvml.NVML_GPU_UTILIZATION_SAMPLES,
    "memory_util_percent": pynvml.NVML_MEMORY_UTILIZATION_SAMPLES,
}
"""nvmlSamplingType_t by the column whose mean is taken."""

BUFFERS = {
    **{column: (kind, 1) for column, kind in UTILIZATION_SAMPLES.items()},
    "power_watts": (pynvml.NVML_TOTAL_POWER_SAMPLES, 1000),
}
"""By column of a burst: nvmlSamplingType_t, and what its unit is divided by. Clocks are listed in nvml.h too; an H200
with driver 580 buffers none.
"""

PSTATE_UNKNOWN = 32
AFFINITY_WORDS = 32
"""Room for the CPUs of nvmlDeviceGetCpuAffinity: 2048 of them."""

ADDRESSING_MODES = {0: "none", 1: "hmm", 2: "ats"}
VIRTUALIZATION_MODES = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host_vgpu", 4: "host_vsga"}
"""nvmlGpuVirtualizationMode_t."""
COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive_process"}
GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
"""nvmlNvlinkVersion_t (1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0, 6.0) to the generation."""
REMOTE_TYPES = {0: "gpu", 1: "cpu", 2: "switch"}
"""nvmlIntNvLinkDeviceType_t; 1 is an IBM POWER."""

MEMORY = ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes")
REMAPPED = (
    "remapped_rows_corrected_total", "remapped_rows_uncorrected_total",
    "remap_pending", "remap_failed",
)  # fmt: skip
BANKS = tuple(f"remap_banks_{name}" for name in ("max", "high", "partial", "low", "none"))
SRAM_COLUMNS = (
    "sram_corrected_volatile_total", "sram_uncorrected_volatile_total",
    "sram_corrected_aggregate_total", "sram_uncorrected_aggregate_total",
    "sram_threshold_exceeded",
)  # fmt: skip


def _call(columns: str | tuple[str, ...], function: str, *arguments: Any, **more: Any) -> Call:
    """A row; without a `reading` it has the name of its column."""
    names = (columns,) if isinstance(columns, str) else columns
    more.setdefault("reading", names[0] if names else function)
    return Call(names, function, arguments, **more)


def _memory_values(info: MemoryInfo) -> tuple[Value, ...]:
    # Version 1 counts what the driver reserves as used, and cannot tell them apart.
    return info.total_bytes, info.used_bytes, info.free_bytes, info.reserved_bytes


def _by_place(place: int, fate: int, since: int) -> tuple[int, int, int]:
    return fate, since, place


def _sram_values(errors: SramErrors) -> tuple[Value, ...]:
    return (
        errors.corrected_volatile,
        errors.uncorrected_volatile,
        errors.corrected_aggregate,
        errors.uncorrected_aggregate,
        errors.is_above_threshold,
    )


def _ecc(column: str, *part: int) -> Call:
    return _call(
        column, "nvmlDeviceGetTotalEccErrors", reading="ecc_errors", part=part, needs="ecc_on"
    )


def _place(column: str, *part: int) -> Call:
    return _call(
        column, "nvmlDeviceGetMemoryErrorCounter", reading="memory_errors", part=part,
        prepare=_by_place, needs="ecc_on",
    )  # fmt: skip


def _threshold(column: str, which: int, reading: str) -> Call:
    return _call(
        column, "nvmlDeviceGetTemperatureThreshold", which, reading=reading, value=threshold
    )


def _link_errors(column: str, counter: int) -> Call:
    return _call(
        column, "nvmlDeviceGetNvLinkErrorCounter", reading="nvlink_errors", part=(counter,)
    )


CALLS: dict[str, tuple[Call, ...]] = {
    "gpu_samples": (
        _call("encoder_util_percent", "nvmlDeviceGetEncoderUtilization", reading="encoder_utilization", plain=first, needs="whole"),
        _call("decoder_util_percent", "nvmlDeviceGetDecoderUtilization", reading="decoder_utilization", plain=first, needs="whole"),
        _call(("util_percent", "memory_util_percent"), "nvmlDeviceGetUtilizationRates", reading="utilization", plain=lambda r: (r.gpu, r.memory), needs="whole"),
        _call(MEMORY, "nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2, reading="memory_v2", plain=memory, value=_memory_values),
        _call(MEMORY, "nvmlDeviceGetMemoryInfo", reading="memory_v1", plain=memory, value=_memory_values),
        _call("pstate", "nvmlDeviceGetPerformanceState", reading="performance_state", value=lambda p: None if p == PSTATE_UNKNOWN else p),
        _call("temperature_celsius", "nvmlDeviceGetTemperatureV", GPU_SENSOR, reading="temperature_v"),
        _call("temperature_celsius", "nvmlDeviceGetTemperature", GPU_SENSOR, reading="temperature"),
        _call("sm_clock_mhz", "nvmlDeviceGetClockInfo", SM),
        _call("memory_clock_mhz", "nvmlDeviceGetClockInfo", MEM),
        _call("clocks_event_reasons", "nvmlDeviceGetCurrentClocksEventReasons"),
        _call("clocks_event_reasons", "nvmlDeviceGetCurrentClocksThrottleReasons", reading="clocks_throttle_reasons"),
        _call("power_watts", "nvmlDeviceGetPowerUsage", over=1000, reading="power_usage_mw"),
        _call("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", over=1000, reading="enforced_power_limit_mw"),
        _call("energy_joules_total", "nvmlDeviceGetTotalEnergyConsumption", over=1000, reading="total_energy_mj"),
    ),
    "gpu_detail_samples": (
        _call("pcie_replays_total", "nvmlDeviceGetPcieReplayCounter", reading="pcie_replays"),
        _call("jpeg_util_percent", "nvmlDeviceGetJpgUtilization", reading="jpeg_utilization", plain=first, needs="whole"),
        _call("ofa_util_percent", "nvmlDeviceGetOfaUtilization", reading="ofa_utilization", plain=first, needs="whole"),
        _call("graphics_clock_mhz", "nvmlDeviceGetClockInfo", GRAPHICS),
        _call("video_clock_mhz", "nvmlDeviceGetClockInfo", VIDEO),
        _call("temperature_margin_celsius", "nvmlDeviceGetMarginTemperature", reading="margin_celsius"),
        _call("pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", value=number_or_none),
        _call("pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", value=number_or_none),
        _call(("bar1_total_bytes", "bar1_used_bytes"), "nvmlDeviceGetBAR1MemoryInfo", reading="bar1_memory", plain=lambda m: (m.bar1Total, m.bar1Used)),
    ),
    "link_samples": (
        _call("active", "nvmlDeviceGetNvLinkState", reading="is_nvlink_active", plain=bool),
        _call("version", "nvmlDeviceGetNvLinkVersion", reading="nvlink_version", value=GENERATIONS.get),
        _call("remote_type", "nvmlDeviceGetNvLinkRemoteDeviceType", reading="nvlink_remote_type", value=REMOTE_TYPES.get),
        _call("remote_pci_bus_id", "nvmlDeviceGetNvLinkRemotePciInfo", reading="nvlink_remote_bus_id", plain=bus_id),
        _link_errors("replay_errors_total", 0),
        _link_errors("recovery_errors_total", 1),
        _link_errors("crc_flit_errors_total", 2),
        _link_errors("crc_data_errors_total", 3),
        _link_errors("ecc_data_errors_total", 4),
    ),
    "gpu_health_samples": (
        _ecc("ecc_corrected_volatile_total", CORRECTED, VOLATILE),
        _ecc("ecc_uncorrected_volatile_total", UNCORRECTED, VOLATILE),
        _ecc("ecc_corrected_aggregate_total", CORRECTED, AGGREGATE),
        _ecc("ecc_uncorrected_aggregate_total", UNCORRECTED, AGGREGATE),
        _place("dram_corrected_volatile_total", DRAM, CORRECTED, VOLATILE),
        _place("dram_uncorrected_volatile_total", DRAM, UNCORRECTED, VOLATILE),
        _place("dram_corrected_aggregate_total", DRAM, CORRECTED, AGGREGATE),
        _place("dram_uncorrected_aggregate_total", DRAM, UNCORRECTED, AGGREGATE),
        _call(SRAM_COLUMNS, "nvmlDeviceGetSramEccErrorStatus", reading="sram_errors", out=(pynvml.c_nvmlEccSramErrorStatus_v1_t,), plain=sram_errors, value=_sram_values, needs="ecc_on"),
        _place("sram_corrected_volatile_total", SRAM, CORRECTED, VOLATILE),
        _place("sram_uncorrected_volatile_total", SRAM, UNCORRECTED, VOLATILE),
        _place("sram_corrected_aggregate_total", SRAM, CORRECTED, AGGREGATE),
        _place("sram_uncorrected_aggregate_total", SRAM, UNCORRECTED, AGGREGATE),
        _call(REMAPPED, "nvmlDeviceGetRemappedRows", reading="remapped_rows", plain=tuple, needs="remaps"),
        # All zeroes: the board does not keep the histogram.
        _call(BANKS, "nvmlDeviceGetRowRemapperHistogram", reading="remap_histogram", plain=lambda b: (b.max, b.high, b.partial, b.low, b.none), value=lambda banks: banks if any(banks) else None, needs="remaps"),
        _call("retired_pages_corrected_total", "nvmlDeviceGetRetiredPages", reading="retired_pages", part=(0,), plain=len, needs="retires"),
        _call("retired_pages_uncorrected_total", "nvmlDeviceGetRetiredPages", reading="retired_pages", part=(1,), plain=len, needs="retires"),
        _call("retired_pages_pending", "nvmlDeviceGetRetiredPagesPendingStatus", reading="are_retired_pages_pending", plain=bool, needs="retires"),
        _call("memory_unrepairable", "nvmlDeviceGetUnrepairableMemoryFlag_v1", reading="is_memory_unrepairable", plain=bool, needs="ecc"),
        _call("inforom_valid", "nvmlDeviceValidateInforom", reading="validate_inforom", plain=lambda _: True, answers={nvml.CORRUPTED_INFOROM: False}),
        _call(("fabric_state", "fabric_health", "fabric_status"), "nvmlDeviceGetGpuFabricInfoV", reading="fabric_info", out=(pynvml.c_nvmlGpuFabricInfoV_t,), plain=fabric_info, value=fabric),
    ),
    "gpus": (
        _call("model", "nvmlDeviceGetName", reading="name", plain=str),
        _call("serial", "nvmlDeviceGetSerial", plain=str),
        _call("pci_bus_id", "nvmlDeviceGetPciInfo", plain=bus_id),
        _call("vbios_version", "nvmlDeviceGetVbiosVersion", plain=str),
        _call("part_number", "nvmlDeviceGetBoardPartNumber", plain=str),
        _call("inforom_version", "nvmlDeviceGetInforomImageVersion", plain=str),
        _call("compute_capability", "nvmlDeviceGetCudaComputeCapability", plain=tuple, value=lambda v: f"{v[0]}.{v[1]}"),
        _call("cpu_affinity", "nvmlDeviceGetCpuAffinity", AFFINITY_WORDS, plain=list, value=cpu_list),
        _call("power_limit_default_watts", "nvmlDeviceGetPowerManagementDefaultLimit", over=1000, reading="default_power_limit_mw"),
        _call(("power_limit_min_watts", "power_limit_max_watts"), "nvmlDeviceGetPowerManagementLimitConstraints", reading="power_limit_range_mw", plain=tuple, value=lambda v: (thousandth(v[0]), thousandth(v[1]))),
        _threshold("temperature_slowdown_celsius", pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN, "slowdown_celsius"),
        _threshold("temperature_shutdown_celsius", pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN, "shutdown_celsius"),
        _threshold("temperature_gpu_max_celsius", pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX, "gpu_max_celsius"),
        _threshold("temperature_memory_max_celsius", pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX, "memory_max_celsius"),
        _call("sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", SM),
        _call("memory_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", MEM),
        _call("memory_numa_node", "nvmlDeviceGetNumaNodeId", value=lambda node: node if node >= 0 else None),
        _call("addressing_mode", "nvmlDeviceGetAddressingMode", value=ADDRESSING_MODES.get),
        _call("virtualization", "nvmlDeviceGetVirtualizationMode", value=VIRTUALIZATION_MODES.get),
        _call(PLATFORM_COLUMNS, "nvmlDeviceGetPlatformInfo", reading="platform_info", out=(pynvml.c_nvmlPlatformInfo_v2_t,), plain=platform_info, value=platform),
        _call(PLATFORM_COLUMNS, "nvmlDeviceGetPlatformInfo", reading="platform_info_v1", out=(pynvml.c_nvmlPlatformInfo_v1_t,), plain=platform_info, value=platform),
        _call("pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
        _call("pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
        _call("memory_total_bytes", "nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2, reading="memory_v2", plain=memory, value=lambda m: m.total_bytes),
        _call("memory_total_bytes", "nvmlDeviceGetMemoryInfo", reading="memory_v1", plain=memory, value=lambda m: m.total_bytes),
    ),
    "modes": (
        _call(("ecc_mode", "ecc_mode_pending"), "nvmlDeviceGetEccMode", reading="ecc_modes", plain=lambda modes: tuple(map(bool, modes))),
        _call("persistence_mode", "nvmlDeviceGetPersistenceMode", reading="is_persistent", plain=lambda mode: bool(mode == pynvml.NVML_FEATURE_ENABLED)),
        _call("compute_mode", "nvmlDeviceGetComputeMode", value=COMPUTE_MODES.get),
        # Not a constant: a GPU registers with its fabric after the driver has loaded.
        _call(("fabric_cluster_uuid", "fabric_clique"), "nvmlDeviceGetGpuFabricInfoV", reading="fabric_info", out=(pynvml.c_nvmlGpuFabricInfoV_t,), plain=fabric_info, value=fabric_domain),
    ),
    # Calls that other readings depend on, or that take arguments of their own.
    "": (
        _call("mig_mode", "nvmlDeviceGetMigMode", reading="is_mig_enabled", plain=lambda modes: bool(modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE)),
        _call("architecture", "nvmlDeviceGetArchitecture"),
        # With arguments of our own: the binding's threads share one structure for the answer.
        _call((), "nvmlDeviceGetGspFirmwareMode", reading="is_gsp_enabled", out=(c_uint, c_uint), plain=lambda enabled, _: bool(enabled.value)),
        _call("gsp_firmware_version", "nvmlDeviceGetGspFirmwareVersion", reading="gsp_version", plain=lambda v: v.decode() if isinstance(v, bytes) else str(v)),
        # By bus id: a search for a UUID may wake up, or hang in, every other GPU.
        _call("peers", "nvmlDeviceGetTopologyCommonAncestor", reading="common_ancestor", prepare=lambda bus: (hold("nvmlDeviceGetHandleByPciBusId", bus.encode()),)),
        _call((), "nvmlDeviceGetNumFans", reading="fans"),
        _call("fan_percent", "nvmlDeviceGetFanSpeed_v2"),
        _call((), "nvmlGpmQueryDeviceSupport", reading="is_gpm_supported", plain=lambda answer: bool(answer.isSupportedDevice)),
        _call((), "nvmlDeviceGetMaxMigDeviceCount", reading="mig_devices_max"),
        _call((), "nvmlDeviceGetMigDeviceHandleByIndex", reading="mig_device", plain=lambda handle: handle),
        _call((), "nvmlDeviceGetFieldValues", reading="field_values", plain=list),
        _call(tuple(UTILIZATION_SAMPLES), "nvmlDeviceGetSamples", reading="driver_samples"),
        _call((), "nvmlDeviceGetComputeRunningProcesses_v3", reading="compute_processes_v3", plain=processes),
        _call((), "nvmlDeviceGetComputeRunningProcesses_v2", reading="compute_processes_v2", plain=processes),
        _call((), "nvmlDeviceGetGraphicsRunningProcesses_v3", reading="graphics_processes", plain=processes),
        _call((), "nvmlDeviceGetMPSComputeRunningProcesses_v3", reading="mps_processes", plain=processes),
        # The binding raises SUCCESS here: there is no sample at all.
        _call((), "nvmlDeviceGetProcessUtilization", reading="process_utilization", plain=utilizations, answers={nvml.NOT_FOUND: [], nvml.SUCCESS: []}),
    ),
}  # fmt: skip
"""Every call about a GPU, by the table that it fills."""

FIELDS: dict[str, tuple[Field, ...]] = {
    "gpu_samples": (
        Field("memory_temperature_celsius", 82),
        Field("energy_joules_total", 83, over=1000),
        Field("power_watts", 185, over=1000),
        Field("power_instant_watts", 186, over=1000),
        Field("power_limit_watts", 190, over=1000),
        Field("power_violation_seconds_total", 74, over=NS),
        Field("thermal_violation_seconds_total", 75, over=NS),
        Field("sw_thermal_seconds_total", 269, over=NS),
        Field("hw_thermal_seconds_total", 270, over=NS),
        Field("hw_power_brake_seconds_total", 271, over=NS),
        Field("nvlink_tx_bytes_total", 138, times=KIB, scope=ALL_LINKS, needs="nvlinks"),
        Field("nvlink_rx_bytes_total", 139, times=KIB, scope=ALL_LINKS, needs="nvlinks"),
        Field("pcie_tx_bytes_total", 197),
        Field("pcie_rx_bytes_total", 198),
    ),
    "gpu_detail_samples": (
        Field("sync_boost_violation_seconds_total", 76, over=NS),
        Field("board_limit_violation_seconds_total", 77, over=NS),
        Field("low_util_violation_seconds_total", 78, over=NS),
        Field("reliability_violation_seconds_total", 79, over=NS),
        Field("app_clocks_violation_seconds_total", 80, over=NS),
        Field("base_clocks_violation_seconds_total", 81, over=NS),
        Field("pcie_replays_total", 94),
        Field("pcie_replay_rollovers_total", 95),
        Field("pcie_l0_to_recovery_total", 169),
        Field("pcie_correctable_errors_total", 173),
        Field("pcie_naks_received_total", 174),
        Field("pcie_receiver_errors_total", 175),
        Field("pcie_bad_tlps_total", 176),
        Field("pcie_naks_sent_total", 177),
        Field("pcie_bad_dllps_total", 178),
        Field("pcie_nonfatal_errors_total", 179),
        Field("pcie_fatal_errors_total", 180),
        Field("pcie_unsupported_requests_total", 181),
        Field("pcie_lcrc_errors_total", 182),
        Field("pcie_lane_errors_total", 183),
    ),
    "link_samples": (
        Field("tx_bytes_total", 138, times=KIB),
        Field("rx_bytes_total", 139, times=KIB),
        Field("speed_bytes_per_second", 164, times=MEGA),
        Field("malformed_packets_total", 206),
        Field("buffer_overruns_total", 207),
        Field("rx_errors_total", 208),
        Field("rx_remote_errors_total", 209),
        Field("rx_general_errors_total", 210),
        Field("local_integrity_errors_total", 211),
        Field("tx_discards_total", 212),
        Field("recoveries_successful_total", 213),
        Field("recoveries_failed_total", 214),
        Field("effective_errors_total", 219),
        Field("effective_bit_error_rate", 220, decoded=bit_error_rate),
        Field("symbol_errors_total", 221),
        Field("symbol_bit_error_rate", 222, decoded=bit_error_rate),
    ),
    # NVLink 5 has its own ids for bytes; used when the driver does not fill the first ones.
    "nvlink5_bytes": (Field("tx_bytes_total", 202), Field("rx_bytes_total", 204)),
    "c2c": (
        Field("active", 171),
        Field("speed_bytes_per_second", 172, times=MEGA),
        Field("replay_errors_total", 232),
    ),
    "gpu_health_samples": (
        Field("recovery_action", 230, decoded=recovery_action),
        Field("ecc_corrected_volatile_total", 3, needs="ecc_on"),
        Field("ecc_uncorrected_volatile_total", 4, needs="ecc_on"),
        Field("ecc_corrected_aggregate_total", 5, needs="ecc_on"),
        Field("ecc_uncorrected_aggregate_total", 6, needs="ecc_on"),
        Field("remapped_rows_corrected_total", 142, needs="remap_fields"),
        Field("remapped_rows_uncorrected_total", 143, needs="remap_fields"),
        Field("remap_pending", 144, needs="remap_fields"),
        Field("remap_failed", 145, needs="remap_fields"),
        Field("retired_pages_corrected_total", 29, needs="retires"),
        Field("retired_pages_uncorrected_total", 30, needs="retires"),
        Field("retired_pages_pending", 31, needs="retires"),
    ),
    "gpus": (
        Field("margin_shutdown_celsius", 193, decoded=signed),
        Field("margin_slowdown_celsius", 194, decoded=signed),
        Field("margin_memory_max_celsius", 195, decoded=signed),
        Field("margin_gpu_max_celsius", 196, decoded=signed),
    ),
    "link_counts": (Field("nvlinks", 91), Field("c2c_links", 170)),
}
"""Every value of nvmlDeviceGetFieldValues, by the table that it fills."""

GPM_METRICS = (
    GpmMetric("graphics_active_percent", 1),
    GpmMetric("sm_active_percent", 2),
    GpmMetric("sm_occupancy_percent", 3),
    GpmMetric("integer_active_percent", 4),
    GpmMetric("tensor_active_percent", 5),
    GpmMetric("tensor_fp64_active_percent", 6),
    GpmMetric("tensor_half_active_percent", 7),
    GpmMetric("tensor_integer_active_percent", 9),
    GpmMetric("dram_active_percent", 10),
    GpmMetric("fp64_active_percent", 11),
    GpmMetric("fp32_active_percent", 12),
    GpmMetric("fp16_active_percent", 13),
    GpmMetric("pcie_tx_bytes_per_second", 20, MIB),
    GpmMetric("pcie_rx_bytes_per_second", 21, MIB),
    GpmMetric("nvlink_rx_bytes_per_second", 60, MIB),
    GpmMetric("nvlink_tx_bytes_per_second", 61, MIB),
)
"""Columns of `gpu_detail_samples`, of Hopper and newer."""

ROWS: dict[str, Call] = {}
"""A call by the name of its reading."""
for _rows in CALLS.values():
    for _row in _rows:
        ROWS.setdefault(_row.reading, _row)

GROUPS: dict[str, tuple[tuple[Call, ...], ...]] = {
    table: tuple(tuple(same) for _, same in groupby(rows, key=lambda row: (row.columns, row.part)))
    for table, rows in CALLS.items()
}
"""Calls that give the same reading, newest first, by table."""
