"""A client that only connects takes neither the store's descriptors nor the places of admitted clients."""

import asyncio
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gpuwarden.access import Scope
from gpuwarden_collector import daemon
from gpuwarden_collector.auth.connections import ConnectionLimits, Connections, limits_of
from gpuwarden_collector.http import listen
from gpuwarden_collector.http.listen import raise_descriptors

PEERS, HOSTS = st.integers(0, 30), st.sampled_from(["a", "b", "c"])
LIMITS = ConnectionLimits(all=12, anonymous=6, anonymous_of_one=3)


class AnyOrder(RuleBasedStateMachine):
    """Connections come, become known and go in any order; some are ended twice, or were never there."""

    def __init__(self) -> None:
        super().__init__()
        self.connections = Connections(LIMITS)
        self.open: dict[int, tuple[str, bool]] = {}

    @rule(peer=PEERS, host=HOSTS)
    def take(self, peer: int, host: str) -> None:
        if peer in self.open:
            return
        anonymous = [h for h, is_known in self.open.values() if not is_known]
        has_room = len(self.open) < 12 and len(anonymous) < 6 and anonymous.count(host) < 3
        assert self.connections.take(peer, host) == has_room
        if has_room:
            self.open[peer] = host, False

    @rule(peer=PEERS)
    def know(self, peer: int) -> None:
        self.connections.authenticate(peer)
        if peer in self.open:
            self.open[peer] = self.open[peer][0], True

    @rule(peer=PEERS)
    def end(self, peer: int) -> None:
        self.connections.end(peer)
        self.open.pop(peer, None)

    @invariant()
    def counts(self) -> None:
        assert len(self.connections) == len(self.open)
        assert self.connections.anonymous == sum(not known for _, known in self.open.values())


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=30, stateful_step_count=40)


@pytest.mark.parametrize("descriptors", [20, 256, 1_024, 65_536])
def test_some_descriptors_are_left_for_files(descriptors: int) -> None:
    for asks in (False, True):
        limits = limits_of(descriptors, asks_tokens=asks)
        assert 0 < limits.anonymous_of_one <= limits.anonymous <= limits.all < descriptors
    assert descriptors < 1_024 or descriptors - limits.all >= 256


def test_as_many_descriptors_are_asked_for_as_the_system_gives() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        assert raise_descriptors() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 512
        assert raise_descriptors() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def silent(url: str, count: int, source: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """Connections that say nothing."""
    address = urlsplit(url)
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                socket.create_connection(
                    (address.hostname, address.port or 0), timeout=10, source_address=(source, 0)
                )
            )
            for _ in range(count)
        ]


async def closed(sockets: list[socket.socket], at_least: int = 0) -> int:
    """How many the other side has closed, a while after it has closed that many; a busy machine takes its time."""
    for _ in range(100):
        if _closed(sockets) >= at_least:
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.3)
    return _closed(sockets)


def _closed(sockets: list[socket.socket]) -> int:
    count = 0
    for one in sockets:
        one.setblocking(False)
        try:
            count += one.recv(1) == b""
        except BlockingIOError:
            continue
        except ConnectionResetError:
            count += 1
    return count


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's TCP_USER_TIMEOUT")
async def test_an_answer_that_is_not_read_is_dropped(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "UNREAD_S", 1.0)
    ended = asyncio.Event()

    async def large(_request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(_request)
        try:
            while True:
                await answer.write(bytes(1 << 20))
        finally:
            ended.set()

    async with start(routes=lambda _: [web.get("/metrics/large", large)]) as collector:
        with silent(collector.url, 1) as (client,):
            client.sendall(b"GET /metrics/large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.wait_for(ended.wait(), 30)


@pytest.mark.parametrize("has_tls", [False, True])
async def test_silent_connections_do_not_block_other_clients(
    start: Any,
    grant: Any,
    bearer: Any,
    certified: Any,
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_tls: bool,
) -> None:
    monkeypatch.setattr(daemon, "raise_descriptors", lambda: 300)  # of one address 37 anonymous
    headers = bearer(grant(Scope.READ))
    tls = certified.settings if has_tls else {}
    trusting = certified.trusting() if has_tls else True
    async with (
        start(require_tokens=True, **tls) as collector,
        aiohttp.ClientSession(headers=headers) as session,
    ):

        async def metrics() -> str:
            async with session.get(f"{collector.url}/metrics", ssl=trusting) as answer:
                assert answer.status == 200
                return await answer.text()

        await metrics()  # with a token, over a connection that is kept
        with silent(collector.url, 60) as sockets:
            assert await closed(sockets, 60 - 37) == 60 - 37
            assert 'denied_requests_total{reason="connections"} 23' in await metrics()
            with silent(collector.url, 1, "127.0.0.2") as others:
                assert await closed(others) == 0
            with silent(collector.url, 60, "127.0.0.3") as more:
                assert await closed(more, 60 - 37) == 60 - 37
        await asyncio.sleep(0.3)
        with silent(collector.url, 5) as sockets:
            assert await closed(sockets) == 0, "those that went make room"
