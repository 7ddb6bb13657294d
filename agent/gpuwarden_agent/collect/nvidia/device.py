"""Opens the NVIDIA driver and its GPUs, and makes the calls of `metrics.py` through nvidia-ml-py.

NVML calls block, sometimes for ever: never make one on an event loop. A device is opened by its first
user and not with the driver, so that a dead or hung GPU affects one probe only.
"""

import threading
from collections.abc import Sequence
from ctypes import byref, c_uint, c_ulonglong
from typing import Any

import pynvml

from gpuwarden_agent.collect.nvidia.event_source import nvml_events
from gpuwarden_agent.collect.nvidia.metrics import ROWS
from gpuwarden_agent.collect.nvidia.nvml import (
    BLANK,
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    IN_USE,
    LIB_RM_VERSION_MISMATCH,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    SUCCESS,
    UNINITIALIZED,
    UNKNOWN,
    Call,
    DriverSample,
    EventSource,
    FieldQuery,
    FieldValue,
    GpmSample,
    MemoryInfo,
    MigDevice,
    NvmlCalls,
    NvmlError,
    NvmlUnavailable,
)
from gpuwarden_agent.collect.nvidia.session import (
    NO_HANDLE,
    NVML,
    NvmlPointer,
    call,
    call_library,
    call_plain,
    hold,
)

SAMPLES_MAX = 256
"""Room for samples of one kind; drivers keep about a hundred."""


class NvmlDevice:
    """A real GPU."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.lock = threading.Lock()
        self.called = ""
        self._handle = NO_HANDLE
        self._room: Any = None
        """For samples; kept, as it is filled every second."""
        self.uuid: str | None = None

    def open(self) -> str:
        # An index may mean another GPU after one fell off the bus; a UUID never does.
        if self.uuid is None:
            self._handle = hold("nvmlDeviceGetHandleByIndex", self.index)
            self.uuid = str(call("nvmlDeviceGetUUID", self._handle))
        else:
            self._handle = hold("nvmlDeviceGetHandleByUUID", self.uuid)
        return self.uuid

    @property
    def handle(self) -> NvmlPointer:
        """NVML's handle, fetched again after the library was opened again."""
        if self._handle.generation != NVML.generation:
            self.open()
        return self._handle

    def field_values(self, queries: Sequence[FieldQuery]) -> Sequence[FieldValue]:
        asked = [(query.field, query.scope) for query in queries]
        return [decode(raw) for raw in self.ask(ROWS["field_values"], asked)]

    def ask(self, row: Call, *arguments: Any) -> Any:
        function = self.called = row.function
        handle = self._handle if self._handle.generation == NVML.generation else self.handle
        if row.prepare is not None:
            answer = call(function, handle, *row.prepare(*arguments), *row.arguments)
        elif row.out:
            out = [kind() for kind in row.out]
            call_plain(function, handle.generation, (handle.pointer, *map(byref, out)))
            NVML.note(SUCCESS)
            return row.plain(*out)
        else:
            asked = (handle.pointer, *arguments, *row.arguments)
            answer = call_plain(function, handle.generation, asked)
        NVML.note(SUCCESS)
        return row.plain(answer)

    def samples(self, kind: int, since_us: int) -> Sequence[DriverSample]:
        self.called = "nvmlDeviceGetSamples"
        handle = self.handle
        if self._room is None:
            self._room = (pynvml.c_nvmlSample_t * SAMPLES_MAX)()
        value_type, count = c_uint(), c_uint(SAMPLES_MAX)
        call_library(
            self.called,
            handle.generation,
            handle.pointer,
            c_uint(kind),
            c_ulonglong(since_us),
            byref(value_type),
            byref(count),
            self._room,
        )
        member = _MEMBERS.get(value_type.value)
        if member is None:
            raise NvmlError(UNKNOWN, self.called)
        return [
            DriverSample(each.timeStamp, getattr(each.sampleValue, member))
            for each in self._room[: min(count.value, SAMPLES_MAX)]
        ]

    def gpm_sample(self) -> GpmSample:
        return _NvmlGpmSample(self)

    def mig_device(self, index: int) -> MigDevice:
        handle = self.handle
        mig = self.ask(ROWS["mig_device"], index)
        return _NvmlMigDevice(self, NvmlPointer(mig, handle.generation))


