"""A driver whose every answer a test writes: values, return codes, hangs, and changes between reads.

The models are what nvidia-smi printed on such a GPU (recorded with drivers 590 and 595), in NVML's
units; `test_gpu.py` compares rows with the recordings themselves where those are available.
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.nvml import (
    Call,
    DriverSample,
    FabricInfo,
    FieldQuery,
    FieldValue,
    MemoryInfo,
    NvmlError,
    PlatformInfo,
    SramErrors,
)

MIB = 1024 * 1024


@dataclass(frozen=True)
class Fails:
    """An answer that is a return code."""

    code: int


UNSUPPORTED = Fails(nvml.NOT_SUPPORTED)
MISSING = Fails(nvml.FUNCTION_NOT_FOUND)

H100_IDLE: dict[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3",
    "serial": "1650000000000",
    "pci_bus_id": "0000:00:09.0",
    "vbios_version": "96.00.A5.00.01",
    "memory_v2": MemoryInfo(81559 * MIB, 81081 * MIB, 0, 479 * MIB),
    "memory_v1": MemoryInfo(81559 * MIB, 81081 * MIB, 479 * MIB),
    "utilization": (0, 0),
    "driver_samples": lambda kind, since_us: UNSUPPORTED,
    "encoder_utilization": 0,
    "decoder_utilization": 0,
    "power_usage_mw": 69_850,
    "enforced_power_limit_mw": 700_000,
    "default_power_limit_mw": 700_000,
    "power_limit_range_mw": (200_000, 700_000),
    "total_energy_mj": 123_456_789,
    "temperature_v": 41,
    "temperature": 41,
    "slowdown_celsius": UNSUPPORTED,
    "shutdown_celsius": UNSUPPORTED,
    "sm_clock_mhz": 345,
    "memory_clock_mhz": 2619,
    "sm_clock_max_mhz": 1980,
    "memory_clock_max_mhz": 2619,
    "clocks_event_reasons": 0x1,
    "clocks_throttle_reasons": 0x1,
    "performance_state": 0,
    "pcie_generation_max": 5,
    "pcie_width_max": 16,
    "is_mig_enabled": False,
    "is_persistent": True,
    "compute_processes_v3": [],
    "compute_processes_v2": [],
    "graphics_processes": [],
    "mps_processes": [],
    "process_utilization": lambda since_us: [],
    "jpeg_utilization": 0,
    "ofa_utilization": 0,
    "graphics_clock_mhz": 345,
    "video_clock_mhz": 765,
    "fans": 0,
    "fan_percent": lambda fan: 30,
    "margin_celsius": 46,
    "pcie_generation": 5,
    "pcie_width": 16,
    "bar1_memory": (131072 * MIB, 1 * MIB),
    "pcie_replays": 9,
    "is_gpm_supported": True,
    "is_nvlink_active": dict.fromkeys(range(18), True),
    "nvlink_version": dict.fromkeys(range(18), 6),
    "nvlink_remote_type": dict.fromkeys(range(18), 2),
    "nvlink_remote_bus_id": {link: f"0000:0{link % 4}:00.0" for link in range(18)},
    "nvlink_errors": lambda link, counter: Fails(nvml.NOT_SUPPORTED) if counter == 4 else 0,
    "ecc_errors": lambda fate, since: 0,
    "memory_errors": lambda place, fate, since: 0,
    "sram_errors": SramErrors(0, 0, 0, 0, False),
    "remapped_rows": (0, 0, 0, 0),
    "remap_histogram": (2560, 0, 0, 0, 0),
    "retired_pages": {0: UNSUPPORTED, 1: UNSUPPORTED},
    "are_retired_pages_pending": UNSUPPORTED,
    "is_memory_unrepairable": False,
    "validate_inforom": True,
    "fabric_info": FabricInfo(3, 0, 0x1AA),
    "part_number": "692-2G520-0200-000",
    "inforom_version": "G520.0200.00.05",
    "architecture": 9,
    "compute_capability": (9, 0),
    "gpu_max_celsius": UNSUPPORTED,
    "memory_max_celsius": UNSUPPORTED,
    "cpu_affinity": [0xFFFFF, 0],
    "common_ancestor": {"0000:00:0a.0": 40},
    "ecc_modes": (True, True),
    "compute_mode": 0,
    "memory_numa_node": UNSUPPORTED,
    "addressing_mode": 1,
    "virtualization": 0,
    "platform_info": PlatformInfo(b"", 0, 0, 1),
    "platform_info_v1": PlatformInfo(b"", 0, 0, 1),
    "is_gsp_enabled": True,
    "gsp_version": "590.48.01",
    "mig_devices_max": 7,
    "mig_device": {},
}
H100_IDLE_FIELDS: dict[int, Any] = {
    82: 48,
    83: 123_456_789,
    91: 18,
    185: 69_850,
    186: 69_620,
    190: 700_000,
    **dict.fromkeys((74, 75, 269, 270, 271), 0),
    138: 1_000,
    139: 2_000,
    197: 352_000,
    198: 329_000,
    # Read every ten seconds.
    **dict.fromkeys((76, 77, 79, 80, 81), 0),
    78: 5_000_000_000,
    94: 9,
    95: 0,
    169: 2,
    **dict.fromkeys(range(173, 184), 0),
    164: 26_562,
    # Read every minute, and once.
    **dict.fromkeys((*range(3, 7), *range(142, 146), 170, 195, 196, 230), 0),
    193: -8,
    194: -2,
}
"""By field id, or by field id and scope where links differ."""
H100_GPM: dict[int, Any] = {
    1: 99.5,
    2: 87.25,
    3: 40.0,
    4: 12.0,
    5: 61.5,
    6: 0.0,
    7: 61.5,
    9: 0.0,
    10: 55.0,
    11: 0.0,
    12: 8.0,
    13: 1.0,
    20: 2.0,
    21: 3.0,
    60: 1024.0,
    61: 2048.0,
}
"""GPM metrics by id, in NVML's units."""

