"""Reads the compute partitions of an AMD GPU (MI300 and later), each with rows of its own, as MIG devices have.

In mode SPX the GPU is one device, and has no partitions. In the others (DPX, TPX, QPX, CPX) the compute driver
(KFD) has a node for each partition, with its memory; the metrics have its utilization from version 1.6 on.
Power, temperature, clocks and errors are those of the whole GPU. What a partition's memory holds is unknown:
the driver tells it of processes alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpuwarden_agent.collect.amd import sysfs as parse
from gpuwarden_agent.collect.amd.gpu_metrics import Metrics, partition_busy
from gpuwarden_agent.collect.coerce import coerce
from gpuwarden_agent.collect.files import DeviceFiles, listed
from gpuwarden_agent.probe import Row, Value

KFD_NODES = "class/kfd/kfd/topology/nodes"


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a GPU."""

    number: int
    """From 0, as in the driver's metrics."""
    kfd_id: int
    """The compute driver's id of it."""
    memory_bytes: int | None
    mode: str | None = None
    """spx, dpx, tpx, qpx or cpx; None: unknown."""

    @property
    def instance(self) -> str:
        """Its `mig_instance`: cpx/3."""
        return f"{self.mode}/{self.number}"

    def uuid(self, whole: str) -> str:
        """Its identity; `whole`: that of the GPU."""
        return f"{whole}-{self.number}"


def find_partitions(
    files: DeviceFiles, sys: Path, place: tuple[int, int, int] | None
) -> list[Partition]:
    """Nodes of the compute driver at a place on the PCI bus, by number; one where the GPU is whole."""
    found: dict[int, Partition] = {}
    for entry in listed(sys / KFD_NODES):
        folder = sys / KFD_NODES / entry
        at = files.read(folder / "properties", parse.kfd_node_partition)
        kfd_id = files.read(folder / "gpu_id", parse.number)
        if at is None or at[0] != place or not kfd_id:
            continue
        memory = files.read(folder / "mem_banks/0/properties", parse.kfd_memory_bytes)
        found[at[1]] = Partition(at[1], kfd_id, memory)
    return [found[number] for number in sorted(found)]


def with_mode(found: Sequence[Partition], files: DeviceFiles, device: Path) -> Sequence[Partition]:
    """The partitions with the mode that made them; none if the GPU is whole or the mode is unknown."""
    if len(found) < 2:
        return ()
    mode = files.read(device / "current_compute_partition", parse.compute_partition)
    if mode in (None, "spx"):
        return ()
    return [replace(part, mode=mode) for part in found]


class PartitionReader:
    """Reads the partitions of one GPU."""

    def __init__(self, files: DeviceFiles, sys: Path, device: Path, pci_bus_id: str) -> None:
        self._files = files
        self._sys = sys
        self._device = device
        self._place = parse.kfd_place(pci_bus_id)
        self._found: Sequence[Partition] = ()
        """As the compute driver has them."""
        self._parts: Sequence[Partition] = ()
        self._has_modes = False

    @property
    def is_cut(self) -> bool | None:
        """Whether the GPU is in partitions; None: it cannot be."""
        return bool(self._parts) if self._has_modes else None

    def learn(self) -> None:
        """Find out how the GPU is partitioned now. The mode is read only where the compute driver's nodes changed:
        the driver reads it from the compute dies, which wakes them up.
        """
        self._has_modes = (self._device / "available_compute_partition").exists()
        found = find_partitions(self._files, self._sys, self._place)
        if found == self._found and (self._parts or len(found) < 2):
            return
        self._found = found
        self._parts = with_mode(found, self._files, self._device)

    def samples(self, whole: str | None, gpu: int, metrics: Metrics) -> list[Row]:
        """Rows of `gpu_samples`. `whole`, `gpu`: UUID and index of the GPU."""
        if whole is None:
            return []
        busy = partition_busy(metrics) if self._parts else {}
        rows = []
        for part in self._parts:
            values: dict[str, Value] = {
                "util_percent": busy.get(part.number),
                "memory_total_bytes": part.memory_bytes,
            }
            rows.append(_identity(part, whole, gpu) | coerce("gpu_samples", values))
        return rows

    def inventory(self, whole: Row) -> list[Row]:
        """Rows of `gpus`; `whole`: that of the GPU."""
        uuid = whole["gpu_uuid"]
        assert isinstance(uuid, str)
        rows = []
        for part in self._parts:
            values: dict[str, Value] = {
                "model": f"{whole.get('model') or 'AMD GPU'} {str(part.mode).upper()}",
                "vendor": "amd",
                "kind": "gpu",
                "memory_total_bytes": part.memory_bytes,
                "parent_gpu_uuid": uuid,
            }
            rows.append(_identity(part, uuid, _index(whole)) | coerce("gpus", values))
        return rows

    def forget(self) -> None:
        """Another GPU is in this place."""
        self._found = self._parts = ()


def _identity(part: Partition, whole: str, gpu: int) -> Row:
    return {"gpu": gpu, "gpu_uuid": part.uuid(whole), "mig_instance": part.instance}


def _index(whole: Row) -> int:
    gpu = whole["gpu"]
    assert isinstance(gpu, int)
    return gpu
