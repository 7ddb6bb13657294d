"""Requests to real servers, also to those that misbehave."""

import asyncio
import os
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web
from tests.agent.fakes import until_true

from gpuwarden.lifecycle import StartError
from gpuwarden_agent.ship.transport import (
    ANSWER_BYTES_MAX,
    HttpResponse,
    NoAnswerError,
    NoConnectionError,
    Transport,
    open_transport,
)

NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
BODY = b"body of a batch"


async def post(transport: Transport, body: bytes = BODY, timeout_s: float = 5.0) -> HttpResponse:
    return await transport.post("/v1/ingest", {"X-Test": "1"}, body, timeout_s=timeout_s)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """The body of one request. Raises IncompleteReadError when the client has gone."""
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = (line for line in head.split(b"\r\n") if line.startswith(b"Content-Length: "))
    return await reader.readexactly(int(length.removeprefix(b"Content-Length: ")))


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """A server that does on each connection what the test says, and counts connections."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self.connections = 0
        self.gone = asyncio.Event()
        """A client closed its connection."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._talk(reader, writer)
            if not writer.is_closing():
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            self.gone.set()
            writer.close()

    @asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        host, port = server.sockets[0].getsockname()
        yield f"{'https' if tls else 'http'}://{host}:{port}"
        server.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@asynccontextmanager
async def talking(talk: Talk, **more: Any) -> AsyncIterator[tuple[Transport, RawServer]]:
    server = RawServer(talk)
    async with (
        server.running() as url,
        open_transport(url, **more) as transport,
    ):
        yield transport, server


def close(writer: asyncio.StreamWriter) -> None:
    """Close with FIN."""
    writer.close()


def stay(writer: asyncio.StreamWriter) -> None:
    """Leave it open."""


End = Callable[[asyncio.StreamWriter], None]


def says(raw: bytes, end: End = stay) -> Talk:
    """Answer the first request of a connection with these bytes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(raw)
        end(writer)

    return talk


def refuses(end: End) -> Talk:
    """Answer 413 at the head, before the body is read."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await writer.drain()
        await asyncio.sleep(0.05)
        end(writer)

    return talk


async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await read_request(reader)
        writer.write(NO_CONTENT)


async def test_a_real_server_gets_path_headers_and_body_and_is_heard() -> None:
    seen: list[Any] = []

    async def ingest(request: web.Request) -> web.Response:
        seen.append((request.path, dict(request.headers), await request.read()))
        return web.json_response({"error": "no"}, status=400, headers={"Retry-After": "7"})

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/prefix/v1/ingest", ingest)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    url = f"http://me:secret@localhost:{port}/prefix/"
    async with open_transport(url) as transport:
        answers = [await post(transport, os.urandom(size)) for size in (0, 10, 3_000_000)]
    await runner.cleanup()
    assert {(a.status, a.body, a.headers["retry-after"]) for a in answers} == {
        (400, b'{"error": "no"}', "7")
    }
    path, headers, _ = seen[0]
    assert path == "/prefix/v1/ingest"
    assert headers["Host"] == f"localhost:{port}"
    assert headers["Authorization"] == "Basic bWU6c2VjcmV0"
    assert headers["User-Agent"].startswith("gpuwarden-agent/")
    assert headers["X-Test"] == "1"
    assert [len(body) for _, _, body in seen] == [0, 10, 3_000_000]


async def test_there_are_never_more_connections_than_allowed() -> None:
    go_on = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            await go_on.wait()
            writer.write(NO_CONTENT)

    async with talking(wait, connections=3) as (transport, server):
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(post(transport)) for _ in range(20)]
            await until_true(lambda: server.connections == 3)
            await asyncio.sleep(0.02)
            go_on.set()
        assert {task.result().status for task in asking} == {204}
        assert server.connections == 3


