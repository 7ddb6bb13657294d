"""What is usual for a GPU at an hour of the week, and what is not."""

from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import ClientSession
from hypothesis import given
from hypothesis import strategies as st
from tests.dashboards.test_browser import served

from gpuwarden.clock import to_ms
from gpuwarden_dashboards.http import ParameterError
from gpuwarden_dashboards.read.usual import HOUR_MS, band_of, read_usual, usual

NOW = datetime(2026, 3, 30, 12, tzinfo=UTC)
NOW_MS = to_ms(NOW)
WEEK_MS = 168 * HOUR_MS


def weeks(count: int, *values: float) -> dict[int, float]:
    """Means of the hour before, the same and the hour after, in each of these weeks before now."""
    return {
        NOW_MS - week * WEEK_MS + at * HOUR_MS: value
        for week in range(1, count + 1)
        for at, value in zip((-1, 0, 1), values, strict=True)
    }


def test_one_week_says_nothing_and_two_make_a_band() -> None:
    assert usual(weeks(1, 90, 100, 110), NOW_MS) is None
    assert usual(weeks(2, 90, 100, 110), NOW_MS) == pytest.approx(
        (100 - 4 * 14.826, 100, 100 + 4 * 14.826)
    )


def test_what_never_changes_has_a_band_too() -> None:
    assert usual(weeks(6, 60, 60, 60), NOW_MS) == (57, 60, 63)


def test_other_hours_of_the_week_and_older_weeks_do_not_count() -> None:
    means = weeks(2, 60, 60, 60)
    others = {NOW_MS - WEEK_MS + 2 * HOUR_MS: 900.0, NOW_MS - 7 * WEEK_MS: 900.0, NOW_MS: 900.0}
    assert usual(means | others, NOW_MS) == usual(means, NOW_MS)


def test_hours_outside_are_counted_and_unknown_ones_are_not() -> None:
    means = weeks(3, 60, 60, 60) | {NOW_MS: 64.0, NOW_MS + HOUR_MS: 61.0}
    found = band_of("power_watts", means, range(NOW_MS - HOUR_MS, NOW_MS + 4 * HOUR_MS, HOUR_MS))
    assert (found.judged, found.outside) == (2, 1)
    assert found.greatest == [63, 63, 63, 63, None]
    assert band_of("power_watts", {NOW_MS: 1.0}, [NOW_MS]).least == [None]


@given(st.lists(st.floats(0, 1e6), min_size=6, max_size=18), st.floats(0.1, 10))
def test_a_band_holds_most_of_what_it_is_made_of(values: list[float], scale: float) -> None:
    means = {
        NOW_MS - (1 + n // 3) * WEEK_MS + (n % 3 - 1) * HOUR_MS: value
        for n, value in enumerate(values)
    }
    found = usual(means, NOW_MS)
    assert found is not None
    least, middle, greatest = found
    assert least <= middle <= greatest
    assert 2 * sum(least <= value <= greatest for value in values) >= len(values)
    scaled = usual({ms: value * scale for ms, value in means.items()}, NOW_MS)
    assert scaled == pytest.approx([one * scale for one in found], rel=1e-6, abs=1e-6)


def fill(db, now: datetime) -> None:
    """Three weeks of hours; in the newest the power is double."""
    hour = now.replace(minute=0, second=0, microsecond=0, tzinfo=None)
    db.execute(
        "INSERT INTO gpu_1h (ts, node, gpu, gpu_uuid, simulated, samples, detail_samples, health_samples, power_watts_avg,"
        " util_percent_avg) SELECT $1::TIMESTAMP - to_hours(i), 'n1', 0, 'GPU-0', true, 3600, 0, 0,"
        " CASE WHEN i = 1 THEN 800 ELSE 400 END, NULL FROM range(504) t(i)",
        [hour],
    )


async def test_a_gpu_is_compared_with_its_own_rows(querier) -> None:
    fill(querier.db, NOW)
    begin_ms, (power, util) = await read_usual(
        querier, "GPU-0", ["power_watts", "util_percent"], NOW - timedelta(hours=3), NOW
    )
    assert begin_ms == to_ms(NOW - timedelta(hours=4))
    assert (power.metric, power.judged, power.outside) == ("power_watts", 3, 1)
    assert (power.least[0], power.mean[0], power.greatest[0]) == (380, 400, 420)
    assert (util.judged, set(util.mean)) == (0, {None})
    with pytest.raises(ParameterError, match="31 days"):
        await read_usual(querier, "GPU-0", ["power_watts"], NOW - timedelta(days=32), NOW)


async def test_the_page_asks_for_one_gpu(querier) -> None:
    now = datetime.now(UTC)
    fill(querier.db, now)
    async with served(querier) as port, ClientSession(f"http://127.0.0.1:{port}") as session:
        asked = f"metrics=power_watts,fan_percent,link.active&end={to_ms(now)}"
        async with session.get(f"/v1/usual?gpu_uuid=GPU-0&{asked}") as answer:
            found = await answer.json()
        assert answer.status == 200
        assert found["step_ms"] == HOUR_MS
        power = found["lines"][0]
        assert (power["metric"], power["outside"]) == ("power_watts", 1)
        for wrong in ("gpu_uuid=a,b", "node=n1"):
            async with session.get(f"/v1/usual?{wrong}&{asked}") as answer:
                assert answer.status == 400
