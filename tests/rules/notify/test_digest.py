"""The digest: when it is due, and what SQL says was wasted."""

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from gpuwarden.clock import to_ms
from gpuwarden_rules.notify.digest import DigestPlan, due_at, is_due, made, read

UNTIL = datetime(2026, 3, 2, 8, tzinfo=UTC)
PLAN = DigestPlan(receivers=("a", "b"), at=time(8), zone=UTC, top=2)


def test_it_is_due_once_a_day_and_not_before_the_first_time_of_day() -> None:
    assert not is_due(PLAN, None, UNTIL)
    done = to_ms(UNTIL - timedelta(hours=3))
    assert not is_due(PLAN, done, UNTIL - timedelta(seconds=1))
    assert is_due(PLAN, done, UNTIL)
    assert is_due(PLAN, done, UNTIL + timedelta(days=3))
    assert not is_due(PLAN, to_ms(UNTIL), UNTIL + timedelta(hours=23))


def test_the_time_of_day_is_that_of_its_zone_also_when_clocks_change() -> None:
    berlin = DigestPlan(receivers=("a",), at=time(8), zone=ZoneInfo("Europe/Berlin"), top=1)
    before = due_at(berlin, datetime(2026, 3, 28, 12, tzinfo=UTC))
    after = due_at(berlin, datetime(2026, 3, 29, 12, tzinfo=UTC))
    assert (before.hour, after.hour) == (7, 6)
    assert due_at(berlin, datetime(2026, 3, 29, 5, tzinfo=UTC)) == before


@pytest.fixture
def fleet(database):
    for gpu, (node, idle, usd) in enumerate(
        [("n1", 3600, 2.0), ("n1", 1800, 2.0), ("n2", 3600, None), ("n3", 0, 2.0)]
    ):
        uuid = f"GPU-{gpu}"
        seen = {"first_seen_at": UNTIL, "last_seen_at": UNTIL, "simulated": False}
        database.insert("gpus", [{"gpu_uuid": uuid, "node": node, "usd_per_hour": usd, **seen}])
        hours = [
            {"ts": UNTIL - timedelta(hours=hour), "node": node, "gpu_uuid": uuid, "gpu": gpu,
             "idle_seconds": idle, "busy_seconds": 3600 - idle, "samples": 3600, "detail_samples": 0,
             "health_samples": 0, "simulated": False}
            for hour in (0, 1, 24, 25)
        ]  # fmt: skip
        database.insert("gpu_1h", hours)
    return database


def alert(rule: str, hours: float, usd_per_hour: float | None, *, fired: bool = True) -> dict:
    began = UNTIL - timedelta(hours=hours)
    return {
        "fingerprint": rule, "rule": rule, "severity": "info", "state": "firing", "labels": "{}",
        "summary": "", "remedy": "", "usd_per_hour": usd_per_hour, "began_at": began,
        "active_at": began, "fired_at": began if fired else None, "seen_at": UNTIL,
        "simulated": False,
    }  # fmt: skip


async def test_a_day_of_a_fleet(fleet) -> None:
    alerts = [
        alert("idle", 30, 2.0), alert("hot", 5, 1.0), alert("free", 5, None),
        alert("pending", 5, 9.0, fired=False),
    ]  # fmt: skip
    fleet.insert("alerts", alerts)
    digest = await read(fleet, UNTIL - timedelta(days=1), UNTIL, 2)
    # Hours that began 1 and 24 hours before count, that which begins now does not.
    assert (digest.gpu_hours, digest.idle_hours) == (8, 5)
    assert digest.usd == pytest.approx(6)
    assert [(w.name, w.usd, w.hours) for w in digest.wasters] == [("n1", 6, 3), ("n2", None, 2)]
    assert [(w.name, w.usd, w.hours) for w in digest.alerts] == [("idle", 48, 24), ("hot", 5, 5)]


async def test_a_fleet_without_rows_wasted_an_unknown_amount(database) -> None:
    digest = await read(database, UNTIL - timedelta(days=1), UNTIL, 2)
    assert (digest.usd, digest.gpu_hours, digest.wasters) == (None, 0, ())


async def test_each_receiver_gets_it_under_an_id_of_its_own(database) -> None:
    now = UNTIL + timedelta(minutes=5)
    messages = await made(PLAN, database, now)
    assert [m.receiver for m in messages] == ["a", "b"]
    assert len({m.id for m in messages}) == 2
    assert [m.id for m in await made(PLAN, database, now)] == [m.id for m in messages]
    assert messages[0].digest.until == UNTIL
