"""What a GPU is and how it is set: its row of `gpus`.

What cannot change while the GPU is open is asked once; modes and limits every minute.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuwarden_agent.collect.coerce import fit
from gpuwarden_agent.collect.nvidia import nvml_driver as nvml
from gpuwarden_agent.collect.nvidia.fields import Field, asked_once, read_columns
from gpuwarden_agent.collect.nvidia.nvml_driver import Device
from gpuwarden_agent.collect.nvidia.query import Asker
from gpuwarden_agent.probe import Row, Value

PCI_DEVICES = Path("/sys/bus/pci/devices")

ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}
"""nvmlDeviceArchitecture_t."""

COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive_process"}

WAYS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t in the words of nvidia-smi topo; 0: two GPUs of one board."""


def signed(raw: int) -> int:
    """A margin below 0, which the driver may hand over as an unsigned int."""
    return raw - (1 << 32) if raw >> 31 == 1 else raw


MARGIN_FIELDS = asked_once(
    (
        Field("margin_shutdown_celsius", 193, decoded=signed),
        Field("margin_slowdown_celsius", 194, decoded=signed),
        Field("margin_memory_max_celsius", 195, decoded=signed),
        Field("margin_gpu_max_celsius", 196, decoded=signed),
    )
)


def numa_node(pci_devices: Path, bus_id: str) -> int | None:
    """The NUMA node of a PCI device as sysfs has it; None where the platform does not say (-1).

    nvmlDeviceGetNumaNodeId answers another question: the node that the GPU's own memory is, on
    coherent platforms.
    """
    try:
        node = int((pci_devices / bus_id / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def cpu_list(words: Sequence[int]) -> str | None:
    """A bit for each CPU, in words of 64, as the kernel writes lists: 0-31,64-95."""
    cpus = [64 * n + bit for n, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    if not cpus:
        return None
    starts = [cpu for before, cpu in zip([-2, *cpus], cpus, strict=False) if cpu != before + 1]
    ends = [cpu for cpu, after in zip(cpus, [*cpus[1:], -2], strict=True) if cpu + 1 != after]
    return ",".join(
        str(first) if first == last else f"{first}-{last}"
        for first, last in zip(starts, ends, strict=True)
    )


def way_to(bus_id: str, level: int | None, ways: Sequence[str | None]) -> str | None:
    """The way to the GPU `bus_id`, as nvidia-smi topo has it; None: unknown.

    `ways`: what each NVLink leads to. Through a switch all GPUs of the node are reached.
    """
    links = Counter(ways)
    nvlinks = links[bus_id] + links["switch"]
    if nvlinks:
        return f"NV{nvlinks}"
    return None if level is None else WAYS.get(level)


def threshold(celsius: int | None) -> float | None:
    """Ada and newer have margins instead of thresholds, for which this call is deprecated: only
    what can be the temperature of a slowdown is taken for one.
    """
    return float(celsius) if celsius is not None and 40 <= celsius <= 150 else None


def thousandth(value: int | None) -> float | None:
    """In units of a thousand; None where the driver says that there is no value."""
    return None if value in (None, nvml.BLANK) else value / 1000


class InventoryReader:
    """Describes one GPU."""

    def __init__(
        self,
        device: Device,
        asker: Asker,
        pci_devices: Path = PCI_DEVICES,
        bus_ids: dict[str, tuple[int, str]] | None = None,
    ) -> None:
        """`bus_ids`: where to note index and UUID by PCI bus id, and to find the other GPUs."""
        self._device = device
        self._asker = asker
        self._pci_devices = pci_devices
        self._bus_ids: dict[str, tuple[int, str]] = {} if bus_ids is None else bus_ids
        self._constants: dict[str, Value] = {}
        self._architecture: int | None = None
        self._levels: dict[str, int | None] = {}

    def read(self, modes: Mapping[str, Value], ways: Sequence[str | None]) -> Row:
        """The row. `modes`: columns that are known already; `ways`: what the NVLinks lead to."""
        self._learn_constants()
        values: dict[str, Value] = {
            "gpu_uuid": self._device.uuid,
            "gpu": self._device.index,
            "vendor": "nvidia",
            **self._constants,
            **modes,
            **self._modes(),
            "peers": self._peers(ways),
        }
        return fit("gpus", values)

    def architecture(self) -> int | None:
        """nvmlDeviceArchitecture_t; None: unknown."""
        if self._architecture is None:
            self._architecture = self._asker.ask(self._device.architecture)
        return self._architecture if self._architecture in ARCHITECTURES else None

    def forget(self) -> None:
        """The device was opened again: what it is may have changed with its firmware."""
        self._constants.clear()
        self._architecture = None
        self._levels.clear()

    def _learn_constants(self) -> None:
        for column, (call, converted) in self._calls().items():
            if column not in self._constants:
                answer = self._asker.ask(call)
                self._know(column, None if answer is None else converted(answer))
        if "memory_total_bytes" not in self._constants:
            memory = self._asker.ask(self._device.memory_v2, self._device.memory_v1)
            self._know("memory_total_bytes", memory.total_bytes if memory else None)
        if "gsp_firmware_version" not in self._constants and self._asker.ask(
            self._device.is_gsp_enabled
        ):
            self._know("gsp_firmware_version", self._asker.ask(self._device.gsp_version))
        self._know("architecture", ARCHITECTURES.get(self.architecture() or 0))
        missing = [each for each in MARGIN_FIELDS if each.field.column not in self._constants]
        self._constants |= read_columns(self._device, self._asker, "margin_fields", missing)
        bus_id = self._constants.get("pci_bus_id")
        if isinstance(bus_id, str):
            self._know("numa_node", numa_node(self._pci_devices, bus_id))
            if self._device.uuid:
                self._bus_ids[bus_id] = (self._device.index, self._device.uuid)

    def _know(self, column: str, value: Value) -> None:
        if value is not None:
            self._constants[column] = value

    def _calls(self) -> dict[str, tuple[Callable[[], Any], Callable[[Any], Value]]]:
        device = self._device
        return {
            "model": (device.name, str),
            "serial": (device.serial, str),
            "pci_bus_id": (device.pci_bus_id, str),
            "vbios_version": (device.vbios_version, str),
            "part_number": (device.part_number, str),
            "inforom_version": (device.inforom_version, str),
            "compute_capability": (device.compute_capability, lambda v: f"{v[0]}.{v[1]}"),
            "cpu_affinity": (device.cpu_affinity, cpu_list),
            "power_limit_default_watts": (device.default_power_limit_mw, thousandth),
            "power_limit_min_watts": (device.power_limit_range_mw, lambda v: thousandth(v[0])),
            "power_limit_max_watts": (device.power_limit_range_mw, lambda v: thousandth(v[1])),
            "temperature_slowdown_celsius": (device.slowdown_celsius, threshold),
            "temperature_shutdown_celsius": (device.shutdown_celsius, threshold),
            "temperature_gpu_max_celsius": (device.gpu_max_celsius, threshold),
            "temperature_memory_max_celsius": (device.memory_max_celsius, threshold),
            "sm_clock_max_mhz": (device.sm_clock_max_mhz, int),
            "memory_clock_max_mhz": (device.memory_clock_max_mhz, int),
            "pcie_generation_max": (device.pcie_generation_max, int),
            "pcie_width_max": (device.pcie_width_max, int),
        }

    def _modes(self) -> dict[str, Value]:
        device, ask = self._device, self._asker.ask
        ecc_now, ecc_pending = ask(device.ecc_modes) or (None, None)
        return {
            "ecc_mode": ecc_now,
            "ecc_mode_pending": ecc_pending,
            "persistence_mode": ask(device.is_persistent),
            "compute_mode": COMPUTE_MODES.get(_number(ask(device.compute_mode))),
        }

    def _peers(self, ways: Sequence[str | None]) -> str | None:
        # Other probes note their GPUs in their own threads: one copy, and what comes later, later.
        others = sorted(set(self._bus_ids.copy()) - {self._constants.get("pci_bus_id")})
        found = {}
        for bus_id in others:
            if bus_id not in self._levels:
                level = self._asker.ask_of(self._device.common_ancestor, bus_id)
                self._levels[bus_id] = level
            found[bus_id] = way_to(bus_id, self._levels[bus_id], ways)
        told = {bus_id: way for bus_id, way in found.items() if way is not None}
        return json.dumps(told) if told else None


def _number(value: int | None) -> int:
    return -1 if value is None else value
