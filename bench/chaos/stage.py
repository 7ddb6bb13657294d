"""Starts a collector and agents as their commands run them, in two network namespaces."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import (
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from bench.chaos import witness
from bench.chaos.recorded_disk import run
from bench.this_host import children_of

from gpuwarden.wire import AGENT_HEADER, BOOT_HEADER, SEQUENCE_HEADER
from gpuwarden_collector.ingest.decode import RefusedBody, decode

NODES, GPUS = 4, 2
NAMESPACE_VARIABLE = "GPUWARDEN_CHAOS_NAMESPACE"
NAMESPACE = os.environ.get(NAMESPACE_VARIABLE, f"gwchaos-{os.getpid()}")
COLLECTOR_NS, AGENTS_NS = f"{NAMESPACE}-c", f"{NAMESPACE}-a"
CABLE = "gwchaos0"
COLLECTOR_IP, AGENTS_IP = "10.231.7.1", "10.231.7.2"
HOST = "collector.test"
"""The collector's host name for agents."""
PORT, BEHIND = 8750, 8751
"""Ports of the relay, and of the collector behind it."""
URL = f"http://127.0.0.1:{BEHIND}"
COMMAND = Path(sys.executable).with_name("gpuwarden")
DISK_BYTES = 256 * 1024 * 1024
FREE_BYTES_MIN = 32 * 1024 * 1024
READY_S = 60.0
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
ROWS_MAX = 5_000_000
TABLES = {
    "gpu_samples": ("gpu_uuid", "ts"),
    "host_samples": ("node", "ts"),
    "events": ("node", "ts", "kind", "gpu_uuid", "message"),
}
"""Tables that are compared, with the columns that identify a row."""


class Stage:
    """A relay, a collector and agents, and the means to make them fail."""

    def __init__(self, folder: Path, seed: int, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.random = Random(seed)
        self.stack = stack
        self.relay = folder / "relay"
        self.store = folder / "store"
        self.spools = folder / "spools"
        self.collector: subprocess.Popen[bytes] | None = None
        self.agents: subprocess.Popen[bytes] | None = None
        self.offsets = {"collector": "+0", "agents": "+0"}
        self.is_clock_false = False
        self.nodes = NODES
        self.history_s = 0
        self.dns = NameServer()
        for path in (self.relay, self.store, self.spools):
            path.mkdir(parents=True)

    def start_relay(self) -> None:
        arguments = (str(self.relay), COLLECTOR_IP, str(PORT), URL)
        self._start("relay", [sys.executable, "-m", "bench.chaos.witness", *arguments])

    async def start_collector(self) -> None:
        """Start the collector and wait until it is ready."""
        config = self.folder / "collector.toml"
        settings = {
            "port": BEHIND,
            "data_dir": str(self.store),
            "disk_free_bytes_min": FREE_BYTES_MIN,
        }
        lines = settings.items()
        config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in lines))
        words = [
            *(sys.executable, "-m", "bench.chaos.seals", "5"),
            *("collector", "run", "--config", str(config), "--log-format", "json"),
        ]
        self.collector = self._start("collector", words)
        await self.ready(self.collector)

    async def ready(self, process: subprocess.Popen[bytes]) -> None:
        async with asyncio.timeout(READY_S), aiohttp.ClientSession() as session:
            while True:
                if process.poll() is not None:
                    raise RuntimeError(f"the collector ended with {process.returncode}")
                with suppress(aiohttp.ClientError, OSError, TimeoutError):
                    async with session.get(f"{URL}/readyz") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.2)

    def start_agents(self) -> None:
        resolve = self.folder / "resolv.conf"
        resolve.write_text(f"nameserver {COLLECTOR_IP}\noptions timeout:1 attempts:1\n")
        words = [
            *(str(COMMAND), "simulate", "--nodes", str(self.nodes), "--gpus-per-node", str(GPUS)),
            *("--collector-url", f"http://{HOST}:{PORT}", "--state-dir", str(self.spools)),
        ]
        if self.history_s:
            words += ["--history", str(self.history_s)]
        within = f'mount --bind {resolve} /etc/resolv.conf && exec "$@"'
        self.agents = self._start(
            "agents", ["ip", "netns", "exec", AGENTS_NS, "sh", "-c", within, "sh", *words]
        )

    def _start(self, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("GPUWARDEN_")}
        if self.is_clock_false and name in self.offsets:
            self.set_clock(name, self.offsets[name])
            env |= {
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(self.folder / f"{name}.clock"),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        log = (self.folder / f"{name}.log").open("ab")
        process = subprocess.Popen(words, env=env, stdout=log, stderr=log, start_new_session=True)
        self.stack.callback(kill_all, process)
        return process

    def set_clock(self, name: str, offset: str) -> None:
        """Set how far the wall clock of a side is off, such as "+3600"."""
        self.offsets[name] = offset
        part = self.folder / f"{name}.clock.new"
        part.write_text(f"{offset}\n")
        part.rename(self.folder / f"{name}.clock")

    async def ask(self, sql: str) -> list[list[Any]]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{URL}/v1/sql", json={"sql": sql, "row_limit": ROWS_MAX}) as answer,
        ):
            said = await answer.json()
            if answer.status != 200:
                raise RuntimeError(f"{answer.status}: {said}")
            if said["truncated"]:
                raise RuntimeError(f"more than {ROWS_MAX} rows would be compared")
            rows: list[list[Any]] = said["rows"]
            return rows

    def answers(self) -> Iterator[tuple[float, int, str]]:
        """Time, status and text of each answer to a batch."""
        for line in (self.relay / witness.STATUS).read_text().splitlines():
            at_s, status, said = line.split("\t", 2)
            yield float(at_s), int(status), said

    def acknowledged(self) -> dict[str, list[tuple[Any, ...]]]:
        """Keys of the rows that were acknowledged, by table, each batch once."""
        found: dict[str, list[tuple[Any, ...]]] = {table: [] for table in TABLES}
        seen = set()
        for headers, body in witness.read(self.relay):
            identity = tuple(headers[n] for n in (AGENT_HEADER, BOOT_HEADER, SEQUENCE_HEADER))
            if identity in seen:
                continue
            seen.add(identity)
            decoded = decode(body, headers.get("Content-Encoding", ""))
            assert not isinstance(decoded, RefusedBody), decoded
            for table, rows in decoded.tables.items():
                if names := TABLES.get(table):
                    found[table] += zip(
                        *(rows.column(name).to_pylist() for name in names), strict=True
                    )
        return found


