"""The NVIDIA driver as the probes see it: the few NVML calls they use, and nothing else of it.

`Driver` and `Device` are the port; `open_driver` gives the real one over nvidia-ml-py, the only
importer of which is this file. Values keep NVML's units (mW, mJ, KiB, ns), every failed call is an
`NvmlError` with NVML's return code, and nothing is decided here.

NVML calls block, now and then for ever: none may be made on an event loop. A device is opened
by its first user and not with the driver, so that a dead or hung GPU is the trouble of one probe.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pynvml

SUCCESS = 0
UNINITIALIZED = pynvml.NVML_ERROR_UNINITIALIZED
INVALID_ARGUMENT = pynvml.NVML_ERROR_INVALID_ARGUMENT
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
NO_PERMISSION = pynvml.NVML_ERROR_NO_PERMISSION
NOT_FOUND = pynvml.NVML_ERROR_NOT_FOUND
DRIVER_NOT_LOADED = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
TIMEOUT = pynvml.NVML_ERROR_TIMEOUT
LIBRARY_NOT_FOUND = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
FUNCTION_NOT_FOUND = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
GPU_IS_LOST = pynvml.NVML_ERROR_GPU_IS_LOST
RESET_REQUIRED = pynvml.NVML_ERROR_RESET_REQUIRED
LIB_RM_VERSION_MISMATCH = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
ARGUMENT_VERSION_MISMATCH = pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
DEPRECATED = pynvml.NVML_ERROR_DEPRECATED
GPU_NOT_FOUND = pynvml.NVML_ERROR_GPU_NOT_FOUND
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN

BLANK = 0xFFFF_FFFF
"""NVML_VALUE_NOT_AVAILABLE as an unsigned int: the value that says that there is no value."""

ALL_LINKS = 0xFFFF_FFFF
"""scopeId of an NVLink field that sums all links (nvml.h: UINT_MAX)."""

CODE_NAMES: dict[int, str] = {
    getattr(pynvml, name): name.removeprefix("NVML_ERROR_")
    for name in dir(pynvml)
    if name.startswith("NVML_ERROR_")
}
"""NVML's names of its return codes."""


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
    """A compute process on a GPU; memory is None where the driver does not tell."""

    pid: int
    memory_bytes: int | None


class Device(Protocol):
    """One GPU. Each method is the NVML call of nearly that name and raises NvmlError."""

    index: int
    uuid: str | None
    """None until it was opened once."""
    lock: threading.Lock
    """Held by whoever calls, so that a hung GPU can be told from outside."""

    def open(self) -> str:
        """Get (again) a handle, by UUID once that is known, and give the UUID."""
        ...

    def name(self) -> str: ...
    def serial(self) -> str: ...
    def pci_bus_id(self) -> str:
        """As the kernel writes it: 0000:01:00.0."""
        ...

    def vbios_version(self) -> str: ...
    def memory_v2(self) -> MemoryInfo: ...
    def memory_v1(self) -> MemoryInfo: ...
    def utilization(self) -> tuple[int, int]:
        """Percent of time that kernels ran, percent of time that memory was accessed."""
        ...

    def encoder_utilization(self) -> int: ...
    def decoder_utilization(self) -> int: ...
    def field_values(self, queries: Sequence[FieldQuery]) -> Sequence[FieldValue]:
        """One driver call; one answer a query, in order."""
        ...

    def power_usage_mw(self) -> int: ...
    def enforced_power_limit_mw(self) -> int: ...
    def default_power_limit_mw(self) -> int: ...
    def power_limit_range_mw(self) -> tuple[int, int]: ...
    def total_energy_mj(self) -> int: ...
    def temperature_v(self) -> int: ...
    def temperature(self) -> int: ...
    def slowdown_celsius(self) -> int: ...
    def shutdown_celsius(self) -> int: ...
    def sm_clock_mhz(self) -> int: ...
    def memory_clock_mhz(self) -> int: ...
    def sm_clock_max_mhz(self) -> int: ...
    def memory_clock_max_mhz(self) -> int: ...
    def clocks_event_reasons(self) -> int: ...
    def clocks_throttle_reasons(self) -> int: ...
    def performance_state(self) -> int: ...
    def pcie_generation_max(self) -> int: ...
    def pcie_width_max(self) -> int: ...
    def is_mig_enabled(self) -> bool: ...
    def is_persistent(self) -> bool: ...
    def compute_processes_v3(self) -> Sequence[GpuProcess]: ...
    def compute_processes_v2(self) -> Sequence[GpuProcess]: ...


