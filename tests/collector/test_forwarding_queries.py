"""The forwarding process gets rows of queries that the collector runs, or the reason why not."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

from gpuwarden.query import QueryError
from gpuwarden_collector.forwarding.queries import RemoteQueries, pass_rows
from gpuwarden_collector.processes.channel import Channel
from gpuwarden_collector.storage.process_calls import Peer

ROWS = pa.table({"n": [*range(100_000)]})


def _stream() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROWS.schema) as writer:
        writer.write_table(ROWS)
    return bytes(sink.getvalue())


async def _export(sql: str) -> AsyncIterator[bytes]:
    body = _stream()
    for start in range(0, len(body), 100_000):
        yield body[start : start + 100_000]
        if sql == "too large":
            raise QueryError("there are more than 5 rows")


async def _peers(queries: RemoteQueries) -> tuple[Peer, Peer]:
    """The forwarding process's and the collector's."""
    sockets = socket.socketpair()
    channels = []
    for sock in sockets:
        sock.setblocking(False)
        _, channel = await asyncio.get_running_loop().create_connection(Channel, sock=sock)
        channels.append(channel)

    async def query(number: int, sql: str) -> tuple[int, str | None]:
        return await pass_rows(_export, collector, number, sql)

    collector = Peer(channels[1], {"query": query})
    return Peer(channels[0], queries.handlers), collector


async def test_rows_come_whole_also_of_queries_at_once() -> None:
    queries = RemoteQueries()
    ours, theirs = await _peers(queries)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        running = [group.create_task(peer.run()) for peer in (ours, theirs)]
        good = [group.create_task(queries.run(ours, "all")) for _ in range(3)]
        with pytest.raises(QueryError, match="more than 5 rows"):
            await queries.run(ours, "too large")
        await asyncio.wait(good)
        theirs.close()
        await asyncio.wait(running)
    assert all(task.result().equals(ROWS) for task in good)
    with pytest.raises(QueryError, match="does not answer"):
        await queries.run(ours, "all")
