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
    assert not is_due(
        PLAN, done, UNTIL + timedelta(minutes=4)
    )  # the last hour has no categories yet
    assert is_due(PLAN, done, UNTIL + timedelta(minutes=5))
    assert is_due(PLAN, done, UNTIL + timedelta(days=3))
    assert not is_due(PLAN, to_ms(UNTIL), UNTIL + timedelta(hours=23))


def test_the_time_of_day_is_that_of_its_zone_also_when_clocks_change() -> None:
    berlin = DigestPlan(receivers=("a",), at=time(8), zone=ZoneInfo("Europe/Berlin"), top=1)
    before = due_at(berlin, datetime(2026, 3, 28, 12, tzinfo=UTC))
    after = due_at(berlin, datetime(2026, 3, 29, 12, tzinfo=UTC))
    assert (before.hour, after.hour) == (7, 6)
    assert due_at(berlin, datetime(2026, 3, 29, 5, tzinfo=UTC)) == before


HOUR_SECONDS = {"productive": 1800, "idle_held": 1200, "throttled": 300, "unknown": 300}


def hours(
    node: str, gpu: int, usd_per_hour: float | None, *, simulated: bool = False
) -> list[dict]:
    """An hour's categories, of the hours that begin 0, 1, 24 and 25 hours before."""
    return [
        {"ts": UNTIL - timedelta(hours=hour), "node": node, "gpu_uuid": f"GPU-{node}-{gpu}", "gpu": gpu,
         "category": category, "seconds": seconds, "simulated": simulated,
         "usd": None if usd_per_hour is None else usd_per_hour * seconds / 3600}
        for hour in (0, 1, 24, 25) for category, seconds in HOUR_SECONDS.items()
    ]  # fmt: skip


def alert(rule: str, hours: float, usd_per_hour: float | None, *, fired: bool = True) -> dict:
    began = UNTIL - timedelta(hours=hours)
    return {
        "fingerprint": rule, "rule": rule, "severity": "info", "consequence": "waste", "state": "firing", "labels": "{}",
        "summary": "", "remedy": "", "usd_per_hour": usd_per_hour, "began_at": began,
        "active_at": began, "fired_at": began if fired else None, "seen_at": UNTIL,
        "simulated": False,
    }  # fmt: skip


async def test_a_digest_sums_real_waste_and_fired_alerts_of_a_day(database) -> None:
    for node, gpu, usd in [("n1", 0, 2.4), ("n1", 1, 2.4), ("n2", 0, None)]:
        database.insert("waste_1h", hours(node, gpu, usd))
    database.insert("waste_1h", hours("demo", 0, 9.0, simulated=True))
    alerts = [
        alert("idle", 30, 2.0), alert("hot", 5, 1.0), alert("free", 5, None),
        alert("pending", 5, 9.0, fired=False),
    ]  # fmt: skip
    database.insert("alerts", alerts)
    digest = await read(database, UNTIL - timedelta(days=1), UNTIL, 2)
    # Hours that began 1 and 24 hours before count, that which begins now does not.
    assert (digest.gpu_hours, digest.wasted_hours) == (6, pytest.approx(2.5))
    assert digest.usd == pytest.approx(4)
    assert lines(digest.categories) == [("idle_held", 3.2, 2), ("throttled", 0.8, 0.5)]
    assert lines(digest.wasters) == [
        ("n1", 4, 1.666667),
        ("n2", None, 0.833333),
    ]
    assert lines(digest.alerts) == [("idle", 48, 24), ("hot", 5, 5)]
    assert not digest.simulated


def lines(wasters) -> list[tuple]:
    return [(w.name, w.usd and round(w.usd, 6), round(w.hours, 6)) for w in wasters]


async def test_it_speaks_of_simulated_gpus_where_there_are_no_others(database) -> None:
    database.insert("waste_1h", hours("demo", 0, 3.6, simulated=True))
    digest = await read(database, UNTIL - timedelta(days=1), UNTIL, 2)
    assert (digest.simulated, digest.gpu_hours) == (True, 2)


async def test_a_digest_covers_whole_hours(database) -> None:
    plan = DigestPlan(receivers=("a",), at=time(8, 45), zone=UTC, top=1)
    (message,) = await made(plan, database, UNTIL + timedelta(hours=1))
    assert (message.digest.since, message.digest.until) == (UNTIL - timedelta(days=1), UNTIL)


async def test_a_fleet_without_rows_wasted_an_unknown_amount(database) -> None:
    digest = await read(database, UNTIL - timedelta(days=1), UNTIL, 2)
    assert (digest.usd, digest.gpu_hours, digest.wasters, digest.categories) == (None, 0, (), ())


async def test_each_receiver_gets_it_under_an_id_of_its_own(database) -> None:
    now = UNTIL + timedelta(minutes=5)
    messages = await made(PLAN, database, now)
    assert [m.receiver for m in messages] == ["a", "b"]
    assert len({m.id for m in messages}) == 2
    assert [m.id for m in await made(PLAN, database, now)] == [m.id for m in messages]
    assert messages[0].digest.until == UNTIL
