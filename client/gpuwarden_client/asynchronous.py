"""Makes the client awaitable: every call that waits for the collector runs in a thread."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from gpuwarden_client.fleet import Fleet, connect
from gpuwarden_client.query import FleetQuery

P = ParamSpec("P")
T = TypeVar("T")


def connect_async(
    url: str | None = None, token: str | None = None, *, ca: str | None = None
) -> "AsyncFleet":
    """As `connect`, for asyncio."""
    return AsyncFleet(connect(url, token, ca=ca))


async def _each(items: Iterator[T]) -> AsyncIterator[T]:
    """The items of a blocking iterator, each awaited."""
    end: Any = object()
    while (item := await asyncio.to_thread(next, items, end)) is not end:
        yield item


def _awaited(
    method: Callable[[FleetQuery], T],
) -> Callable[["AsyncQuery"], Coroutine[Any, Any, T]]:
    @wraps(method)
    async def call(self: "AsyncQuery") -> T:
        return await asyncio.to_thread(method, self.query)

    return call


def _asked(
    method: Callable[Concatenate[Fleet, P], FleetQuery],
) -> Callable[Concatenate["AsyncFleet", P], "AsyncQuery"]:
    @wraps(method)
    def call(self: "AsyncFleet", /, *args: P.args, **kwargs: P.kwargs) -> "AsyncQuery":
        return AsyncQuery(method(self.fleet, *args, **kwargs))

    return call


def _streamed(
    method: Callable[Concatenate[Fleet, P], Iterator[T]],
) -> Callable[Concatenate["AsyncFleet", P], AsyncIterator[T]]:
    @wraps(method)
    def call(self: "AsyncFleet", /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return _each(method(self.fleet, *args, **kwargs))

    return call


class AsyncQuery:
    """A `FleetQuery` whose rows are awaited."""

    def __init__(self, query: FleetQuery) -> None:
        self.query = query

    arrow = _awaited(FleetQuery.arrow)
    df = _awaited(FleetQuery.df)
    pl = _awaited(FleetQuery.pl)
    rows = _awaited(FleetQuery.rows)
    one = _awaited(FleetQuery.one)

    def batches(self) -> AsyncIterator[Any]:
        """As `FleetQuery.batches`."""
        return _each(self.query.batches())


class AsyncFleet:
    """A `Fleet` whose questions are awaited."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    sql = _asked(Fleet.sql)
    ask = _asked(Fleet.ask)
    gpus = _asked(Fleet.gpus)
    nodes = _asked(Fleet.nodes)
    alerts = _asked(Fleet.alerts)
    incidents = _asked(Fleet.incidents)
    waste = _asked(Fleet.waste)
    why = _asked(Fleet.why)
    live = _streamed(Fleet.live)
    live_alerts = _streamed(Fleet.live_alerts)
