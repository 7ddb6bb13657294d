"""Generates load: a process keeps many connections and sends batches, flat out or at a rate.

Bodies are made before the clock starts. Sockets are used bare, because an HTTP client would take more
of the machine's two cores than the collector. An answer's time counts from when the batch was due.
"""

import heapq
import multiprocessing
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from bench.store.batches import BATCH_S, Fleet, simulated
from bench.store.data_clock import DataClock

from gpuwarden.wire import CONTENT_TYPE, INGEST_PATH, BatchId, headers_of

_HEADERS = {"Content-Type": CONTENT_TYPE, "Content-Encoding": "zstd"}
_SEND_BUFFER_BYTES = 512 * 1024
_ANSWERS_WAIT_S = 60.0


@dataclass(frozen=True)
class Setup:
    """Agents, and what they send."""

    port: int
    agents: int
    begin_ms: int
    """Time of the first samples."""
    nodes: int = 16
    """Simulated nodes whose batches the agents send."""
    rounds: int = 24
    """Batches of each until its readings begin again."""
    clock: DataClock | None = None
    """Is set to the time of what is sent."""
    batch_s: int = BATCH_S
    """Seconds of samples in a batch."""


@dataclass
class Tally:
    """Counts and times of requests and answers."""

    seconds: float = 0.0
    batches: int = 0
    rows: int = 0
    values: int = 0
    bytes: int = 0
    others: Counter[str] = field(default_factory=Counter)
    """Answers that were not 204, by status."""
    acknowledge_s: list[float] = field(default_factory=list)
    ended_s: list[float] = field(default_factory=list)
    """When each of those answers came, on the monotonic clock."""
    ran_out: bool = False
    """The bodies were used up before the time was."""

    def quantile_ms(self, share: float) -> float:
        """A quantile of the times of answers, in milliseconds."""
        ordered = sorted(self.acknowledge_s) or [0.0]
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@dataclass
class _Sending:
    due_s: float
    end_ms: int
    """Time of its last samples."""
    request: list[bytes]
    rows: int
    values: int


class _Client:
    """Connections, of which each has at most one request under way."""

    def __init__(self, port: int, connections: int) -> None:
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self.idle: deque[int] = deque()
        self.under_way: dict[int, _Sending] = {}
        for _ in range(connections):
            made = socket.create_connection(("127.0.0.1", port))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[made.fileno()] = made
            self._poll.register(made.fileno(), select.EPOLLIN)
            self.idle.append(made.fileno())

    def send(self, sending: _Sending) -> None:
        """Send on an idle connection."""
        number = self.idle.popleft()
        head, body = sending.request
        made = self._sockets[number]
        sent = made.sendmsg(sending.request)
        if sent < len(head) + len(body):
            made.sendall((head + body)[sent:])
        self.under_way[number] = sending

    def answers(self, wait_s: float) -> Iterator[tuple[_Sending, bytes]]:
        """Answers since the last call: the request, and the bytes received."""
        for number, _ in self._poll.poll(wait_s):
            answer = self._sockets[number].recv(65536)
            if not answer:
                raise SystemExit("the collector closed a connection")
            yield self.under_way.pop(number), answer
            self.idle.append(number)

    def close(self) -> None:
        for made in self._sockets.values():
            made.close()
        self._poll.close()


class _Agents:
    """Makes the batches of the fleet in the order of time, and remembers what was sent."""

    def __init__(self, setup: Setup, fleet: Fleet) -> None:
        self._setup = setup
        self._fleet = fleet
        self._made = 0
        self.ready: deque[_Sending] = deque()

    def make(self, batches: int) -> None:
        """Have at least so many ready."""
        while len(self.ready) < batches:
            number, agent = divmod(self._made, self._setup.agents)
            template = self._fleet.template(agent, number)
            shift_ms = self._fleet.shift_ms(number, self._setup.begin_ms)
            body = template.stamped(agent, shift_ms)
            batch = BatchId(f"bench-{agent}", "boot", number + 1, number + 1 - min(number, 64))
            head = _head(INGEST_PATH, {**_HEADERS, **headers_of(batch)}, body)
            end_ms = self._setup.begin_ms + (number + 1) * self._fleet.batch_s * 1000
            made = _Sending(0.0, end_ms, [head, body], template.rows, template.values)
            self.ready.append(made)
            self._made += 1


