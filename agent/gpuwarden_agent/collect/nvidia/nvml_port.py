"""What the probes ask of a GPU, and in what terms: the port that the driver's binding fills.

Values keep NVML's units (mW, mJ, KiB, ns), every failed call is an `NvmlError` with NVML's return
code, and nothing is decided here.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

CODE_NAMES: dict[int, str] = {
    0: "SUCCESS",
    1: "UNINITIALIZED",
    2: "INVALID_ARGUMENT",
    3: "NOT_SUPPORTED",
    4: "NO_PERMISSION",
    5: "ALREADY_INITIALIZED",
    6: "NOT_FOUND",
    7: "INSUFFICIENT_SIZE",
    8: "INSUFFICIENT_POWER",
    9: "DRIVER_NOT_LOADED",
    10: "TIMEOUT",
    11: "IRQ_ISSUE",
    12: "LIBRARY_NOT_FOUND",
    13: "FUNCTION_NOT_FOUND",
    14: "CORRUPTED_INFOROM",
    15: "GPU_IS_LOST",
    16: "RESET_REQUIRED",
    17: "OPERATING_SYSTEM",
    18: "LIB_RM_VERSION_MISMATCH",
    19: "IN_USE",
    20: "MEMORY",
    21: "NO_DATA",
    22: "VGPU_ECC_NOT_SUPPORTED",
    23: "INSUFFICIENT_RESOURCES",
    24: "FREQ_NOT_SUPPORTED",
    25: "ARGUMENT_VERSION_MISMATCH",
    26: "DEPRECATED",
    27: "NOT_READY",
    28: "GPU_NOT_FOUND",
    29: "INVALID_STATE",
    30: "RESET_TYPE_NOT_SUPPORTED",
    999: "UNKNOWN",
}
"""NVML's names of its return codes, nvmlReturn_t in nvml.h."""

SUCCESS = 0
UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
CORRUPTED_INFOROM = 14
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
IN_USE = 19
ARGUMENT_VERSION_MISMATCH = 25
DEPRECATED = 26
GPU_NOT_FOUND = 28
UNKNOWN = 999

BLANK = 0xFFFF_FFFF
"""NVML_VALUE_NOT_AVAILABLE as an unsigned int: the value that says that there is no value."""

ALL_LINKS = 0xFFFF_FFFF
"""scopeId of an NVLink field that sums all links (nvml.h: UINT_MAX)."""


class NvmlError(Exception):
    """An NVML call did not succeed: which one, and with what return code."""

    def __init__(self, code: int, call: str) -> None:
        super().__init__(f"{call}: {CODE_NAMES.get(code, f'code {code}')}")
        self.code = code
        self.call = call


@dataclass(frozen=True, slots=True)
class NvmlUnavailable:
    """There is no NVML to talk to, in a line that a person understands."""

    reason: str
    code: int


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Device memory in bytes; `reserved_bytes` is None where only version 1 of the call exists."""

    total_bytes: int
    free_bytes: int
    used_bytes: int
    reserved_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class FieldQuery:
    """One value of nvmlDeviceGetFieldValues: field id and scope."""

    field: int
    scope: int = 0


@dataclass(frozen=True, slots=True)
class FieldValue:
    """What the driver answered for one field; `value` only where `code` is SUCCESS."""

    code: int
    value: int | float | None = None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU; None where the driver does not tell, ids where it runs in a MIG device."""

    pid: int
    memory_bytes: int | None
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessUtilization:
    """What a process used of a GPU in one of the driver's sample periods, which ended `at_us`."""

    pid: int
    at_us: int
    sm_percent: int
    memory_percent: int
    encoder_percent: int
    decoder_percent: int


@dataclass(frozen=True, slots=True)
class SramErrors:
    """nvmlEccSramErrorStatus_t; uncorrected ones are those of parity and those of SEC-DED."""

    corrected_volatile: int
    uncorrected_volatile: int
    corrected_aggregate: int
    uncorrected_aggregate: int
    is_above_threshold: bool


@dataclass(frozen=True, slots=True)
class FabricInfo:
    """nvmlGpuFabricInfoV_t; `status` is a return code that means something once `state` is 3."""

    state: int
    status: int
    health_mask: int


