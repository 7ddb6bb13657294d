"""Reads GPU processes and their process trees every ten seconds: owner, limits and CPU activity.

The driver names the processes; /proc and the control groups tell what each does on the CPU, who it
belongs to and what it may use. `ProcessProbe` reads; `rates.py`, `tracker.py`, `cgroup.py` and
`nvidia/processes.py` evaluate the readings.
"""

import logging
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from gpuwarden.clock import Clock
from gpuwarden_agent.collect.coerce import coerce
from gpuwarden_agent.collect.kubernetes.pods import uid_of_cgroup
from gpuwarden_agent.collect.nvidia.nvml import NvmlCalls, NvmlError
from gpuwarden_agent.collect.nvidia.processes import GpuProcesses, HeldGpu
from gpuwarden_agent.collect.processes.ancestry import pids_text, signal_columns, up_to_root
from gpuwarden_agent.collect.processes.cgroup import CgroupFs, CgroupLimits, main_path
from gpuwarden_agent.collect.processes.numa import NumaNodes
from gpuwarden_agent.collect.processes.owner import cpus_allowed, cpus_allowed_any
from gpuwarden_agent.collect.processes.procfs import Identity, Process, ProcFs
from gpuwarden_agent.collect.processes.rates import (
    DT_S_MIN,
    Rates,
    TreeReading,
    cpu_features,
    total_io,
    tree_of,
    workers_of,
)
from gpuwarden_agent.collect.processes.table import ProcessTable, children_of
from gpuwarden_agent.collect.processes.tracker import ProcessTracker
from gpuwarden_agent.collect.shared_state import SharedReading, SharedState
from gpuwarden_agent.probe import HostedProbe, ProbeError, Reading, Row, Value

if TYPE_CHECKING:
    from gpuwarden_agent.collect.kubernetes.directory import PodDirectory

log = logging.getLogger(__name__)

LOCK_WAIT_S = 0.5
"""Total time to wait for GPUs whose own probes are in a driver call."""


class ProcessGpu(Protocol):
    """A GPU whose processes are read."""

    @property
    def index(self) -> int: ...
    @property
    def uuid(self) -> str | None:
        """None until it is known."""
        ...

    @property
    def lock(self) -> threading.Lock:
        """Held while `held` runs."""
        ...


class ProcessSource(Protocol):
    """Reads the processes on one GPU."""

    @property
    def device(self) -> ProcessGpu: ...

    def held(self) -> Sequence[HeldGpu] | None:
        """Processes on the GPU; None: not reported. Raises NvmlError and ProbeError."""
        ...


