"""Defines NVML's return codes, errors and answers, and the interface of a driver and its GPUs.

Values keep NVML's units (mW, mJ, KiB, ns). Every failed call is an `NvmlError` with NVML's return
code. `device.py` implements the interface with nvidia-ml-py, the tests with fake drivers.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from gpuwarden_agent.probe import Value

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
"""NVML_VALUE_NOT_AVAILABLE as an unsigned int: there is no value."""

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
    """NVML cannot be used; the reason is one line for people."""

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
class Call:
    """A reading by an NVML function of its own."""

    columns: tuple[str, ...]
    """Empty: a call that other readings depend on."""
    function: str
    arguments: tuple[Any, ...] = ()
    over: int = 1
    """What the driver's unit is divided by."""
    reading: str = ""
    """Name in reports; calls of the same name are timed together."""
    needs: str = ""
    """Condition that the GPU must fulfil; the reader knows which hold."""
    part: tuple[int, ...] = ()
    """Arguments that name a part of the GPU; support is tracked for each part."""
    plain: Callable[..., Any] = int
    value: Callable[[Any], Any] | None = None
    """For several columns: a sequence of values, or None for no value."""
    out: tuple[Callable[[], Any], ...] = ()
    """Structures that the function fills; passed to `plain`."""
    prepare: Callable[..., tuple[Any, ...]] | None = None
    """Converts the given arguments into those of the function."""
    answers: Mapping[int, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Return codes that are answers, and their values."""

    def values(self, answer: Any) -> Sequence[Value]:
        """A value for each column."""
        if self.value is not None:
            answer = self.value(answer)
        elif self.over != 1:
            answer = None if answer == BLANK else answer / self.over
        if len(self.columns) == 1:
            return (answer,)
        return () if answer is None else answer


@dataclass(frozen=True, slots=True)
class Field:
    """A reading by a field id of nvmlDeviceGetFieldValues, scaled by `times / over`, or by `decoded` if
    the conversion is not a factor.
    """

    column: str
    id: int
    times: int = 1
    over: int = 1
    scope: int = 0
    decoded: Callable[[int], Value] | None = None
    needs: str = ""

    def value(self, raw: float) -> Value:
        """The value in the column's unit; None if the number is not valid."""
        if self.decoded is not None:
            return self.decoded(raw) if isinstance(raw, int) else None
        scaled = raw * self.times
        # Whole numbers stay whole: a float would round counters above 2**53.
        return scaled if self.over == 1 else scaled / self.over

    @property
    def query(self) -> FieldQuery:
        """The query for the driver."""
        return FieldQuery(self.id, self.scope)


@dataclass(frozen=True, slots=True)
class FieldValue:
    """What the driver answered for one field; `value` only where `code` is SUCCESS."""

    code: int
    value: int | float | None = None


@dataclass(frozen=True, slots=True)
class DriverSample:
    """A value that the driver sampled on its own at `at_us`, microseconds since 1970."""

    at_us: int
    value: float


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU; None if the driver does not report it. The ids are those of a MIG device."""

    pid: int
    memory_bytes: int | None
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class ProcessUtilization:
    """Use of a GPU by a process in one sample period of the driver, which ended at `at_us`."""

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
    cluster_uuid: bytes = bytes(16)
    """All zeroes: a fabric of this node alone."""
    clique: int = 0


@dataclass(frozen=True, slots=True)
class PlatformInfo:
    """nvmlPlatformInfo_t: where the GPU is in its rack."""

    chassis_serial: bytes
    slot: int
    tray: int
    module_id: int


class GpmSample(Protocol):
    """A snapshot of the GPU's counters, which the driver keeps until `free`."""

    def take(self, gpu_instance: int | None = None) -> None:
        """Take the snapshot now, of the whole GPU or of a MIG GPU instance."""
        ...

    def metrics_since(self, earlier: "GpmSample", ids: Sequence[int]) -> Sequence[FieldValue]:
        """Averages between two snapshots, one answer for each metric, in order."""
        ...

    def free(self) -> None: ...


class MigDevice(Protocol):
    """A MIG device: a compute instance within a GPU instance."""

    uuid: str
    gpu_instance: int
    compute_instance: int

    def name(self) -> str: ...
    def memory_v2(self) -> MemoryInfo: ...


class NvmlCalls(Protocol):
    """One GPU. Every method raises NvmlError; the rows that `ask` takes are in `metrics.py`."""

    index: int
    uuid: str | None
    """None until it was opened once."""
    lock: threading.Lock
    """Held during a call, so that others can detect a hung GPU."""
    called: str
    """Name of the NVML call that was made last."""

    def open(self) -> str:
        """Get a handle (again), by UUID once it is known; returns the UUID."""
        ...

    def ask(self, call: Call, *arguments: Any) -> Any:
        """One driver call; `arguments` come before those of the row."""
        ...

    def field_values(self, queries: Sequence[FieldQuery]) -> Sequence[FieldValue]:
        """One driver call; one answer a query, in order."""
        ...

    def samples(self, kind: int, since_us: int) -> Sequence[DriverSample]:
        """What the driver sampled after `since_us` and still keeps, oldest first. `kind`: an
        nvmlSamplingType_t of `metrics.py`. NOT_FOUND where there is none.
        """
        ...

    def gpm_sample(self) -> GpmSample:
        """A new sample, allocated and not yet taken."""
        ...

    def mig_device(self, index: int) -> MigDevice:
        """NOT_FOUND where none has that index."""
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
    """Events of one GPU, which the driver queues."""

    def drain(self) -> Sequence[GpuEvent]:
        """Events since the last call, oldest first, at most some hundreds. Does not wait."""
        ...

    def close(self) -> None:
        """Stop the driver from queueing events."""
        ...


class Driver(Protocol):
    """The driver and its GPUs."""

    def driver_version(self) -> str: ...
    def cuda_version(self) -> str:
        """Newest CUDA that the driver supports: "13.1"."""
        ...

    def devices(self) -> Sequence[NvmlCalls]:
        """One for each GPU that the driver counts, none of them opened."""
        ...

    def events_of(self, device: NvmlCalls) -> "EventSource | None":
        """Register for events of an opened GPU; None: it supports none of them. Called with the
        device's lock held.
        """
        ...

    def has_ended(self) -> bool:
        """Whether no call has reached a GPU since the last call of this method, so that the driver
        must be opened again.
        """
        ...

    def renew(self) -> NvmlUnavailable | None:
        """Close the driver and open it again; `devices` then counts again, and earlier devices continue
        by their UUIDs. Returns why there is no driver now; with code IN_USE nothing was done, because
        a call has not returned. Blocks.
        """
        ...
