"""Tracks a GPU process while it runs: its owner, and counters that must not fall."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuwarden.process_tree import ancestors_text
from gpuwarden_agent.collect.processes.ancestry import named_ancestors
from gpuwarden_agent.collect.processes.cgroup import parse_paths
from gpuwarden_agent.collect.processes.command import program_and_script
from gpuwarden_agent.collect.processes.owner import UNKNOWN_OWNER, ProcessOwner, owner_of
from gpuwarden_agent.collect.processes.procfs import Identity, Io, Process, ProcFs, Switches

REFRESH_IN = 8
"""Readings until the switches of a thread that used no CPU are read again."""


class SwitchCounter:
    """Counts context switches of all threads of a process since it was first seen.

    A process may have hundreds of threads, most of which sleep: those are read in turns. Their counts
    come late, but are not lost.
    """

    def __init__(self) -> None:
        self._known: dict[Identity, tuple[int, Switches]] = {}
        self._ended = Switches(0, 0)
        self._turn = 0

    def look(
        self, threads: Mapping[int, Process], read: Callable[[int], Switches | None]
    ) -> Switches | None:
        """The total, after a `read` of the due threads; None if none can be read."""
        self._turn += 1
        living = {thread.identity for thread in threads.values()}
        for identity in self._known.keys() - living:
            self._ended = _sum([self._ended, self._known.pop(identity)[1]])
        for thread in threads.values():
            if self._is_due(thread) and (switches := read(thread.pid)) is not None:
                self._known[thread.identity] = (thread.ticks, switches)
        if not self._known:
            return None
        return _sum([self._ended, *(switches for _, switches in self._known.values())])

    def _is_due(self, thread: Process) -> bool:
        ticks, _ = self._known.get(thread.identity, (None, None))
        return ticks != thread.ticks or (thread.pid + self._turn) % REFRESH_IN == 0


def _sum(parts: Sequence[Switches]) -> Switches:
    return Switches(sum(p.voluntary for p in parts), sum(p.involuntary for p in parts))


@dataclass(slots=True)
class ProcessTracker:
    """A GPU process, from its first reading to its last."""

    owner: ProcessOwner = UNKNOWN_OWNER
    command: str | None = None
    cgroup: str = ""
    """Text of its cgroup file."""
    switches: SwitchCounter = field(default_factory=SwitchCounter)
    workers: set[Identity] = field(default_factory=set)
    workers_started: int = 0
    io: Io | None = None
    ancestors: str | None = None
    _above: Sequence[tuple[int, int, str]] | None = None
    _seen: tuple[str, bytes, str] | None = None

    @property
    def paths(self) -> dict[str, str]:
        """Control groups by controller."""
        return parse_paths(self.cgroup)

    def saw(self, root: Process, proc: ProcFs) -> None:
        """Read the owner of the process, again after exec or a move to another group."""
        if root.state == "Z" and self._seen is not None:
            return  # the facts of an ended process are not visible any more
        raw = proc.command(root.pid)
        seen = (proc.text_or_empty(f"{root.pid}/cgroup"), raw, root.name)
        if seen == self._seen:
            return
        self._seen = seen
        self.cgroup = seen[0]
        self.owner = owner_of(root, proc)
        self.command = program_and_script(raw)

    def saw_ancestors(self, above: Sequence[Process], proc: ProcFs) -> None:
        """Name the processes above, its parent first; read again when one of them is another."""
        known = [(*process.identity, process.name) for process in above]
        if known == self._above:
            return
        self._above = known
        now = proc.stats(process.pid for process in above)
        read = [now.get(process.pid, process) for process in above]
        self.ancestors = ancestors_text(named_ancestors(read)) or None

    def saw_workers(self, workers: Sequence[Process]) -> int:
        """Count new workers; returns the count since the first reading."""
        now = {worker.identity for worker in workers}
        self.workers_started += len(now - self.workers)
        self.workers = now
        return self.workers_started

    def saw_io(self, io: Io | None) -> Io | None:
        """Keep the counters from falling after a child ended: the kernel adds the child's bytes to the
        parent's only when the parent waits for it.
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