H100_BUSY = H100_IDLE | {
    "memory_v2": MemoryInfo(81559 * MIB, 61263 * MIB, 19818 * MIB, 479 * MIB),
    "utilization": (100, 11),
    "temperature_v": 59,
    "sm_clock_mhz": 1980,
    "clocks_event_reasons": 0,
}
H100_BUSY_FIELDS = H100_IDLE_FIELDS | {82: 55, 185: 629_450, 186: 588_390}

L40S_BUSY = H100_IDLE | {
    "name": "NVIDIA L40S",
    "pci_bus_id": "0000:01:00.0",
    "vbios_version": "95.02.66.00.02",
    "memory_v2": MemoryInfo(46068 * MIB, 44225 * MIB, 1235 * MIB, 609 * MIB),
    "utilization": (9, 2),
    "encoder_utilization": 59,
    "power_usage_mw": 110_240,
    "enforced_power_limit_mw": 350_000,
    "default_power_limit_mw": 350_000,
    "power_limit_range_mw": (100_000, 350_000),
    "temperature_v": 54,
    "sm_clock_mhz": 2520,
    "memory_clock_mhz": 9001,
    "sm_clock_max_mhz": 2520,
    "memory_clock_max_mhz": 9001,
    "clocks_event_reasons": 0,
    "pcie_generation_max": 4,
    "is_mig_enabled": UNSUPPORTED,
    "is_persistent": False,
    "is_gpm_supported": False,
    "fabric_info": UNSUPPORTED,
    "architecture": 8,
    "compute_capability": (8, 9),
    "pcie_generation": 4,
}
L40S_BUSY_FIELDS = H100_IDLE_FIELDS | {
    82: UNSUPPORTED,
    91: 0,
    185: 110_240,
    186: 110_010,
    190: 350_000,
    74: 204_642_816_000,
    **dict.fromkeys((138, 139, 164), UNSUPPORTED),
}

GEFORCE = L40S_BUSY | {
    "name": "NVIDIA GeForce RTX 2080 SUPER",
    "serial": UNSUPPORTED,
    "pci_bus_id": "0000:0c:00.0",
    "vbios_version": "90.04.7A.40.73",
    "part_number": UNSUPPORTED,
    "inforom_version": "G001.0000.02.04",
    "memory_v2": MemoryInfo(8192 * MIB, 7571 * MIB, 214 * MIB, 408 * MIB),
    "power_usage_mw": 37_620,
    "enforced_power_limit_mw": 250_000,
    "default_power_limit_mw": 250_000,
    "power_limit_range_mw": (105_000, 350_000),
    "slowdown_celsius": 97,
    "shutdown_celsius": 100,
    "gpu_max_celsius": 89,
    "architecture": 6,
    "compute_capability": (7, 5),
    "margin_celsius": UNSUPPORTED,
    "fans": 2,
    "fan_percent": {0: 38, 1: 41},
    "pcie_generation": 1,
    "pcie_generation_max": 3,
    "ecc_modes": UNSUPPORTED,
    "ecc_errors": lambda fate, since: UNSUPPORTED,
    "memory_errors": lambda place, fate, since: UNSUPPORTED,
    "sram_errors": UNSUPPORTED,
    "remap_histogram": (0, 0, 0, 0, 0),
}
GEFORCE_FIELDS = L40S_BUSY_FIELDS | {
    185: UNSUPPORTED,
    186: 37_620,
    190: 250_000,
    # Answered with success, though the board has no row remapper.
    **dict.fromkeys(range(142, 146), 0),
    **dict.fromkeys((*range(3, 7), 170, *range(173, 184), *range(193, 197)), UNSUPPORTED),
}