class _NvmlMigDevice:
    def __init__(self, device: NvmlDevice, handle: NvmlPointer) -> None:
        self._device = device
        self._handle = handle
        self.uuid = str(call("nvmlDeviceGetUUID", handle))
        self.gpu_instance = int(call("nvmlDeviceGetGpuInstanceId", handle))
        self.compute_instance = int(call("nvmlDeviceGetComputeInstanceId", handle))

    def name(self) -> str:
        return str(call("nvmlDeviceGetName", self._handle))

    def memory_v2(self) -> MemoryInfo:
        self._device.called = "nvmlDeviceGetMemoryInfo"
        info = call(self._device.called, self._handle, pynvml.nvmlMemory_v2)
        return MemoryInfo(info.total, info.free, info.used, info.reserved)


class _NvmlGpmSample:
    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._handle = device.handle
        device.called = "nvmlGpmSampleAlloc"
        self._sample = hold(device.called)

    def take(self, gpu_instance: int | None = None) -> None:
        instance = () if gpu_instance is None else (gpu_instance,)
        self._device.called = "nvmlGpmMigSampleGet" if instance else "nvmlGpmSampleGet"
        call(self._device.called, self._handle, *instance, self._sample)

    def metrics_since(self, earlier: GpmSample, ids: Sequence[int]) -> Sequence[FieldValue]:
        assert isinstance(earlier, _NvmlGpmSample)
        asked = pynvml.c_nvmlGpmMetricsGet_t()
        asked.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(ids)
        if earlier._sample.generation != self._sample.generation:
            raise NvmlError(UNINITIALIZED, "nvmlGpmMetricsGet")
        asked.sample1, asked.sample2 = earlier._sample.pointer, self._sample.pointer
        for metric, metric_id in zip(asked.metrics, ids, strict=False):
            metric.metricId = metric_id
        self._device.called = "nvmlGpmMetricsGet"
        call(self._device.called, asked, of=self._sample)
        return [
            FieldValue(SUCCESS, metric.value)
            if metric.nvmlReturn == SUCCESS
            else FieldValue(metric.nvmlReturn)
            for metric in asked.metrics[: len(ids)]
        ]

    def free(self) -> None:
        if self._sample.generation == NVML.generation:
            call("nvmlGpmSampleFree", self._sample)


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
    """The answer in an nvmlFieldValue_t: its return code, and the union member of its type."""
    # Attributes of the binding's structures are slow: read each once.
    code, kind = raw.nvmlReturn, raw.valueType
    if code != SUCCESS:
        return FieldValue(code)
    member = _MEMBERS.get(kind)
    if member is None:
        return FieldValue(UNKNOWN)
    value: int | float = getattr(raw.value, member)
    if kind == _DOUBLE and value == 0.0 and raw.timestamp == 0:
        # A driver skips a field that it does not know. The zeroes that the binding allocated then
        # look like success, type double, 0.0.
        return FieldValue(NOT_SUPPORTED)
    if value == _BLANKS.get(kind):
        return FieldValue(NOT_SUPPORTED)
    return FieldValue(SUCCESS, value)


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
    """Load libnvidia-ml.so.1 and initialise it, which takes seconds without persistence mode. It does not
    fail because of one dead GPU.
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
        return str(call("nvmlSystemGetDriverVersion"))

    def cuda_version(self) -> str:
        version = int(call("nvmlSystemGetCudaDriverVersion_v2"))
        return f"{version // 1000}.{version % 1000 // 10}"

    def devices(self) -> Sequence[NvmlCalls]:
        return [NvmlDevice(index) for index in range(call("nvmlDeviceGetCount"))]

    def events_of(self, device: NvmlCalls) -> EventSource | None:
        assert isinstance(device, NvmlDevice)
        return nvml_events(device.handle)

    def has_ended(self) -> bool:
        return NVML.take_tally().has_ended

    def renew(self) -> NvmlUnavailable | None:
        return _renewed()
