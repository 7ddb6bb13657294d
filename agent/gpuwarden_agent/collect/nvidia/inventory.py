"""Describes a GPU and its settings: its row of `gpus`.

Facts that cannot change while the GPU is open are read once; modes and limits every minute.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuwarden_agent.collect.coerce import coerce
from gpuwarden_agent.collect.nvidia.metrics import PLATFORM_COLUMNS, ROWS
from gpuwarden_agent.collect.nvidia.query import ASKED, Query, read_calls, read_columns
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

WAYS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t in the words of nvidia-smi topo; 0: two GPUs of one board."""


def numa_node(pci_devices: Path, bus_id: str) -> int | None:
    """The NUMA node of a PCI device in sysfs; None if it has none (-1).

    nvmlDeviceGetNumaNodeId is different: on coherent platforms, the node of the GPU's own memory.
    """
    try:
        node = int((pci_devices / bus_id / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def way_to(bus_id: str, level: int | None, ways: Sequence[str | None]) -> str | None:
    """The connection to the GPU `bus_id`, named as by nvidia-smi topo; None: unknown.

    `ways`: the other end of each NVLink. A switch leads to all GPUs of the node.
    """
    links = Counter(ways)
    nvlinks = links[bus_id] + links["switch"]
    if nvlinks:
        return f"NV{nvlinks}"
    return None if level is None else WAYS.get(level)


class InventoryReader:
    """Describes one GPU."""

    def __init__(
        self,
        query: Query,
        pci_devices: Path = PCI_DEVICES,
        bus_ids: dict[str, tuple[int, str]] | None = None,
    ) -> None:
        """`bus_ids`: index and UUID of all GPUs by PCI bus id; this GPU is added."""
        self._device = query.device
        self._query = query
        self._pci_devices = pci_devices
        self._bus_ids: dict[str, tuple[int, str]] = {} if bus_ids is None else bus_ids
        self._constants: dict[str, Value] = {}
        self._architecture: int | None = None
        self._levels: dict[str, int | None] = {}

    def read(self, modes: Mapping[str, Value], ways: Sequence[str | None]) -> Row:
        """The row. `modes`: columns that are already known; `ways`: the other ends of the NVLinks."""
        self._learn_constants()
        values: dict[str, Value] = {
            "gpu_uuid": self._device.uuid,
            "gpu": self._device.index,
            "vendor": "nvidia",
            "kind": "gpu",
            **self._constants,
            **modes,
            **read_calls(self._query, "modes"),
            "peers": self._peers(ways),
        }
        return coerce("gpus", values)

    def architecture(self) -> int | None:
        """nvmlDeviceArchitecture_t; None: unknown."""
        if self._architecture is None:
            self._architecture = self._query.ask(ROWS["architecture"])
        return self._architecture if self._architecture in ARCHITECTURES else None

    def forget(self) -> None:
        """The device was opened again: its firmware may have changed."""
        self._constants.clear()
        self._architecture = None
        self._levels.clear()

    def _learn_constants(self) -> None:
        known = set(self._constants)
        if "module_id" in known:
            # Asked once: boards without a chassis never tell the others.
            known.update(PLATFORM_COLUMNS)
        self._constants |= read_calls(self._query, "gpus", known)
        if "gsp_firmware_version" not in self._constants and self._query.ask(
            ROWS["is_gsp_enabled"]
        ):
            self._know("gsp_firmware_version", self._query.ask(ROWS["gsp_version"]))
        self._know("architecture", ARCHITECTURES.get(self.architecture() or 0))
        missing = [each for each in ASKED["gpus"] if each.field.column not in self._constants]
        self._constants |= read_columns(self._query, "margin_fields", missing)
        bus_id = self._constants.get("pci_bus_id")
        if isinstance(bus_id, str):
            self._know("numa_node", numa_node(self._pci_devices, bus_id))
            if self._device.uuid:
                self._bus_ids[bus_id] = (self._device.index, self._device.uuid)

    def _know(self, column: str, value: Value) -> None:
        if value is not None:
            self._constants[column] = value

    def _peers(self, ways: Sequence[str | None]) -> str | None:
        # Other probes add their GPUs on their own threads: use a copy.
        others = sorted(set(self._bus_ids.copy()) - {self._constants.get("pci_bus_id")})
        found = {}
        for bus_id in others:
            if bus_id not in self._levels:
                level = self._query.ask_of(ROWS["common_ancestor"], bus_id)
                self._levels[bus_id] = level
            found[bus_id] = way_to(bus_id, self._levels[bus_id], ways)
        told = {bus_id: way for bus_id, way in found.items() if way is not None}
        return json.dumps(told) if told else None
