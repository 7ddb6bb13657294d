"""Follows AMD's GPUs while the agent runs: those that come get a probe, with an index that no other GPU has.

A GPU that goes keeps its probe, which reports `gpu_lost`, and reads it again once it is back at its place
on the PCI bus. The kernel's files are read every few seconds, which wakes no GPU.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from gpuwarden_agent.collect.amd.gpu import AmdGpuProbe, Card, driver_version, find_cards
from gpuwarden_agent.collect.amd.processes import AmdProcesses
from gpuwarden_agent.collect.processes.trees import ProcessProbe
from gpuwarden_agent.probe import Probe

MakeGpu = Callable[[Card, int], AmdGpuProbe]
MakeProcesses = Callable[[Sequence[AmdGpuProbe]], ProcessProbe | None]


class AmdHost:
    """AMD's GPUs on this host. Used by one thread at a time."""

    def __init__(
        self,
        sys: Path,
        make_gpu: MakeGpu,
        make_processes: MakeProcesses,
        first: int,
        cards: Sequence[Card],
    ) -> None:
        """`cards`: GPUs that are there now; they have the indices from `first` on."""
        self._sys = sys
        self._make_gpu = make_gpu
        self._make_processes = make_processes
        self.gpus: list[AmdGpuProbe] = [make_gpu(card, first + n) for n, card in enumerate(cards)]
        """All that were seen, in the order in which they came."""
        self.processes = make_processes(self.gpus)
        self._unserved: list[AmdGpuProbe] = []
        """GPUs that came, and that the compute driver did not serve yet."""

    def rediscover(self, taken: Collection[int], *, is_alone: bool) -> list[Probe]:
        """Probes of GPUs that came, and of their processes. `taken`: indices of GPUs of other makers; `is_alone`:
        there are none, so that the driver of the node is AMD's.
        """
        known = {gpu.pci_bus_id for gpu in self.gpus}
        new: list[AmdGpuProbe] = []
        for card in find_cards(self._sys):
            if card.pci_bus_id in known:
                continue
            gpu = self._make_gpu(card, 1 + max([*taken, *(g.gpu for g in self.gpus)], default=-1))
            if is_alone and (version := driver_version(self._sys)):
                gpu.node_facts = {"driver_version": version}
            self.gpus.append(gpu)
            new.append(gpu)
        self._unserved += new
        return [*new, *self._watch_processes()]

    def _watch_processes(self) -> list[Probe]:
        # The compute driver adds a GPU after the display driver does.
        served = [gpu for gpu in self._unserved if AmdProcesses(gpu, self._sys).is_served()]
        self._unserved = [gpu for gpu in self._unserved if gpu not in served]
        if not served:
            return []
        if self.processes is None:
            self.processes = self._make_processes(served)
            return [self.processes] if self.processes else []
        for gpu in served:
            self.processes.watch_other(AmdProcesses(gpu, self._sys))
        return []
