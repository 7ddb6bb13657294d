"""Queries of many users take turns; nobody waits for all of another's, and the queue is bounded."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_collector.query import fair_queue
from gpuwarden_collector.query.fair_queue import (
    FairOrder,
    QueryQueue,
    QueueFullError,
    Waiting,
)

USERS = st.sampled_from(["ann", "bob", "cat", "dan"])
STEPS = st.lists(st.one_of(USERS, st.integers(0, 5)), max_size=80)
"""A user who asks, or which of the running queries ends."""


@given(STEPS, st.integers(1, 3), st.integers(0, 6))
def test_turns_are_fair_bounded_and_none_is_idle(steps, running_max: int, waiting_max: int) -> None:
    order = FairOrder(running_max, waiting_max)
    running: list[str] = []
    passed: dict[Waiting, Counter[str]] = {}
    for number, step in enumerate(steps):
        if isinstance(step, int):
            if not running:
                continue
            order.end(running.pop(step % len(running)))
        else:
            if not (order.has_room or order.begins_at_once(step)):
                counts = Counter(one.user for one in order.waiting)
                gone = order.displaced_by(step)
                if gone is None:
                    assert counts[step] + 1 >= max(counts.values(), default=0)
                    continue
                assert counts[gone.user] == max(counts.values()) > counts[step] + 1
                order.leave(gone)
                del passed[gone]
            one = Waiting(number, step)
            order.wait(one)
            passed[one] = Counter()
        while (begun := order.begin_next()) is not None:
            running.append(begun.user)
            del passed[begun]
            for one, others in passed.items():
                # While one waits of whom nothing runs, nobody begins more than twice.
                others[begun.user] += 1
                if order.running[one.user]:
                    others.clear()
                assert others[begun.user] <= 2
        assert len(running) == order.running.total()
        assert len(running) <= running_max + (len(set(running)) > 1)
        assert len(order.waiting) <= waiting_max
        assert not order.waiting or len(running) >= running_max
        # Who has all processes keeps nobody else waiting.
        others_wait = {one.user for one in order.waiting} - set(running)
        assert not others_wait or len(set(running)) > 1
    for user in running:
        order.end(user)
    assert not order.running


async def test_a_full_queue_refuses_who_has_most_and_forgets_who_leaves() -> None:
    queue = QueryQueue(1, waiting_max=2)
    refused: list[tuple[str, int]] = []
    go = asyncio.Event()

    async def ask(user: str) -> None:
        try:
            async with queue.turn(user):
                await go.wait()
        except QueueFullError as error:
            refused.append((user, error.status))

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        for user in ("ann", "zed", "ann", "ann", "ann"):  # two run, two wait
            group.create_task(ask(user))
        await asyncio.sleep(0.01)
        assert refused == [("ann", 429)]
        first = group.create_task(ask("bob"))  # takes the place of the newest of ann
        await asyncio.sleep(0.01)
        assert refused == [("ann", 429)] * 2
        group.create_task(ask("cat"))
        await asyncio.sleep(0.01)
        assert refused[2:] == [("cat", 503)]
        first.cancel()
        await asyncio.sleep(0.01)
        assert queue.waiting == 1
        go.set()
    assert queue.waiting == 0
    async with queue.turn("dan"):
        pass
    with pytest.raises(ZeroDivisionError):
        async with queue.turn("dan"):
            raise ZeroDivisionError
    async with asyncio.timeout(1), queue.turn("dan"):
        pass


async def test_a_query_that_waits_for_too_long_gives_up_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair_queue, "WAIT_S", 0.05)
    queue = QueryQueue(1)
    async with asyncio.timeout(10), queue.turn("ann"):
        async with queue.turn("bob"):
            with pytest.raises(QueueFullError, match=r"within 0\.05 s; 0 wait") as refused:
                async with queue.turn("ann"):
                    pass
            assert (refused.value.status, refused.value.retry_after_s) == (503, 5)
        assert queue.waiting == 0
    async with asyncio.timeout(1), queue.turn("ann"):
        pass


async def test_a_query_that_is_cancelled_at_the_moment_of_its_turn_leaves_it_to_the_next() -> None:
    queue = QueryQueue(1)
    began: list[int] = []

    async def ask(number: int) -> None:
        async with queue.turn("ann"):
            began.append(number)

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        async with queue.turn("ann"):
            second, _ = (group.create_task(ask(number)) for number in (2, 3))
            await asyncio.sleep(0)
            assert queue.waiting == 2
        second.cancel()  # it has its turn, and has not run since
    assert began == [3]
    async with asyncio.timeout(1), queue.turn("ann"):
        pass