A100 = H100_IDLE | {
    "name": "NVIDIA A100-SXM4-80GB",
    "is_gpm_supported": UNSUPPORTED,
    "architecture": 7,
    "compute_capability": (8, 0),
    "slowdown_celsius": 94,
    "shutdown_celsius": 97,
    "margin_celsius": UNSUPPORTED,
    "sram_errors": UNSUPPORTED,
    "fabric_info": UNSUPPORTED,
    "is_memory_unrepairable": MISSING,
    "nvlink_version": dict.fromkeys(range(12), 4),
    "is_nvlink_active": dict.fromkeys(range(12), True),
    "nvlink_errors": lambda link, counter: link if counter < 4 else 0,
}
A100_FIELDS = H100_IDLE_FIELDS | {
    91: 12,
    164: 25_000,
    **dict.fromkeys((170, *range(173, 184), *range(193, 197), 230), Fails(nvml.INVALID_ARGUMENT)),
}

V100 = A100 | {
    "name": "Tesla V100-SXM2-32GB",
    "architecture": 5,
    "compute_capability": (7, 0),
    "remapped_rows": (0, 0, 0, 0),
    "retired_pages": {0: 3, 1: 1},
    "are_retired_pages_pending": True,
}

B200 = H100_IDLE | {
    "name": "NVIDIA B200",
    "architecture": 10,
    "compute_capability": (10, 0),
    "nvlink_version": dict.fromkeys(range(18), 7),
    "nvlink_errors": lambda link, counter: UNSUPPORTED,
}
B200_FIELDS = H100_IDLE_FIELDS | {
    164: 53_125,
    (138, 0): UNSUPPORTED,
    (139, 0): UNSUPPORTED,
    202: 7_000,
    204: 9_000,
    **dict.fromkeys(range(206, 215), 0),
    213: 4,
    219: 11,
    220: 0x50C,
    221: 12,
    222: 15 << 8 | 255,
}
"""Link 0 counts bytes under the ids of NVLink 5 alone."""

VGPU_TELLS = frozenset(
    {
        *("name", "pci_bus_id", "memory_v2", "memory_v1", "utilization", "driver_samples"),
        *("encoder_utilization", "decoder_utilization", "compute_processes_v3", "compute_processes_v2"),
        *("graphics_processes", "mps_processes", "process_utilization", "architecture"),
        *("compute_capability", "is_mig_enabled", "compute_mode", "common_ancestor", "mig_devices_max", "mig_device"),
    }
)  # fmt: skip
VGPU = {
    name: answer if name in VGPU_TELLS else UNSUPPORTED for name, answer in H100_BUSY.items()
} | {"name": "NVIDIA H100-20C", "virtualization": 2, "nvlink_errors": lambda *_: UNSUPPORTED}
"""A share of a GPU, as a virtual machine sees it: it has what its own memory and work are."""
VGPU_FIELDS: dict[Any, Any] = {}
GB200 = B200 | {
    "name": "NVIDIA GB200",
    "fabric_info": FabricInfo(3, 0, 0x1AA, bytes(range(16)), 32766),
    "platform_info": PlatformInfo(b"1820224190105", 17, 10, 2),
}
GB200_FIELDS = B200_FIELDS | {170: 2, 171: 1, (171, 1): 0, 172: 44_712, 232: 3}


