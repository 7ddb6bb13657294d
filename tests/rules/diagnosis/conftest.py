from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuwarden.clock import from_ms, to_ms
from gpuwarden.models import model_named
from gpuwarden_rules.testing import MemoryDatabase
from gpuwarden_simulator import Fault, Placement, SimulatedNode, Workload

END = datetime(2026, 1, 1, 12, tzinfo=UTC)


def insert_node(
    database: MemoryDatabase, node: SimulatedNode, name: str, seconds: int = 135
) -> None:
    """All rows of a node up to END, and its inventory at 2 $ an hour."""
    for table, rows in node.describe().items():
        extra = {"agent_id": "a", "boot_id": "b"} if table == "nodes" else {"usd_per_hour": 2.0}
        database.insert(table, [{**r, "node": name, "simulated": True, **extra} for r in rows])
    found: dict[str, list[dict[str, Any]]] = {}
    start_ms = to_ms(END - timedelta(seconds=seconds))
    for second in range(seconds + 1):
        ts_ms = start_ms + 1000 * second
        due = {table for table, every_s in node.tables.items() if ts_ms // 1000 % every_s == 0}
        for table, rows in node.read(ts_ms, due).items():
            for row in rows:
                row = {**row, "ts": from_ms(ts_ms), "node": name, "simulated": True}
                if "started_at" in row:
                    row["started_at"] = from_ms(row["started_at"])
                found.setdefault(table, []).append(row)
    for table, rows in found.items():
        database.insert(table, rows)


@pytest.fixture
def simulate(database: MemoryDatabase) -> Callable[..., None]:
    """Fill the database with a simulated node whose GPUs do these things."""

    def fill(
        *workloads: Workload,
        seed: int = 1,
        name: str = "n1",
        script: tuple[Fault, ...] = (),
        model: str = "H100-SXM-80GB",
        together: bool = False,
    ) -> None:
        placements = (
            [Placement(tuple(range(len(workloads))), workloads[0])]
            if together
            else [Placement((i,), workload) for i, workload in enumerate(workloads)]
        )
        node = SimulatedNode(
            name, len(workloads), model_named(model), seed, placements, script=script
        )
        insert_node(database, node, name)

    return fill
