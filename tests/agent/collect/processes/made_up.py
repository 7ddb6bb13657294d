"""Made-up processes, and a made-up /proc and control groups to read them from."""

from pathlib import Path

from gpuwarden_agent.collect.processes.procfs import PAGE_BYTES, Process


def process(
    pid: int,
    parent: int = 1,
    name: str = "python",
    ticks: int = 0,
    start: int = 100,
    stack: int = 7,
    state: str = "S",
    threads: int = 1,
    rss_bytes: int = 0,
) -> Process:
    """A process as `stat` tells it; most tests care for a few of its fields."""
    return Process(pid, parent, name, state, ticks, start, stack, threads, rss_bytes)


def by(*processes: Process) -> dict[int, Process]:
    return {p.pid: p for p in processes}


class MadeUpProc:
    """A folder that looks like /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "stat").write_text("cpu 1\nbtime 1000\n")
        self.uptime(1000.0)

    def uptime(self, seconds: float) -> None:
        """Let time pass."""
        (self.root / "uptime").write_text(f"{seconds:.2f} 0.00\n")

    def add(
        self,
        made: Process,
        *,
        command: bytes = b"",
        environ: bytes = b"",
        cgroup: str = "0::/\n",
        uid: int = 1000,
        signals: str = "",
        threads: dict[int, tuple[str, int, int, int]] | None = None,
    ) -> Path:
        """A process; `signals`: lines of its status file; `threads`: name, ticks, voluntary and involuntary switches by tid."""
        folder = self.root / str(made.pid)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(stat_line(made))
        (folder / "cmdline").write_bytes(command)
        (folder / "environ").write_bytes(environ)
        (folder / "cgroup").write_text(cgroup)
        (folder / "status").write_text(f"Name:\tx\nUid:\t{uid}\t0\t0\t0\n{signals}")
        for tid, (name, ticks, voluntary, involuntary) in (threads or {}).items():
            task = folder / "task" / str(tid)
            task.mkdir(parents=True, exist_ok=True)
            (task / "stat").write_text(stat_line(process(tid, 1, name, ticks, start=100)))
            (task / "status").write_text(
                f"voluntary_ctxt_switches:\t{voluntary}\n"
                f"nonvoluntary_ctxt_switches:\t{involuntary}\n"
            )
        return folder


def stat_line(made: Process) -> str:
    """The `stat` file of a process."""
    return (
        f"{made.pid} ({made.name}) {made.state} {made.parent} 7 7 0 -1 4194560 1 0 0 0 "
        f"{made.ticks} 0 0 0 20 0 {made.threads} 0 {made.started_ticks} 4096 "
        f"{made.rss_bytes // PAGE_BYTES} 18446744073709551615 1 1 {made.stack} 0\n"
    )
