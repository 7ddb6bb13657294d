"""Makes the probes of Slurm on this host: its own jobs, and the controller's view where the settings ask for it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.schedulers.allocations import is_there
from gpuwarden_agent.collect.schedulers.gpu_names import GpuNames
from gpuwarden_agent.collect.schedulers.slurm import INSTALLED
from gpuwarden_agent.collect.schedulers.slurm_controller import SlurmControllerProbe
from gpuwarden_agent.collect.schedulers.slurm_jobs import SlurmJobProbe
from gpuwarden_agent.collect.schedulers.slurm_notes import NOTES, SlurmNotes
from gpuwarden_agent.probe import Probe


def slurm_probes(
    bus_ids: Mapping[str, tuple[int, str]],
    clock: Clock,
    *,
    controller: bool,
    notes: Path = NOTES,
    installed: Sequence[Path] = INSTALLED,
) -> list[Probe]:
    """`bus_ids`: GPUs by PCI bus id; may grow. `controller`: ask Slurm's controller, too."""
    probes: list[Probe] = []
    if any(map(is_there, (notes, *installed))):
        probes.append(SlurmJobProbe(SlurmNotes(notes), GpuNames(bus_ids)))
    if controller:
        probes.append(SlurmControllerProbe(clock))
    return probes
