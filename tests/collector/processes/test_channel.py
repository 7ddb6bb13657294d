"""Messages arrive whole, in order and in any pieces; nonsense ends the channel."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpuwarden_collector.processes.channel import (
    BODY_BYTES_MAX,
    QUEUED_BYTES_MAX,
    Channel,
    ChannelError,
    packed,
    receive,
    send,
)


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    transport, channel = await asyncio.get_running_loop().create_connection(Channel, sock=ours)
    with theirs:
        yield channel, theirs
    transport.close()


async def test_messages_arrive_in_whatever_pieces(pair: Any) -> None:
    channel, theirs = pair
    raw = packed({"a": 1}, b"body") + packed({}) + packed({"b": "\u00e9"}, b"x" * 300_000)

    async def trickle() -> None:
        for at in range(60):
            theirs.send(raw[at : at + 1])
            await asyncio.sleep(0)
        await asyncio.to_thread(theirs.sendall, raw[60:])

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(trickle())
        assert await channel.receive() == ({"a": 1}, b"body")
        assert await channel.receive() == ({}, b"")
        assert await channel.receive() == ({"b": "\u00e9"}, b"x" * 300_000)


async def test_who_is_cancelled_leaves_the_message_to_the_next(pair: Any) -> None:
    channel, theirs = pair
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await channel.receive()
    send(theirs, {"a": 1}, b"later")
    async with asyncio.timeout(20):
        assert await channel.receive() == ({"a": 1}, b"later")


async def test_who_takes_nothing_makes_the_other_side_wait(pair: Any) -> None:
    channel, theirs = pair
    theirs.setblocking(False)
    message = packed({"n": 1}, bytes(64 * 1024))
    sent = 0
    for _ in range(200):
        with contextlib.suppress(BlockingIOError):
            sent += theirs.send(message[sent % len(message) :])
        await asyncio.sleep(0)
    assert sent < 3 * QUEUED_BYTES_MAX
    assert (await channel.receive())[0] == {"n": 1}


async def test_what_came_before_the_end_is_received(pair: Any) -> None:
    channel, theirs = pair
    send(theirs, {"a": 1})
    theirs.close()
    async with asyncio.timeout(20):
        assert (await channel.receive())[0] == {"a": 1}
        with pytest.raises(ChannelError, match="has ended"):
            await channel.receive()
    assert channel.is_closed


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (struct.pack("<II", 2, BODY_BYTES_MAX + 1) + b"{}", "a message of"),
        (struct.pack("<II", 1 << 31, 0), "a message of"),
        (struct.pack("<II", 2, 0) + b"[]", "not an object"),
        (struct.pack("<II", 3, 0) + b"{\xff}", "decode"),
        (struct.pack("<II", 200_000, 0) + b"[" * 200_000, "recursion"),
    ],
)
async def test_nonsense_ends_the_channel(pair: Any, raw: bytes, reason: str) -> None:
    channel, theirs = pair
    await asyncio.to_thread(theirs.sendall, raw)
    async with asyncio.timeout(20):
        with pytest.raises(ChannelError, match=reason):
            await channel.receive()


def test_a_process_receives_what_is_sent_to_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, {"kind": "query"}, b"\x00\x01")
        assert receive(theirs) == ({"kind": "query"}, b"\x00\x01")
        ours.close()
        with pytest.raises(ChannelError):
            receive(theirs)