class GpmSample(Protocol):
    """A look at the GPU's counters, which the driver keeps until `free`."""

    def take(self, gpu_instance: int | None = None) -> None:
        """Look now; at a MIG device's GPU instance if one is named."""
        ...

    def metrics_since(self, earlier: "GpmSample", ids: Sequence[int]) -> Sequence[FieldValue]:
        """Averages between two looks, one answer a metric, in order."""
        ...

    def free(self) -> None: ...


class MigDevice(Protocol):
    """A MIG device: a compute instance within a GPU instance."""

    uuid: str
    gpu_instance: int
    compute_instance: int

    def name(self) -> str: ...
    def memory_v2(self) -> MemoryInfo: ...


class FastDevice(Protocol):
    """What is read every second."""

    def memory_v2(self) -> MemoryInfo: ...
    def memory_v1(self) -> MemoryInfo: ...
    def utilization(self) -> tuple[int, int]:
        """Percent of time that kernels ran, percent of time that memory was accessed."""
        ...

    def encoder_utilization(self) -> int: ...
    def decoder_utilization(self) -> int: ...
    def power_usage_mw(self) -> int: ...
    def enforced_power_limit_mw(self) -> int: ...
    def total_energy_mj(self) -> int: ...
    def temperature_v(self) -> int: ...
    def temperature(self) -> int: ...
    def sm_clock_mhz(self) -> int: ...
    def memory_clock_mhz(self) -> int: ...
    def clocks_event_reasons(self) -> int: ...
    def clocks_throttle_reasons(self) -> int: ...
    def performance_state(self) -> int: ...


class DetailDevice(Protocol):
    """What is read every ten seconds."""

    def jpeg_utilization(self) -> int: ...
    def ofa_utilization(self) -> int: ...
    def graphics_clock_mhz(self) -> int: ...
    def video_clock_mhz(self) -> int: ...
    def fans(self) -> int: ...
    def fan_percent(self, fan: int) -> int: ...
    def margin_celsius(self) -> int: ...
    def pcie_generation(self) -> int: ...
    def pcie_width(self) -> int: ...
    def pcie_replays(self) -> int: ...
    def is_gpm_supported(self) -> bool: ...
    def gpm_sample(self) -> GpmSample:
        """A new sample, allocated and not yet taken."""
        ...


class LinkDevice(Protocol):
    """What is asked link by link."""

    def is_nvlink_active(self, link: int) -> bool: ...
    def nvlink_version(self, link: int) -> int:
        """nvmlNvlinkVersion_t, whose numbers are not the generations'."""
        ...

    def nvlink_remote_type(self, link: int) -> int: ...
    def nvlink_remote_bus_id(self, link: int) -> str: ...
    def nvlink_errors(self, link: int, counter: int) -> int: ...


class HealthDevice(Protocol):
    """What is read every minute."""

    def ecc_errors(self, fate: int, since: int) -> int:
        """`fate` 0 corrected, 1 uncorrected; `since` 0 the driver was loaded, 1 ever."""
        ...

    def memory_errors(self, place: int, fate: int, since: int) -> int:
        """As `ecc_errors`, at one nvmlMemoryLocation_t."""
        ...

    def sram_errors(self) -> SramErrors: ...
    def remapped_rows(self) -> tuple[int, int, int, int]:
        """Corrected, uncorrected, whether some are pending, whether some failed."""
        ...

    def remap_histogram(self) -> tuple[int, int, int, int, int]:
        """Banks with max, high, partial, low and no spare rows."""
        ...

    def retired_pages(self, cause: int) -> int: ...
    def are_retired_pages_pending(self) -> bool: ...
    def is_memory_unrepairable(self) -> bool: ...
    def validate_inforom(self) -> bool:
        """True, or NvmlError with CORRUPTED_INFOROM."""
        ...

    def fabric_info(self) -> FabricInfo: ...


