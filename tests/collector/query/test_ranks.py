"""Queries that nobody waits for never keep a rule's query, or a person's, from a process."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_collector.query.fair_queue import Rank, Turns

STEPS = st.lists(st.one_of(st.sampled_from(Rank), st.integers(0, 5)), max_size=40)
"""A query that comes, or which of those that run ends."""


@given(STEPS, st.integers(1, 4))
def test_one_process_is_left_to_the_first_and_none_is_idle(
    steps: list[Rank | int], running_max: int
) -> None:
    async def run() -> None:
        turns, running = Turns(running_max), []
        waiting = dict.fromkeys(Rank, 0)
        tasks = []

        async def take(rank: Rank) -> None:
            waiting[rank] += 1
            await turns.take(rank)
            waiting[rank] -= 1
            running.append(rank)

        for step in steps:
            if isinstance(step, Rank):
                tasks.append(asyncio.create_task(take(step)))
            elif running:
                turns.give_back(running.pop(step % len(running)))
            for _ in range(4):
                await asyncio.sleep(0)
            assert len(running) <= running_max
            assert running.count(Rank.BACKGROUND) <= max(1, running_max - 1)
            if waiting[Rank.FIRST]:
                assert len(running) == running_max
            elif waiting[Rank.BACKGROUND]:
                assert len(running) >= max(1, running_max - 1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


async def test_who_goes_away_while_waiting_takes_no_turn() -> None:
    turns = Turns(1)
    await turns.take(Rank.BACKGROUND)
    gone, waits = (asyncio.ensure_future(turns.take(Rank.FIRST)) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    turns.give_back(Rank.BACKGROUND)
    await waits
    late = asyncio.ensure_future(turns.take(Rank.BACKGROUND))
    await asyncio.sleep(0)
    turns.give_back(Rank.FIRST)  # its turn comes, and it is cancelled in the same moment
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    await asyncio.wait_for(turns.take(Rank.FIRST), 5)