class FakeGpmSample:
    """A look at a GPU whose metrics are those of `FakeDevice.gpm`."""

    def __init__(self, device: "FakeDevice") -> None:
        self._device = device
        self.is_free = False
        self.instance: int | None = None
        self.takes = 0

    def take(self, gpu_instance: int | None = None) -> None:
        assert not self.is_free
        self._device._answer("gpm_take", gpu_instance)
        self.instance = gpu_instance
        self.takes += 1

    def metrics_since(self, earlier: Any, ids: Sequence[int]) -> Sequence[FieldValue]:
        assert earlier is not self
        assert earlier.takes
        assert self.takes
        assert earlier.instance == self.instance
        self._device._answer("gpm_metrics")
        self._device.gpm_asked.append(tuple(ids))
        return [_field_value(self._device.gpm.get(id, UNSUPPORTED)) for id in ids]

    def free(self) -> None:
        assert not self.is_free
        self.is_free = True


class FakeMigDevice:
    """A MIG device that answers until it is destroyed."""

    def __init__(self, number: int, gpu_instance: int, mib: int, compute_instance: int = 0) -> None:
        self.uuid = f"MIG-0000000{number}-0000-0000-0000-00000000000{number}"
        self.gpu_instance = gpu_instance
        self.compute_instance = compute_instance
        self.gone: int | None = None
        self._mib = mib

    def name(self) -> str:
        return f"NVIDIA H100 80GB HBM3 MIG {self._mib // 10_000}g.{self._mib // 1_000}gb"

    def memory_v2(self) -> MemoryInfo:
        if self.gone is not None:
            raise NvmlError(self.gone, "nvmlDeviceGetMemoryInfo")
        return MemoryInfo(self._mib * MIB, (self._mib - 10) * MIB, 10 * MIB, 0)


class FakeDevice:
    """A GPU that answers from two dictionaries: by call, and by field id (and scope).

    An answer is a value, a `Fails`, or a function that gives or raises one; it gets the call's
    arguments. The answer of a call about links, fans and similar ones may be a dictionary by argument.
    """

    def __init__(
        self,
        answers: Mapping[str, Any] = H100_IDLE,
        fields: Mapping[Any, Any] = H100_IDLE_FIELDS,
        index: int = 0,
        uuid: str | None = None,
        gpm: Mapping[int, Any] = H100_GPM,
    ) -> None:
        self.index = index
        self.uuid: str | None = None
        self.lock = threading.Lock()
        self.called = ""
        self.answers: dict[str, Any] = {
            "open": None,
            "gpm_take": lambda instance: None,
            "gpm_metrics": None,
            **answers,
        }
        self.fields = dict(fields)
        self.gpm = dict(gpm)
        self.gpm_asked: list[tuple[int, ...]] = []
        self.gpm_samples: list[FakeGpmSample] = []
        self.calls: Counter[str] = Counter()
        self.queries: list[FieldQuery] = []
        self._real_uuid = uuid or f"GPU-00000000-0000-0000-0000-00000000000{index}"

    def open(self) -> str:
        self._answer("open")
        self.uuid = self._real_uuid
        return self.uuid

    def field_values(self, queries: Sequence[FieldQuery]) -> Sequence[FieldValue]:
        self.queries = list(queries)
        if "field_values" in self.answers:
            self._answer("field_values")
        self.calls["field_values"] += 1
        return [_field_value(self._field(query)) for query in queries]

    def samples(self, kind: int, since_us: int) -> Sequence[DriverSample]:
        return [DriverSample(*each) for each in self._answer("driver_samples", kind, since_us)]

    def gpm_sample(self) -> FakeGpmSample:
        self.gpm_samples.append(FakeGpmSample(self))
        return self.gpm_samples[-1]

    def ask(self, call: Call, *arguments: Any) -> Any:
        return self._answer(call.reading, *arguments)

    def mig_device(self, index: int) -> Any:
        return self._answer("mig_device", index)

    def _field(self, query: FieldQuery) -> Any:
        of_link = self.fields.get((query.field, query.scope))
        return self.fields.get(query.field, UNSUPPORTED) if of_link is None else of_link

    def _answer(self, name: str, *arguments: Any) -> Any:
        self.calls[name] += 1
        self.called = f"nvml {name}"
        answer = self.answers[name]
        if isinstance(answer, dict):
            answer = answer.get(arguments[0], Fails(nvml.INVALID_ARGUMENT))
        if callable(answer):
            answer = answer(*arguments)
        if isinstance(answer, Fails):
            raise NvmlError(answer.code, f"nvml {name}")
        return answer


def _field_value(answer: Any) -> FieldValue:
    answer = answer() if callable(answer) else answer
    if isinstance(answer, Fails):
        return FieldValue(answer.code)
    return FieldValue(nvml.SUCCESS, answer)
