"""The timer wakes on the interval it was last given, and forgets what it is told to."""

import asyncio
import time

from gpuwarden_rules.evaluation import schedule


async def test_it_wakes_what_it_was_given_last() -> None:
    first, second, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with schedule.running() as running:
        running.every("a", 3600, first.set)
        running.every("a", 0.05, second.set)
        running.every("b", 0.05, gone.set)
        running.forget("b")
        async with asyncio.timeout(10):
            await second.wait()
    assert not first.is_set()
    assert not gone.is_set()


async def test_a_turn_that_was_missed_is_not_made_up_for() -> None:
    """Otherwise a loop that was busy for a minute would wake each rule for every turn of it."""
    woken = []
    async with schedule.running() as running:
        running.every("a", 0.05, lambda: woken.append(1))
        time.sleep(0.5)  # noqa: ASYNC251 - the loop is busy
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(woken) == 1
