"""The NVIDIA driver: loads its library, and opens what the probes see of it.

What a driver and its GPUs are to the probes is in `nvml_port.py`, each call of a GPU in
`nvml_device.py`; the names of both that probes use are here too, so that they import one module.

NVML calls block, now and then for ever: none may be made on an event loop. A device is opened
by its first user and not with the driver, so that a dead or hung GPU is the trouble of one probe.
"""

from collections.abc import Sequence

from gpuwarden_agent.collect.nvidia.event_source import nvml_events
from gpuwarden_agent.collect.nvidia.nvml_call import call as _call
from gpuwarden_agent.collect.nvidia.nvml_device import NvmlDevice, decode
from gpuwarden_agent.collect.nvidia.nvml_port import (
    ALL_LINKS,
    ARGUMENT_VERSION_MISMATCH,
    BLANK,
    CODE_NAMES,
    CORRUPTED_INFOROM,
    DEPRECATED,
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    GPU_NOT_FOUND,
    IN_USE,
    INVALID_ARGUMENT,
    LIB_RM_VERSION_MISMATCH,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    SUCCESS,
    TIMEOUT,
    UNINITIALIZED,
    UNKNOWN,
    Device,
    Driver,
    EventSource,
    FabricInfo,
    FieldQuery,
    FieldValue,
    GpmSample,
    GpuEvent,
    GpuProcess,
    MemoryInfo,
    MigDevice,
    NvmlError,
    NvmlUnavailable,
    ProcessUtilization,
    SramErrors,
)
from gpuwarden_agent.collect.nvidia.session import NVML

__all__ = [
    "ALL_LINKS",
    "ARGUMENT_VERSION_MISMATCH",
    "BLANK",
    "CODE_NAMES",
    "CORRUPTED_INFOROM",
    "DEPRECATED",
    "DRIVER_NOT_LOADED",
    "FUNCTION_NOT_FOUND",
    "GPU_IS_LOST",
    "GPU_NOT_FOUND",
    "INVALID_ARGUMENT",
    "IN_USE",
    "LIBRARY_NOT_FOUND",
    "LIB_RM_VERSION_MISMATCH",
    "NOT_FOUND",
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "RESET_REQUIRED",
    "SUCCESS",
    "TIMEOUT",
    "UNINITIALIZED",
    "UNKNOWN",
    "Device",
    "Driver",
    "EventSource",
    "FabricInfo",
    "FieldQuery",
    "FieldValue",
    "GpmSample",
    "GpuEvent",
    "GpuProcess",
    "MemoryInfo",
    "MigDevice",
    "NvmlDriver",
    "NvmlError",
    "NvmlUnavailable",
    "ProcessUtilization",
    "SramErrors",
    "decode",
    "open_driver",
]

_REASONS = {
    LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 not found: no NVIDIA driver on this host",
    DRIVER_NOT_LOADED: "the NVIDIA kernel module is not loaded: load it (modprobe nvidia) or "
    "see dmesg for why it did not load",
    LIB_RM_VERSION_MISMATCH: "the NVIDIA library and the loaded kernel module are of different "
    "versions: reboot, or reload the module, to finish the driver's upgrade",
    NO_PERMISSION: "no permission to open /dev/nvidiactl: run as a user who may use the GPUs",
    FUNCTION_NOT_FOUND: "the NVIDIA driver is too old: its libnvidia-ml.so.1 lacks nvmlInit_v2",
    IN_USE: "a call of it has not returned; restart the agent, and reboot if that does not help",
    UNKNOWN: "NVML reports an unknown error: in a container, its access to /dev/nvidia* was "
    "taken away (restart it); else see dmesg",
}


def open_driver() -> "NvmlDriver | NvmlUnavailable":
    """Load libnvidia-ml.so.1 and initialise it; this takes seconds where nothing keeps the driver
    loaded (persistence mode off). One dead GPU does not make it fail.
    """
    return _renewed() or NvmlDriver()


def _renewed() -> NvmlUnavailable | None:
    try:
        NVML.renew()
    except NvmlError as error:
        reason = _REASONS.get(error.code, f"NVML cannot be initialised: {error}")
        return NvmlUnavailable(reason, error.code)
    return None


class NvmlDriver:
    """The real driver."""

    def driver_version(self) -> str:
        return str(_call("nvmlSystemGetDriverVersion"))

    def cuda_version(self) -> str:
        version = int(_call("nvmlSystemGetCudaDriverVersion_v2"))
        return f"{version // 1000}.{version % 1000 // 10}"

    def devices(self) -> Sequence[Device]:
        return [NvmlDevice(index) for index in range(_call("nvmlDeviceGetCount"))]

    def events_of(self, device: Device) -> EventSource | None:
        assert isinstance(device, NvmlDevice)
        return nvml_events(device)

    def has_ended(self) -> bool:
        return NVML.take_tally().has_ended

    def renew(self) -> NvmlUnavailable | None:
        return _renewed()
