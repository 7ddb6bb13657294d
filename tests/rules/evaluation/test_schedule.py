"""The timer wakes on the interval it was last given, and forgets what it is told to."""

import asyncio

from gpuwarden_rules.evaluation import schedule as timer


async def test_it_wakes_what_it_was_given_last() -> None:
    first, second, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with timer.running() as running:
        running.every("a", 3600, first.set)
        running.every("a", 0.05, second.set)
        running.every("b", 0.05, gone.set)
        running.forget("b")
        async with asyncio.timeout(10):
            await second.wait()
    assert not first.is_set()
    assert not gone.is_set()
