"""A driver whose every answer a test writes: values, return codes, hangs, and changes between reads.

The models are what nvidia-smi printed on such a GPU (recorded with drivers 590 and 595), in NVML's
units; `test_gpu.py` compares rows with the recordings themselves where those are at hand.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuwarden_agent.probes import nvml_driver as nvml
from gpuwarden_agent.probes.nvml_driver import FieldQuery, FieldValue, MemoryInfo, NvmlError

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
}
H100_IDLE_FIELDS: dict[int, Any] = {
    82: 48,
    83: 123_456_789,
    91: 18,
    185: 69_850,
    186: 69_620,
    190: 700_000,
    74: 0,
    75: 0,
    269: 0,
    270: 0,
    271: 0,
    138: 1_000,
    139: 2_000,
    197: 352_000,
    198: 329_000,
}
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
}
L40S_BUSY_FIELDS = H100_IDLE_FIELDS | {
    82: UNSUPPORTED,
    91: 0,
    185: 110_240,
    186: 110_010,
    190: 350_000,
    74: 204_642_816_000,
    138: UNSUPPORTED,
    139: UNSUPPORTED,
}


class FakeDevice:
    """A GPU that answers from two dictionaries: by call, and by field id.

    An answer is a value, a `Fails`, or a function without arguments that gives or raises one.
    """

    def __init__(
        self,
        answers: Mapping[str, Any] = H100_IDLE,
        fields: Mapping[int, Any] = H100_IDLE_FIELDS,
        index: int = 0,
        uuid: str | None = None,
    ) -> None:
        self.index = index
        self.uuid: str | None = None
        self.lock = threading.Lock()
        self.answers: dict[str, Any] = {"open": None, **answers}
        self.fields = dict(fields)
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
        answers = [_called(self.fields.get(q.field, UNSUPPORTED)) for q in queries]
        return [
            FieldValue(a.code) if isinstance(a, Fails) else FieldValue(nvml.SUCCESS, a)
            for a in answers
        ]

    def __getattr__(self, name: str) -> Callable[[], Any]:
        if name.startswith("_") or name not in self.__dict__.get("answers", {}):
            raise AttributeError(name)

        def call() -> Any:
            return self._answer(name)

        call.__name__ = name
        return call

    def _answer(self, name: str) -> Any:
        self.calls[name] += 1
        answer = _called(self.answers[name])
        if isinstance(answer, Fails):
            raise NvmlError(answer.code, f"nvml {name}")
        return answer


def _called(answer: Any) -> Any:
    return answer() if callable(answer) else answer


class FakeDriver:
    """A driver with these devices."""

    def __init__(self, *devices: FakeDevice, version: Any = "590.48.01") -> None:
        self._devices = devices
        self._version = version

    def driver_version(self) -> str:
        if isinstance(self._version, Fails):
            raise NvmlError(self._version.code, "nvmlSystemGetDriverVersion")
        return str(self._version)

    def cuda_version(self) -> str:
        return "13.1"

    def devices(self) -> Sequence[Any]:
        return self._devices
