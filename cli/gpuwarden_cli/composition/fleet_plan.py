"""Decides how the simulated GPUs of `gpuwarden up` are sampled, so that all are there after about a minute.

One process has all nodes beside the collector. Measured on two cores: a GPU's sample costs 0.16 ms from the simulator to
the store while the past is made, and 0.5 ms live, where batches are smaller.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpuwarden.models import GpuModel, model_named
from gpuwarden_agent.events.kinds import span
from gpuwarden_cli.output import counted

HISTORY_S_MAX = 2 * 3600
FULL_HISTORY_GPUS = 64
"""Most simulated GPUs that begin with HISTORY_S_MAX."""
HISTORY_SAMPLES = 150_000
"""Samples of GPUs that two cores make, send and store in about a minute."""
GPUS_PER_SECOND_MAX = 1_000
"""Samples of GPUs a second that the process makes with half of a core; of more GPUs it makes them less often."""
INTERVAL_S_MAX = 30
"""`gpus_now` has GPUs with a sample in the last minute."""
GPUS_PER_NODE = 8
GPUS_PER_TRAY = 4
"""GPUs of a node that is a tray of an NVL72."""
MIXED_NODES: Sequence[tuple[str, int]] = (
    ("H100-SXM-80GB", 8),
    ("L4-24GB", 2),
    ("GB200", 4),
    ("MI300X-192GB", 8),
    ("TPU-v5p", 4),
    ("Trainium", 16),
    ("Gaudi3-128GB", 8),
    ("Ascend-910B", 8),
    ("M4-Max", 1),
    ("Jetson-AGX-Orin", 1),
)
"""Models and devices of the nodes of `--simulate mixed`."""


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """The simulated nodes, and how they are sampled."""

    sizes: Sequence[int]
    """GPUs of each node."""
    interval_s: int
    """Seconds between samples."""
    history_s: int
    """Seconds of past that they begin with."""
    models: Sequence[GpuModel] = ()
    """Their turn, node by node."""

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return sum(self.sizes)


def planned(gpus: int, history_s: int | None = None, models: Sequence[GpuModel] = ()) -> FleetPlan:
    """So many simulated GPUs as one process can keep up with. `history_s`: as asked; None: as long as about a minute
    makes it, up to two hours. `models`: those of the nodes, in turn.
    """
    return _sampled(node_sizes(gpus, models), history_s, models)


def planned_mixed(history_s: int | None = None) -> FleetPlan:
    """A fleet with nodes of several vendors."""
    models = [model_named(name) for name, _ in MIXED_NODES]
    return _sampled([size for _, size in MIXED_NODES], history_s, models)


def _sampled(sizes: Sequence[int], history_s: int | None, models: Sequence[GpuModel]) -> FleetPlan:
    gpus = sum(sizes)
    interval_s = min(max(1, math.ceil(gpus / GPUS_PER_SECOND_MAX)), INTERVAL_S_MAX)
    if history_s is None and gpus <= FULL_HISTORY_GPUS:
        history_s = HISTORY_S_MAX
    elif history_s is None:
        minutes = max(1, HISTORY_SAMPLES * interval_s // gpus // 60)
        history_s = min(60 * minutes, HISTORY_S_MAX)
    return FleetPlan(sizes, interval_s, history_s, models)


def gpus_per_node(model: GpuModel) -> int:
    """GPUs of a full node of that model."""
    return GPUS_PER_TRAY if model.name.startswith("GB") else GPUS_PER_NODE


def node_sizes(gpus: int, models: Sequence[GpuModel] = ()) -> list[int]:
    """GPUs of each simulated node: full nodes, and one with the rest. `models`: those of the nodes, in turn."""
    full = [gpus_per_node(model) for model in models] or [GPUS_PER_NODE]
    sizes: list[int] = []
    while gpus > 0:
        sizes.append(min(gpus, full[len(sizes) % len(full)]))
        gpus -= sizes[-1]
    return sizes


def simulated_lines(fleet: FleetPlan) -> list[str]:
    """Describes the simulated nodes, and what they have less of than a small fleet."""
    is_full = fleet.history_s == HISTORY_S_MAX
    past = "the last two hours" if is_full else f"the last {span(fleet.history_s)}"
    begins = f"with {past}" if fleet.history_s else "without a past"
    nodes = f"{counted(fleet.gpus, 'simulated GPU')} on {counted(len(fleet.sizes), 'node')}"
    lines = [f"{nodes}, {begins}; their rows are marked simulated"]
    if len(fleet.models) > 1:
        lines.append(", ".join(dict.fromkeys(model.name for model in fleet.models)))
    if fleet.interval_s > 1:
        lines.append(
            f"a sample every {fleet.interval_s} s, as so many are simulated in one process"
        )
    if fleet.history_s < HISTORY_S_MAX:
        lines.append(f"for more past, which takes longer: --history {HISTORY_S_MAX} (seconds)")
    return lines
