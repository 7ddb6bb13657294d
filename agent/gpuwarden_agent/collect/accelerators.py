"""Reads all accelerators of one vendor by one source: its tool, its service, or the kernel's files.

A vendor's module under `collect/` has a `AcceleratorSource`; `AcceleratorProbe` makes rows of what it reads: it
numbers devices, coerces values, and tells which devices went away. NVIDIA's and AMD's GPUs have a probe
each instead, because their drivers are called device by device.

A device is a row of `gpus`, whatever its vendor calls it; its utilization is the mean of its cores.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.coerce import coerce
from gpuwarden_agent.collect.nvidia.processes import HeldGpu
from gpuwarden_agent.events.kinds import event
from gpuwarden_agent.probe import Reading, Row, Value

Rows = Mapping[str, Sequence[Mapping[str, Value]]]
"""Values by table, without the identity of the device."""

TABLES: Mapping[str, int] = {
    "gpu_samples": 1,
    "gpu_detail_samples": 10,
    "link_samples": 10,
    "gpu_health_samples": 60,
}
MISSING_READS = 3
"""A device is lost when so many readings of the others did not have it."""


@dataclass(frozen=True, slots=True)
class Host:
    """Where a source looks for its devices."""

    clock: Clock
    node: str
    """Name of this node: part of the identity of a device without a serial number."""
    which: Callable[[str], str | None]
    """Path of a program; None: it is not installed."""
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")
    proc: Path = Path("/proc")
    platform: str = "linux"


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device as a source sees it."""

    uuid: str
    """Identity over restarts and reboots; begins with the vendor's word, as in "NEURON-…"."""
    inventory: Mapping[str, Value] = field(default_factory=dict)
    """Columns of `gpus`."""
    rows: Rows = field(default_factory=dict)
    processes: Sequence[tuple[int, int | None]] | None = None
    """Pid, and bytes of device memory (None: not told), of each process on it; None: not told."""


class AcceleratorSource(Protocol):
    """Reads the devices of one vendor. Methods never run at the same time."""

    @property
    def vendor(self) -> str:
        """Word for `gpus.vendor`."""
        ...

    @property
    def kind(self) -> str:
        """Word for `gpus.kind`: gpu, tpu or npu."""
        ...

    @property
    def backend(self) -> str:
        """Word for `nodes.backend` and the probe's name."""
        ...

    @property
    def named(self) -> str:
        """Its devices for people: "16 AWS Neuron devices"."""
        ...

    @property
    def count(self) -> int:
        """Devices that were found at the start."""
        ...

    @property
    def tells_processes(self) -> bool:
        """Whether `read` gives processes."""
        ...

    @property
    def tables(self) -> Mapping[str, int]:
        """Tables that it fills, and seconds between readings."""
        ...

    def describe(self) -> Sequence[Accelerator]:
        """Devices with inventory. Raises ProbeError."""
        ...

    def read(self, tables: Collection[str]) -> Sequence[Accelerator]:
        """Devices with rows of these tables. Raises ProbeError when nothing could be read."""
        ...

    def driver_version(self) -> str | None:
        """Version of the driver; None: not told, or not asked yet."""
        ...

    def close(self) -> None:
        """Release what is open."""
        ...


class AcceleratorProcesses:
    """Processes of one device, as its source read them last."""

    def __init__(
        self, index: int, uuid: str, read: Callable[[str], Sequence[HeldGpu] | None]
    ) -> None:
        self.index = index
        self.uuid = uuid
        self.lock = threading.Lock()
        self._read = read

    @property
    def device(self) -> "AcceleratorProcesses":
        """Itself: there is no driver handle."""
        return self

    def held(self) -> Sequence[HeldGpu] | None:
        """Processes on the device; None: not told."""
        return self._read(self.uuid)


