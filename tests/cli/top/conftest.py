"""A fleet of planted rows, for the queries of top."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from gpuwarden_rules.testing import MemoryDatabase


@pytest.fixture
def fleet() -> Iterator[MemoryDatabase]:
    database = MemoryDatabase()
    _plant(database)
    yield database
    database.close()


def _plant(database: MemoryDatabase) -> None:
    """n0 and n1 with two GPUs each, of which n0's second idles and n1's second says no utilization; n2 is silent."""
    now = datetime.now(UTC)
    seen = {"n0": 1, "n1": 1, "n2": 900}
    database.insert(
        "nodes",
        [
            {"node": node, "agent_id": "a", "boot_id": "b", "simulated": False, "labels": '{"rack": "r7"}',
             "last_seen_at": now - timedelta(seconds=s)}
            for node, s in seen.items()
        ],
    )  # fmt: skip
    places = [(node, gpu) for node in seen for gpu in range(2)]
    database.insert(
        "gpus",
        [
            {"gpu_uuid": f"GPU-{node}-{gpu}", "node": node, "gpu": gpu, "model": "NVIDIA H100", "simulated": False,
             "usd_per_hour": 3.0, "last_seen_at": now}
            for node, gpu in places
        ],
    )  # fmt: skip
    util = {("n0", 0): 90.0, ("n0", 1): 0.0, ("n1", 0): 70.0, ("n1", 1): None}
    database.insert(
        "gpu_samples",
        [
            {"ts": now - timedelta(seconds=s), "node": node, "gpu": gpu, "gpu_uuid": f"GPU-{node}-{gpu}",
             "simulated": False, "util_percent": value, "power_watts": 300.0,
             "memory_used_bytes": 20 * 2**30, "memory_total_bytes": 80 * 2**30}
            for (node, gpu), value in util.items()
            for s in (1, 2, 600)
        ],
    )  # fmt: skip
    process = {"simulated": False, "process_name": "python", "gpu_memory_bytes": 2**30}
    database.insert(
        "process_samples",
        [
            {**process, "ts": now - timedelta(seconds=s), "node": node, "gpu": 0, "gpu_uuid": f"GPU-{node}-0", "pid": pid,
             "username": "bob", "job": "77", "cpu_percent": float(s)}
            for node, pid in (("n0", 5), ("n1", 6))
            for s in (2, 12)
        ],
    )  # fmt: skip
    alert = {
        "rule": "gpu_hung", "consequence": "lost_work", "state": "firing", "labels": "{}", "summary": "It hangs",
        "remedy": "", "began_at": now - timedelta(hours=2), "active_at": now, "fired_at": now, "seen_at": now,
        "simulated": False,
    }  # fmt: skip
    database.insert(
        "alerts",
        [
            {**alert, "fingerprint": "f1", "severity": "warning", "node": "n1", "gpu": 0, "gpu_uuid": "GPU-n1-0",
             "usd_per_hour": 3.0, "owner": "bob"},
            {**alert, "fingerprint": "f2", "severity": "critical", "rule": "node_down", "node": "n2"},
        ],
    )  # fmt: skip
