"""Runs queries of the forwarding process in the collector's query processes; rows come in parts, before the answer."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa

from gpuwarden.query import QueryError
from gpuwarden_collector.processes.channel import ChannelError
from gpuwarden_collector.storage.process_calls import Handler, Peer, RemoteError

RowExport = Callable[[str], AsyncIterator[bytes]]
"""Runs a query as a background query; parts of an Arrow stream. Raises QueryError."""


async def pass_rows(export: RowExport, peer: Peer, number: int, sql: str) -> tuple[int, str | None]:
    """Answer a query in the collector: how many parts were sent to the other side, and what is wrong, or None."""
    count = 0
    try:
        async for part in export(sql):
            peer.notify("part", number, part)
            count += 1
    except QueryError as error:
        return count, str(error)
    return count, None


class RemoteQueries:
    """Queries from the forwarding process."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._parts: dict[int, list[bytes]] = {}

    @property
    def handlers(self) -> dict[str, Handler]:
        """Functions for the peer."""
        return {"part": self._take}

    async def run(self, peer: Peer, sql: str) -> Any:
        """Rows as an Arrow table. Raises QueryError."""
        number = next(self._numbers)
        parts = self._parts[number] = []
        try:
            count, problem = await peer.call("query", number, sql)
        except (ChannelError, RemoteError) as error:
            raise QueryError(f"the collector does not answer: {error}") from error
        finally:
            del self._parts[number]
        if problem is not None:
            raise QueryError(problem)
        if len(parts) != count:
            raise QueryError("rows are missing")
        return await asyncio.to_thread(_table, parts)

    async def _take(self, number: int, part: bytes) -> None:
        if number in self._parts:
            self._parts[number].append(part)


def _table(parts: list[bytes]) -> Any:
    return pa.ipc.open_stream(b"".join(parts)).read_all()
