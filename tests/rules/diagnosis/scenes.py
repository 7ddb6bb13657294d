"""Made-up loops, second by second, as an agent would have seen them: for tests of the diagnosis."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuwarden_rules.testing import MemoryDatabase

END = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECONDS = 140
IDLE_WATTS, LIMIT_WATTS = 70.0, 700.0
MIB = 1024**2


def loop(
    step_s: float, busy_share: float, seed: int = 1, jitter: float = 0.1, seconds: int = SECONDS
) -> list[float]:
    """Utilization each second of a loop that waits, then computes, in steps of that length."""
    rng = random.Random(seed)
    spans: list[tuple[float, float]] = []
    at = 0.0
    while at < seconds:
        length = step_s * (1 + rng.uniform(-jitter, jitter))
        spans.append((at + length * (1 - busy_share), at + length))
        at += length
    seen = [0.0] * (seconds + 1)
    for begin, end in spans:
        for second in range(int(begin), min(int(end), seconds) + 1):
            seen[second] += max(0.0, min(end, second + 1) - max(begin, second))
    return [round(100 * min(share, 1.0)) for share in seen[:seconds]]


def paused(series: list[float], pauses: Mapping[int, int], util: float = 0.0) -> list[float]:
    """The series with pauses: seconds from its begin, to how long each lasts."""
    made = list(series)
    for begin, length in pauses.items():
        made[begin : begin + length] = [util] * len(made[begin : begin + length])
    return made


@dataclass
class Scene:
    """One GPU and its process; what is not said is what a quiet node would report."""

    util: list[float]
    power: float = 0.8
    """Share of the power between idle and limit while the GPU is busy."""
    gpu: dict[str, Any] = field(default_factory=dict)
    detail: dict[str, Any] | None = None
    process: dict[str, Any] | None = field(default_factory=dict)
    host: dict[str, Any] = field(default_factory=dict)
    node: str = "n1"
    index: int = 0
    every_s: int = 1
    started: Mapping[int, int] = field(default_factory=dict)
    """Seconds from the begin at which workers are started, to how many."""
    writes: Mapping[int, float] = field(default_factory=dict)
    """Seconds from the begin, to the bytes that are written in each of the next ten."""
    age_s: int = 7200

    @property
    def uuid(self) -> str:
        return f"GPU-{self.node}-{self.index}"

    def insert(self, database: MemoryDatabase) -> None:
        """All of its rows up to END."""
        base = {"node": self.node, "simulated": True}
        of_gpu = {**base, "gpu": self.index, "gpu_uuid": self.uuid}
        database.insert("gpus", [{**of_gpu, **GPU_FACTS}])
        count = database.run(f"SELECT count(*) FROM nodes WHERE node = '{self.node}'").rows[0][0]
        if not count:
            database.insert("nodes", [{**base, "agent_id": "a", "boot_id": "b", "cpus": 64}])
            database.insert("host_samples", [{**base, **row} for row in self._host_rows()])
        database.insert("gpu_samples", [{**of_gpu, **row} for row in self._gpu_rows()])
        database.insert("process_samples", [{**of_gpu, **row} for row in self._process_rows()])
        if self.detail is not None:
            slow = range(0, SECONDS, 10)
            rows = [{**of_gpu, "ts": _at(s), **self.detail} for s in slow]
            database.insert("gpu_detail_samples", rows)

    def _gpu_rows(self) -> list[dict[str, Any]]:
        rows = []
        for second in range(0, SECONDS, self.every_s):
            util = self.util[second]
            watts = IDLE_WATTS + (LIMIT_WATTS - IDLE_WATTS) * self.power * util / 100
            row = {
                "ts": _at(second),
                "util_percent": util,
                "power_watts": watts,
                "power_limit_watts": LIMIT_WATTS,
                "sm_clock_mhz": 1900,
                "clocks_event_reasons": 0,
                "memory_total_bytes": 80_000 * MIB,
                "memory_used_bytes": 40_000 * MIB,
                "pcie_rx_bytes_total": second * 300_000_000,
                "nvlink_rx_bytes_total": 0,
                "nvlink_tx_bytes_total": 0,
            }
            rows.append(_with(row, self.gpu, second))
        return rows

    def _process_rows(self) -> list[dict[str, Any]]:
        if self.process is None:
            return []
        rows = []
        for second in range(0, SECONDS, 10):
            written = sum(
                rate * min(max(second - begin, 0), 10) for begin, rate in self.writes.items()
            )
            begun = sum(n for at, n in self.started.items() if at <= second)
            row = {
                "ts": _at(second),
                "pid": 1000 + self.index,
                "process_name": "python",
                "username": "ann",
                "command": "python train.py",
                "started_at": END - timedelta(seconds=self.age_s),
                "state": "S",
                "gpu_memory_bytes": 39_000 * MIB,
                "cpu_percent": 60.0,
                "main_cpu_percent": 40.0,
                "pin_cpu_percent": 5.0,
                "loader_workers": 8,
                "loader_cpu_percent": 30.0,
                "loader_saturated_percent": 0.0,
                "loader_idle_percent": 10.0,
                "loader_blocked_percent": 0.0,
                "loader_started_total": 8 + begun,
                "cpus_allowed": 32,
                "loader_cpus_allowed": 32,
                "read_bytes_total": second * 5_000_000,
                "read_chars_total": second * 50_000_000,
                "write_bytes_total": int(written),
            }
            rows.append(_with(row, self.process, second))
        return rows

    def _host_rows(self) -> list[dict[str, Any]]:
        rows = []
        for second in range(SECONDS):
            row = {
                "ts": _at(second),
                "cpu_util_percent": 15.0,
                "cpu_iowait_percent": 0.0,
                "psi_cpu_some_percent": 0.5,
                "psi_io_some_percent": 0.5,
                "disk_busy_percent": 5.0,
                "network_rx_bytes_total": second * 100_000,
            }
            rows.append(_with(row, self.host, second))
        return rows


GPU_FACTS = {
    "model": "NVIDIA H100-SXM-80GB",
    "catalogue_model": "H100-SXM-80GB",
    "usd_per_hour": 3.0,
    "sm_clock_max_mhz": 1980,
    "nvlinks": 18,
    "architecture": "hopper",
    "pcie_generation_max": 5,
    "pcie_width_max": 16,
}

NO_WORKERS = {
    "loader_workers": 0,
    "loader_cpu_percent": None,
    "loader_saturated_percent": None,
    "loader_idle_percent": None,
    "loader_blocked_percent": None,
    "loader_cpus_allowed": None,
    "pin_cpu_percent": None,
}
"""A process without loader workers, which has no figures of them."""


def _at(second: int) -> datetime:
    return END - timedelta(seconds=SECONDS - 1 - second)


def _with(row: dict[str, Any], changes: Mapping[str, Any], second: int) -> dict[str, Any]:
    """The row with changes; a function of the second gives counters."""
    return row | {k: v(second) if callable(v) else v for k, v in changes.items()}
