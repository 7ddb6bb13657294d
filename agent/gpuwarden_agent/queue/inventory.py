"""Tracks the inventory of the node, and which rows of it are still to be sent.

A row is sent at the agent's start, when it changes, and once an hour, so that the inventory becomes
whole again after a batch was lost or refused.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuwarden_agent.probe import Probe, Row, Value

RESHIP_AFTER_S = 3600.0
_CLOUD_LABELS = {
    "instance_type": "node.kubernetes.io/instance-type",
    "region": "topology.kubernetes.io/region",
}
"""Columns of `nodes` by labels that Kubernetes sets from the cloud's metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFacts:
    """Facts about the agent for its row in `nodes`."""

    node: str
    agent_id: str
    boot_id: str
    agent_version: str
    labels: Mapping[str, str]


@dataclass(slots=True)
class Inventory:
    """Newest inventory rows of all probes, and when each was last sent."""

    agent: AgentFacts
    probes: Sequence[Probe]
    _described: dict[str, Mapping[str, Sequence[Row]]] = field(default_factory=dict)
    _shipped: dict[tuple[str, str], tuple[Row, float]] = field(default_factory=dict)
    is_changed: bool = True
    """Whether `take_changes` may return rows."""

    def described(self, probe: str, reading: Mapping[str, Sequence[Row]]) -> None:
        """Store the result of a probe's `describe`: checked rows with node and simulated."""
        self.is_changed = self.is_changed or self._described.get(probe) != reading
        self._described[probe] = reading

    def gpu_index(self, gpu_uuid: Value) -> int | None:
        """Index of a GPU on the node; None if no probe has described it."""
        for row in self._gpus():
            if row["gpu_uuid"] == gpu_uuid and isinstance(gpu := row.get("gpu"), int):
                return gpu
        return None

    def take_changes(self, now_s: float) -> list[tuple[str, Row]]:
        """Table and row of what to send now; one row a key. `now_s` is monotonic."""
        rows = [("nodes", self.agent.node, self._node())]
        rows += [("gpus", str(row["gpu_uuid"]), row) for row in self._gpus()]
        changes = []
        for table, key, row in rows:
            shipped, at_s = self._shipped.get((table, key), ({}, now_s))
            if shipped != row or now_s - at_s >= RESHIP_AFTER_S:
                self._shipped[table, key] = (row, now_s)
                changes.append((table, row))
        self.is_changed = False
        return changes

    def _gpus(self) -> list[Row]:
        return [row for reading in self._described.values() for row in reading.get("gpus", ())]

    def _whole_gpus(self) -> int:
        """GPUs without MIG devices and other parts."""
        return sum(row.get("parent_gpu_uuid") is None for row in self._gpus())

    def _rack(self) -> dict[str, str]:
        """The label `rack`: the chassis of its GPUs, or their NVLink domain where the driver names no chassis."""
        for column in ("chassis_serial", "fabric_cluster_uuid"):
            if found := sorted({str(row[column]) for row in self._gpus() if row.get(column)}):
                return {"rack": found[0]}
        return {}

    def _node(self) -> Row:
        """The node's row: facts of real probes replace simulated ones, the agent's own replace both. Labels
        of the operator come before those of the cluster, and these before the rack that GPUs name.
        """
        row: Row = {}
        readings = [self._described.get(p.name, {}) for p in sorted(self.probes, key=_is_real)]
        labels: dict[str, str] = self._rack()
        for reading in readings:
            for facts in reading.get("nodes", ()):
                row |= {name: value for name, value in facts.items() if value is not None}
                labels |= _labels_of(facts.get("labels"))
        for column, label in _CLOUD_LABELS.items():
            if column not in row and label in labels:
                row[column] = labels[label]
        return row | {
            # A driver counts dead GPUs, too, but only its own.
            "gpus": max(_count(row.get("gpus")), self._whole_gpus()) or None,
            "node": self.agent.node,
            "agent_id": self.agent.agent_id,
            "boot_id": self.agent.boot_id,
            "agent_version": self.agent.agent_version,
            "backend": backend_of(self.probes),
            "labels": json.dumps(
                labels | dict(self.agent.labels), sort_keys=True, ensure_ascii=False
            ),
            "simulated": is_simulated(self.probes),
        }


def _count(value: Value) -> int:
    return value if isinstance(value, int) else 0


def _labels_of(text: Value) -> dict[str, str]:
    """Labels of a probe's row; in a recording without identity they are not JSON."""
    try:
        found = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def backend_of(probes: Sequence[Probe]) -> str:
    """Source of GPU readings: nvml, amdgpu, both ("amdgpu+nvml"), simulator, replay or none."""
    gpu_probes = [probe for probe in probes if "gpu_samples" in probe.tables]
    if not gpu_probes:
        return "none"
    if is_simulated(gpu_probes):
        return str(getattr(gpu_probes[0], "backend", "simulator"))
    # Probes name their backend where it is not NVML; simulated GPUs beside real ones do not count.
    real = [probe for probe in gpu_probes if not probe.simulated]
    return "+".join(sorted({str(getattr(probe, "backend", "nvml")) for probe in real}))


def is_simulated(probes: Sequence[Probe]) -> bool:
    """Whether all probes of the agent are simulated."""
    return bool(probes) and all(probe.simulated for probe in probes)


def _is_real(probe: Probe) -> bool:
    return not probe.simulated
