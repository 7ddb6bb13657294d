"""Jobs come at their intervals, one at a time, also when the wall clock is set."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuwarden_collector.timetable import Every, Timetable

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def test_a_clock_set_forward_means_one_turn_not_many() -> None:
    """APScheduler asks for turn after turn until one lies ahead."""
    trigger = Every(5)
    turns, due = 0, NOW
    while due <= NOW + timedelta(days=20_000):
        due = trigger.get_next_fire_time(due, NOW + timedelta(days=20_000))
        turns += 1
    assert turns == 1


async def test_a_clock_set_back_does_not_stop_jobs(eventually: Any) -> None:
    turns = 0

    async def job() -> None:
        nonlocal turns
        turns += 1

    timetable = Timetable()
    async with timetable.running():
        timetable.every("job", 0.01, job)
        await eventually(lambda: turns > 0)
        (scheduled,) = timetable._scheduler.get_jobs()
        scheduled.modify(next_run_time=datetime.now(UTC) + timedelta(hours=1))
        before = turns
        timetable.heal()
        await eventually(lambda: turns > before)


async def test_a_long_run_is_alone_and_waited_for(
    eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    begun = ended = together = most = 0
    may_end = asyncio.Event()

    async def slow() -> None:
        nonlocal begun, ended, together, most
        begun += 1
        together += 1
        most = max(most, together)
        await may_end.wait()
        together -= 1
        ended += 1

    others = 0

    async def quick() -> None:
        nonlocal others
        others += 1

    timetable = Timetable()
    with caplog.at_level(logging.WARNING):
        async with timetable.running():
            timetable.every("slow", 0.01, slow)
            timetable.every("quick", 0.01, quick)
            await eventually(lambda: begun == 1 and others > 5)
            asyncio.get_running_loop().call_later(0.05, may_end.set)
    assert (most, begun) == (1, ended)
    assert caplog.records == []


async def test_a_job_that_fails_is_logged_and_comes_again(
    eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    turns = 0

    async def failing() -> None:
        nonlocal turns
        turns += 1
        raise ValueError("a bug")

    timetable = Timetable()
    async with timetable.running():
        timetable.every("failing", 0.01, failing)
        await eventually(lambda: turns >= 2)
    assert "a bug" in caplog.text


async def test_a_job_that_does_not_end_is_named_and_logged_once(
    eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    may_end = asyncio.Event()

    async def waits() -> None:
        await may_end.wait()

    timetable = Timetable()
    async with timetable.running():
        timetable.every("stuck", 0.01, waits, late_s=0.05)
        timetable.every("long", 0.01, waits, late_s=None)
        await eventually(lambda: timetable.late == ("stuck",))
        timetable.heal()
        timetable.heal()
        may_end.set()
        await eventually(lambda: timetable.late == ())
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        "a job does not end, and does not run again until it has",
        "a late job has ended",
    ]
