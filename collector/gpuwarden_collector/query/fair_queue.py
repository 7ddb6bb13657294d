"""Decides whose query is next: people by `FairOrder`, and for the processes of one querier ranks by `TurnOrder`.

Both orders are pure; `QueryQueue` and `Turns` wait by them.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import IntEnum

from gpuwarden.query import QueryError

WAITING_MAX = 32
"""Most queries that wait."""
SPARE = 1
"""Queries that may run beyond those that may, where all of them are of one user and another comes."""
WAIT_S = 30.0
"""Most time that one waits for its turn."""


def user_at(address: str | None) -> str:
    """As whom the queue knows who asks without a token."""
    return f"address {address or ''}"


class QueueFullError(QueryError):
    """A query has no place; the message says why."""

    def __init__(self, reason: str, status: int, retry_after_s: int) -> None:
        """`status`: 429 for who has queries here, 503 where it is the others."""
        super().__init__(reason)
        self.status = status
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Waiting:
    """A query that waits; numbers go up."""

    number: int
    user: str


@dataclass(slots=True)
class FairOrder:
    """Queries that run and wait, by user, and which is next.

    The user with the fewest running is next, so that one who asks a hundred times does not keep others waiting. A
    user that has all places cannot keep out the first other that comes: one query more runs then.
    """

    running_max: int
    waiting_max: int = WAITING_MAX
    running: Counter[str] = field(default_factory=Counter)
    waiting: list[Waiting] = field(default_factory=list)
    _started: dict[str, int] = field(default_factory=dict)
    """Of those who have something here: when they last began one, or came, counted in beginnings."""
    _beginnings: int = 0

    def displaced_by(self, user: str) -> Waiting | None:
        """The query that has to go where one more of `user` comes and there is no room; None: that one."""
        counts = Counter(one.user for one in self.waiting)
        most = max(counts.values(), default=0)
        if counts[user] + 1 >= most:
            return None
        return max(
            (one for one in self.waiting if counts[one.user] == most), key=lambda one: one.number
        )

    @property
    def has_room(self) -> bool:
        """Whether one more may wait."""
        return len(self.waiting) < self.waiting_max

    def wait(self, one: Waiting) -> None:
        """A query comes. Who comes anew goes before the one that began last, and behind those who wait."""
        self.waiting.append(one)
        self._started.setdefault(one.user, self._beginnings - 1)

    def begin_next(self) -> Waiting | None:
        """The query that runs now; None: none waits, or as many run as may."""
        if not self.waiting:
            return None
        found = min(
            self.waiting,
            key=lambda one: (self.running[one.user], self._started[one.user], one.number),
        )
        if not self.begins_at_once(found.user):
            return None
        self.waiting.remove(found)
        self.running[found.user] += 1
        self._beginnings += 1
        self._started[found.user] = self._beginnings
        return found

    def begins_at_once(self, user: str) -> bool:
        """Whether one of that user may run beside those that do."""
        users = [one for one, count in self.running.items() if count]
        is_kept_out = len(users) == 1 and user not in users
        return self.running.total() < self.running_max + is_kept_out * SPARE

    def end(self, user: str) -> None:
        """One of that user has ended."""
        self.running[user] -= 1
        self._forget(user)

    def leave(self, one: Waiting) -> None:
        """A query waits no more."""
        self.waiting.remove(one)
        self._forget(one.user)

    def _forget(self, user: str) -> None:
        if not self.running[user]:
            del self.running[user]
            if all(one.user != user for one in self.waiting):
                self._started.pop(user, None)


class QueryQueue:
    """Turns for queries, in a fair order."""

    def __init__(self, running_max: int, waiting_max: int = WAITING_MAX) -> None:
        self._order = FairOrder(running_max, waiting_max)
        self._turns: dict[Waiting, asyncio.Future[None]] = {}
        self._number = 0

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._order.waiting)

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """Wait for the turn of a query, and hold it. Raises QueueFullError."""
        await self._wait(user)
        try:
            yield
        finally:
            self._order.end(user)
            self._begin()

    async def _wait(self, user: str) -> None:
        if not (self._order.has_room or self._order.begins_at_once(user)):
            displaced = self._order.displaced_by(user)
            if displaced is None:
                raise self._full(user)
            self._order.leave(displaced)
            self._turns.pop(displaced).set_exception(self._full(displaced.user))
        self._number += 1
        one = Waiting(self._number, user)
        turn = self._turns[one] = asyncio.get_running_loop().create_future()
        self._order.wait(one)
        self._begin()
        try:
            async with asyncio.timeout(WAIT_S):
                await turn
        except BaseException as error:
            if one in self._turns:
                del self._turns[one]
                self._order.leave(one)
            elif turn.done() and not turn.cancelled() and turn.exception() is None:
                self._order.end(user)  # it was let go while its turn came
                self._begin()
            if isinstance(error, TimeoutError):
                reason = f"no query could start within {WAIT_S:g} s; {self.waiting} wait"
                raise QueueFullError(reason, 503, 5) from None
            raise

    def _begin(self) -> None:
        while (one := self._order.begin_next()) is not None:
            self._turns.pop(one).set_result(None)

    def _full(self, user: str) -> QueueFullError:
        own = sum(one.user == user for one in self._order.waiting)
        if own or self._order.running[user]:
            return QueueFullError(
                f"{self.waiting} queries wait, {own} of them yours: wait for their answers", 429, 1
            )
        return QueueFullError(f"{self.waiting} queries wait: try again", 503, 2)


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
