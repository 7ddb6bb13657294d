"""Reads the processes on one GPU from its driver: kind, memory, MIG device, SM utilization.

The driver lists a process once for each kind of work and each MIG instance; these are merged into one
entry for each GPU or MIG device.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.nvidia import nvml
from gpuwarden_agent.collect.nvidia.metrics import ROWS
from gpuwarden_agent.collect.nvidia.nvml import (
    GpuProcess,
    NvmlCalls,
    NvmlError,
    ProcessUtilization,
)
from gpuwarden_agent.collect.nvidia.query import Query

KINDS = ("graphics", "compute", "mps")
"""In order of priority, lowest first: the kind of a process that is in several lists."""
MIG_LOOKS = 6
"""Readings for which the UUIDs of MIG devices are kept."""

Instance = tuple[int | None, int | None]
"""GPU instance and compute instance; None: the whole GPU."""


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """A process on a GPU or MIG device; None if the driver does not report it."""

    pid: int
    gpu_uuid: str
    process_type: str
    memory_bytes: int | None = None
    mig_instance: str | None = None
    sm_percent: float | None = None


def merged(
    listed: Iterable[tuple[str, GpuProcess]], gpu_uuid: str, mig_uuids: Mapping[Instance, str]
) -> list[HeldGpu]:
    """One entry for each process and GPU; for the parent GPU if the UUID of the MIG device is unknown."""
    instances: dict[tuple[int, Instance], HeldGpu] = {}
    for kind, process in listed:
        instance = (process.gpu_instance, process.compute_instance)
        held = HeldGpu(
            process.pid,
            mig_uuids.get(instance, gpu_uuid),
            kind,
            process.memory_bytes,
            _named(instance),
        )
        before = instances.get((process.pid, instance))
        # Both lists have the same memory.
        instances[process.pid, instance] = _joined(before, held, max) if before else held
    processes: dict[tuple[int, str], HeldGpu] = {}
    for held in instances.values():
        before = processes.get((held.pid, held.gpu_uuid))
        processes[held.pid, held.gpu_uuid] = _joined(before, held, sum) if before else held
    return list(processes.values())


def _joined(one: HeldGpu, other: HeldGpu, join: Callable[[Iterable[int]], int]) -> HeldGpu:
    known = [m for m in (one.memory_bytes, other.memory_bytes) if m is not None]
    return HeldGpu(
        one.pid,
        one.gpu_uuid,
        max(one.process_type, other.process_type, key=KINDS.index),
        join(known) if known else None,
        one.mig_instance if one.mig_instance == other.mig_instance else None,
    )


def _named(instance: Instance) -> str | None:
    gpu_instance, compute_instance = instance
    if gpu_instance is None:
        return None
    return f"{gpu_instance}/{compute_instance if compute_instance is not None else 0}"


def mean_sm_percent(samples: Iterable[ProcessUtilization]) -> dict[int, float]:
    """Mean of the samples by pid, without impossible ones."""
    by_pid: dict[int, list[int]] = defaultdict(list)
    for sample in samples:
        if 0 <= sample.sm_percent <= 100:
            by_pid[sample.pid].append(sample.sm_percent)
    return {pid: sum(percents) / len(percents) for pid, percents in by_pid.items()}


class GpuProcesses:
    """Reads one device. Not thread-safe; call it with the device's lock held."""

    def __init__(self, device: NvmlCalls, clock: Clock) -> None:
        self.device = device
        self.query = Query(device, clock)
        self.query.begin(tier_s=10, due_s=60)
        self._since_us: int | None = None
        self._mig_uuids: dict[Instance, str] = {}
        self._mig_looks = 0

    def held(self) -> Sequence[HeldGpu] | None:
        """Processes on the GPU; None if it does not report them. Raises NvmlError and ProbeError.

        SM utilization is the mean since the last call, so the first call has none. A process without
        a sample of the driver has none, either: it may have been idle.
        """
        device = self.device
        uuid = device.uuid or device.open()
        compute = self.query.ask(ROWS["compute_processes_v3"], ROWS["compute_processes_v2"])
        if compute is None:
            return None
        listed = [("compute", process) for process in compute]
        listed += [("graphics", p) for p in self.query.ask(ROWS["graphics_processes"]) or ()]
        listed += [("mps", p) for p in self.query.ask(ROWS["mps_processes"]) or ()]
        if not listed:
            return []
        held = merged(listed, uuid, self._mig_uuids_for([process for _, process in listed]))
        shares = self._sm_percents()
        return [replace(h, sm_percent=shares.get(h.pid)) for h in held]

    def _sm_percents(self) -> dict[int, float]:
        since_us, is_first = self._since_us or 0, self._since_us is None
        samples = self.query.ask(ROWS["process_utilization"], given=(since_us,))
        if samples is None:
            return {}
        self._since_us = max((sample.at_us for sample in samples), default=since_us)
        return {} if is_first else mean_sm_percent(s for s in samples if s.at_us > since_us)

    def _mig_uuids_for(self, processes: Sequence[GpuProcess]) -> Mapping[Instance, str]:
        """UUIDs of MIG devices, read again regularly and for a new instance."""
        seen = {(p.gpu_instance, p.compute_instance) for p in processes} - {(None, None)}
        self._mig_looks += 1
        if seen and (not seen <= self._mig_uuids.keys() or self._mig_looks >= MIG_LOOKS):
            self._mig_looks = 0
            self._mig_uuids = self._ask_mig_uuids()
        return self._mig_uuids

    def _ask_mig_uuids(self) -> dict[Instance, str]:
        found: dict[Instance, str] = {}
        for index in range(self.query.ask(ROWS["mig_devices_max"]) or 0):
            try:
                mig = self.device.mig_device(index)
            except NvmlError as error:
                if error.code == nvml.NOT_FOUND:
                    continue
                self.query.note(error, "mig_device")
                break
            found[mig.gpu_instance, mig.compute_instance] = mig.uuid
        return found
