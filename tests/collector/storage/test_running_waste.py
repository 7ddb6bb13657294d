"""Waste of the hours that run is the same whether it is kept beside the store or labelled for a query."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden.query import Querier
from gpuwarden_collector import stages
from gpuwarden_collector.daemon import Collector
from gpuwarden_collector.storage import running_waste
from gpuwarden_collector.storage.running_waste import (
    FRESH_S,
    KEPT_S,
    REST,
    RUNNING,
    Computed,
    RunningWaste,
    is_due,
)

Start = Callable[..., AbstractAsyncContextManager[Collector]]
_HOUR = datetime(2026, 3, 1, 12, tzinfo=UTC)
_BOUNDS = (_HOUR, _HOUR + timedelta(minutes=20))


@pytest.mark.parametrize(
    ("bounds", "asked_at_s", "now_s", "took_s", "expected"),
    [
        pytest.param(_BOUNDS, 99.0, 100.0 + 2 * KEPT_S, 1.0, False, id="nobody asked"),
        pytest.param(_BOUNDS, 101.0, 99.0 + FRESH_S, 0.1, False, id="fresh"),
        pytest.param(_BOUNDS, 101.0, 100.0 + FRESH_S, 0.1, True, id="asked for, and not fresh"),
        pytest.param(_BOUNDS, 101.0, 99.0 + REST * 9, 9.0, False, id="it costs too much"),
        pytest.param((_HOUR, _HOUR), 99.0, 101.0, 9.0, True, id="another step is counted"),
    ],
)
def test_rows_are_computed_again_by_step_and_where_they_are_read(
    bounds: Any, asked_at_s: float, now_s: float, took_s: float, expected: bool
) -> None:
    assert is_due(None, bounds, asked_at_s, now_s)
    assert (
        is_due(Computed(_BOUNDS, 100.0, took_s, is_empty=False), bounds, asked_at_s, now_s)
        is expected
    )


def test_rows_that_are_too_old_and_other_queries_are_left_to_the_definition(tmp_path: Path) -> None:
    clock = ManualClock(_HOUR)
    running = RunningWaste(tmp_path / "kept", clock)
    assert running.files("FROM waste") == {}
    began_s = running.begin(_BOUNDS)
    assert began_s is not None
    running.take([pa.table({"seconds": pa.array([], pa.float64())})], _BOUNDS, began_s)
    assert running.files("FROM waste") == {}, "the first GPU may have come since then"
    for _ in range(4):
        running.take([pa.table({"seconds": [1.0]})], _BOUNDS, began_s)
    assert len(list((tmp_path / "kept").iterdir())) == 2
    assert running.files("FROM waste_1h") == {}
    assert set(running.files("FROM Gpu_Usage")) == {RUNNING}
    assert set(running.files("# instant 1 2 3 4\nsum(gpuwarden_waste_usd_per_hour)")) == {RUNNING}
    assert running.files("# instant 1 2 3 4\nsum(gpuwarden_gpu_power_watts)") == {}
    clock.advance(KEPT_S + 1)
    assert running.files("FROM waste") == {}


async def _waste(querier: Querier, view: str = "waste") -> list[Any]:
    return list((await querier.query(f"FROM {view} ORDER BY ALL")).rows)


SCANS = 12
"""Half of it where the hours that run are rows that are kept, half as many again where they are labelled again."""


async def _is_kept(querier: Querier) -> bool:
    plan = await querier.query("EXPLAIN FROM waste")
    return str(plan.rows).count("SCAN") < SCANS


async def _until(condition: Callable[[], Any]) -> None:
    for _ in range(200):
        if await condition():
            return
        await asyncio.sleep(0.1)
    pytest.fail("it did not come that far in time")


@pytest.mark.usefixtures("sealing_each_second")
@pytest.mark.slow
async def test_what_is_kept_says_what_the_definition_says(
    start: Start, wire: Any, post: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "RUNNING_LOOK_S", 0.2)
    monkeypatch.setattr(running_waste, "FRESH_S", 0.2)
    monkeypatch.setattr(running_waste, "REST", 0)
    now = datetime.now(UTC).replace(microsecond=0)
    gpus = [{"node": "n1", "gpu_uuid": f"GPU-{n}", "gpu": n, "simulated": True} for n in range(3)]
    samples = [
        gpu | {"ts": now - timedelta(seconds=back), "util_percent": 40.0 * gpu["gpu"]}
        for back in range(0, 5_400, 10)
        for gpu in gpus
    ]
    seen = {"first_seen_at": now - timedelta(hours=2), "last_seen_at": now}
    async with start(clock=SystemClock()) as collector:
        body = wire.stream("gpus", [gpu | seen for gpu in gpus]) + wire.stream(
            "gpu_samples", samples
        )
        status, text, _ = await post(collector.url, wire.zstd(body), 1)
        assert status == 204, text
        defined, kept = collector.rules_querier, collector.querier

        async def is_same() -> bool:
            if not await _is_kept(kept):
                return False
            for view in ("waste", "gpu_usage", "main.waste"):
                rows = await _waste(kept, view)
                if not rows or rows != await _waste(defined, view):
                    return False
            return True

        await _until(is_same)  # sometimes a step is counted between two queries
        assert not await _is_kept(defined)
        by_hour = "SELECT gpu_uuid, ts, sum(gpu_hours) AS hours FROM waste GROUP BY ALL"
        hours = (await kept.query(f"SELECT max(hours), sum(hours) FROM ({by_hour})")).rows[0]
        assert hours[0] <= 1.001
        assert 3 <= hours[1] <= 6, "no hour is counted twice"
