"""Many simulated agents in one process."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.clock import SystemClock
from gpuwarden_agent import supervision
from gpuwarden_agent.queue.spool import Spool
from gpuwarden_agent.settings import AgentSettings
from gpuwarden_simulator.fleet import run_fleet

SETTINGS = AgentSettings(backend="simulator", interval_s=0.2, batch_s=1.0)


def fleet(fake_probe: Any, nodes: int) -> list[tuple[str, Any]]:
    return [(f"sim-{n:04d}", fake_probe("simulator", simulated=True)) for n in range(nodes)]


async def test_every_node_ships_every_tick_and_the_seals_are_spread(
    stub_collector: Any, fake_probe: Any
) -> None:
    nodes = fleet(fake_probe, 12)
    result = await run_fleet(
        nodes,
        collector_url=stub_collector.url,
        clock=SystemClock(),
        stop=asyncio.Event(),
        duration_s=1.6,
        settings=SETTINGS,
    )
    rows = stub_collector.rows("host_samples")
    assert len({(row["node"], row["ts"]) for row in rows}) == len(rows)
    assert len(rows) == result.rows["host_samples"] == result.ticks
    assert {row["node"] for row in rows} == {name for name, _ in nodes}
    assert result.spool_batches == 0
    assert len({key[0] for key in stub_collector.stored}) == 12, "an identity for each node"
    assert all(probe.closed == 1 for _, probe in nodes)


async def test_spools_on_disk_keep_what_a_missing_collector_did_not_take(
    stub_collector: Any, fake_probe: Any, tmp_path: Path
) -> None:
    await stub_collector.stop()
    first = await run_fleet(
        fleet(fake_probe, 2),
        collector_url=stub_collector.url,
        clock=SystemClock(),
        stop=asyncio.Event(),
        duration_s=0.5,
        state_dir=tmp_path,
        settings=SETTINGS,
    )
    assert first.spool_batches > 0
    await stub_collector.start()
    again = await run_fleet(
        fleet(fake_probe, 2),
        collector_url=stub_collector.url,
        clock=SystemClock(),
        stop=asyncio.Event(),
        duration_s=1,
        state_dir=tmp_path,
        settings=SETTINGS,
    )
    assert again.spool_batches == 0
    rows = stub_collector.rows("host_samples")
    assert len(rows) == first.ticks + again.ticks


async def test_history_comes_first_and_without_a_hole(stub_collector: Any, fake_probe: Any) -> None:
    nodes = fleet(fake_probe, 3)
    await run_fleet(
        nodes,
        collector_url=stub_collector.url,
        clock=SystemClock(),
        stop=asyncio.Event(),
        duration_s=1,
        history_s=120,
        settings=SETTINGS,
    )
    for _, probe in nodes:
        ticks = probe.read_at
        assert len(ticks) >= 600
        assert ticks == list(range(ticks[0], ticks[0] + 200 * len(ticks), 200))
    assert len(stub_collector.rows("host_samples")) == sum(len(p.read_at) for _, p in nodes)


async def test_the_last_rows_of_many_nodes_are_stored_however_many_they_are(
    stub_collector: Any, fake_probe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Spool.put

    def slow(spool: Spool, *values: Any, **more: Any) -> Any:
        time.sleep(0.05)
        return put(spool, *values, **more)

    monkeypatch.setattr(Spool, "put", slow)
    monkeypatch.setattr(supervision, "SEAL_TIMEOUT_S", 0.2)  # four nodes' last batches
    result = await run_fleet(
        fleet(fake_probe, 12),
        collector_url=stub_collector.url,
        clock=SystemClock(),
        stop=asyncio.Event(),
        duration_s=1,
        settings=SETTINGS,
    )
    assert result.rows_dropped == 0
    assert stub_collector.kinds().count("agent_stopped") == 12
