"""Waste is rolled up by the hour, and again when samples or alerts come late; in any case it adds up."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.collector.made_up_store import put
from tests.collector.storage.test_rolling import HOUR, Fleet, fleet, gpu_rows

from gpuwarden.alert import Alert, AlertState, Severity
from gpuwarden.waste import WASTE_1H
from gpuwarden_collector.ingest.writer import Writer
from gpuwarden_collector.rule_stores import SqlAlertStore, backdated_windows
from gpuwarden_collector.storage.rollup import ROLLUP_TABLES, doubles
from gpuwarden_collector.storage.views import hot_table

__all__ = ["fleet"]
FORGOTTEN_AFTER_S = 8 * 3600.0


@pytest.fixture
def known(fleet: Fleet) -> Fleet:
    """The fleet with node a's GPU in the inventory, first and last seen at the start."""
    put_gpu(fleet, None)
    return fleet


def put_gpu(fleet: Fleet, billed_silent_s: float | None) -> None:
    start = fleet.start.replace(tzinfo=None)
    uuid = gpu_rows(range(1))[0][1]["gpu_uuid"]
    put(
        fleet.database,
        "gpus",
        "SELECT $1 AS gpu_uuid, 'a' AS node, 0 AS gpu, false AS simulated, 3.6 AS usd_per_hour, "
        "$2::TIMESTAMP AS first_seen_at, $2::TIMESTAMP AS last_seen_at, $3::DOUBLE AS billed_silent_s",
        [uuid, start, billed_silent_s],
    )


def seconds(fleet: Fleet) -> dict[tuple[datetime, str], float]:
    found: dict[tuple[datetime, str], float] = {}
    for row in fleet.read("waste_1h"):
        key = (row["ts"], row["category"])
        found[key] = found.get(key, 0) + row["seconds"]
    keys = [tuple(row[name] for name in WASTE_1H.table.key) for row in fleet.read("waste_1h")]
    assert len(set(keys)) == len(keys)
    return found


def by_hour(fleet: Fleet) -> dict[datetime, float]:
    found: dict[datetime, float] = {}
    for (ts, _), value in seconds(fleet).items():
        found[ts] = found.get(ts, 0) + value
    return found


def alert(fleet: Fleet, rule: str, began: timedelta, fired: timedelta) -> Alert:
    at = fleet.start + fired
    return Alert(
        fingerprint="f",
        rule=rule,
        severity=Severity.CRITICAL,
        state=AlertState.FIRING,
        labels={"node": "a", "gpu": "0", "gpu_uuid": gpu_rows(range(1))[0][1]["gpu_uuid"]},
        summary="",
        remedy="",
        value=None,
        usd_per_hour=None,
        began_at=fleet.start + began,
        active_at=at,
        fired_at=at,
        seen_at=at,
    )


@pytest.mark.slow
async def test_every_hour_of_a_silent_fleet_is_counted_until_it_is_forgotten(known: Fleet) -> None:
    put_gpu(known, FORGOTTEN_AFTER_S)
    await known.store(gpu_rows(range(120)))
    await known.run([("pass", 5 * 3600.0), ("roll", 0)])
    start = known.start.replace(tzinfo=None, minute=0, second=0, microsecond=0)
    assert by_hour(known) == {
        start + n * HOUR: pytest.approx(3600) for n in range(len(by_hour(known)))
    }
    assert len(by_hour(known)) in (4, 5)
    await known.run([("pass", FORGOTTEN_AFTER_S), ("roll", 0)])
    with known.database.reading() as cursor:
        (total,) = cursor.execute("SELECT sum(seconds) FROM waste_1h").fetchone() or (0,)
    assert total == FORGOTTEN_AFTER_S


@pytest.mark.slow
async def test_six_hours_of_a_reading_every_five_minutes_are_six_hours(known: Fleet) -> None:
    await known.store(gpu_rows(range(0, 6 * 3600, 300)))
    await known.run([("pass", 7 * 3600.0), ("roll", 0)])
    found: dict[str, float] = {}
    for (_, category), value in seconds(known).items():
        found[category] = found.get(category, 0) + value
    assert sum(v for category, v in found.items() if category != "unknown") == 6 * 3600


@pytest.mark.slow
@pytest.mark.parametrize("is_sealed", [False, True])
async def test_samples_that_come_late_change_the_labels_not_the_sum(
    known: Fleet, is_sealed: bool
) -> None:
    await known.store(gpu_rows(range(60)))
    await known.run([("pass", 7200.0), ("roll", 0)])
    before = seconds(known)
    if is_sealed:
        await known.run([("seal", 0)])
    await known.store(gpu_rows(range(60, 120)))
    if not is_sealed:
        await known.run([("seal", 0)])
    stats = await known.roll()
    assert stats.mended_windows > 0
    after = seconds(known)
    assert sum(after.values()) == pytest.approx(sum(before.values()))
    unknown = (known.start.replace(tzinfo=None, minute=0), "unknown")
    assert before[unknown] - after[unknown] == pytest.approx(60, abs=20)


@pytest.mark.slow
async def test_an_alert_that_fires_late_labels_the_hours_that_it_began_in(known: Fleet) -> None:
    await known.store(gpu_rows(range(600)))
    await known.run([("pass", 7200.0), ("roll", 0)])
    before = seconds(known)
    assert not any(category == "hung" for _, category in before)
    late = alert(known, "gpu_hung", timedelta(minutes=5), timedelta(hours=2))

    async def saved(writer: Writer, stats: Any) -> None:
        nothing_is_asked: Any = None
        await SqlAlertStore(writer, nothing_is_asked, known.clock).save([late])

    await known._with(saved)
    await known.run([("seal", 0), ("roll", 0)])
    after = seconds(known)
    hour = known.start.replace(tzinfo=None, minute=0)
    assert after[hour, "hung"] == pytest.approx(300, abs=61)
    assert sum(after.values()) == pytest.approx(sum(before.values()))


def test_hours_that_an_alert_tells_of_are_those_before_the_one_it_fires_in(fleet: Fleet) -> None:
    began, fired = timedelta(hours=-2, minutes=-10), timedelta(minutes=10)
    windows = backdated_windows([alert(fleet, "gpu_hung", began, fired)])
    start = (fleet.start + fired).replace(tzinfo=None, minute=0, second=0, microsecond=0)
    first = (fleet.start + began).replace(tzinfo=None, minute=0, second=0, microsecond=0)
    hours = int((start - first) / HOUR)
    assert windows.to_pydict() == {
        "node": ["a"] * hours,
        "ts": [first + n * HOUR for n in range(hours)],
    }
    assert backdated_windows([alert(fleet, "gpu_idle_held", began, fired)]) is None
    assert backdated_windows([alert(fleet, "gpu_hung", timedelta(), timedelta(minutes=1))]) is None


@pytest.mark.slow
async def test_a_gpu_that_two_collectors_counted_is_found(known: Fleet) -> None:
    await known.store(gpu_rows(range(120)))
    await known.run([("pass", 7200.0), ("roll", 0)])
    with known.database.maintaining(ROLLUP_TABLES) as cursor:
        copy = f"INSERT INTO lake.main.waste_1h FROM {hot_table('waste_1h')}"
        cursor.execute(copy)
        assert doubles(cursor) is None
        cursor.execute(copy)
        found = doubles(cursor)
    assert found is not None and set(found["node"].to_pylist()) == {"a"}