class ProcessProbe(HostedProbe):
    """The GPU processes of all GPUs of one vendor."""

    tables: Mapping[str, int] = {"process_samples": 10}

    def __init__(
        self,
        devices: Sequence[NvmlCalls],
        clock: Clock,
        proc: ProcFs | None = None,
        are_pids_ours: bool | None = None,
        *,
        cgroups: CgroupFs | None = None,
        shared: SharedState | None = None,
        others: Sequence[ProcessSource] = (),
        name: str = "processes",
        pods: "PodDirectory | None" = None,
        numa: NumaNodes | None = None,
    ) -> None:
        """`are_pids_ours`: the driver's pids are those of `proc`; None: find out. `others`: GPUs of other
        makers. `pods`: None: no names of pods.
        """
        self.name = name
        self.failed: Counter[str] = Counter()
        """GPUs whose processes could not be read, by reason."""
        self._gpus: list[ProcessSource] = [GpuProcesses(device, clock) for device in devices]
        self._gpus += others
        self._clock = clock
        self._proc = proc or ProcFs()
        self._table = ProcessTable(self._proc)
        self._are_pids_ours = are_pids_ours
        self._cgroups = cgroups or CgroupFs()
        self._shared = shared or SharedState()
        self._pods = pods
        self._numa = numa or NumaNodes()
        self._last: TreeReading | None = None
        self._trackers: dict[Identity, ProcessTracker] = {}

    def watch(self, device: NvmlCalls) -> None:
        """Read one more GPU, which came while the agent runs. May be called from any thread."""
        self.watch_other(GpuProcesses(device, self._clock))

    def watch_other(self, device: ProcessSource) -> None:
        """As `watch`, of another maker."""
        self._gpus.append(device)

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        until_s = self._clock.monotonic() + LOCK_WAIT_S
        before = self.failed.copy()
        answers = [(gpu.device, self._held(gpu, until_s)) for gpu in self._gpus]
        if answers and all(held is None for _, held in answers):
            why = "; ".join(reason for reason, n in self.failed.items() if n > before[reason])
            raise ProbeError("no GPU tells which processes it has" + (f" ({why})" if why else ""))
        now_s = self._clock.monotonic()
        self._shared.processes = SharedReading(now_s, processes_by_gpu(answers))
        features = self._features({process.pid for _, held in answers for process in held or ()})
        rows: list[Row] = []
        for device, held in answers:
            for process in held or ():
                values = driver_columns(device.index, process) | features.get(process.pid, {})
                if values.pop("is_in_kubernetes", False):
                    values |= self._of_pod(values, process.gpu_uuid, now_s)
                values["job"] = values.get("job") or values.get("pod")
                rows.append(coerce("process_samples", values))
        return {"process_samples": rows}

    def _of_pod(self, values: dict[str, Value], gpu_uuid: str, now_s: float) -> dict[str, Value]:
        """Columns of a process in a pod. The uid in its control group is the surest name of the pod."""
        uid = uid_of_cgroup(str(values.get("cgroup") or ""))
        named = self._pods.by_uid(uid) if self._pods is not None else None
        if named is None:
            pod = values.get("pod") or self._shared.only_pod_on(gpu_uuid, now_s)
            named = self._pods.by_pod(str(pod)) if pod and self._pods is not None else None
            if named is None:
                return {"pod": pod}
        # The user of a container is root, or a number that means nothing on the host.
        user = named.user or values.get("username")
        return {"pod": named.pod, "workload": named.workload, "username": user}

    def _held(self, gpu: ProcessSource, until_s: float) -> Sequence[HeldGpu] | None:
        """Processes of a GPU; None: not reported. The GPU's own probe reports what is wrong with it."""
        device = gpu.device
        if not device.lock.acquire(timeout=max(0.0, until_s - self._clock.monotonic())):
            self.failed[f"GPU {device.index}: in a driver call that does not return"] += 1
            return None
        try:
            return gpu.held()
        except (NvmlError, ProbeError) as error:
            self.failed[f"GPU {device.index}: {error}"] += 1
            return None
        finally:
            device.lock.release()

    def _features(self, pids: Collection[int]) -> dict[int, dict[str, Value]]:
        """Columns from /proc by pid, without processes that /proc does not have."""
        if not self._are_pids_known() or not (pids or self._trackers):
            self._last = None
            return {}
        try:
            look = self._look(pids)
        except OSError as error:
            self.failed[f"/proc: {error}"] += 1
            self._last = None
            return {}
        rates = self._rates_until(look)
        self._last = look
        living = {process.identity for process in look.processes.values()}
        self._trackers = {who: tracker for who, tracker in self._trackers.items() if who in living}
        children = children_of(look.processes.values())
        limits: dict[str, CgroupLimits] = {}
        rows: dict[int, dict[str, Value]] = {}
        for root in (look.processes[pid] for pid in pids if pid in look.processes):
            tree = tree_of(root, children, pids)
            workers = workers_of(root, tree)
            tracker = self._trackers.setdefault(root.identity, ProcessTracker())
            threads = look.threads[root.identity]
            tracker.saw(root, self._proc)
            tracker.saw_ancestors(up_to_root(self._table.ancestors(root)), self._proc)
            row = owner_columns(tracker) | self._tree_columns(tracker, root, tree, workers, threads)
            if tracker.cgroup not in limits:
                limits[tracker.cgroup] = self._cgroups.limits(tracker.paths)
            row |= limit_columns(limits[tracker.cgroup])
            if rates is not None:
                row |= cpu_features(root, tree, workers, threads, rates)
            rows[root.pid] = row
        return rows

    def _look(self, pids: Collection[int]) -> TreeReading:
        now, uptime_ticks = self._clock.monotonic(), self._proc.uptime_ticks()
        # A GPU that does not answer for a while keeps its processes: they are tracked while they live.
        tracked = {pid for pid, _ in self._trackers}
        processes = self._table.trees({*pids, *tracked})
        threads = {
            processes[pid].identity: self._proc.threads(pid) for pid in pids if pid in processes
        }
        return TreeReading(now, uptime_ticks, processes, threads)

    def _rates_until(self, look: TreeReading) -> Rates | None:
        if self._last is None or look.monotonic_s - self._last.monotonic_s < DT_S_MIN:
            return None
        return Rates(self._last, look.monotonic_s - self._last.monotonic_s)

    def _tree_columns(
        self,
        tracker: ProcessTracker,
        root: Process,
        tree: Sequence[Process],
        workers: Sequence[Process],
        threads: Mapping[int, Process],
    ) -> dict[str, Value]:
        """Columns of a process and its descendants from one reading."""
        io = tracker.saw_io(total_io([self._proc.io(p.pid) for p in tree if p.state != "Z"]))
        switches = tracker.switches.look(threads, lambda tid: self._proc.switches(root.pid, tid))
        values: dict[str, Value] = {
            "state": root.state,
            "parent_pid": root.parent or None,
            **signal_columns(self._proc.signals(root.pid)),
            "threads": root.threads,
            "rss_bytes": sum(process.rss_bytes for process in tree),
            "loader_workers": len(workers),
            "loader_started_total": tracker.saw_workers(workers),
            "cpus_allowed": cpus_allowed(root.pid),
            **self._numa.columns(root.pid, self._proc),
        }
        if switches is not None:
            values["voluntary_switches_total"] = switches.voluntary
            values["involuntary_switches_total"] = switches.involuntary
        if io is not None:
            values["read_bytes_total"] = io.read_bytes
            values["read_chars_total"] = io.read_chars
            values["write_bytes_total"] = io.write_bytes
        if workers:
            values["loader_pids"] = pids_text(workers)
            blocked = sum(worker.state == "D" for worker in workers)
            values["loader_blocked_percent"] = 100 * blocked / len(workers)
            values["loader_cpus_allowed"] = cpus_allowed_any([worker.pid for worker in workers])
        return values

    def _are_pids_known(self) -> bool:
        if self._are_pids_ours is None:
            self._are_pids_ours = self._proc.shows_host_pids()
            if not self._are_pids_ours:
                log.warning(
                    "process trees are unknown: the agent is not in the host's pid namespace"
                )
        return self._are_pids_ours


