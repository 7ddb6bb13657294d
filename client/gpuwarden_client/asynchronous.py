"""The same for asyncio: every question waits in a thread, so that the loop does not."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gpuwarden_client.fleet import Fleet, connect
from gpuwarden_client.query import FleetQuery

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


def connect_async(
    url: str | None = None, token: str | None = None, *, ca: str | None = None
) -> "AsyncFleet":
    """As `connect`, for asyncio."""
    return AsyncFleet(connect(url, token, ca=ca))


class AsyncQuery:
    """A FleetQuery whose rows are awaited."""

    def __init__(self, query: FleetQuery) -> None:
        self.query = query

    async def arrow(self) -> "pyarrow.Table":
        """As `FleetQuery.arrow`."""
        return await asyncio.to_thread(self.query.arrow)

    async def df(self) -> "pandas.DataFrame":
        """As `FleetQuery.df`."""
        return await asyncio.to_thread(self.query.df)

    async def pl(self) -> "polars.DataFrame":
        """As `FleetQuery.pl`."""
        return await asyncio.to_thread(self.query.pl)

    async def rows(self) -> list[dict[str, Any]]:
        """As `FleetQuery.rows`."""
        return await asyncio.to_thread(self.query.rows)

    async def one(self) -> Any:
        """As `FleetQuery.one`."""
        return await asyncio.to_thread(self.query.one)

    async def batches(self) -> "AsyncIterator[pyarrow.RecordBatch]":
        """As `FleetQuery.batches`."""
        async for batch in _each(self.query.batches()):
            yield batch


class AsyncFleet:
    """A Fleet whose questions are awaited."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def sql(
        self, sql: str, /, *, params: Mapping[str, Any] | None = None, **more: Any
    ) -> AsyncQuery:
        """As `Fleet.sql`."""
        return AsyncQuery(self.fleet.sql(sql, params=params, **more))

    def ask(self, question: str, /, **params: Any) -> AsyncQuery:
        """As `Fleet.ask`."""
        return AsyncQuery(self.fleet.ask(question, **params))

    def gpus(self, node: str | None = None) -> AsyncQuery:
        """As `Fleet.gpus`."""
        return AsyncQuery(self.fleet.gpus(node))

    def nodes(self) -> AsyncQuery:
        """As `Fleet.nodes`."""
        return AsyncQuery(self.fleet.nodes())

    def alerts(self, state: str | None = "firing") -> AsyncQuery:
        """As `Fleet.alerts`."""
        return AsyncQuery(self.fleet.alerts(state))

    def incidents(self, state: str | None = "open") -> AsyncQuery:
        """As `Fleet.incidents`."""
        return AsyncQuery(self.fleet.incidents(state))

    def waste(self, by: str = "user", since: str = "7d") -> AsyncQuery:
        """As `Fleet.waste`."""
        return AsyncQuery(self.fleet.waste(by, since))

    def why(self, name: str) -> AsyncQuery:
        """As `Fleet.why`."""
        return AsyncQuery(self.fleet.why(name))

    async def live(self, table: str = "gpu_samples", **given: Any) -> AsyncIterator[dict[str, Any]]:
        """As `Fleet.live`."""
        async for row in _each(self.fleet.live(table, **given)):
            yield row

    async def live_alerts(self, **given: Any) -> AsyncIterator[dict[str, Any]]:
        """As `Fleet.live_alerts`."""
        async for row in _each(self.fleet.live_alerts(**given)):
            yield row


async def _each(items: Iterator[Any]) -> AsyncIterator[Any]:
    """What a blocking iterator gives, each waited for in a thread."""
    end = object()
    while (item := await asyncio.to_thread(next, items, end)) is not end:
        yield item