@pytest.mark.parametrize("end", [reset, close])
async def test_a_server_that_drops_a_kept_connection_costs_one_more_try(end: Any) -> None:
    """It read the second request on the kept connection, and went without a word."""
    bodies: list[bytes] = []

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bodies.append(await read_request(reader))
        writer.write(NO_CONTENT)
        bodies.append(await read_request(reader))
        end(writer)

    async with talking(once) as (transport, server):
        for number in range(4):
            assert (await post(transport, b"%d" % number)).status == 204
    assert bodies == [b"0", b"1", b"1", b"2", b"2", b"3", b"3"][: len(bodies)]
    assert server.connections == 4


async def test_a_connection_that_the_server_closed_while_idle_is_not_used() -> None:
    async with talking(says(NO_CONTENT, close)) as (transport, server):
        for _ in range(3):
            assert (await post(transport)).status == 204
            await server.gone.wait()
            await asyncio.sleep(0.01)
    assert server.connections == 3


async def test_a_connection_is_closed_after_a_while_without_a_request_and_not_during_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpuwarden_agent.ship.transport.IDLE_S", 0.05)

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            await asyncio.sleep(0.15)
            writer.write(NO_CONTENT)

    async with talking(slowly) as (transport, server):
        for _ in range(2):
            assert (await post(transport)).status == 204
        assert server.connections == 1
        await asyncio.wait_for(server.gone.wait(), 5)
        assert (await post(transport)).status == 204
    assert server.connections == 2


async def test_a_fresh_connection_that_breaks_is_not_tried_again() -> None:
    async with talking(says(b"", reset)) as (transport, server):
        with pytest.raises(NoAnswerError, match="Connection reset by peer"):
            await post(transport)
    assert server.connections == 1


async def test_a_server_that_takes_a_request_and_goes_may_have_it() -> None:
    """Nobody listens when it is tried once more, yet the kept connection had carried all of it."""

    async def take_and_go(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(NO_CONTENT)
        await read_request(reader)
        listening.close()
        reset(writer)

    listening = await asyncio.start_server(take_and_go, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    async with open_transport(f"http://{host}:{port}") as transport:
        assert (await post(transport)).status == 204
        with pytest.raises(NoAnswerError, match="refused") as raised:
            await post(transport)
        assert not isinstance(raised.value, NoConnectionError)
        with pytest.raises(NoConnectionError):
            await post(transport)


async def test_what_was_not_asked_for_ends_an_idle_connection() -> None:
    async def chatty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(NO_CONTENT)
        await asyncio.sleep(0.02)
        writer.write(b"HTTP/1.1 408 Request Timeout\r\n\r\n")

    async with talking(chatty) as (transport, server):
        assert (await post(transport)).status == 204
        await asyncio.wait_for(server.gone.wait(), 5)
        assert (await post(transport)).status == 204


@pytest.mark.parametrize("end", [reset, close, stay])
async def test_an_answer_before_the_body_is_read_counts(end: Any) -> None:
    """A proxy with a limit on bodies answers 413 at the head and cuts the rest off."""
    async with talking(refuses(end)) as (transport, server):
        for _ in range(2):
            answer = await post(transport, bytes(20_000_000))
            assert (answer.status, answer.body) == (413, b"big")
    assert server.connections == 2


async def test_a_redirect_is_an_answer_and_not_followed() -> None:
    raw = b"HTTP/1.1 307 Moved\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n"
    async with talking(says(raw)) as (transport, _):
        assert (await post(transport)).status == 307


@pytest.mark.parametrize(
    "raw",
    [b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 204", b"HTTP/1.1 200 OK\r\n\r\nha"],
)
async def test_an_answer_that_never_ends_is_given_up_and_its_connection_closed(raw: bytes) -> None:
    async with talking(says(raw)) as (transport, server):
        with pytest.raises(TimeoutError):
            await post(transport, timeout_s=0.1)
        await asyncio.wait_for(server.gone.wait(), 5)


async def test_an_endless_answer_is_cut_off() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 500 No\r\n\r\n")
        while True:
            writer.write(bytes(100_000))
            await writer.drain()

    async with talking(flood) as (transport, server):
        answer = await post(transport)
        assert (answer.status, len(answer.body)) == (500, ANSWER_BYTES_MAX)
        await asyncio.wait_for(server.gone.wait(), 5)


async def test_cancelling_closes_the_connection_and_frees_its_place() -> None:
    is_first = True

    async def hang_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal is_first
        await read_request(reader)
        if is_first:
            is_first = False
        else:
            writer.write(NO_CONTENT)

    async with talking(hang_once, connections=1) as (transport, server):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(post(transport))
            await until_true(lambda: not is_first)
            task.cancel()
        await asyncio.wait_for(server.gone.wait(), 5)
        assert (await post(transport)).status == 204


async def test_closing_the_transport_ends_what_is_under_way() -> None:
    async def end(transport: Transport, server: RawServer) -> None:
        await until_true(lambda: server.connections == 1)
        await asyncio.sleep(0.01)
        transport.close()

    async with talking(says(b"")) as (transport, server):
        outcome, _ = await asyncio.gather(
            post(transport), end(transport, server), return_exceptions=True
        )
    assert isinstance(outcome, NoAnswerError)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "in the middle of its answer"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf",
            "in the middle of its answer",
        ),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "what it answers is not HTTP"),
        (b"HTTP/1.1 one OK\r\n\r\n", "what it answers is not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1_000, "what it answers is not HTTP"),
        (b"", "the server closed the connection without an answer"),
    ],
)
async def test_half_an_answer_and_garbage_are_none(raw: bytes, why: str) -> None:
    async with talking(says(raw, close)) as (transport, server):
        with pytest.raises(NoAnswerError, match=why):
            await post(transport)
    assert server.connections == 1


