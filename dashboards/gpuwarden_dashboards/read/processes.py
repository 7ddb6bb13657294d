"""Reads processes of GPUs, and arranges them in their tree: what started them above, they below."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuwarden.process_tree import Ancestor, ancestors_of, signal_remarks

Process = Mapping[str, Any]
"""A row of `process_samples`: `node`, `pid`, `process_name`, `ancestors`, `state`, `signals_*`, `loader_pids`."""

DEPTH_MAX = 6
"""Deeper lines are drawn at this depth."""
PROCESS_STATES = {
    "R": "running",
    "S": "waiting",
    "D": "blocked on I/O",
    "T": "stopped",
    "Z": "ended, not waited for",
}
"""Words for states of `ps`."""
_INIT_PID = 1
_SHOWN_MAX = 64


def _per_second(counter: str) -> str:
    """SQL of a counter's rate over the rows of a window `w`; NULL after a reset."""
    gained = f"last_value({counter}) OVER w - first_value({counter}) OVER w"
    seconds = "epoch(last_value(ts) OVER w) - epoch(first_value(ts) OVER w)"
    return f"CASE WHEN {gained} >= 0 THEN ({gained}) / nullif({seconds}, 0) END"


PROCESSES = f"""
SELECT node, gpu, pid, process_name, command, username, job,
    gpu_memory_bytes AS memory_bytes, sm_util_percent, cpu_percent, rss_bytes, started_at, state, threads,
    loader_workers, loader_pids, ancestors, signals_pending, signals_blocked, signals_ignored,
    {_per_second("read_bytes_total")} AS read_bytes, {_per_second("write_bytes_total")} AS written_bytes
FROM process_samples
WHERE {{where}} AND ts > now()::TIMESTAMP - INTERVAL 1 MINUTE
WINDOW w AS (PARTITION BY gpu_uuid, pid ORDER BY ts ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
QUALIFY row_number() OVER (PARTITION BY gpu_uuid, pid ORDER BY ts DESC) = 1
ORDER BY node, gpu, memory_bytes DESC NULLS LAST LIMIT {_SHOWN_MAX}
"""
"""Newest rows of the last minute, one a process and GPU, those with most memory first; {where}: of which."""


@dataclass(frozen=True, slots=True)
class ProcessLine:
    """A line of a table of processes: either ancestors without a GPU, or one process on one GPU."""

    depth: int
    """0: at the left."""
    above: Sequence[Ancestor] = ()
    """Ancestors, each the parent of the next."""
    process: Process | None = None

    @property
    def remarks(self) -> Sequence[str]:
        """What is unusual about its signals."""
        return signal_remarks(self.process) if self.process is not None else ()

    @property
    def loaders(self) -> str:
        """Pids of its loader workers: "812 to 819, 830"; empty: none is known."""
        return pids_text(self.process.get("loader_pids") if self.process is not None else None)


@dataclass(slots=True)
class _Branch:
    ancestor: Ancestor | None
    processes: list[Process] = field(default_factory=list)
    """Rows of this process, one for each GPU that it is on."""
    below: list["_Branch"] = field(default_factory=list)

    def at(self, one: Ancestor, *, is_row: bool = False) -> "_Branch":
        """The branch of a child. A pid with another name is another process, except that a row may have
        a longer name than /proc gives its children.
        """
        for branch in self.below:
            assert branch.ancestor is not None
            is_it = branch.ancestor == one or bool(is_row or branch.processes)
            if branch.ancestor.pid == one.pid and is_it:
                return branch
        self.below.append(_Branch(one))
        return self.below[-1]


def process_lines(processes: Iterable[Process]) -> list[ProcessLine]:
    """The processes in their order, each below what started it; of a process without `ancestors` nothing is
    known above it. Ancestors that lead to the same branch only are one line. init is left out.
    """
    nodes: dict[object, _Branch] = {}
    for process in processes:
        branch = nodes.setdefault(process.get("node"), _Branch(None))
        for ancestor in ancestors_of(process.get("ancestors")):
            if ancestor.pid != _INIT_PID:
                branch = branch.at(ancestor)
        own = Ancestor(int(process["pid"]), str(process.get("process_name") or "?"))
        branch.at(own, is_row=True).processes.append(process)
    return [line for root in nodes.values() for branch in root.below for line in _lines(branch, 0)]


def _lines(branch: _Branch, depth: int) -> Iterable[ProcessLine]:
    shown = min(depth, DEPTH_MAX)
    if branch.processes:
        yield from (ProcessLine(shown, process=process) for process in branch.processes)
    else:
        above: list[Ancestor] = []
        while True:
            assert branch.ancestor is not None
            above.append(branch.ancestor)
            if len(branch.below) != 1 or branch.below[0].processes:
                break
            branch = branch.below[0]
        yield ProcessLine(shown, above=above)
    for child in branch.below:
        yield from _lines(child, depth + 1)


def pids_text(text: str | None) -> str:
    """Pids, separated by commas, as ranges."""
    pids = sorted({int(word) for word in (text or "").split(",") if word.strip().isdecimal()})
    ranges: list[list[int]] = []
    for pid in pids:
        if ranges and pid == ranges[-1][1] + 1:
            ranges[-1][1] = pid
        else:
            ranges.append([pid, pid])
    return ", ".join(f"{a} to {b}" if b > a else f"{a}" for a, b in ranges)