def _head(path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    every = {"Host": "127.0.0.1", "Content-Length": str(len(body)), **headers}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in every.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _run(
    client: _Client, agents: _Agents, seconds: float, rate: float | None, clock: DataClock | None
) -> Tally:
    """Send for this time, `rate` batches a second or as fast as they are answered; wait for all."""
    tally = Tally()
    again: list[tuple[float, int, _Sending]] = []
    began_s = now_s = time.monotonic()
    until_s = began_s + seconds
    sent = 0
    while True:
        while client.idle and again and again[0][0] <= now_s:
            client.send(heapq.heappop(again)[2])
        while client.idle and agents.ready and now_s < until_s:
            due_s = now_s if rate is None else began_s + sent / rate
            if due_s > now_s:
                break
            sending = agents.ready.popleft()
            sending.due_s = due_s
            if clock is not None:
                clock.set(sending.end_ms)
            client.send(sending)
            sent += 1
        tally.ran_out |= not agents.ready and now_s < until_s
        for sending, answer in client.answers(0.002):
            now_s = time.monotonic()
            if answer.startswith(b"HTTP/1.1 204"):
                tally.batches += 1
                tally.rows += sending.rows
                tally.values += sending.values
                tally.bytes += len(sending.request[1])
                tally.acknowledge_s.append(now_s - sending.due_s)
                tally.ended_s.append(now_s)
            else:
                if not answer.startswith((b"HTTP/1.1 429", b"HTTP/1.1 503")):
                    raise SystemExit(f"a batch was refused: {answer[:500]!r}")
                tally.others[answer[9:12].decode()] += 1
                heapq.heappush(again, (now_s + 1.0, id(sending), sending))
        now_s = time.monotonic()
        is_over = now_s >= until_s or not agents.ready
        if is_over and not client.under_way and not again:
            break
        if now_s > until_s + _ANSWERS_WAIT_S:
            raise SystemExit(f"{len(client.under_way)} batches were not answered in time")
    tally.seconds = now_s - began_s
    return tally


def _serve(pipe: Connection, setup: Setup) -> None:
    agents = _Agents(setup, simulated(setup.nodes, setup.rounds, setup.batch_s))
    pipe.send(None)
    while (order := pipe.recv()) is not None:
        action, arguments = order
        if action == "make":
            agents.make(*arguments)
            pipe.send(None)
        else:
            connections, seconds, rate = arguments
            client = _Client(setup.port, connections)
            try:
                pipe.send(_run(client, agents, seconds, rate, setup.clock))
            finally:
                client.close()


class Load:
    """The process that sends; one run at a time."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def make(self, batches: int) -> None:
        """Have so many batches ready."""
        self._ask("make", batches)

    def run(self, connections: int, seconds: float, rate: float | None = None) -> Tally:
        """Send over this number of connections, for this time; `rate`: batches a second, None flat out."""
        tally = self._ask("run", connections, seconds, rate)
        assert isinstance(tally, Tally)
        return tally

    def _ask(self, action: str, *arguments: object) -> Any:
        self._pipe.send((action, arguments))
        try:
            return self._pipe.recv()
        except EOFError:
            raise SystemExit("the load generator has ended; see above") from None


@contextmanager
def load(setup: Setup) -> Iterator[Load]:
    """A process for the load, ended with the block."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_serve, args=(there, setup), daemon=True
    )
    process.start()
    there.close()
    try:
        here.recv()
        yield Load(here)
    finally:
        process.terminate()
        process.join()
