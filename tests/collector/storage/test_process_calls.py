"""Calls between two processes end with either of them."""

import asyncio
import socket
from typing import Any

import pytest

from gpuwarden_collector.processes.channel import Channel, ChannelError
from gpuwarden_collector.storage.process_calls import Handler, Peer


async def peers(handlers: dict[str, Handler]) -> tuple[Peer, Peer]:
    """One that calls, and one that has the handlers."""
    found = []
    for sock, has in zip(socket.socketpair(), ({}, handlers), strict=True):
        sock.setblocking(False)
        _, channel = await asyncio.get_running_loop().create_connection(Channel, sock=sock)
        found.append(Peer(channel, has))
    return found[0], found[1]


async def test_a_call_that_never_ends_ends_with_the_side_that_made_it() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def never(value: int) -> Any:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def double(value: int) -> int:
        return 2 * value

    calls, has = await peers({"never": never, "double": double})
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        running = [group.create_task(peer.run()) for peer in (calls, has)]
        waiting = group.create_task(_failure(calls, "never"))
        await began.wait()
        assert await calls.call("double", 4) == 8  # calls run beside each other
        calls.close()
        await asyncio.wait(running)
        assert ended.is_set()
    assert isinstance(waiting.result(), ChannelError)
    with pytest.raises(ChannelError):
        await calls.call("double", 4)


async def _failure(peer: Peer, name: str) -> Exception:
    with pytest.raises(ChannelError) as failed:
        await peer.call(name, 1)
    return failed.value
