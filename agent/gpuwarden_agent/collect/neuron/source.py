"""Reads AWS Trainium and Inferentia devices.

`neuron-monitor` runs as a child and prints a report a second; `neuron-ls` names the devices and their
processes once a minute; the driver's sysfs has serial numbers. Power and temperature are not told.
"""

import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from gpuwarden_agent.collect.accelerators import Accelerator, Host, counted
from gpuwarden_agent.collect.files import listed, read_text
from gpuwarden_agent.collect.neuron.reports import (
    NeuronDevice,
    health,
    parse_devices,
    parse_report,
    sample,
)
from gpuwarden_agent.collect.tools import LineTool, output_of
from gpuwarden_agent.probe import ProbeError

FOLDER = "/opt/aws/neuron/bin"
"""Where AWS's packages put the tools, which is on few users' PATH."""
LIST_LIMIT_S = 10.0
FIRST_S = 1.5
"""Longest wait for the first report, below the deadline of a probe's call."""
AGE_S_MAX = 5.0
"""A report older than this is none: the tool prints one a second."""
CONFIG = (
    b'{"period": "1s", "neuron_runtimes": [{"tag_filter": ".*", "metrics": '
    b'[{"type": "neuroncore_counters"}, {"type": "memory_used"}]}], '
    b'"system_metrics": [{"type": "neuron_hw_counters"}]}'
)


def find(host: Host) -> "NeuronSource | None":
    """The source; None where no device file is, or the tools are not installed."""
    devices = sum(name.startswith("neuron") and name[6:].isdecimal() for name in listed(host.dev))
    tools = {name: _tool(host, name) for name in ("neuron-ls", "neuron-monitor")}
    if not devices or tools["neuron-ls"] is None or tools["neuron-monitor"] is None:
        return None
    return NeuronSource(host, devices, tools["neuron-ls"], tools["neuron-monitor"])


def _tool(host: Host, name: str) -> str | None:
    return host.which(name) or host.which(f"{FOLDER}/{name}")


class NeuronSource:
    """All Neuron devices of the host."""

    vendor = "aws"
    kind = "npu"
    backend = "neuron"
    tells_processes = True
    tables: Mapping[str, int] = {"gpu_samples": 1, "gpu_health_samples": 60}

    def __init__(self, host: Host, count: int, list_tool: str, monitor: str) -> None:
        self.count = count
        self.named = counted(count, "AWS Neuron device")
        self._host = host
        self._list_tool = list_tool
        # Open, so that it exists, as long as the tool may be started again.
        self._config = tempfile.NamedTemporaryFile(prefix="gpuwarden-neuron-")  # noqa: SIM115
        self._config.write(CONFIG)
        self._config.flush()
        self._monitor = LineTool((monitor, "-c", self._config.name), host.clock)
        self._devices: Sequence[NeuronDevice] = ()
        self._uuids: dict[int, str] = {}

    def describe(self) -> Sequence[Accelerator]:
        """Devices of `neuron-ls`, in their order. Raises ProbeError."""
        try:
            self._devices = parse_devices(output_of((self._list_tool, "-j"), LIST_LIMIT_S))
        except ValueError as error:
            raise ProbeError(f"the output of neuron-ls -j cannot be read: {error}") from error
        self.count = len(self._devices)
        return [self._described(device) for device in self._devices]

    def read(self, tables: Collection[str]) -> Sequence[Accelerator]:
        """Devices with the newest report. Raises ProbeError."""
        if not self._devices:
            self.describe()
        line = self._monitor.newest(AGE_S_MAX, FIRST_S)
        try:
            uses = parse_report(line, self._devices)
        except ValueError as error:
            raise ProbeError(f"a report of neuron-monitor cannot be read: {error}") from error
        found = []
        for device in self._devices:
            use = uses[device.index]
            pids: dict[int, int | None] = {**dict.fromkeys(device.pids), **use.by_pid}
            rows = {"gpu_samples": [sample(device, use)], "gpu_health_samples": [health(use)]}
            found.append(
                Accelerator(
                    self._uuid(device),
                    rows={table: rows[table] for table in tables},
                    processes=sorted(pids.items()),
                )
            )
        return found

    def driver_version(self) -> str | None:
        """Version of the kernel module."""
        version = read_text(self._host.sys / "module/neuron/version")
        return version.strip() or None if version else None

    def close(self) -> None:
        """End neuron-monitor."""
        self._monitor.close()
        self._config.close()

    def _described(self, device: NeuronDevice) -> Accelerator:
        folder = self._info(device)
        return Accelerator(
            self._uuid(device),
            {
                "model": device.model or "AWS Neuron device",
                "serial": _word(folder / "serial_number"),
                "pci_bus_id": device.pci_bus_id,
                "memory_total_bytes": device.memory_bytes,
                "numa_node": device.numa_node,
                "architecture": _word(folder / "architecture/arch_type"),
            },
        )

    def _uuid(self, device: NeuronDevice) -> str:
        known = self._uuids.get(device.index)
        if known is None:
            serial = _word(self._info(device) / "serial_number")
            place = f"{self._host.node}-{device.pci_bus_id or device.index}"
            known = self._uuids[device.index] = f"NEURON-{serial or place}"
        return known

    def _info(self, device: NeuronDevice) -> Path:
        return self._host.sys / f"devices/virtual/neuron_device/neuron{device.index}/info"


def _word(path: Path) -> str | None:
    text = (read_text(path) or "").strip()
    return text if text and set(text) != {"0"} else None