class NameServer(asyncio.DatagramProtocol):
    """Answers with the collector's address, unless it is away."""

    is_away = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        if self.is_away:
            return
        question_end = data.index(b"\0", 12) + 5
        is_a = data[question_end - 4 : question_end - 2] == b"\0\1"
        head = data[:2] + b"\x81\x80\0\1" + (b"\0\1" if is_a else b"\0\0") + b"\0\0\0\0"
        # A name that refers to the question, type A, class IN, 1 s, four bytes.
        answer = b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + socket.inet_aton(COLLECTOR_IP)
        self._transport.sendto(head + data[12:question_end] + (answer if is_a else b""), address)


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that descend from it."""
    for pid in (*children_of(process.pid), process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


@asynccontextmanager
async def staged(folder: Path, seed: int) -> AsyncIterator[Stage]:
    """A stage with a relay and a name server, without collector and agents."""
    async with AsyncExitStack() as stack:
        stage = Stage(folder, seed, stack)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: stage.dns, local_addr=(COLLECTOR_IP, 53)
        )
        stack.callback(transport.close)
        stage.start_relay()
        yield stage


@contextmanager
def namespaces() -> Iterator[None]:
    """The two network namespaces, joined by a cable, for as long as the block runs."""
    with ExitStack() as stack:
        for name in (COLLECTOR_NS, AGENTS_NS):
            run("ip", "netns", "add", name)
            stack.callback(run, "ip", "netns", "delete", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run(
            *("ip", "link", "add", CABLE, "netns", COLLECTOR_NS, "type", "veth"),
            *("peer", "name", CABLE, "netns", AGENTS_NS),
        )
        for name, address in ((COLLECTOR_NS, COLLECTOR_IP), (AGENTS_NS, AGENTS_IP)):
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", CABLE)
            run("ip", "-n", name, "link", "set", CABLE, "up")
        yield