class InventoryDevice(Protocol):
    """What a GPU is, and how it is set."""

    def name(self) -> str: ...
    def serial(self) -> str: ...
    def pci_bus_id(self) -> str:
        """As the kernel writes it: 0000:01:00.0."""
        ...

    def vbios_version(self) -> str: ...
    def part_number(self) -> str: ...
    def inforom_version(self) -> str: ...
    def architecture(self) -> int: ...
    def compute_capability(self) -> tuple[int, int]: ...
    def default_power_limit_mw(self) -> int: ...
    def power_limit_range_mw(self) -> tuple[int, int]: ...
    def slowdown_celsius(self) -> int: ...
    def shutdown_celsius(self) -> int: ...
    def gpu_max_celsius(self) -> int: ...
    def memory_max_celsius(self) -> int: ...
    def sm_clock_max_mhz(self) -> int: ...
    def memory_clock_max_mhz(self) -> int: ...
    def pcie_generation_max(self) -> int: ...
    def pcie_width_max(self) -> int: ...
    def cpu_affinity(self) -> Sequence[int]:
        """A bit for each CPU, in words of 64."""
        ...

    def common_ancestor(self, bus_id: str) -> int:
        """nvmlGpuTopologyLevel_t to the GPU with that bus id."""
        ...

    def ecc_modes(self) -> tuple[bool, bool]:
        """Whether ECC is switched on, now and after the next reboot."""
        ...

    def compute_mode(self) -> int: ...
    def is_gsp_enabled(self) -> bool: ...
    def gsp_version(self) -> str: ...
    def is_mig_enabled(self) -> bool: ...
    def is_persistent(self) -> bool: ...
    def mig_devices_max(self) -> int: ...
    def mig_device(self, index: int) -> MigDevice:
        """NOT_FOUND where none has that index."""
        ...


class ProcessDevice(Protocol):
    """Who uses a GPU."""

    def compute_processes_v3(self) -> Sequence[GpuProcess]: ...
    def compute_processes_v2(self) -> Sequence[GpuProcess]: ...
    def graphics_processes(self) -> Sequence[GpuProcess]: ...
    def mps_processes(self) -> Sequence[GpuProcess]: ...
    def process_utilization(self, since_us: int) -> Sequence[ProcessUtilization]:
        """Samples after `since_us`, the newest `at_us` of the call before (0: what the driver has);
        none where there is nothing new. Without the right `since_us` samples come again.
        """
        ...


class Device(
    FastDevice,
    DetailDevice,
    LinkDevice,
    HealthDevice,
    InventoryDevice,
    ProcessDevice,
    Protocol,
):
    """One GPU. Each method is the NVML call of nearly that name and raises NvmlError."""

    index: int
    uuid: str | None
    """None until it was opened once."""
    lock: threading.Lock
    """Held by whoever calls, so that a hung GPU can be told from outside."""
    called: str
    """Name of the NVML call that was made last."""

    def open(self) -> str:
        """Get (again) a handle, by UUID once that is known, and give the UUID."""
        ...

    def field_values(self, queries: Sequence[FieldQuery]) -> Sequence[FieldValue]:
        """One driver call; one answer a query, in order."""
        ...


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """nvmlEventData_t without its device."""

    type: int
    """One bit of nvmlEventType*."""
    data: int
    """Code of an Xid; 0 with other types."""
    gpu_instance: int | None = None
    """MIG GPU instance; None: the whole GPU."""


class EventSource(Protocol):
    """Events of one GPU, which the driver keeps until they are taken."""

    def drain(self) -> Sequence[GpuEvent]:
        """Those since the last call, oldest first, or the first hundreds of them. Does not wait."""
        ...

    def close(self) -> None:
        """Have no more kept."""
        ...


class Driver(Protocol):
    """The driver and its GPUs."""

    def driver_version(self) -> str: ...
    def cuda_version(self) -> str:
        """Newest CUDA that the driver supports: "13.1"."""
        ...

    def devices(self) -> Sequence[Device]:
        """One for each GPU that the driver counts, none of them opened."""
        ...

    def events_of(self, device: Device) -> "EventSource | None":
        """What NVML tells of an opened GPU from now on; None: nothing of what is asked for. Called
        with the device's lock held.
        """
        ...

    def has_ended(self) -> bool:
        """Whether no call since the last time this was asked has reached a GPU, so that the driver
        must be opened again.
        """
        ...

    def renew(self) -> NvmlUnavailable | None:
        """Close the driver and open it again, after which `devices` counts anew; devices of before
        go on by their UUIDs. Not None: why there is none now; with code IN_USE nothing was done,
        because a call has not returned. Blocks.
        """
        ...
