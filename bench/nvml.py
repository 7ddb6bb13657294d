"""Measures what reading a GPU costs the agent besides the driver's own time: GpuProbe on a library that answers
at once. Each tier is read alone, then the share of a core that a node of eight GPUs takes is printed.

python bench/nvml.py
"""

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


def measure(board: str) -> None:
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
        time.sleep(0.11)
    share = 0.0
    for name, (seconds, due) in TIERS.items():
        spent = []
        for _ in range(200):
            if "gpu_detail_samples" in due:
                time.sleep(0.002)
            began = time.thread_time()
            probe.read(0, due)
            spent.append(1000 * (time.thread_time() - began))
        cpu_ms = statistics.median(spent)
        share += cpu_ms / seconds
        print(f"{board}: {name}: {cpu_ms:.3f} ms CPU")
    print(f"{board}: {GPUS} GPUs: {GPUS * share / 10:.2f} % of a core")


def main() -> None:
    """Measure two kinds of board, each in a process that loads the library once."""
    if len(sys.argv) > 1:
        measure(sys.argv[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libnvidia-ml.so.1"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-w", "-o", library, LIBRARY], check=True)
        for board in ("h100", "mig"):
            env = {**os.environ, "LD_LIBRARY_PATH": folder, "FAKE_NVML_BOARD": board}
            subprocess.run([sys.executable, __file__, board], check=True, env=env)


if __name__ == "__main__":
    main()
