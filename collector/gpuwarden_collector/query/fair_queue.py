"""Decides which query is next: by user (`FairOrder`, pure), and by rank for the processes of one querier (`Turns`)."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum

from gpuwarden.query import QueryError

WAITING_MAX = 32
"""Most queries that wait."""
SPARE = 1
"""Additional queries that may run when all others are of one user and another user comes."""
WAIT_S = 30.0
"""Longest wait for a turn."""


def user_at(address: str | None) -> str:
    """The queue's user for a client without a token."""
    return f"address {address or ''}"


class QueueFullError(QueryError):
    """The queue is full; the message says why."""

    def __init__(self, reason: str, status: int, retry_after_s: int) -> None:
        """`status`: 429 if the user has queries in the queue, else 503."""
        super().__init__(reason)
        self.status = status
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Waiting:
    """A query that waits; a later one has a higher number."""

    number: int
    user: str


@dataclass(slots=True)
class FairOrder:
    """Running and waiting queries by user; chooses the next one.

    The user with the fewest running queries is next, so that a user with a hundred queries does not delay others. If
    one user has all places, one additional query of another user may run.
    """

    running_max: int
    waiting_max: int = WAITING_MAX
    running: Counter[str] = field(default_factory=Counter)
    waiting: list[Waiting] = field(default_factory=list)
    _started: dict[str, int] = field(default_factory=dict)
    """By user with queries here: count of all beginnings when the user last began a query, or came."""
    _beginnings: int = 0

    def displaced_by(self, user: str) -> Waiting | None:
        """The query to remove when the queue is full and `user` sends one more; None: refuse the new one."""
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
        """Add a query. A new user comes before the user that began last, and after those who wait."""
        self.waiting.append(one)
        self._started.setdefault(one.user, self._beginnings - 1)

    def begin_next(self) -> Waiting | None:
        """The next query, which starts now; None: none waits, or all places are taken."""
        if not self.waiting:
            return None
        query = min(
            self.waiting,
            key=lambda one: (self.running[one.user], self._started[one.user], one.number),
        )
        if not self.begins_at_once(query.user):
            return None
        self.waiting.remove(query)
        self.running[query.user] += 1
        self._beginnings += 1
        self._started[query.user] = self._beginnings
        return query

    def begins_at_once(self, user: str) -> bool:
        """Whether a query of that user may start now."""
        users = [one for one, count in self.running.items() if count]
        is_kept_out = len(users) == 1 and user not in users
        return self.running.total() < self.running_max + is_kept_out * SPARE

    def end(self, user: str) -> None:
        """A query of that user has ended."""
        self.running[user] -= 1
        self._forget(user)

    def leave(self, one: Waiting) -> None:
        """Remove a waiting query."""
        self.waiting.remove(one)
        self._forget(one.user)

    def _forget(self, user: str) -> None:
        if not self.running[user]:
            del self.running[user]
            if all(one.user != user for one in self.waiting):
                self._started.pop(user, None)


class QueryQueue:
    """Gives queries their turns, in a fair order."""

    def __init__(self, running_max: int, waiting_max: int = WAITING_MAX) -> None:
        self._order = FairOrder(running_max, waiting_max)
        self._turns: dict[Waiting, asyncio.Future[None]] = {}
        self._number = 0

    @property
    def waiting(self) -> int:
        """Number of waiting queries."""
        return len(self._order.waiting)

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """Wait for a turn, and hold it within the block. Raises QueueFullError."""
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
                self._order.end(user)  # it was cancelled at the moment of its turn
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


class Rank(Enum):
    """Rank of a query."""

    FIRST = "first"
    BACKGROUND = "background"
    """A background query."""


class Turns:
    """Gives the turns of a pool of processes, in order of arrival.

    One background query at a time waits with the others, and with several processes they leave one free."""

    def __init__(self, running_max: int) -> None:
        self._all = asyncio.Semaphore(running_max)
        self._background = asyncio.Semaphore(max(1, running_max - 1))

    async def take(self, rank: Rank) -> None:
        """Wait for a turn; `give_back` ends it."""
        if rank is Rank.FIRST:
            await self._all.acquire()
            return
        await self._background.acquire()
        try:
            await self._all.acquire()
        except BaseException:
            self._background.release()
            raise

    def give_back(self, rank: Rank) -> None:
        """End a turn of that rank."""
        self._all.release()
        if rank is Rank.BACKGROUND:
            self._background.release()
