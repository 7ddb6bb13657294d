"""Lists the processes of a host; only the trees of GPU processes are read each time.

A host may have ten thousand processes, a GPU process a hundred descendants. Other processes are cached:
one can enter a watched tree only by a start in it, or when its parent ends. A pid that was used again
between two readings escapes this rule, so a part of the cache is read again each time.
"""

from collections.abc import Collection, Iterable, Mapping

from gpuwarden_agent.collect.processes.procfs import Process, ProcFs

TURNS = 60
"""Readings until every process was read again."""


class ProcessTable:
    """Caches the processes that are in no watched tree."""

    def __init__(self, proc: ProcFs) -> None:
        self._proc = proc
        self._known: dict[int, Process] = {}
        self._looks = 0

    def trees(self, roots: Collection[int]) -> dict[int, Process]:
        """These processes and their descendants, as they are now. Raises OSError."""
        turn = self._looks = (self._looks + 1) % TURNS
        pids = self._proc.pids()
        living = set(pids)
        strangers = {
            pid: process
            for pid, process in self._known.items()
            if pid % TURNS != turn
            and pid in living
            and (not process.parent or process.parent in living)
        }
        fresh = self._proc.stats(pid for pid in pids if pid not in strangers)
        known = strangers | fresh
        while stale := [p for p in with_descendants(roots, known) if p not in fresh]:
            reread = self._proc.stats(stale)
            for pid in stale:
                if pid not in reread:
                    del known[pid]
            fresh |= reread
            known |= reread
        self._known = known
        return {pid: fresh[pid] for pid in with_descendants(roots, known)}

    def ancestors(self, process: Process) -> list[Process]:
        """The processes above one as last read, its parent first; those that /proc does not show end the list.

        Parents are right, as a process whose parent ended is read again. A name may be `TURNS` readings old.
        """
        found: list[Process] = []
        seen = {process.pid}
        while (above := self._known.get(process.parent)) and above.pid not in seen:
            found.append(above)
            seen.add(above.pid)
            process = above
        return found


def children_of(processes: Iterable[Process]) -> dict[int, list[Process]]:
    """Processes by their parent's pid."""
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    return children


def with_descendants(roots: Iterable[int], processes: Mapping[int, Process]) -> list[int]:
    """The pids of the existing roots and of all their descendants, each once."""
    children = children_of(processes.values())
    found = dict.fromkeys(pid for pid in roots if pid in processes)
    queue = list(found)
    for pid in queue:
        for child in children.get(pid, ()):
            if child.pid not in found:
                found[child.pid] = None
                queue.append(child.pid)
    return queue
