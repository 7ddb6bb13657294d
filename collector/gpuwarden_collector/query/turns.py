"""Gives the processes of a pool to the queries that wait: those that somebody waits for before those beside.

What is decided is pure (`TurnOrder`); `Turns` waits by it.
"""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import IntEnum


class Rank(IntEnum):
    """Whose query is next, the lowest first."""

    FIRST = 0
    BESIDE = 1
    """Nobody waits for it."""


@dataclass(slots=True)
class TurnOrder:
    """How many queries run, and how many wait, by rank.

    Where more than one may run, those beside leave one process free: a query of rank FIRST never waits
    until one of them has ended.
    """

    running_max: int
    running: Counter[Rank] = field(default_factory=Counter)
    waiting: Counter[Rank] = field(default_factory=Counter)

    def begin_next(self) -> Rank | None:
        """The rank whose next query runs now; None: none waits, or as many run as may."""
        for rank in Rank:
            if self.waiting[rank] and self.may_begin(rank):
                self.waiting[rank] -= 1
                self.running[rank] += 1
                return rank
        return None

    def may_begin(self, rank: Rank) -> bool:
        """Whether one more of that rank may run now."""
        beside_max = max(1, self.running_max - 1)
        is_room = self.running.total() < self.running_max
        return is_room and (rank is Rank.FIRST or self.running[rank] < beside_max)


class Turns:
    """Turns of a pool of that many processes, in order of rank, then of coming."""

    def __init__(self, running_max: int) -> None:
        self._order = TurnOrder(running_max)
        self._waiting: dict[Rank, deque[asyncio.Future[None]]] = {rank: deque() for rank in Rank}

    async def take(self, rank: Rank) -> None:
        """Wait for a turn, to be given back."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[rank].append(turn)
        self._order.waiting[rank] += 1
        self._begin()
        try:
            await turn
        except BaseException:
            if turn in self._waiting[rank]:
                self._waiting[rank].remove(turn)
                self._order.waiting[rank] -= 1
            elif turn.done() and not turn.cancelled():
                self.give_back(rank)  # who waited was let go while the turn came
            raise

    def give_back(self, rank: Rank) -> None:
        """The query of that rank has ended."""
        self._order.running[rank] -= 1
        self._begin()

    def _begin(self) -> None:
        while (rank := self._order.begin_next()) is not None:
            turn = self._waiting[rank].popleft()
            turn.set_result(None)