class Driver(Protocol):
    """The driver and its GPUs."""

    def driver_version(self) -> str: ...
    def cuda_version(self) -> str:
        """Newest CUDA that the driver supports: "13.1"."""
        ...

    def devices(self) -> Sequence[Device]:
        """One for each GPU that the driver counts, none of them opened."""
        ...


_REASONS = {
    LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 not found: no NVIDIA driver on this host",
    DRIVER_NOT_LOADED: "the NVIDIA kernel module is not loaded: load it (modprobe nvidia) or "
    "see dmesg for why it did not load",
    LIB_RM_VERSION_MISMATCH: "the NVIDIA library and the loaded kernel module are of different "
    "versions: reboot, or reload the module, to finish the driver's upgrade",
    NO_PERMISSION: "no permission to open /dev/nvidiactl: run as a user who may use the GPUs",
    FUNCTION_NOT_FOUND: "the NVIDIA driver is too old: its libnvidia-ml.so.1 lacks nvmlInit_v2",
    UNKNOWN: "NVML reports an unknown error: in a container, its access to /dev/nvidia* was "
    "taken away (restart it); else see dmesg",
}


def open_driver() -> "NvmlDriver | NvmlUnavailable":
    """Load libnvidia-ml.so.1 and initialise it; this takes seconds where nothing keeps the driver
    loaded (persistence mode off). One dead GPU does not make it fail.
    """
    try:
        _call("nvmlInit")
    except NvmlError as error:
        reason = _REASONS.get(error.code, f"NVML cannot be initialised: {error}")
        return NvmlUnavailable(reason, error.code)
    return NvmlDriver()


class NvmlDriver:
    """The real driver."""

    def driver_version(self) -> str:
        return str(_call("nvmlSystemGetDriverVersion"))

    def cuda_version(self) -> str:
        version = int(_call("nvmlSystemGetCudaDriverVersion_v2"))
        return f"{version // 1000}.{version % 1000 // 10}"

    def devices(self) -> Sequence[Device]:
        return [NvmlDevice(index) for index in range(_call("nvmlDeviceGetCount"))]


