"""Reads the GPUs that a scheduler has allocated, with or without a process, every ten seconds.

Kubernetes reports them by the kubelet's socket, Slurm by its files on the node. A GPU that is allocated
and has no process is waste that no process table shows.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.coerce import coerce
from gpuwarden_agent.collect.files import is_there
from gpuwarden_agent.collect.processes.cgroup import CgroupFs
from gpuwarden_agent.collect.processes.owner import user_name
from gpuwarden_agent.collect.processes.procfs import ProcFs
from gpuwarden_agent.collect.schedulers import slurm
from gpuwarden_agent.collect.schedulers.gpu_names import GpuNames
from gpuwarden_agent.collect.schedulers.kubelet import (
    SOCKET,
    ContainerDevices,
    PodResourcesError,
    list_devices,
)
from gpuwarden_agent.collect.schedulers.slurm import JobGpus, SlurmJobs
from gpuwarden_agent.collect.schedulers.slurm_jobs import gpus_of
from gpuwarden_agent.collect.schedulers.slurm_notes import SlurmNotes
from gpuwarden_agent.collect.shared_state import SharedReading, SharedState
from gpuwarden_agent.probe import HostedProbe, ProbeError, Reading, Row, Value

if TYPE_CHECKING:
    from gpuwarden_agent.collect.kubernetes.directory import PodDirectory

VENDORS = ("nvidia.com/", "amd.com/", "gpu.nvidia.com", "gpu.amd.com")
"""Resources of GPUs and MIG devices in Kubernetes (nvidia.com/gpu, nvidia.com/mig-1g.10gb), and drivers of
resource claims."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A device, by its scheduler's name, that is allocated to an owner."""

    scheduler: str
    device: str
    owner: str
    username: str | None = None
    slurm_job_id: str | None = None
    pod: str | None = None
    container: str | None = None


def of_pods(containers: Sequence[ContainerDevices]) -> Iterator[Allocation]:
    """Allocations of NVIDIA's and AMD's devices by the kubelet."""
    for given in containers:
        if given.resource.startswith(VENDORS):
            pod = f"{given.namespace}/{given.pod}"
            for device in given.ids:
                yield Allocation(
                    "kubernetes",
                    device,
                    f"{pod}/{given.container}",
                    pod=pod,
                    container=given.container,
                )


def of_jobs(jobs: Sequence[JobGpus], name_of: Callable[[int], str]) -> Iterator[Allocation]:
    """Allocations by Slurm."""
    for job in jobs:
        username = None if job.uid is None else name_of(job.uid)
        for device in job.gpus:
            yield Allocation("slurm", device, job.job, username, slurm_job_id=job.job)


def noted_jobs(notes: SlurmNotes) -> Callable[[], Sequence[JobGpus]]:
    """Running jobs by the notes of their prologs; none if the notes cannot be read."""

    def look() -> Sequence[JobGpus]:
        try:
            found = notes.look()
        except OSError:
            return ()  # the probe of jobs reports it
        running = (note for note in found.values() if note.ended_ms is None)
        return [JobGpus(n.job, n.number("SLURM_JOB_UID"), gpus_of(n)) for n in running]

    return look


class AllocationProbe(HostedProbe):
    """Reads the allocations of a node."""

    name = "allocations"
    tables: Mapping[str, int] = {"allocation_samples": 10}

    def __init__(
        self,
        names: GpuNames,
        clock: Clock,
        shared: SharedState,
        *,
        kubelet: Path | None = None,
        jobs: SlurmJobs | None = None,
        pods: "PodDirectory | None" = None,
        name_of: Callable[[int], str] = user_name,
    ) -> None:
        """`kubelet`, `jobs`: None if the node has no such scheduler; `pods`: None: no names of pods."""
        self.failed: Counter[str] = Counter()
        """Failed readings, by reason."""
        self._names = names
        self._clock = clock
        self._shared = shared
        self._kubelet = kubelet
        self._jobs = jobs
        self._pods = pods
        self._name_of = name_of

    def describe(self) -> Reading:
        """Labels of the node in the cluster."""
        labels = self._pods.node_labels if self._pods is not None else None
        return {} if labels is None else {"nodes": [{"labels": json.dumps(dict(labels))}]}

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        found, errors = self._ask()
        for error in errors:
            self.failed[error] += 1
        if errors and not found:
            raise ProbeError(f"GPUs that were given out are unknown: {'; '.join(errors)}")
        rows: dict[tuple[str, str], Row] = {}
        pods: dict[str, set[str]] = {}
        now_s = self._clock.monotonic()
        for given in found:
            gpu = self._names.find(given.device)
            if gpu is None:
                self.failed[f"{given.scheduler} gave out an unknown device: {given.device}"] += 1
                continue
            index, uuid = gpu
            if given.pod:
                pods.setdefault(uuid, set()).add(given.pod)
            values = {
                "gpu": index,
                "gpu_uuid": uuid,
                "scheduler": given.scheduler,
                "username": given.username,
                "job": given.slurm_job_id or given.pod,
                "pod": given.pod,
                "container": given.container,
                **self._named(given.pod),
                "processes": self._shared.processes_on(uuid, now_s),
            }
            # A shared GPU may be allocated to one container several times.
            rows[uuid, given.owner] = coerce("allocation_samples", values)
        self._shared.pods = SharedReading(now_s, {uuid: frozenset(p) for uuid, p in pods.items()})
        if self._pods is not None:
            self._pods.refresh_soon()
        return {"allocation_samples": list(rows.values())}

    def _named(self, pod: str | None) -> dict[str, Value]:
        """Columns from a pod's labels and owner."""
        if pod is None:
            return {}
        columns: dict[str, Value] = {"namespace": pod.partition("/")[0]}
        if self._pods is not None and (named := self._pods.by_pod(pod)) is not None:
            columns |= {
                "workload": named.workload,
                "username": named.user,
                "team": named.team,
                "pod_labels": named.labels,
            }
        return columns

    def _ask(self) -> tuple[list[Allocation], list[str]]:
        """Allocations of the schedulers, and errors."""
        found: list[Allocation] = []
        errors: list[str] = []
        # A node without the socket is in no cluster now.
        if self._kubelet is not None and is_there(self._kubelet):
            try:
                found += of_pods(list_devices(self._kubelet, self._clock.monotonic))
            except PodResourcesError as error:
                errors.append(str(error))
        if self._jobs is not None:
            found += of_jobs(self._jobs.look(), self._name_of)
            if self._jobs.unreadable:
                errors.append(
                    "the environment of Slurm's jobs may not be read: give the agent CAP_SYS_PTRACE"
                )
        return found, errors


def allocation_probe(
    names: GpuNames,
    clock: Clock,
    shared: SharedState,
    *,
    pods: "PodDirectory | None" = None,
    kubelet: Path = SOCKET,
    slurm_folders: Sequence[Path] = slurm.INSTALLED,
) -> AllocationProbe | None:
    """The probe of this host; None if neither Kubernetes nor Slurm is installed."""
    has_kubelet = is_there(kubelet.parent)
    has_slurm = any(map(is_there, slurm_folders))
    if not has_kubelet and not has_slurm and pods is None:
        return None
    return AllocationProbe(
        names,
        clock,
        shared,
        kubelet=kubelet if has_kubelet else None,
        jobs=SlurmJobs(CgroupFs().mounts, ProcFs(), noted_jobs(SlurmNotes()))
        if has_slurm
        else None,
        pods=pods,
    )
