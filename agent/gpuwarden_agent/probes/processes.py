"""GPU processes and their process trees, every ten seconds: who holds a GPU, and what starves it.

The driver names the processes; /proc tells what each does on the CPU. The tree of a process is the
process and its descendants down to the next GPU process, so that nothing is counted twice. From the
tree come the numbers that tell why a GPU waits: how busy the main thread, the pinning thread and
the data loader's workers are, and whether those are blocked on storage. CPU of a process that both
starts and ends between two looks is not seen.

Features are functions of two looks; `ProcessProbe` takes the looks.
"""

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gpuwarden.clock import Clock
from gpuwarden_agent.probe import ProbeError, Reading, Row, Value
from gpuwarden_agent.probes.asker import Asker
from gpuwarden_agent.probes.fit import fit
from gpuwarden_agent.probes.nvml_driver import Device, GpuProcess, NvmlError
from gpuwarden_agent.probes.owner import Owner, cpus_allowed, owner_of
from gpuwarden_agent.probes.procfs import TICKS_PER_S, Identity, Io, Process, ProcFs

log = logging.getLogger(__name__)

WORKER_NAME = "pt_data_worker"
"""What PyTorch calls the main thread of a data-loader worker."""
PIN_NAME = "pt_data_pin"
"""What PyTorch calls the thread that copies batches to pinned memory."""
SATURATED_PERCENT = 85.0
"""From here on a worker counts as limited by its core."""
LOCK_WAIT_S = 0.5
"""How long to wait, all in all, for GPUs whose own probes are in a driver call."""
DT_S_MIN = 0.2
"""Below it, ticks of 10 ms are too coarse for a percentage."""


@dataclass(frozen=True, slots=True)
class Look:
    """All processes at an instant, and the threads of the GPU processes."""

    monotonic_s: float
    uptime_ticks: int
    processes: Mapping[int, Process]
    threads: Mapping[Identity, Mapping[int, Process]]


@dataclass(frozen=True, slots=True)
class Rates:
    """CPU since an earlier look."""

    before: Look
    dt_s: float

    def percent(self, now: Process, then: Process | None) -> float:
        """CPU of a process or thread in percent of a core; `then`: it in the earlier look."""
        if then is not None and then.identity == now.identity:
            ticks = max(0, now.ticks - then.ticks)
        elif now.started_ticks >= self.before.uptime_ticks:
            ticks = now.ticks
        else:
            # The earlier look missed it; its whole life is not what it did since.
            return 0.0
        return 100 * ticks / TICKS_PER_S / self.dt_s

    def of_process(self, now: Process) -> float:
        """CPU of a process."""
        return self.percent(now, self.before.processes.get(now.pid))


