"""Reads Intel Gaudi accelerators by `hl-smi`, which a thread asks once a second.

Memory errors are asked once a minute, and by themselves: a release that lacks one of their names then
still tells all others.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gpuwarden_agent.collect.accelerators import Accelerator, Host, counted
from gpuwarden_agent.collect.files import listed, read_text
from gpuwarden_agent.collect.intel.hl_smi import (
    ERRORS,
    IDENTITY,
    SAMPLE,
    Gaudi,
    bus_of,
    ecc_mode,
    health,
    model_of,
    parse,
    sample,
)
from gpuwarden_agent.collect.polling import Poller
from gpuwarden_agent.collect.tools import output_of
from gpuwarden_agent.probe import ProbeError

HABANA = "0x1da3"
"""PCI vendor of Gaudi."""
TOOL_PATHS = ("/usr/bin/hl-smi", "/usr/sbin/hl-smi")
LIMIT_S = 8.0
EVERY_S = 1.0
AGE_S_MAX = 10.0
"""Answers older than this are none."""
ERRORS_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class GaudiAnswers:
    """Newest answers of hl-smi."""

    devices: Sequence[Gaudi]
    errors: Mapping[str, Gaudi] = field(default_factory=dict)
    """By UUID."""


def find(host: Host) -> "GaudiSource | None":
    """The source; None where no such device is, or the tool is not installed."""
    folder = host.sys / "class/accel"
    vendors = [read_text(folder / name / "device/vendor") for name in listed(folder)]
    count = sum((vendor or "").strip() == HABANA for vendor in vendors)
    tool = next((path for place in ("hl-smi", *TOOL_PATHS) if (path := host.which(place))), None)
    return GaudiSource(host, count, tool) if count and tool else None


class GaudiSource:
    """All Gaudi accelerators of the host."""

    vendor = "intel"
    kind = "npu"
    backend = "gaudi"
    tells_processes = False
    tables: Mapping[str, int] = {"gpu_samples": 1, "gpu_health_samples": 60}

    def __init__(self, host: Host, count: int, tool: str) -> None:
        self.count = count
        self.named = counted(count, "Intel Gaudi accelerator")
        self.failed: dict[str, int] = {}
        """Queries of memory errors that failed, by reason."""
        self._host = host
        self._tool = tool
        self._errors: Mapping[str, Gaudi] = {}
        self._errors_at = host.clock.monotonic() - ERRORS_EVERY_S
        self._driver: str | None = None
        self._poller = Poller("hl-smi", self._ask, host.clock, EVERY_S)

    def describe(self) -> Sequence[Accelerator]:
        """Devices of the newest answer. Raises ProbeError."""
        answers = self._poller.newest(AGE_S_MAX)
        self.count = len(answers.devices)
        return [self._described(device, answers) for device in answers.devices]

    def read(self, tables: Collection[str]) -> Sequence[Accelerator]:
        """Devices with the newest answer. Raises ProbeError."""
        answers = self._poller.newest(AGE_S_MAX)
        found = []
        for device in answers.devices:
            uuid = self._uuid(device)
            errors = answers.errors.get(uuid)
            rows = {
                "gpu_samples": [sample(device)],
                "gpu_health_samples": [] if errors is None else [health(errors)],
            }
            found.append(Accelerator(uuid, rows={table: rows[table] for table in tables}))
        return found

    def driver_version(self) -> str | None:
        """Version of the kernel module, as hl-smi tells it."""
        return self._driver

    def close(self) -> None:
        """End the thread."""
        self._poller.close()

    def _ask(self) -> GaudiAnswers:
        devices = self._query((*IDENTITY, *SAMPLE))
        self._driver = next((v for d in devices if (v := d.text("driver_version"))), None)
        now = self._host.clock.monotonic()
        if now - self._errors_at >= ERRORS_EVERY_S:
            self._errors_at = now
            try:
                found = self._query((*IDENTITY, *ERRORS))
                self._errors = {self._uuid(device): device for device in found}
            except ProbeError as error:
                # Old counters are none.
                self._errors = {}
                self.failed[str(error)] = self.failed.get(str(error), 0) + 1
        return GaudiAnswers(devices, self._errors)

    def _query(self, names: Sequence[str]) -> list[Gaudi]:
        text = output_of((self._tool, "-Q", ",".join(names), "-f", "csv"), LIMIT_S)
        try:
            return parse(text, names)
        except ValueError as error:
            raise ProbeError(f"the output of hl-smi -Q cannot be read: {error}") from error

    def _described(self, device: Gaudi, answers: GaudiAnswers) -> Accelerator:
        uuid, bus = self._uuid(device), bus_of(device)
        errors = answers.errors.get(uuid)
        return Accelerator(
            uuid,
            {
                "model": model_of(device.text("name")),
                "serial": device.text("serial"),
                "pci_bus_id": bus,
                "memory_total_bytes": device.memory("memory.total"),
                "module_id": device.count("module_id"),
                "ecc_mode": None if errors is None else ecc_mode(errors),
                "numa_node": self._numa_node(bus),
            },
        )

    def _numa_node(self, bus: str | None) -> int | None:
        text = read_text(self._host.sys / "bus/pci/devices" / bus / "numa_node") if bus else None
        return int(text) if text is not None and text.strip().isdecimal() else None

    def _uuid(self, device: Gaudi) -> str:
        told = device.text("uuid") or device.text("serial")
        place = bus_of(device) or device.text("index") or "0"
        return f"GAUDI-{told or f'{self._host.node}-{place}'}"
