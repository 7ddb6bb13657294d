"""Reads on which NUMA nodes a process runs and may run: two small files of /proc, and the host's nodes once.

What is read is the main thread's. Where its memory is now is not read: /proc/PID/numa_maps walks all of its
pages.
"""

import re
from pathlib import Path

from gpuwarden_agent.collect.files import listed, read_text
from gpuwarden_agent.collect.processes.procfs import ProcFs
from gpuwarden_agent.probe import Value

NODES = Path("/sys/devices/system/node")
_PROCESSOR_FIELD = 36
"""Place of the CPU in a stat line, counted from the state: field 39 of proc_pid_stat(5)."""
_NODE = re.compile(r"node([0-9]{1,5})")
_ALLOWED = re.compile(r"^(Cpus|Mems)_allowed_list:[ \t]*([0-9,-]+)$", re.MULTILINE)
_IDS_MAX = 1 << 16


def parse_id_list(text: str) -> list[int]:
    """The kernel's lists of CPUs and nodes: "0-2,8" as 0, 1, 2, 8. Raises ValueError."""
    ids: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        run = range(int(first), int(last or first) + 1)
        if run.stop > _IDS_MAX:
            raise ValueError(f"not a list of CPUs: {text[:40]!r}")
        ids += run
    return ids


def parse_last_cpu(stat: str) -> int:
    """The CPU of a stat line. Raises ValueError or IndexError where it is cut short."""
    return int(stat.rpartition(")")[2].split()[_PROCESSOR_FIELD])


class NumaNodes:
    """The NUMA nodes of the host's CPUs."""

    def __init__(self, folder: Path = NODES) -> None:
        self._folder = folder
        self._by_cpu: dict[int, int] | None = None

    def columns(self, pid: int, proc: ProcFs) -> dict[str, Value]:
        """Columns of a process; empty: it has ended, or the kernel does not tell the nodes."""
        by_cpu = self._nodes_by_cpu()
        if not by_cpu:
            return {}
        try:
            allowed = {what: parse_id_list(ids) for what, ids in _ALLOWED.findall(proc.text(f"{pid}/status"))}  # fmt: skip
            last_cpu = parse_last_cpu(proc.text(f"{pid}/stat"))
        except (OSError, ValueError, IndexError):
            return {}
        # CPUs that are offline have no node.
        of_cpus = {by_cpu[cpu] for cpu in allowed.get("Cpus", ()) if cpu in by_cpu}
        return {
            "cpu_numa_node": by_cpu.get(last_cpu),
            "cpu_numa_nodes": _text(of_cpus),
            "memory_numa_nodes": _text(set(allowed.get("Mems", ()))),
        }

    def _nodes_by_cpu(self) -> dict[int, int]:
        if self._by_cpu is None:
            self._by_cpu = {}
            for name in listed(self._folder):
                cpus = (read_text(self._folder / name / "cpulist") or "").strip()
                if (found := _NODE.fullmatch(name)) and cpus:
                    self._by_cpu |= dict.fromkeys(parse_id_list(cpus), int(found[1]))
        return self._by_cpu


def _text(nodes: set[int]) -> str | None:
    return ",".join(map(str, sorted(nodes))) or None