def driver_columns(gpu: int, held: HeldGpu) -> dict[str, Value]:
    """Columns from the driver."""
    return {
        "gpu": gpu,
        "gpu_uuid": held.gpu_uuid,
        "pid": held.pid,
        "gpu_memory_bytes": held.memory_bytes,
        "mig_instance": held.mig_instance,
        "process_type": held.process_type,
        "sm_util_percent": held.sm_percent,
    }


def owner_columns(tracker: ProcessTracker) -> dict[str, Value]:
    """Columns of the owner. `is_in_kubernetes` is not a column: the caller looks up the pod."""
    owner = tracker.owner
    return {
        "process_name": owner.process_name,
        "username": owner.username,
        "job": owner.slurm_job_id,
        "container_id": owner.container_id,
        "pod": owner.pod,
        "rendezvous": owner.launch.rendezvous,
        "rank": owner.launch.rank,
        "world_size": owner.launch.world_size,
        "started_at": owner.started_at_ms,
        "command": tracker.command,
        "cgroup": main_path(tracker.paths),
        "ancestors": tracker.ancestors,
        "is_in_kubernetes": "kubepods" in tracker.cgroup,
    }


def limit_columns(limits: CgroupLimits) -> dict[str, Value]:
    """Columns of the limits of a process's control group."""
    return {
        "cgroup_cpu_limit_cores": limits.cpu_cores,
        "cgroup_cpu_throttled_seconds_total": limits.throttled_seconds,
        "cgroup_memory_limit_bytes": limits.memory_bytes,
        "cgroup_memory_used_bytes": limits.memory_used_bytes,
    }


def processes_by_gpu(
    answers: Sequence[tuple[ProcessGpu, Sequence[HeldGpu] | None]],
) -> dict[str, int]:
    """Number of processes on each GPU that answered, and on MIG devices with processes."""
    pids: dict[str, set[int]] = {}
    for device, held in answers:
        if held is None or device.uuid is None:
            continue
        pids[device.uuid] = {process.pid for process in held}
        for process in held:
            pids.setdefault(process.gpu_uuid, set()).add(process.pid)
    return {gpu_uuid: len(found) for gpu_uuid, found in pids.items()}
