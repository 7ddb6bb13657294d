"""What a reading costs: one HostProbe.read, and one ProcessProbe.read with a training-like tree.

python bench/probes.py
"""

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

from gpuwarden.clock import SystemClock
from gpuwarden_agent.probes.host import HostProbe
from gpuwarden_agent.probes.nvml_driver import GpuProcess
from gpuwarden_agent.probes.processes import ProcessProbe

WORKERS = 16
TREE = f"""
import os, sys, time
for _ in range({WORKERS}):
    if os.fork() == 0:
        time.sleep(600)
print(flush=True)
sys.stdin.read()
os.killpg(0, 9)
"""


def measure(name: str, call: Callable[[], object], times: int = 200) -> None:
    """Print wall and CPU time a call."""
    call()
    walls = []
    cpu_s = time.process_time()
    for _ in range(times):
        started = time.perf_counter()
        call()
        walls.append(time.perf_counter() - started)
    cpu_ms = 1000 * (time.process_time() - cpu_s) / times
    wall_ms = 1000 * statistics.median(walls)
    print(f"{name}: {wall_ms:.2f} ms (median of {times}), {cpu_ms:.2f} ms CPU")


def gpu_of(pids: Sequence[int]) -> SimpleNamespace:
    """A GPU with these processes, as far as the process probe looks."""

    def compute_processes() -> list[GpuProcess]:
        return [GpuProcess(pid, 1 << 30) for pid in pids]

    return SimpleNamespace(
        index=0,
        uuid="GPU-0",
        lock=threading.Lock(),
        compute_processes_v3=compute_processes,
        compute_processes_v2=compute_processes,
    )


def main() -> None:
    """Measure both."""
    clock = SystemClock()
    host = HostProbe(clock)
    measure("HostProbe.read", lambda: host.read(0))
    with subprocess.Popen(
        [sys.executable, "-c", TREE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as tree:
        assert tree.stdout is not None
        tree.stdout.readline()
        count = sum(entry.isdigit() for entry in os.listdir("/proc"))
        probe = ProcessProbe([gpu_of([tree.pid])], clock, are_pids_ours=True)  # type: ignore[list-item]
        measure(
            f"ProcessProbe.read, {count} processes, {WORKERS} workers", lambda: probe.read(0), 100
        )
        idle = ProcessProbe([gpu_of([])], clock, are_pids_ours=True)  # type: ignore[list-item]
        measure("ProcessProbe.read, GPUs without processes", lambda: idle.read(0))


if __name__ == "__main__":
    main()
