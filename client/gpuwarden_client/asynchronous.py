"""Makes the client awaitable: every call that waits for the collector runs in a thread."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

from gpuwarden_client.fleet import Fleet, connect
from gpuwarden_client.query import FleetQuery

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


class AsyncQuery:
    """A `FleetQuery` whose methods are awaited."""

    def __init__(self, query: FleetQuery) -> None:
        self.query = query

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.query, name)
        if name == "batches":
            return lambda: _each(method())
        return lambda *args, **kwargs: asyncio.to_thread(method, *args, **kwargs)


class AsyncFleet:
    """A `Fleet` whose questions and live rows are awaited."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.fleet, name)

        def asked(*args: Any, **kwargs: Any) -> Any:
            found = method(*args, **kwargs)
            return AsyncQuery(found) if isinstance(found, FleetQuery) else _each(found)

        return asked
