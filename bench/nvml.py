"""Measures what reading a GPU costs the agent besides the driver's own time: GpuProbe on a library that answers
at once. Each tier is read alone, then the share of a core that a node of eight GPUs takes is printed. A tier
that has fewer values than the board gives ends the run.

python -m bench.nvml [--runs 100]
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIBRARY = Path(__file__).parent.parent / "tests" / "agent" / "collect" / "nvidia" / "fake_nvml.c"
GPUS = 8
TIERS = {
    "fast, every second": (1, {"gpu_samples"}),
    "detail, every 10 s": (10, {"gpu_detail_samples"}),
    "links, every 10 s": (10, {"link_samples"}),
    "health, every minute": (60, {"gpu_health_samples"}),
}
GPM_GAP_S = 0.11
"""More than the driver wants between two samples of GPM, without which a reading lacks half of its values."""
VALUES = {"h100": (20, 24, 40, 25), "mig": (40, 60, 0, 20)}
"""At least so many in a reading of each tier; NVLinks cannot be read while a GPU is cut into MIG devices."""


def measure(board: str, runs: int) -> None:
    """Print CPU a read and the share of a core, on that kind of board."""
    from gpuwarden.clock import SystemClock
    from gpuwarden_agent.collect.nvidia.device import open_driver
    from gpuwarden_agent.collect.nvidia.gpu import GpuProbe
    from gpuwarden_agent.collect.nvidia.nvml import NvmlUnavailable

    driver = open_driver()
    assert not isinstance(driver, NvmlUnavailable), driver
    probe = GpuProbe(driver.devices()[0], SystemClock())
    probe.describe()
    for _ in range(3):
        probe.read(0)
        time.sleep(GPM_GAP_S)
    share = 0.0
    for (name, (seconds, due)), least in zip(TIERS.items(), VALUES[board], strict=True):
        spent = []
        for _ in range(runs):
            if "gpu_detail_samples" in due:
                time.sleep(GPM_GAP_S)
            began = time.thread_time()
            reading = probe.read(0, due)
            spent.append(1000 * (time.thread_time() - began))
        values = sum(len(row) for rows in reading.values() for row in rows)
        if values < least or reading.keys() != due:
            raise SystemExit(f"{board}: {name}: {values} values, expected {least} or more")
        cpu_ms = statistics.median(spent)
        share += cpu_ms / seconds
        print(f"{board}: {name}: {cpu_ms:.3f} ms CPU")
    print(f"{board}: {GPUS} GPUs: {GPUS * share / 10:.2f} % of a core")


def main() -> None:
    """Measure two kinds of board, each in a process that loads the library once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="readings of each tier")
    parser.add_argument("board", nargs="?", choices=VALUES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.board:
        measure(given.board, given.runs)
        return
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libnvidia-ml.so.1"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-w", "-o", library, LIBRARY], check=True)
        for board in ("h100", "mig"):
            env = {**os.environ, "LD_LIBRARY_PATH": folder, "FAKE_NVML_BOARD": board}
            command = [sys.executable, __file__, board, "--runs", str(given.runs)]
            subprocess.run(command, check=True, env=env)


if __name__ == "__main__":
    main()