async def test_an_answer_means_the_same_in_chunks_and_its_connection_is_kept() -> None:
    async def chunked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            head = b"HTTP/1.1 429 No\r\nTransfer-Encoding: chunked\r\nRetry-After: 3\r\n\r\n"
            for piece in (
                b"HTTP/1.1 100 Continue\r\n\r\n",
                head,
                b"3\r\nrea\r\n",
                b"3\r\nson\r\n0\r\n\r\n",
            ):
                writer.write(piece)
                await asyncio.sleep(0.01)

    async with talking(chunked) as (transport, server):
        for _ in range(2):
            answer = await post(transport)
            assert (answer.status, answer.body, answer.headers["retry-after"]) == (
                429,
                b"reason",
                "3",
            )
    assert server.connections == 1


async def test_what_does_not_answer_is_told_in_one_line() -> None:
    async with open_transport("http://127.0.0.1:1") as transport:
        with pytest.raises(NoAnswerError, match="^Connection refused$"):
            await post(transport)
    async with open_transport("http://no.such.host.invalid") as transport:
        with pytest.raises(NoAnswerError, match=r"^no.such.host.invalid: \w"):
            await post(transport)


async def test_a_password_in_a_bad_address_is_not_told() -> None:
    with pytest.raises(StartError, match="^collector_url = …@h:port is not an address") as caught:
        async with open_transport("http://user:secret@h:port"):
            pass
    assert "secret" not in str(caught.value)