class NvmlDevice:
    """A real GPU."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.lock = threading.Lock()
        self._handle: Any = None
        self.uuid: str | None = None

    def open(self) -> str:
        # An index may mean another GPU after one fell off the bus; a UUID never does.
        if self.uuid is None:
            self._handle = _call("nvmlDeviceGetHandleByIndex", self.index)
            self.uuid = str(_call("nvmlDeviceGetUUID", self._handle))
        else:
            self._handle = _call("nvmlDeviceGetHandleByUUID", self.uuid)
        return self.uuid

    def name(self) -> str:
        return str(self._ask("nvmlDeviceGetName"))

    def serial(self) -> str:
        return str(self._ask("nvmlDeviceGetSerial"))

    def pci_bus_id(self) -> str:
        pci = self._ask("nvmlDeviceGetPciInfo")
        return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"

    def vbios_version(self) -> str:
        return str(self._ask("nvmlDeviceGetVbiosVersion"))

    def memory_v2(self) -> MemoryInfo:
        info = self._ask("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2)
        return MemoryInfo(info.total, info.free, info.used, info.reserved)

    def memory_v1(self) -> MemoryInfo:
        info = self._ask("nvmlDeviceGetMemoryInfo")
        return MemoryInfo(info.total, info.free, info.used)

    def utilization(self) -> tuple[int, int]:
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        return rates.gpu, rates.memory

    def encoder_utilization(self) -> int:
        return int(self._ask("nvmlDeviceGetEncoderUtilization")[0])

    def decoder_utilization(self) -> int:
        return int(self._ask("nvmlDeviceGetDecoderUtilization")[0])

    def field_values(self, queries: Sequence[FieldQuery]) -> Sequence[FieldValue]:
        asked = [(query.field, query.scope) for query in queries]
        return [decode(raw) for raw in self._ask("nvmlDeviceGetFieldValues", asked)]

    def power_usage_mw(self) -> int:
        return int(self._ask("nvmlDeviceGetPowerUsage"))

    def enforced_power_limit_mw(self) -> int:
        return int(self._ask("nvmlDeviceGetEnforcedPowerLimit"))

    def default_power_limit_mw(self) -> int:
        return int(self._ask("nvmlDeviceGetPowerManagementDefaultLimit"))

    def power_limit_range_mw(self) -> tuple[int, int]:
        least, most = self._ask("nvmlDeviceGetPowerManagementLimitConstraints")
        return least, most

    def total_energy_mj(self) -> int:
        return int(self._ask("nvmlDeviceGetTotalEnergyConsumption"))

    def temperature_v(self) -> int:
        return int(self._ask("nvmlDeviceGetTemperatureV", pynvml.NVML_TEMPERATURE_GPU))

    def temperature(self) -> int:
        return int(self._ask("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU))

    def slowdown_celsius(self) -> int:
        which = pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        return int(self._ask("nvmlDeviceGetTemperatureThreshold", which))

    def shutdown_celsius(self) -> int:
        which = pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN
        return int(self._ask("nvmlDeviceGetTemperatureThreshold", which))

    def sm_clock_mhz(self) -> int:
        return int(self._ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM))

    def memory_clock_mhz(self) -> int:
        return int(self._ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM))

    def sm_clock_max_mhz(self) -> int:
        return int(self._ask("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM))

    def memory_clock_max_mhz(self) -> int:
        return int(self._ask("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM))

    def clocks_event_reasons(self) -> int:
        return int(self._ask("nvmlDeviceGetCurrentClocksEventReasons"))

    def clocks_throttle_reasons(self) -> int:
        return int(self._ask("nvmlDeviceGetCurrentClocksThrottleReasons"))

    def performance_state(self) -> int:
        return int(self._ask("nvmlDeviceGetPerformanceState"))

    def pcie_generation_max(self) -> int:
        return int(self._ask("nvmlDeviceGetMaxPcieLinkGeneration"))

    def pcie_width_max(self) -> int:
        return int(self._ask("nvmlDeviceGetMaxPcieLinkWidth"))

    def is_mig_enabled(self) -> bool:
        return bool(self._ask("nvmlDeviceGetMigMode")[0] == pynvml.NVML_DEVICE_MIG_ENABLE)

    def is_persistent(self) -> bool:
        return bool(self._ask("nvmlDeviceGetPersistenceMode") == pynvml.NVML_FEATURE_ENABLED)

    def compute_processes_v3(self) -> Sequence[GpuProcess]:
        return _processes(self._ask("nvmlDeviceGetComputeRunningProcesses_v3"))

    def compute_processes_v2(self) -> Sequence[GpuProcess]:
        return _processes(self._ask("nvmlDeviceGetComputeRunningProcesses_v2"))

    def _ask(self, call: str, *arguments: Any) -> Any:
        return _call(call, self._handle, *arguments)


def _call(call: str, *arguments: Any) -> Any:
    """Call NVML. What the library or the binding lacks is FUNCTION_NOT_FOUND, like the driver's
    own answer; bytes that are no text come from a board whose EEPROM is broken: UNKNOWN.
    """
    try:
        return getattr(pynvml, call)(*arguments)
    except pynvml.NVMLError as error:
        raise NvmlError(error.value, call) from error
    except AttributeError as error:
        raise NvmlError(FUNCTION_NOT_FOUND, call) from error
    except UnicodeDecodeError as error:
        raise NvmlError(UNKNOWN, call) from error


def _processes(listed: Sequence[Any]) -> Sequence[GpuProcess]:
    # The binding has already turned NVML_VALUE_NOT_AVAILABLE into None.
    return [GpuProcess(process.pid, process.usedGpuMemory) for process in listed]


_DOUBLE = pynvml.NVML_VALUE_TYPE_DOUBLE
_MEMBERS = {
    _DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}
_BLANKS = {
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: BLANK,
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: 0xFFFF_FFFF_FFFF_FFFF,
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: 0xFFFF_FFFF_FFFF_FFFF,
}


def decode(raw: Any) -> FieldValue:
    """The answer in an nvmlFieldValue_t: its own return code, and the union's right member."""
    if raw.nvmlReturn != SUCCESS:
        return FieldValue(raw.nvmlReturn)
    member = _MEMBERS.get(raw.valueType)
    if member is None:
        return FieldValue(UNKNOWN)
    value: int | float = getattr(raw.value, member)
    if raw.valueType == _DOUBLE and value == 0.0 and raw.timestamp == 0:
        # A driver that skips a field that it does not know leaves the zeroes that the binding
        # allocated, which read as success, type double, 0.0: no answer at all.
        return FieldValue(NOT_SUPPORTED)
    if value == _BLANKS.get(raw.valueType):
        return FieldValue(NOT_SUPPORTED)
    return FieldValue(SUCCESS, value)