def children_of(processes: Mapping[int, Process]) -> dict[int, list[Process]]:
    """Processes by their parent's pid."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    return children


def tree_of(
    root: Process, children: Mapping[int, Sequence[Process]], gpu_pids: Collection[int]
) -> list[Process]:
    """The process and its descendants, without other GPU processes and theirs."""
    tree = [root]
    seen = {root.pid}
    for process in tree:
        for child in children.get(process.pid, ()):
            if child.pid not in gpu_pids and child.pid not in seen:
                seen.add(child.pid)
                tree.append(child)
    return tree


def workers_of(root: Process, tree: Sequence[Process]) -> list[Process]:
    """The data loader's workers in a tree: those that PyTorch named, else forks of the process.

    A fork has not called exec, so that it runs the same program and began on the same stack; where
    that is not shown (another user's process), the same name is the next best sign.
    """
    named = [process for process in tree if process.name == WORKER_NAME and process is not root]
    if named:
        return named

    def is_fork(child: Process) -> bool:
        if root.stack and child.stack:
            return child.stack == root.stack
        return child.name == root.name

    return [
        child
        for child in tree
        if child.parent == root.pid and child is not root and child.state != "Z" and is_fork(child)
    ]


def cpu_features(
    root: Process,
    tree: Sequence[Process],
    workers: Sequence[Process],
    threads: Mapping[int, Process],
    rates: Rates,
) -> dict[str, Value]:
    """What the tree does on the CPU, between two looks."""
    values: dict[str, Value] = {"cpu_percent": sum(map(rates.of_process, tree))}
    before = rates.before.threads.get(root.identity)
    if before is not None:
        pins = [t for t in threads.values() if t.name == PIN_NAME]
        others = [t for t in threads.values() if t.name != PIN_NAME]
        for column, group in (("pin_cpu_percent", pins), ("main_cpu_percent", others)):
            busiest = max((rates.percent(t, before.get(t.pid)) for t in group), default=None)
            values[column] = busiest
    if workers:
        busy = [rates.of_process(worker) for worker in workers]
        values["loader_cpu_percent"] = sum(busy) / len(busy)
        saturated = sum(percent >= SATURATED_PERCENT for percent in busy)
        values["loader_saturated_percent"] = 100 * saturated / len(busy)
    return values


def total_io(parts: Sequence[Io | None]) -> Io | None:
    """The sum; None when a part may not be read, because a sum of the rest would be no counter."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or not parts:
        return None
    return Io(
        sum(io.read_bytes for io in known),
        sum(io.read_chars for io in known),
        sum(io.write_bytes for io in known),
    )


@dataclass(slots=True)
class Life:
    """What is remembered of a GPU process while it lives."""

    owner: Owner
    workers: set[Identity] = field(default_factory=set)
    workers_started: int = 0
    io: Io | None = None

    def saw_workers(self, workers: Sequence[Process]) -> int:
        """Count those that were not there at the last look; gives the count since the first."""
        now = {worker.identity for worker in workers}
        self.workers_started += len(now - self.workers)
        self.workers = now
        return self.workers_started

    def saw_io(self, io: Io | None) -> Io | None:
        """Keep the counters from falling between a child's end and its parent's wait for it,
        upon which the kernel adds the child's bytes to the parent's.
        """
        if io is None or self.io is None:
            self.io = io or self.io
            return io
        self.io = Io(
            max(io.read_bytes, self.io.read_bytes),
            max(io.read_chars, self.io.read_chars),
            max(io.write_bytes, self.io.write_bytes),
        )
        return self.io


class ProcessProbe:
    """The GPU processes of all GPUs."""

    name = "processes"
    simulated = False
    blocking = True
    tables: Mapping[str, int] = {"process_samples": 10}
    gpu_uuid: str | None = None

    def __init__(
        self,
        devices: Sequence[Device],
        clock: Clock,
        proc: ProcFs | None = None,
        are_pids_ours: bool | None = None,
    ) -> None:
        """`are_pids_ours`: the driver's pids are those of `proc`; None: find out."""
        self.failed: Counter[str] = Counter()
        """GPUs whose processes could not be asked for, by reason."""
        self._gpus = [(device, Asker(device.index, clock)) for device in devices]
        self._clock = clock
        self._proc = proc or ProcFs()
        self._are_pids_ours = are_pids_ours
        self._last: Look | None = None
        self._lives: dict[Identity, Life] = {}

    def describe(self) -> Reading:
        return {}

    def read(self, ts_ms: int, due: Collection[str] | None = None) -> Reading:
        patience = self._clock.monotonic() + LOCK_WAIT_S
        answers = [(device, self._held(device, asker, patience)) for device, asker in self._gpus]
        if answers and all(held is None for _, held in answers):
            raise ProbeError("no GPU tells which processes it has")
        pids = {process.pid for _, held in answers for process in held or ()}
        features = self._features(pids)
        rows: list[Row] = []
        for device, held in answers:
            for process in held or ():
                values = {
                    "gpu": device.index,
                    "gpu_uuid": device.uuid,
                    "pid": process.pid,
                    "gpu_memory_bytes": process.memory_bytes,
                    **features.get(process.pid, {}),
                }
                rows.append(fit("process_samples", values))
        return {"process_samples": rows}

    def close(self) -> None:
        """Nothing to give back."""

    def _held(self, device: Device, asker: Asker, patience: float) -> Sequence[GpuProcess] | None:
        """Processes of a GPU; None where it does not tell. What is wrong with the GPU as such its
        own probe reports.
        """
        if not device.lock.acquire(timeout=max(0.0, patience - self._clock.monotonic())):
            self.failed[f"GPU {device.index}: in a driver call that does not return"] += 1
            return None
        try:
            if device.uuid is None:
                device.open()
            held = asker.ask(device.compute_processes_v3, device.compute_processes_v2)
        except (NvmlError, ProbeError) as error:
            self.failed[f"GPU {device.index}: {error}"] += 1
            return None
        finally:
            device.lock.release()
        return None if held is None else by_pid(held)

    def _features(self, pids: Collection[int]) -> dict[int, dict[str, Value]]:
        """Columns from /proc by pid. A process that /proc does not have has none."""
        if not pids or not self._are_pids_known():
            self._last = None
            return {}
        try:
            look = self._look(pids)
        except OSError as error:
            self.failed[f"/proc: {error}"] += 1
            self._last = None
            return {}
        rates = self._rates_until(look)
        children = children_of(look.processes)
        roots = [look.processes[pid] for pid in pids if pid in look.processes]
        self._last = look
        # A GPU that does not answer for a while has not lost its processes: as long as they live,
        # they are remembered.
        living = {process.identity for process in look.processes.values()}
        self._lives = {who: life for who, life in self._lives.items() if who in living}
        rows: dict[int, dict[str, Value]] = {}
        for root in roots:
            tree = tree_of(root, children, pids)
            workers = workers_of(root, tree)
            if root.identity not in self._lives:
                self._lives[root.identity] = Life(owner_of(root, self._proc))
            row = self._facts(self._lives[root.identity], root, tree, workers)
            if rates is not None:
                row |= cpu_features(root, tree, workers, look.threads[root.identity], rates)
            rows[root.pid] = row
        return rows

    def _look(self, pids: Collection[int]) -> Look:
        now, uptime_ticks = self._clock.monotonic(), self._proc.uptime_ticks()
        processes = self._proc.processes()
        threads = {
            processes[pid].identity: self._proc.threads(pid) for pid in pids if pid in processes
        }
        return Look(now, uptime_ticks, processes, threads)

    def _rates_until(self, look: Look) -> Rates | None:
        if self._last is None or look.monotonic_s - self._last.monotonic_s < DT_S_MIN:
            return None
        return Rates(self._last, look.monotonic_s - self._last.monotonic_s)

    def _facts(
        self, life: Life, root: Process, tree: Sequence[Process], workers: Sequence[Process]
    ) -> dict[str, Value]:
        """What one look tells."""
        owner = life.owner
        io = life.saw_io(total_io([self._proc.io(p.pid) for p in tree if p.state != "Z"]))
        values: dict[str, Value] = {
            "process_name": owner.process_name,
            "username": owner.username,
            "slurm_job_id": owner.slurm_job_id,
            "container_id": owner.container_id,
            "pod": owner.pod,
            "started_at": owner.started_at_ms,
            "loader_workers": len(workers),
            "loader_started_total": life.saw_workers(workers),
            "cpus_allowed": cpus_allowed(root.pid),
        }
        if io is not None:
            values["read_bytes_total"] = io.read_bytes
            values["read_chars_total"] = io.read_chars
            values["write_bytes_total"] = io.write_bytes
        if workers:
            blocked = sum(worker.state == "D" for worker in workers)
            values["loader_blocked_percent"] = 100 * blocked / len(workers)
        return values

    def _are_pids_known(self) -> bool:
        if self._are_pids_ours is None:
            self._are_pids_ours = self._proc.shows_host_pids()
            if not self._are_pids_ours:
                log.warning(
                    "process trees are unknown: the agent is not in the host's pid namespace"
                )
        return self._are_pids_ours


def by_pid(processes: Sequence[GpuProcess]) -> list[GpuProcess]:
    """One entry a process: the driver lists one for each MIG instance that it uses."""
    memory: dict[int, int | None] = {}
    for process in processes:
        known = memory.get(process.pid)
        parts = [part for part in (known, process.memory_bytes) if part is not None]
        memory[process.pid] = sum(parts) if parts else None
    return [GpuProcess(pid, held) for pid, held in memory.items()]
