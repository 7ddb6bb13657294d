"""Probes of simulated GPUs: what their meters say, as rows that an agent would have made of a real one."""

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from bench.diagnosis.meter import Meter, Use

from gpuwarden.models import GpuModel
from gpuwarden_agent.collect.coerce import coerce
from gpuwarden_agent.collect.nvidia.processes import HeldGpu
from gpuwarden_agent.probe import Reading, Value

PCIE_GENERATION, PCIE_WIDTH = 5, 16


@dataclass(slots=True)
class SimulatedDevice:
    """A GPU that a process of this machine uses, as its driver would tell it."""

    index: int
    uuid: str
    meter: Meter
    pid: int
    lock: threading.Lock = field(default_factory=threading.Lock)


class DeviceProbe:
    """Reads the meter of one GPU each second."""

    simulated = True
    blocking = False
    tables: Mapping[str, int] = {"gpu_samples": 1}

    def __init__(self, device: SimulatedDevice, model: GpuModel, label: str) -> None:
        """`label`: what the recording says that it runs."""
        self.name = label
        self.gpu_uuid: str | None = device.uuid
        self._device, self._model = device, model
        self._last: Use | None = None

    def describe(self) -> Reading:
        model = self._model
        row: dict[str, Value] = {
            "gpu_uuid": self._device.uuid,
            "gpu": self._device.index,
            "model": model.driver_name,
            "vendor": "nvidia",
            "memory_total_bytes": model.memory_gib * 1024**3,
            "sm_clock_max_mhz": model.sm_clock_max_mhz,
            "pcie_generation_max": PCIE_GENERATION,
            "pcie_width_max": PCIE_WIDTH,
        }
        return {"gpus": [coerce("gpus", row)]}

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        use, last = self._device.meter.use(), self._last
        self._last = use
        model = self._model
        values: dict[str, Value] = {
            "gpu": self._device.index,
            "gpu_uuid": self._device.uuid,
            "memory_total_bytes": model.memory_gib * 1024**3,
            "memory_used_bytes": use.memory_bytes,
            "power_limit_watts": model.tdp_watts,
            "sm_clock_mhz": model.sm_clock_max_mhz,
            "clocks_event_reasons": 0,
            "pcie_rx_bytes_total": use.received_bytes,
        }
        if last is not None and use.at_ns > last.at_ns:
            share = min(1.0, (use.busy_ns - last.busy_ns) / (use.at_ns - last.at_ns))
            idle, limit = model.idle_watts, model.tdp_watts
            values["util_percent"] = round(100 * share)
            values["power_watts"] = round(idle + (limit - idle) * use.power_share * share, 1)
        return {"gpu_samples": [coerce("gpu_samples", values)]}

    def close(self) -> None:
        """The meter is its owner's."""


class DeviceProcesses:
    """The one process that is on such a GPU."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.device = device

    def held(self) -> Sequence[HeldGpu]:
        device = self.device
        return [HeldGpu(device.pid, device.uuid, "compute", device.meter.use().memory_bytes)]
