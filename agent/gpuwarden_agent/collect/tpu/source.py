"""Reads Google TPU chips: memory, duty cycle and memory bandwidth of each, from libtpu in the process that has it.

A chip that no process has open does nothing. One whose process has no metric service, or one that
another user's process may have open, has no values: they are absent.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from gpuwarden_agent.collect.accelerators import Accelerator, Host, counted
from gpuwarden_agent.collect.tpu.chips import TpuChip, find_chips, owners
from gpuwarden_agent.collect.tpu.metric_service import (
    DUTY_CYCLE,
    FIRST_PORT,
    MEMORY_BANDWIDTH,
    MEMORY_TOTAL,
    MEMORY_USED,
    ask,
)
from gpuwarden_agent.probe import Value

OWNERS_S = 10.0
"""Between two looks at the open files of all processes, which costs a call for each file."""

Metrics = Mapping[str, Mapping[int, float]]


def find(host: Host) -> "TpuSource | None":
    """The source; None without a chip."""
    chips = find_chips(host.sys, host.dev)
    return TpuSource(host, chips) if chips else None


def merged(answers: Sequence[Metrics]) -> dict[str, dict[int, float]]:
    """Values of all processes. A device that two processes name is left out: each counts from 0."""
    metrics: dict[str, dict[int, float]] = {}
    for name in {name for answer in answers for name in answer}:
        times = Counter(device for answer in answers for device in answer.get(name, ()))
        metrics[name] = {
            device: value
            for answer in answers
            for device, value in answer.get(name, {}).items()
            if times[device] == 1
        }
    return metrics


def by_chip(values: Mapping[int, float], chip: int, cores: int, chips: int) -> list[float]:
    """A chip's values, one for each core where the metric has more devices than there are chips.

    None of them where a core's is missing: the others are not the chip's.
    """
    if cores > 1 and any(device >= chips for device in values):
        of_cores = range(chip * cores, (chip + 1) * cores)
        return [values[core] for core in of_cores] if values.keys() >= set(of_cores) else []
    return [values[chip]] if chip in values else []


class TpuSource:
    """All TPU chips of the host."""

    vendor = "google"
    kind = "tpu"
    backend = "libtpu"
    tells_processes = True
    tables: Mapping[str, int] = {"gpu_samples": 1, "gpu_detail_samples": 10}

    def __init__(self, host: Host, chips: Sequence[TpuChip], first_port: int = FIRST_PORT) -> None:
        self.count = len(chips)
        self.named = counted(len(chips), "TPU chip")
        self._host = host
        self._chips = chips
        self._ports = range(first_port, first_port + len(chips))
        self._owners: dict[str, set[int]] | None = None
        self._owners_at = float("-inf")

    def describe(self) -> Sequence[Accelerator]:
        """Chips by their place: they have no serial number."""
        return [
            Accelerator(
                self._uuid(chip),
                {
                    "model": chip.model.name,
                    "pci_bus_id": chip.pci_bus_id,
                    "memory_total_bytes": chip.model.memory_bytes,
                    "numa_node": chip.numa_node,
                },
            )
            for chip in self._chips
        ]

    def read(self, tables: Collection[str]) -> Sequence[Accelerator]:
        """Chips with what the processes on them tell."""
        now = self._host.clock.monotonic()
        if now - self._owners_at >= OWNERS_S:
            self._owners_at = now
            self._owners = owners(self._host.proc, {chip.file for chip in self._chips})
        names = [MEMORY_TOTAL, MEMORY_USED, DUTY_CYCLE] if "gpu_samples" in tables else []
        if "gpu_detail_samples" in tables:
            names.append(MEMORY_BANDWIDTH)
        metrics = merged(self._answers(names))
        found = []
        for index, chip in enumerate(self._chips):
            pids = None if self._owners is None else self._owners[chip.file]
            rows: dict[str, list[dict[str, Value]]] = {
                "gpu_samples": [self._sample(index, chip, metrics, pids)],
                "gpu_detail_samples": [
                    {"dram_active_percent": _mean(self._of(metrics, MEMORY_BANDWIDTH, index, chip))}
                ],
            }
            processes = None if pids is None else [(pid, None) for pid in sorted(pids)]
            found.append(
                Accelerator(
                    self._uuid(chip),
                    rows={table: rows[table] for table in tables},
                    processes=processes,
                )
            )
        return found

    def driver_version(self) -> str | None:
        """None: libtpu is part of each job, and may differ."""
        return None

    def close(self) -> None:
        """Nothing is open."""

    def _answers(self, names: list[str]) -> list[Metrics]:
        if self._owners is not None and not any(self._owners.values()):
            return []  # no process, no service
        answers: list[Metrics] = []
        for port in self._ports:
            try:
                answers.append(ask(port, names, self._host.clock.monotonic))
            except (OSError, ValueError):
                continue  # a job without the service, or another program's port
        return answers

    def _sample(
        self, index: int, chip: TpuChip, metrics: Metrics, pids: Collection[int] | None
    ) -> dict[str, Value]:
        totals = self._of(metrics, MEMORY_TOTAL, index, chip)
        used = _sum(self._of(metrics, MEMORY_USED, index, chip))
        util = _mean(self._of(metrics, DUTY_CYCLE, index, chip))
        if pids is not None and not pids:
            used, util = 0, 0.0
        total = _sum(totals) or chip.model.memory_bytes
        return {
            "util_percent": util,
            "memory_total_bytes": total,
            "memory_used_bytes": used,
            "memory_free_bytes": None if used is None else max(0, total - used),
        }

    def _of(self, metrics: Metrics, name: str, index: int, chip: TpuChip) -> list[float]:
        return by_chip(metrics.get(name, {}), index, chip.model.cores, len(self._chips))

    def _uuid(self, chip: TpuChip) -> str:
        return f"TPU-{self._host.node}-{chip.pci_bus_id}"


def _sum(values: Sequence[float]) -> int | None:
    return int(sum(values)) if values else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