async def test_addresses_are_tried_one_after_the_other_and_the_good_one_first_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first refuses, the second takes no connection within its share of the time."""
    full = socket.create_server(("127.0.0.2", 0), backlog=0)
    port = full.getsockname()[1]
    fillers = [socket.socket() for _ in range(3)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(("127.0.0.2", port))
    server = RawServer(answer_all)
    listening = await asyncio.start_server(server._serve, "127.0.0.3", port)
    hosts = ["127.0.0.4", "127.0.0.2", "127.0.0.3"]
    answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: answers)  # the outside world
    tried = []
    connect = socket.socket.connect

    def noted_connect(sock: socket.socket, address: Any) -> None:
        tried.append(address[0])
        connect(sock, address)

    monkeypatch.setattr(socket.socket, "connect", noted_connect)
    monkeypatch.setattr("gpuwarden_agent.ship.transport.IDLE_S", 0.01)
    url = f"http://collector.example:{port}"
    async with open_transport(url) as transport:
        assert (await post(transport, timeout_s=1.5)).status == 204
        assert tried == hosts
        await asyncio.wait_for(server.gone.wait(), 5)
        assert (await post(transport)).status == 204
    assert tried == [*hosts, "127.0.0.3"]
    for sock in (full, *fillers):
        sock.close()
    listening.close()


async def test_where_the_name_service_fails_the_last_known_address_serves_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: Any, **more: Any) -> Any:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    async with talking(says(NO_CONTENT, close)) as (transport, server):
        assert (await post(transport)).status == 204
        monkeypatch.setattr(socket, "getaddrinfo", fail)  # the outside world
        assert (await post(transport)).status == 204
    assert server.connections == 2
    async with open_transport("http://collector.example") as transport:
        with pytest.raises(NoConnectionError, match="^collector.example: Temporary failure"):
            await post(transport)


AUTHORITY = trustme.CA()


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ca.pem"
    AUTHORITY.cert_pem.write_to_path(path)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))


@pytest.fixture
def certified() -> Iterator[Callable[[str], ssl.SSLContext]]:
    def context(name: str) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        AUTHORITY.issue_cert(name).configure_cert(made)
        return made

    return context  # type: ignore[return-value]


async def post_over_tls(tls: ssl.SSLContext, talk: Talk = answer_all) -> list[HttpResponse]:
    server = RawServer(talk)
    async with (
        server.running(tls) as url,
        open_transport(url) as transport,
    ):
        answers = [await post(transport, bytes(1_000_000)) for _ in range(2)]
        assert server.connections == 1
        return answers


async def test_https_is_kept_open_too(trusted: None, certified: Any) -> None:
    assert [a.status for a in await post_over_tls(certified("127.0.0.1"))] == [204, 204]


async def test_an_answer_over_tls_before_the_body_is_read_counts(
    trusted: None, certified: Any
) -> None:
    server = RawServer(refuses(reset))
    async with (
        server.running(certified("127.0.0.1")) as url,
        open_transport(url) as transport,
    ):
        answer = await post(transport, bytes(20_000_000))
    assert (answer.status, answer.body) == (413, b"big")


async def test_a_certificate_for_another_name_is_refused(trusted: None, certified: Any) -> None:
    with pytest.raises(NoAnswerError, match="its certificate is refused: .*127.0.0.1"):
        await post_over_tls(certified("other.example"))


async def test_a_certificate_of_an_unknown_authority_is_refused(certified: Any) -> None:
    with pytest.raises(NoAnswerError, match="its certificate is refused"):
        await post_over_tls(certified("127.0.0.1"))


async def test_https_to_a_server_without_tls_is_told(trusted: None) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = RawServer(plain)
    async with (
        server.running() as url,
        open_transport(url.replace("http:", "https:")) as transport,
    ):
        with pytest.raises(NoAnswerError, match="^it does not speak TLS"):
            await post(transport)


async def test_a_handshake_that_never_ends_is_given_up(trusted: None) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    server = RawServer(mute)
    async with (
        server.running() as url,
        open_transport(url.replace("http:", "https:")) as transport,
    ):
        with pytest.raises(TimeoutError):
            await post(transport, timeout_s=0.1)
        await asyncio.wait_for(server.gone.wait(), 5)


AGENT = """
import asyncio, socket, sys, threading
from pathlib import Path
from gpuwarden.clock import SystemClock
from gpuwarden_agent.daemon import run
from gpuwarden_agent.settings import AgentSettings, Timing

stop, asked = asyncio.Event(), threading.Event()

def never(*args, **more):
    asked.set()
    threading.Event().wait()

socket.getaddrinfo = never  # the outside world: a name server that does not answer
settings = AgentSettings(node="n", collector_url=("http://collector.example:8750",),
                         state_dir=Path(sys.argv[1]))

async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(run(settings, SystemClock(), stop, probes=[],
                              timing=Timing(stop_timeout_s=0.1)))
        while not asked.is_set():
            await asyncio.sleep(0.01)
        stop.set()

asyncio.run(main())
print("over")
"""


def test_a_name_server_that_never_answers_does_not_hold_a_stopped_agent(tmp_path) -> None:
    out = subprocess.run(
        [sys.executable, "-c", AGENT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert out.stdout == "over\n"
