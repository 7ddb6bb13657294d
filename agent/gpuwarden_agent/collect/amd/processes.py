"""Reads the processes on an AMD GPU from its compute driver's files in /sys/class/kfd: no library, no
privilege.

Each process that uses ROCm has a folder, with a file for each visible GPU. ROCm opens all of them, so a
process counts as on a GPU only if it has memory there. Processes of OpenGL and Vulkan do not use this
driver and are not seen. Pids are those of the host.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.amd import sysfs as parse
from gpuwarden_agent.collect.amd.gpu import AmdGpuProbe
from gpuwarden_agent.collect.amd.partitions import Partition, find_partitions, with_mode
from gpuwarden_agent.collect.files import DeviceFiles, listed
from gpuwarden_agent.collect.nvidia.processes import HeldGpu
from gpuwarden_agent.collect.processes.trees import ProcessProbe
from gpuwarden_agent.collect.shared_state import SharedState
from gpuwarden_agent.probe import ProbeError

if TYPE_CHECKING:
    from gpuwarden_agent.collect.kubernetes.directory import PodDirectory

KFD = "class/kfd/kfd"
NAME = "amd_processes"


def amd_process_probe(
    gpus: Sequence[AmdGpuProbe],
    clock: Clock,
    sys: Path,
    shared: SharedState | None = None,
    pods: "PodDirectory | None" = None,
) -> ProcessProbe | None:
    """The probe of the processes on those GPUs that the compute driver serves; None if it serves none."""
    sources = [source for gpu in gpus if (source := AmdProcesses(gpu, sys)).is_served()]
    if not sources:
        return None
    return ProcessProbe((), clock, others=sources, name=NAME, shared=shared, pods=pods)


class AmdProcesses:
    """Reads the processes of one GPU, as `GpuProcesses` does for NVIDIA."""

    def __init__(self, gpu: AmdGpuProbe, sys: Path) -> None:
        """`gpu`: its own probe, which learns its UUID."""
        self.index = gpu.gpu
        self.lock = threading.Lock()
        self._gpu = gpu
        self._place = parse.kfd_place(gpu.pci_bus_id)
        self._files = DeviceFiles({"gpu": gpu.gpu})
        self._sys = sys
        self._kfd = sys / KFD
        self._found: Sequence[Partition] = ()
        self._parts: Sequence[Partition] = ()
        """Empty: it is whole."""
        self._nodes: frozenset[str] | None = None

    @property
    def uuid(self) -> str | None:
        """None until the GPU was awake once."""
        return self._gpu.gpu_uuid

    @property
    def device(self) -> "AmdProcesses":
        """Itself: there is no driver handle."""
        return self

    def is_served(self) -> bool:
        """Whether the compute driver serves the GPU; it does not serve many display GPUs."""
        self._learn_ids()
        return bool(self._found)

    def held(self) -> Sequence[HeldGpu]:
        """Processes with memory on the GPU. Raises ProbeError when the driver does not have it."""
        uuid = self.uuid
        if uuid is None:
            return []
        if not self.is_served():
            raise ProbeError("its compute driver (KFD) does not have it")
        return [held for pid in self._pids() for held in self._of(pid, uuid)]

    def _of(self, pid: str, uuid: str) -> list[HeldGpu]:
        """A process on the GPU, or on each partition where it has memory."""
        sizes = [(part, self._memory(pid, part)) for part in self._parts or self._found]
        if not self._parts:
            memory = sum(size for _, size in sizes)
            return [HeldGpu(int(pid), uuid, "compute", memory)] if memory else []
        return [
            HeldGpu(int(pid), part.uuid(uuid), "compute", memory, part.instance)
            for part, memory in sizes
            if memory
        ]

    def _pids(self) -> list[str]:
        return [pid for pid in listed(self._kfd / "proc") if pid.isdecimal()]

    def _memory(self, pid: str, part: Partition) -> int:
        """Memory of a process on a partition, or on the whole GPU."""
        path = self._kfd / "proc" / pid / f"vram_{part.kfd_id}"
        return self._files.read(path, parse.number) or 0

    def _learn_ids(self) -> None:
        """Read the driver's nodes of the GPU, one for each partition."""
        folder = self._kfd / "topology/nodes"
        nodes = frozenset(listed(folder))
        if nodes == self._nodes:
            return
        self._found = find_partitions(self._files, self._sys, self._place)
        self._parts = with_mode(self._found, self._files, self._gpu.device)
        self._nodes = nodes if self._found else None
