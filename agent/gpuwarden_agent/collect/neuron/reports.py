"""Evaluates what AWS's Neuron tools print: devices of `neuron-ls -j`, and reports of `neuron-monitor`.

Source of both formats: AWS Neuron documentation, user guides of neuron-monitor and neuron-ls
(awsdocs-neuron.readthedocs-hosted.com, Neuron 2.29). Cores are numbered over all devices of the host.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuwarden_agent.probe import Value

MODELS = {
    "inf1": "AWS Inferentia",
    "inf2": "AWS Inferentia2",
    "trn1": "AWS Trainium",
    "trn2": "AWS Trainium2",
    "trn3": "AWS Trainium3",
}
"""Chips by the family of the instance type, in which all are of one model."""


@dataclass(frozen=True, slots=True)
class NeuronDevice:
    """A device of `neuron-ls`."""

    index: int
    """That of /dev/neuron0."""
    pci_bus_id: str | None
    cores: int
    memory_bytes: int | None
    model: str | None
    numa_node: int | None
    first_core: int
    """Number of its first core on the host."""
    pids: tuple[int, ...]


@dataclass(slots=True)
class DeviceUse:
    """One device in a report of `neuron-monitor`."""

    core_percents: dict[int, float] = field(default_factory=dict)
    """By core, of cores that a runtime holds."""
    memory_used_bytes: int | None = None
    by_pid: dict[int, int | None] = field(default_factory=dict)
    """Bytes of device memory by process; None: not told."""
    errors: dict[str, int] = field(default_factory=dict)
    """Counters of `neuron_hw_counters` by name."""


def parse_devices(text: str) -> list[NeuronDevice]:
    """Devices of `neuron-ls -j`. Raises ValueError."""
    listed = json.loads(text)
    if not isinstance(listed, list):
        raise ValueError("neuron-ls printed no list of devices")  # noqa: TRY004  # of text
    entries = [entry for entry in listed if isinstance(entry, Mapping)]
    indexed = [(index, e) for e in entries if (index := _count(e.get("neuron_device"))) is not None]
    devices = []
    first_core = 0
    for index, entry in sorted(indexed, key=lambda pair: pair[0]):
        cores = _count(entry.get("nc_count")) or 0
        bus = entry.get("bdf")
        devices.append(
            NeuronDevice(
                index,
                # neuron-ls leaves the domain out, which is 0.
                f"0000:{bus}" if isinstance(bus, str) and bus.count(":") == 1 else _text(bus),
                cores,
                _count(entry.get("memory_size")) or None,
                model_of(entry.get("instance_type")),
                _count(entry.get("numa_node")),
                first_core,
                tuple(sorted(_pids(entry.get("neuron_processes")))),
            )
        )
        first_core += cores
    return devices


def model_of(instance_type: object) -> str | None:
    """The chip of an instance type such as "trn1.32xlarge"; None: unknown."""
    family = re.match(r"[a-z]+\d", instance_type) if isinstance(instance_type, str) else None
    return MODELS.get(family[0]) if family else None


def parse_report(text: str, devices: Sequence[NeuronDevice]) -> dict[int, DeviceUse]:
    """Use by index of device. Raises ValueError."""
    report = json.loads(text)
    if not isinstance(report, Mapping):
        raise ValueError("neuron-monitor printed no JSON object")  # noqa: TRY004  # of text
    uses = {device.index: DeviceUse() for device in devices}
    of_core = {
        device.first_core + n: uses[device.index] for device in devices for n in range(device.cores)
    }
    for runtime in _listed(report.get("neuron_runtime_data")):
        _add_runtime(runtime, uses, of_core)
    counters = _inner(report, "system_data", "neuron_hw_counters")
    for entry in _listed(counters.get("neuron_devices")):
        index = _count(entry.get("neuron_device_index"))
        if index is not None and index in uses:
            uses[index].errors = {
                name: count
                for name in entry
                if name.endswith("corrected") and (count := _count(entry[name])) is not None
            }
    return uses


def _add_runtime(
    runtime: Mapping[str, Any], uses: Mapping[int, DeviceUse], of_core: Mapping[int, DeviceUse]
) -> None:
    pid = _count(runtime.get("pid"))
    report = _inner(runtime, "report")
    for core, counters in _by_core(_inner(report, "neuroncore_counters", "neuroncores_in_use")):
        use, percent = of_core.get(core), _number(counters.get("neuroncore_utilization"))
        if use is None or percent is None:
            continue
        use.core_percents[core] = min(100.0, use.core_percents.get(core, 0.0) + percent)
        if pid is not None:
            use.by_pid.setdefault(pid, None)
    used = _inner(report, "memory_used", "neuron_runtime_used_bytes")
    parts = _by_core(_inner(used, "usage_breakdown", "neuroncore_memory_usage"))
    bytes_on: defaultdict[int, int] = defaultdict(int)
    for core, kinds in parts:
        for index, use in uses.items():
            if use is of_core.get(core):
                bytes_on[index] += sum(_count(size) or 0 for size in kinds.values())
    total = _count(used.get("neuron_device"))
    if not parts and total is not None and len(uses) == 1:
        bytes_on[next(iter(uses))] = total
    for index, size in bytes_on.items():
        use = uses[index]
        use.memory_used_bytes = (use.memory_used_bytes or 0) + size
        if pid is not None:
            use.by_pid[pid] = (use.by_pid.get(pid) or 0) + size


def sample(device: NeuronDevice, use: DeviceUse) -> dict[str, Value]:
    """Columns of `gpu_samples`. A core that no runtime holds does nothing: 0."""
    used = use.memory_used_bytes
    if used is None and not use.by_pid:
        used = 0  # no runtime has memory there
    total = device.memory_bytes
    return {
        "util_percent": sum(use.core_percents.values()) / device.cores if device.cores else None,
        "memory_total_bytes": total,
        "memory_used_bytes": used,
        "memory_free_bytes": None if total is None or used is None else max(0, total - used),
    }


def health(use: DeviceUse) -> dict[str, Value]:
    """Columns of `gpu_health_samples`; `mem` is the device's DRAM."""
    values: dict[str, Value] = {}
    for fate in ("corrected", "uncorrected"):
        dram, sram = use.errors.get(f"mem_ecc_{fate}"), use.errors.get(f"sram_ecc_{fate}")
        values[f"dram_{fate}_volatile_total"] = dram
        values[f"sram_{fate}_volatile_total"] = sram
        if dram is not None and sram is not None:
            values[f"ecc_{fate}_volatile_total"] = dram + sram
    return values


def _pids(processes: object) -> set[int]:
    return {pid for entry in _listed(processes) if (pid := _count(entry.get("pid")))}


def _by_core(values: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    return [
        (int(core), found)
        for core, found in values.items()
        if core.isascii() and core.isdecimal() and len(core) < 6 and isinstance(found, Mapping)
    ]


def _inner(values: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        found = values.get(name)
        if not isinstance(found, Mapping):
            return {}
        values = found
    return values


def _listed(values: object) -> list[Mapping[str, Any]]:
    entries = values if isinstance(values, list) else []
    return [entry for entry in entries if isinstance(entry, Mapping)]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value < 1e18 else None


def _count(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
