"""An address of a lake that takes the storage process long to open, for tests of who waits for it."""

import time
from dataclasses import dataclass
from pathlib import Path

from gpuwarden_collector.storage.address import LakeAddress


@dataclass(frozen=True)
class SlowLake(LakeAddress):
    """Computes, or waits, for this time."""

    cpu_s: float = 0.0
    wait_s: float = 0.0

    @property
    def ducklake(self) -> str:
        if Path("/proc/self/comm").read_text().strip() == "gpuwarden-store":
            began_s = time.process_time()
            while time.process_time() - began_s < self.cpu_s:
                sum(range(1_000))
            time.sleep(self.wait_s)
        return super().ducklake
