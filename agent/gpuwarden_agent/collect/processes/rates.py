"""Computes CPU, I/O and workers of a process tree between two readings: pure functions.

The tree of a process ends at the next GPU process, so that nothing is counted twice. The results show
why a GPU waits: how busy the main thread, the pinning thread and the data loader's workers are, and
whether the workers are blocked on storage. CPU of a process that starts and ends between two readings
is not counted.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpuwarden_agent.collect.processes.procfs import TICKS_PER_S, Identity, Io, Process
from gpuwarden_agent.probe import Value

WORKER_NAME = "pt_data_worker"
"""PyTorch's name for the main thread of a data-loader worker."""
PIN_NAME = "pt_data_pin"
"""PyTorch's name for the thread that copies batches to pinned memory."""
COMMUNICATION_PREFIXES = ("pt_nccl", "NCCL")
"""Threads that spin while the GPUs of a job wait for each other, which is not work."""
SATURATED_PERCENT = 85.0
"""From this value on, a worker counts as limited by its core."""
IDLE_PERCENT = 20.0
"""Below this value a worker counts as waiting for its consumer."""
DT_S_MIN = 0.2
"""For a shorter time, ticks of 10 ms are too coarse for a percentage."""


@dataclass(frozen=True, slots=True)
class TreeReading:
    """The GPU processes' trees at an instant, and the threads of the GPU processes."""

    monotonic_s: float
    uptime_ticks: int
    processes: Mapping[int, Process]
    threads: Mapping[Identity, Mapping[int, Process]]


@dataclass(frozen=True, slots=True)
class Rates:
    """CPU since an earlier reading."""

    before: TreeReading
    dt_s: float

    def percent(self, now: Process, then: Process | None) -> float:
        """CPU of a process or thread in percent of a core; `then`: its earlier reading."""
        if then is not None and then.identity == now.identity:
            ticks = max(0, now.ticks - then.ticks)
        elif now.started_ticks >= self.before.uptime_ticks:
            ticks = now.ticks
        else:
            # The earlier reading missed it, so its total is not what it used since then.
            return 0.0
        return 100 * ticks / TICKS_PER_S / self.dt_s

    def of_process(self, now: Process) -> float:
        """CPU of a process."""
        return self.percent(now, self.before.processes.get(now.pid))


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

    A fork did not call exec, so it has the same program and the same first stack. If the stack is not
    visible (another user's process), the same name decides.
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
    """Columns for the CPU use of the tree, between two readings."""
    loaders = {worker.pid for worker in workers}
    others = [p for p in tree if p.pid not in loaders and p.pid != root.pid]
    values: dict[str, Value] = {
        "cpu_percent": sum(map(rates.of_process, tree)),
        "children_cpu_percent": sum(map(rates.of_process, others)),
    }
    before = rates.before.threads.get(root.identity)
    if before is not None:
        pins = [t for t in threads.values() if t.name == PIN_NAME]
        mains = [
            t
            for t in threads.values()
            if t.name != PIN_NAME and not t.name.startswith(COMMUNICATION_PREFIXES)
        ]
        for column, group in (("pin_cpu_percent", pins), ("main_cpu_percent", mains)):
            busiest = max((rates.percent(t, before.get(t.pid)) for t in group), default=None)
            values[column] = busiest
    if workers:
        busy = [rates.of_process(worker) for worker in workers]
        values["loader_cpu_percent"] = sum(busy) / len(busy)
        saturated = sum(percent >= SATURATED_PERCENT for percent in busy)
        values["loader_saturated_percent"] = 100 * saturated / len(busy)
        idle = sum(percent < IDLE_PERCENT for percent in busy)
        values["loader_idle_percent"] = 100 * idle / len(busy)
    return values


def total_io(parts: Sequence[Io | None]) -> Io | None:
    """The sum; None if a part cannot be read, because a sum of the rest would not be a counter."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or not parts:
        return None
    return Io(
        sum(io.read_bytes for io in known),
        sum(io.read_chars for io in known),
        sum(io.write_bytes for io in known),
    )
