"""One GPU through nvidia-ml-py: each method makes one NVML call and gives its answer plain types."""

import threading
from collections.abc import Sequence
from ctypes import byref, c_uint
from typing import Any

import pynvml

from gpuwarden_agent.collect.nvidia.nvml_call import NO_HANDLE, Held, call, hold
from gpuwarden_agent.collect.nvidia.nvml_port import (
    BLANK,
    NOT_FOUND,
    NOT_SUPPORTED,
    SUCCESS,
    UNINITIALIZED,
    UNKNOWN,
    FabricInfo,
    FieldQuery,
    FieldValue,
    GpmSample,
    GpuProcess,
    MemoryInfo,
    MigDevice,
    NvmlError,
    ProcessUtilization,
    SramErrors,
)
from gpuwarden_agent.collect.nvidia.session import NVML

AFFINITY_WORDS = 32
"""Room for the CPUs of nvmlDeviceGetCpuAffinity: 2048 of them."""


class NvmlDevice:
    """A real GPU."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.lock = threading.Lock()
        self.called = ""
        self._handle = NO_HANDLE
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
    def handle(self) -> Held:
        """NVML's handle, gotten again when the library was opened anew."""
        if self._handle.generation != NVML.generation:
            self.open()
        return self._handle

    def field_values(self, queries: Sequence[FieldQuery]) -> Sequence[FieldValue]:
        asked = [(query.field, query.scope) for query in queries]
        return [decode(raw) for raw in self._ask("nvmlDeviceGetFieldValues", asked)]

    # Every second.

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

    def power_usage_mw(self) -> int:
        return int(self._ask("nvmlDeviceGetPowerUsage"))

    def enforced_power_limit_mw(self) -> int:
        return int(self._ask("nvmlDeviceGetEnforcedPowerLimit"))

    def total_energy_mj(self) -> int:
        return int(self._ask("nvmlDeviceGetTotalEnergyConsumption"))

    def temperature_v(self) -> int:
        return int(self._ask("nvmlDeviceGetTemperatureV", pynvml.NVML_TEMPERATURE_GPU))

    def temperature(self) -> int:
        return int(self._ask("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU))

    def sm_clock_mhz(self) -> int:
        return int(self._ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM))

    def memory_clock_mhz(self) -> int:
        return int(self._ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM))

    def clocks_event_reasons(self) -> int:
        return int(self._ask("nvmlDeviceGetCurrentClocksEventReasons"))

    def clocks_throttle_reasons(self) -> int:
        return int(self._ask("nvmlDeviceGetCurrentClocksThrottleReasons"))

    def performance_state(self) -> int:
        return int(self._ask("nvmlDeviceGetPerformanceState"))

    # Every ten seconds.

    def jpeg_utilization(self) -> int:
        return int(self._ask("nvmlDeviceGetJpgUtilization")[0])

    def ofa_utilization(self) -> int:
        return int(self._ask("nvmlDeviceGetOfaUtilization")[0])

    def graphics_clock_mhz(self) -> int:
        return int(self._ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_GRAPHICS))

    def video_clock_mhz(self) -> int:
        return int(self._ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_VIDEO))

    def fans(self) -> int:
        return int(self._ask("nvmlDeviceGetNumFans"))

    def fan_percent(self, fan: int) -> int:
        return int(self._ask("nvmlDeviceGetFanSpeed_v2", fan))

    def margin_celsius(self) -> int:
        return int(self._ask("nvmlDeviceGetMarginTemperature"))

    def pcie_generation(self) -> int:
        return int(self._ask("nvmlDeviceGetCurrPcieLinkGeneration"))

    def pcie_width(self) -> int:
        return int(self._ask("nvmlDeviceGetCurrPcieLinkWidth"))

    def pcie_replays(self) -> int:
        return int(self._ask("nvmlDeviceGetPcieReplayCounter"))

    def is_gpm_supported(self) -> bool:
        return bool(self._ask("nvmlGpmQueryDeviceSupport").isSupportedDevice)

    def gpm_sample(self) -> GpmSample:
        return _NvmlGpmSample(self)

    # Link by link.

    def is_nvlink_active(self, link: int) -> bool:
        return bool(self._ask("nvmlDeviceGetNvLinkState", link))

    def nvlink_version(self, link: int) -> int:
        return int(self._ask("nvmlDeviceGetNvLinkVersion", link))

    def nvlink_remote_type(self, link: int) -> int:
        return int(self._ask("nvmlDeviceGetNvLinkRemoteDeviceType", link))

    def nvlink_remote_bus_id(self, link: int) -> str:
        return _bus_id(self._ask("nvmlDeviceGetNvLinkRemotePciInfo", link))

    def nvlink_errors(self, link: int, counter: int) -> int:
        return int(self._ask("nvmlDeviceGetNvLinkErrorCounter", link, counter))

    # Every minute.

    def ecc_errors(self, fate: int, since: int) -> int:
        return int(self._ask("nvmlDeviceGetTotalEccErrors", fate, since))

    def memory_errors(self, place: int, fate: int, since: int) -> int:
        return int(self._ask("nvmlDeviceGetMemoryErrorCounter", fate, since, place))

    def sram_errors(self) -> SramErrors:
        status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
        self._ask("nvmlDeviceGetSramEccErrorStatus", byref(status))
        return SramErrors(
            status.volatileCor,
            status.volatileUncParity + status.volatileUncSecDed,
            status.aggregateCor,
            status.aggregateUncParity + status.aggregateUncSecDed,
            bool(status.bThresholdExceeded),
        )

    def remapped_rows(self) -> tuple[int, int, int, int]:
        corrected, uncorrected, is_pending, has_failed = self._ask("nvmlDeviceGetRemappedRows")
        return corrected, uncorrected, is_pending, has_failed

    def remap_histogram(self) -> tuple[int, int, int, int, int]:
        banks = self._ask("nvmlDeviceGetRowRemapperHistogram")
        return banks.max, banks.high, banks.partial, banks.low, banks.none

    def retired_pages(self, cause: int) -> int:
        return len(self._ask("nvmlDeviceGetRetiredPages", cause))

    def are_retired_pages_pending(self) -> bool:
        return bool(self._ask("nvmlDeviceGetRetiredPagesPendingStatus"))

    def is_memory_unrepairable(self) -> bool:
        return bool(self._ask("nvmlDeviceGetUnrepairableMemoryFlag_v1"))

    def validate_inforom(self) -> bool:
        self._ask("nvmlDeviceValidateInforom")
        return True

    def fabric_info(self) -> FabricInfo:
        info = pynvml.c_nvmlGpuFabricInfoV_t()
        self._ask("nvmlDeviceGetGpuFabricInfoV", byref(info))
        return FabricInfo(info.state, info.status, info.healthMask)

    # What it is, and how it is set.

    def name(self) -> str:
        return str(self._ask("nvmlDeviceGetName"))

    def serial(self) -> str:
        return str(self._ask("nvmlDeviceGetSerial"))

    def pci_bus_id(self) -> str:
        return _bus_id(self._ask("nvmlDeviceGetPciInfo"))

    def vbios_version(self) -> str:
        return str(self._ask("nvmlDeviceGetVbiosVersion"))

    def part_number(self) -> str:
        return str(self._ask("nvmlDeviceGetBoardPartNumber"))

    def inforom_version(self) -> str:
        return str(self._ask("nvmlDeviceGetInforomImageVersion"))

    def architecture(self) -> int:
        return int(self._ask("nvmlDeviceGetArchitecture"))

    def compute_capability(self) -> tuple[int, int]:
        major, minor = self._ask("nvmlDeviceGetCudaComputeCapability")
        return major, minor

    def default_power_limit_mw(self) -> int:
        return int(self._ask("nvmlDeviceGetPowerManagementDefaultLimit"))

    def power_limit_range_mw(self) -> tuple[int, int]:
        least, most = self._ask("nvmlDeviceGetPowerManagementLimitConstraints")
        return least, most

    def slowdown_celsius(self) -> int:
        return self._threshold(pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)

    def shutdown_celsius(self) -> int:
        return self._threshold(pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN)

    def gpu_max_celsius(self) -> int:
        return self._threshold(pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX)

    def memory_max_celsius(self) -> int:
        return self._threshold(pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX)

    def sm_clock_max_mhz(self) -> int:
        return int(self._ask("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM))

    def memory_clock_max_mhz(self) -> int:
        return int(self._ask("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM))

    def pcie_generation_max(self) -> int:
        return int(self._ask("nvmlDeviceGetMaxPcieLinkGeneration"))

    def pcie_width_max(self) -> int:
        return int(self._ask("nvmlDeviceGetMaxPcieLinkWidth"))

    def cpu_affinity(self) -> Sequence[int]:
        return list(self._ask("nvmlDeviceGetCpuAffinity", AFFINITY_WORDS))

    def common_ancestor(self, bus_id: str) -> int:
        # By bus id: looking for a UUID may wake up, or hang in, every other GPU on the way.
        other = hold("nvmlDeviceGetHandleByPciBusId", bus_id.encode())
        return int(self._ask("nvmlDeviceGetTopologyCommonAncestor", other))

    def ecc_modes(self) -> tuple[bool, bool]:
        now, pending = self._ask("nvmlDeviceGetEccMode")
        return bool(now), bool(pending)

    def compute_mode(self) -> int:
        return int(self._ask("nvmlDeviceGetComputeMode"))

    def is_gsp_enabled(self) -> bool:
        # Without arguments of ours, the binding's threads share one place for the answer.
        is_enabled, default = c_uint(), c_uint()
        self._ask("nvmlDeviceGetGspFirmwareMode", byref(is_enabled), byref(default))
        return bool(is_enabled.value)

    def gsp_version(self) -> str:
        version = self._ask("nvmlDeviceGetGspFirmwareVersion")
        return version.decode() if isinstance(version, bytes) else str(version)

    def is_mig_enabled(self) -> bool:
        return bool(self._ask("nvmlDeviceGetMigMode")[0] == pynvml.NVML_DEVICE_MIG_ENABLE)

    def is_persistent(self) -> bool:
        return bool(self._ask("nvmlDeviceGetPersistenceMode") == pynvml.NVML_FEATURE_ENABLED)

    def mig_devices_max(self) -> int:
        return int(self._ask("nvmlDeviceGetMaxMigDeviceCount"))

    def mig_device(self, index: int) -> MigDevice:
        handle = self.handle
        mig = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", index)
        return _NvmlMigDevice(self, Held(mig, handle.generation))

    # Who uses it.

    def compute_processes_v3(self) -> Sequence[GpuProcess]:
        return _processes(self._ask("nvmlDeviceGetComputeRunningProcesses_v3"))

    def compute_processes_v2(self) -> Sequence[GpuProcess]:
        return _processes(self._ask("nvmlDeviceGetComputeRunningProcesses_v2"))

    def graphics_processes(self) -> Sequence[GpuProcess]:
        return _processes(self._ask("nvmlDeviceGetGraphicsRunningProcesses_v3"))

    def mps_processes(self) -> Sequence[GpuProcess]:
        return _processes(self._ask("nvmlDeviceGetMPSComputeRunningProcesses_v3"))

    def process_utilization(self, since_us: int) -> Sequence[ProcessUtilization]:
        try:
            samples = self._ask("nvmlDeviceGetProcessUtilization", since_us)
        except NvmlError as error:
            # SUCCESS is an error to the binding here: it means that there is no sample at all.
            if error.code in (NOT_FOUND, SUCCESS):
                return []
            raise
        return [
            ProcessUtilization(s.pid, s.timeStamp, s.smUtil, s.memUtil, s.encUtil, s.decUtil)
            for s in samples
            # The driver leaves places of its buffer that it did not fill zero.
            if s.timeStamp
        ]

    def _threshold(self, which: int) -> int:
        return int(self._ask("nvmlDeviceGetTemperatureThreshold", which))

    def _ask(self, name: str, *arguments: Any) -> Any:
        self.called = name
        answer = call(name, self.handle, *arguments)
        NVML.note(SUCCESS)
        return answer


class _NvmlMigDevice:
    def __init__(self, device: NvmlDevice, handle: Held) -> None:
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


def _bus_id(pci: Any) -> str:
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def _processes(listed: Sequence[Any]) -> Sequence[GpuProcess]:
    # The binding has already turned NVML_VALUE_NOT_AVAILABLE into None.
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
    # Each attribute of the binding's structures is read by Python code: once is enough.
    code, kind = raw.nvmlReturn, raw.valueType
    if code != SUCCESS:
        return FieldValue(code)
    member = _MEMBERS.get(kind)
    if member is None:
        return FieldValue(UNKNOWN)
    value: int | float = getattr(raw.value, member)
    if kind == _DOUBLE and value == 0.0 and raw.timestamp == 0:
        # A driver that skips a field that it does not know leaves the zeroes that the binding
        # allocated, which read as success, type double, 0.0: no answer at all.
        return FieldValue(NOT_SUPPORTED)
    if value == _BLANKS.get(kind):
        return FieldValue(NOT_SUPPORTED)
    return FieldValue(SUCCESS, value)
