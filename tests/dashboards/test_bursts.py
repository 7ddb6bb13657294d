"""The bursts of a GPU on its page: summed up as SQL sums, in steps that hide no extreme."""

from datetime import UTC, datetime, timedelta

import pytest

from gpuwarden_dashboards.read.bursts import BURSTS_MAX, POINTS_MAX, read_bursts

NOW = datetime(2026, 3, 30, 12, tzinfo=UTC)


def insert(db, burst: str, begin: datetime, values: list[float], step_ms: int = 20) -> None:
    rows = ", ".join(
        f"('{begin.replace(tzinfo=None) + timedelta(milliseconds=n * step_ms)}'::TIMESTAMP, {value})"
        for n, value in enumerate(values)
    )
    db.execute(
        f"INSERT INTO burst_samples BY NAME SELECT ts, 'n1' AS node, 0 AS gpu, 'GPU-1' AS gpu_uuid, false AS simulated,"
        f" '{burst}' AS burst, 'power_watts' AS metric, 'polled' AS source, value FROM (VALUES {rows}) t(ts, value)"
    )


async def test_a_burst_keeps_its_extremes_whatever_the_mean_of_a_second_is(querier) -> None:
    values = [100.0] * 1500
    values[777], values[778] = 650.0, 20.0
    insert(querier.db, "b1", NOW - timedelta(hours=1), values)
    (burst,) = await read_bursts(querier, "GPU-1", NOW)
    (line,) = burst.lines
    assert (line.metric, line.source, line.samples) == ("power_watts", "polled", 1500)
    assert (line.least, line.greatest) == (20.0, 650.0)
    assert line.mean == pytest.approx(sum(values) / 1500)
    assert 99 < line.least_second <= line.greatest_second < 115
    assert len(line.values) == 2 * POINTS_MAX
    assert max(v for v in line.values if v is not None) == 650.0
    assert min(v for v in line.values if v is not None) == 20.0
    assert burst.end_ms - burst.begin_ms == 1499 * 20


async def test_the_newest_come_first_and_old_ones_and_other_gpus_are_left_out(querier) -> None:
    for number in range(BURSTS_MAX + 2):
        insert(querier.db, f"b{number:02}", NOW - timedelta(hours=20 - number), [1.0, 2.0, 3.0])
    insert(querier.db, "old", NOW - timedelta(days=8), [1.0, 2.0])
    found = await read_bursts(querier, "GPU-1", NOW)
    assert [one.burst for one in found] == [f"b{n:02}" for n in range(BURSTS_MAX + 1, 1, -1)]
    assert await read_bursts(querier, "GPU-2", NOW) == []


async def test_steps_without_a_sample_hold_the_last_value(querier) -> None:
    insert(querier.db, "b1", NOW - timedelta(hours=1), [5.0, 9.0], step_ms=1000)
    (burst,) = await read_bursts(querier, "GPU-1", NOW)
    values = burst.lines[0].values
    assert values[:3] == [5.0, 5.0, 5.0]
    assert values[-1] == 9.0
