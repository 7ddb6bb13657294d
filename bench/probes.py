"""Measures what a reading costs: HostProbe.read by both readers, and ProcessProbe.read with trees as on
a host of eight GPUs. A reading that lacks rows ends the run.

python -m bench.probes [--tiny]
"""

import argparse
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from gpuwarden.clock import SystemClock
from gpuwarden_agent.collect.host.linux import LinuxReader
from gpuwarden_agent.collect.host.node import HostProbe
from gpuwarden_agent.collect.host.portable import PsutilReader
from gpuwarden_agent.collect.nvidia.nvml import Call, GpuProcess
from gpuwarden_agent.collect.processes.procfs import Process, ProcFs
from gpuwarden_agent.collect.processes.trees import ProcessProbe
from gpuwarden_agent.probe import Reading

GPUS = 8
WORKERS = 16
THREADS = 64
STRANGERS = 10_000
TREE = f"""
import os, sys, threading, time
for _ in range({GPUS}):
    if os.fork() == 0:
        for _ in range({WORKERS}):
            if os.fork() == 0:
                time.sleep(600)
        for _ in range({THREADS}):
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        os.write(1, b'%d\\n' % os.getpid())
        time.sleep(600)
sys.stdin.read()
os.killpg(0, 9)
"""


def measure(
    name: str, call: Callable[[], Reading], check: Callable[[Reading], bool], times: int = 200
) -> None:
    """Print wall and CPU time a call. Raises SystemExit where `check` finds the last answer wrong."""
    call()
    walls = []
    cpu_s = time.process_time()
    for _ in range(times):
        started = time.perf_counter()
        reading = call()
        walls.append(time.perf_counter() - started)
    if not check(reading):
        raise SystemExit(f"{name}: the reading is wrong: {reading}")
    cpu_ms = 1000 * (time.process_time() - cpu_s) / times
    wall_ms = 1000 * statistics.median(walls)
    print(f"{name}: {wall_ms:.2f} ms (median of {times}), {cpu_ms:.2f} ms CPU")


def gpu_of(pids: Sequence[int], index: int = 0) -> SimpleNamespace:
    """A GPU with these processes, as far as the process probe looks."""

    def ask(call: Call, *arguments: object) -> list[GpuProcess]:
        is_compute = call.reading.startswith("compute_processes")
        return [GpuProcess(pid, 1 << 30) for pid in pids] if is_compute else []

    return SimpleNamespace(
        index=index,
        uuid=f"GPU-{index}",
        lock=threading.Lock(),
        ask=ask,
        called="",
    )


class CrowdedProc(ProcFs):
    """This host's /proc, and processes of which stat alone is real."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__()
        self._crowd = ProcFs(folder)
        line = Path("/proc/self/stat").read_text().partition(" ")[2]
        for pid in range(10_000_000, 10_000_000 + count):
            (folder / str(pid)).mkdir()
            (folder / str(pid) / "stat").write_text(f"{pid} {line}")

    def pids(self) -> list[int]:
        return super().pids() + self._crowd.pids()

    def stats(self, pids: Iterable[int]) -> dict[int, Process]:
        asked = list(pids)
        crowd = self._crowd.stats(p for p in asked if p >= 10_000_000)
        return super().stats(p for p in asked if p < 10_000_000) | crowd


def has_host(reading: Reading) -> bool:
    """Whether a reading has the host's row, with its memory."""
    rows = reading["host_samples"]
    return len(rows) == 1 and bool(rows[0].get("memory_total_bytes"))


def has_trees(pids: Sequence[int], reading: Reading) -> bool:
    """Whether a reading has these processes, each with its threads."""
    rows = {row["pid"]: row for row in reading["process_samples"]}
    return rows.keys() == set(pids) and all(
        int(row["threads"] or 0) > THREADS for row in rows.values()
    )


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="few readings, few other processes")
    is_tiny = parser.parse_args().tiny
    times, strangers = (5, 100) if is_tiny else (60, STRANGERS)
    clock = SystemClock()
    due = {"host_samples"}
    for reader in (LinuxReader(clock), PsutilReader()):
        host = HostProbe(clock, reader=reader)
        measure(f"HostProbe.read of {reader.source}", partial(host.read, 0, due), has_host)
    with subprocess.Popen(
        [sys.executable, "-c", TREE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as tree:
        assert tree.stdout is not None
        pids = [int(tree.stdout.readline()) for _ in range(GPUS)]
        gpus: list[Any] = [gpu_of([pid], index) for index, pid in enumerate(pids)]
        probe = ProcessProbe(gpus, clock, are_pids_ours=True)
        whole = partial(has_trees, pids)
        shape = f"{GPUS} GPU processes with {WORKERS} workers and {THREADS} threads each"
        measure(f"ProcessProbe.read, {shape}", lambda: probe.read(0), whole, times)
        with TemporaryDirectory() as folder:
            proc = CrowdedProc(Path(folder), strangers)
            crowded = ProcessProbe(gpus, clock, proc, are_pids_ours=True)
            measure(f"the same among {strangers} others", lambda: crowded.read(0), whole, times)
        idle_gpus: list[Any] = [gpu_of([])]
        idle = ProcessProbe(idle_gpus, clock, are_pids_ours=True)
        measure(
            "ProcessProbe.read, GPUs without processes",
            lambda: idle.read(0),
            lambda reading: reading == {"process_samples": []},
        )


if __name__ == "__main__":
    main()
