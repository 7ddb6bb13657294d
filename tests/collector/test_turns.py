"""Queries that nobody waits for never keep a rule's query, or a person's, from a process."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_collector.query.fair_queue import Rank, TurnOrder, Turns

STEPS = st.lists(st.one_of(st.sampled_from(Rank), st.integers(0, 5)), max_size=60)
"""A query that comes, or which of those that run ends."""


@given(STEPS, st.integers(1, 4))
def test_one_process_is_left_to_the_first_and_none_is_idle(steps, running_max: int) -> None:
    order, running = TurnOrder(running_max), []
    for step in steps:
        if isinstance(step, Rank):
            order.waiting[step] += 1
        elif running:
            order.running[running.pop(step % len(running))] -= 1
        first_waited = order.waiting[Rank.FIRST]
        while (begun := order.begin_next()) is not None:
            assert begun is Rank.FIRST or not order.waiting[Rank.FIRST]
            running.append(begun)
        assert len(running) == order.running.total() <= running_max
        assert running.count(Rank.BESIDE) <= max(1, running_max - 1)
        if order.waiting[Rank.FIRST]:
            assert first_waited
            assert len(running) == running_max
        elif order.waiting[Rank.BESIDE]:
            assert len(running) >= max(1, running_max - 1)


async def test_who_goes_away_while_waiting_takes_no_turn() -> None:
    turns = Turns(1)
    await turns.take(Rank.BESIDE)
    gone, waits = (asyncio.ensure_future(turns.take(Rank.FIRST)) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    turns.give_back(Rank.BESIDE)
    await waits
    late = asyncio.ensure_future(turns.take(Rank.BESIDE))
    await asyncio.sleep(0)
    turns.give_back(Rank.FIRST)  # its turn comes, and it is let go in the same moment
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    await asyncio.wait_for(turns.take(Rank.FIRST), 5)