class AcceleratorProbe:
    """All devices of one source. Their indexes begin at `first`, in the order in which they were first seen."""

    simulated = False
    blocking = True
    gpu_uuid: str | None = None

    def __init__(self, source: AcceleratorSource, first: int) -> None:
        self.name = self.backend = source.backend
        self.tables: Mapping[str, int] = {**source.tables, "events": 60}
        self.named = source.named
        """Its devices, for people."""
        self.count = source.count
        """Devices that were found at the start."""
        self._source = source
        self._next = first
        self._index: dict[str, int] = {}
        self._missed: dict[str, int] = {}
        self.tells_processes = source.tells_processes
        """Whether processes can be read."""
        self._processes: dict[str, Sequence[tuple[int, int | None]] | None] | None = None
        self.on_device: Callable[[AcceleratorProcesses], None] = lambda device: None
        """Called with each device that is seen for the first time."""

    @property
    def failed(self) -> Mapping[str, int]:
        """Failed readings of a source that counts them, by reason."""
        return getattr(self._source, "failed", {})

    def describe(self) -> Reading:
        devices = self._source.describe()
        rows = [self._inventory(device) for device in devices]
        facts = coerce("nodes", {"driver_version": self._source.driver_version()})
        return {"gpus": rows, "nodes": [facts]}

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        wanted = self.tables.keys() if due is None else self.tables.keys() & set(due)
        devices = self._source.read(wanted - {"events"})
        self._processes = {device.uuid: device.processes for device in devices}
        reading: dict[str, list[Row]] = {table: [] for table in wanted}
        for device in devices:
            gpu = self._index_of(device.uuid)
            self._add(reading, device, gpu)
        if events := self._changes({device.uuid for device in devices}):
            reading["events"] = [*reading.get("events", ()), *events]
        return reading

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _index_of(self, uuid: str) -> int:
        index = self._index.get(uuid)
        if index is None:
            index = self._index[uuid] = self._next
            self._next += 1
            self.on_device(AcceleratorProcesses(index, uuid, self._processes_on))
        return index

    def _add(self, reading: dict[str, list[Row]], device: Accelerator, gpu: int) -> None:
        for table, rows in device.rows.items():
            if table not in reading:
                continue
            for values in rows:
                row = coerce(table, values)
                # A device that answers is a sample, also where it tells nothing that the table has.
                if row or table == "gpu_samples":
                    reading[table].append(_identity(device, gpu) | row)

    def _inventory(self, device: Accelerator) -> Row:
        common: dict[str, Value] = {"vendor": self._source.vendor, "kind": self._source.kind}
        values = coerce("gpus", common | dict(device.inventory))
        return _identity(device, self._index_of(device.uuid)) | values

    def _processes_on(self, uuid: str) -> Sequence[HeldGpu] | None:
        if self._processes is None:
            return []  # not read yet, which is no failure
        listed = self._processes.get(uuid)
        if listed is None:
            return None
        return [HeldGpu(pid, uuid, "compute", memory) for pid, memory in listed]

    def _changes(self, seen: Collection[str]) -> list[Row]:
        """Events for devices that went away or came back, each told once."""
        events = []
        for uuid, gpu in self._index.items():
            missed = self._missed.get(uuid, 0)
            if uuid in seen:
                self._missed[uuid] = 0
                if missed >= MISSING_READS:
                    events.append(self._event("gpu_appeared", f"GPU {gpu} ({uuid}) is back", uuid))
                continue
            self._missed[uuid] = missed + 1
            if missed + 1 == MISSING_READS:
                words = f"GPU {gpu} ({uuid}) is lost: {self.name} no longer lists it"
                events.append(self._event("gpu_lost", words, uuid))
        return events

    def _event(self, kind: str, message: str, uuid: str) -> Row:
        return event(kind, message, gpu=self._index[uuid], gpu_uuid=uuid)


def _identity(device: Accelerator, gpu: int) -> Row:
    return {"gpu": gpu, "gpu_uuid": device.uuid}


def counted(count: int, name: str) -> str:
    """A number of devices: "1 TPU chip", "4 TPU chips"."""
    return f"{count} {name}{'' if count == 1 else 's'}"
