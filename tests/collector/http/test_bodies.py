"""Bodies are read within bounds of size, memory and time, and room is given back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gpuwarden_collector.http.bodies import BodyReader, Busy
from gpuwarden_collector.ingest.decode import RefusedBody

BODY_MAX = 100_000


class Echo:
    """A server whose one handler reads bodies and keeps the result of each."""

    def __init__(self, room: int, timeout_s: float) -> None:
        self.reader = BodyReader(room, timeout_s)
        self.results: list[bytes | RefusedBody | Busy] = []
        self.hold = asyncio.Event()
        self.hold.set()

    @asynccontextmanager
    async def posted(self, client: aiohttp.ClientSession, data: object) -> AsyncIterator[str]:
        async with await self.serve() as server, client.post(server.make_url("/"), data=data) as a:
            yield await a.text()

    async def handle(self, request: web.Request) -> web.Response:
        result = await self.reader.read(request, BODY_MAX)
        self.results.append(result)
        if isinstance(result, bytes):
            await self.hold.wait()
            self.reader.release(len(result))
        return web.Response(text=type(result).__name__)

    async def serve(self) -> TestServer:
        app = web.Application()
        app.router.add_post("/", self.handle)
        server = TestServer(app)
        await server.start_server()
        return server


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def pieces(size_bytes: int) -> AsyncIterator[bytes]:
    for _ in range(size_bytes // 10_000):
        yield bytes(10_000)


async def test_a_body_that_says_it_is_too_large_is_refused_unread(
    client: aiohttp.ClientSession,
) -> None:
    echo = Echo(10**6, 10)
    async with echo.posted(client, bytes(BODY_MAX + 1)):
        pass
    assert echo.results == [RefusedBody(413, "the body has 100001 bytes; most is 100000")]


async def test_a_body_that_does_not_say_its_size_is_refused_on_the_way(
    client: aiohttp.ClientSession,
) -> None:
    echo = Echo(10**6, 10)
    async with echo.posted(client, pieces(BODY_MAX + 10_000)):
        pass
    assert echo.results == [RefusedBody(413, "the body has more than 100000 bytes")]
    assert echo.reader.in_flight_bytes == 0


async def test_without_room_the_client_must_try_again(
    client: aiohttp.ClientSession, eventually: Any
) -> None:
    echo = Echo(100_000, 10)
    echo.hold.clear()
    async with await echo.serve() as server, asyncio.TaskGroup() as group:

        async def send(data: object) -> str:
            async with client.post(server.make_url("/"), data=data) as answer:
                return await answer.text()

        first = group.create_task(send(bytes(90_000)))
        await eventually(lambda: bool(echo.results))
        assert await send(bytes(20_000)) == "Busy"
        assert await send(pieces(20_000)) == "Busy"
        echo.hold.set()
        assert await first == "bytes"
    assert echo.reader.in_flight_bytes == 0


async def test_a_client_that_goes_away_gives_its_room_back(eventually: Any) -> None:
    echo = Echo(10**6, 10)
    async with await echo.serve() as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nfirst")
        await eventually(lambda: echo.reader.in_flight_bytes == 5)
        writer.close()
        await writer.wait_closed()
        await eventually(lambda: echo.reader.in_flight_bytes == 0)


async def test_a_body_that_does_not_arrive_in_time_may_be_sent_again(
    client: aiohttp.ClientSession,
) -> None:
    async def stalling() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.sleep(5)

    echo = Echo(10**6, 0.05)
    async with await echo.serve() as server, client.post(server.make_url("/"), data=stalling()):
        pass
    assert echo.results == [Busy("the body did not arrive within 0.05 s", 5, 503)]
    assert echo.reader.in_flight_bytes == 0
