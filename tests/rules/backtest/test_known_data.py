"""Data that stored history lacks is named, with the span in which it is missing."""

from datetime import UTC, datetime, timedelta

import pytest

from gpuwarden_rules.backtest.known_data import KnownData, reads_rollups
from gpuwarden_rules.definition.language import builtin_rules

START = datetime(2026, 1, 1, tzinfo=UTC)
RULES = {rule.name: rule for rule in builtin_rules()}
GPU = {"node": "n1", "gpu": 0, "gpu_uuid": "GPU-a", "simulated": False}
ROLLED = {
    "samples": 60,
    "detail_samples": 0,
    "health_samples": 0,
    "idle_seconds": 60.0,
    "busy_seconds": 0.0,
}
SPAN = "between 2026-01-01 00:00 and 2026-01-01 02:00"


def minute(number: int, **more: object) -> dict[str, object]:
    return {**GPU, "ts": START + timedelta(minutes=number), **more}


@pytest.fixture
def imported(database):
    """Two hours of utilization, and a process of which nobody knows when it started."""
    database.insert("gpu_samples", [minute(m, util_percent=3.0) for m in range(120)])
    database.insert(
        "gpu_1m",
        [minute(m, **ROLLED, util_percent_avg=3.0, util_percent_p95=3.0) for m in range(120)],
    )
    database.advance_idleness()
    database.insert("gpus", [{**GPU, "last_seen_at": START, "model": "NVIDIA H100"}])
    return database


async def lacking(database, name: str, hours: int = 2) -> str | None:
    known = KnownData(database, START, START + timedelta(hours=hours))
    return await known.lacking(RULES[name])


async def test_a_rule_whose_data_is_missing_cannot_say(imported) -> None:
    assert await lacking(imported, "gpu_idle_held") is None
    assert await lacking(imported, "low_utilization") == f"no process_samples {SPAN}"
    assert await lacking(imported, "gpu_allocated_idle") == (
        f"no idle_1m.allocated_processes {SPAN}"
    )
    assert await lacking(imported, "xid_critical") == f"no events {SPAN}"
    assert await lacking(imported, "node_down") == f"no nodes, no host_1m {SPAN}"
    imported.insert("process_samples", [minute(5, pid=7, process_name="python")])
    assert await lacking(imported, "low_utilization") == f"no process_samples.started_at {SPAN}"
    imported.insert("process_samples", [minute(6, pid=7, started_at=START)])
    assert await lacking(imported, "low_utilization") is None
    known = KnownData(imported, START + timedelta(hours=1), START + timedelta(hours=2))
    assert await known.lacking(RULES["low_utilization"]) == (
        "no process_samples between 2026-01-01 01:00 and 2026-01-01 02:00"
    )


async def test_events_of_earlier_times_show_that_somebody_tells_of_them(imported) -> None:
    event = {**GPU, "kind": "agent_started", "severity": "info", "message": "started"}
    imported.insert("events", [{**event, "ts": START - timedelta(days=30)}])
    assert await lacking(imported, "xid_critical") is None


async def test_nodes_whose_samples_are_not_rolled_up_are_named(imported) -> None:
    later = START + timedelta(days=3)

    async def unready(until_minute: int = 120, now: datetime = later) -> list[str]:
        until = START + timedelta(minutes=until_minute)
        return await KnownData(imported, START - timedelta(hours=1), until).unready_nodes(now)

    assert await unready() == []
    imported.insert("gpu_samples", [minute(130, node="n2")])
    assert await unready(140) == ["n2"]
    imported.insert("gpu_1m", [minute(130, node="n2", **ROLLED)])
    assert await unready(140) == []
    imported.insert("gpu_samples", [minute(-20), minute(139)])
    assert await unready(140) == ["n1"], "samples before those that are rolled up"
    imported.insert("gpu_1m", [minute(-20, **ROLLED)])
    assert await unready(140) == ["n1"], "samples after those that are rolled up"
    assert await unready(140, START + timedelta(minutes=140)) == [], "they are not due yet"


def test_rules_on_samples_do_not_wait_for_rollups() -> None:
    assert reads_rollups(RULES["gpu_idle_held"])
    assert not reads_rollups(RULES["temperature_limit_reached"])
