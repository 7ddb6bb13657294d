"""Lets people's queries run in a fair order: whoever has the fewest running is next, so that one who asks a
hundred times does not keep others waiting. Who has all that may run cannot keep out the first other who comes:
one more runs then. What is decided is pure (`FairOrder`); `QueryQueue` waits by it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

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
    """Queries that run and wait, by user, and which is next."""

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
