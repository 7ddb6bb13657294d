"""A collector and agents as their commands run them, in network namespaces, while a fault strikes.

`python -m bench.chaos.stage FAULT SEED FOLDER` runs in the collector's namespace and prints a `Verdict` as
JSON; `run_fault` makes the namespaces and calls it.
"""

import asyncio
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import (
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
    suppress,
)
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from bench.chaos import witness
from bench.chaos.recorded_disk import run
from bench.this_host import children_of

from gpuwarden.wire import AGENT_HEADER, BOOT_HEADER, SEQUENCE_HEADER
from gpuwarden_agent.queue.spool import FILE_NAME as SPOOL_FILE
from gpuwarden_collector.ingest.decode import RefusedBody, decode

NODES, GPUS = 4, 2
_NS = os.environ.get("GPUWARDEN_CHAOS_NAMESPACE", f"gwchaos-{os.getpid()}")
COLLECTOR_NS, AGENTS_NS = f"{_NS}-c", f"{_NS}-a"
CABLE = "gwchaos0"
COLLECTOR_IP, AGENTS_IP = "10.231.7.1", "10.231.7.2"
HOST = "collector.test"
"""What agents call the collector."""
PORT, BEHIND = 8750, 8751
"""Of the relay, and of the collector behind it."""
COMMAND = Path(sys.executable).with_name("gpuwarden")
DISK_BYTES = 256 * 1024 * 1024
FREE_BYTES_MIN = 32 * 1024 * 1024
STEADY_S = 6.0
READY_S = 60.0
RUN_S = 600.0
CATCH_UP_S = 120.0
LATER_S = 10.0
"""When rows that were missing are looked for again: a read that was incomplete is no loss."""
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
BATCH_S = 6
"""What a batch may span."""
ROWS_MAX = 5_000_000
TABLES = {
    "gpu_samples": ("gpu_uuid", "ts"),
    "host_samples": ("node", "ts"),
    "events": ("node", "ts", "kind", "gpu_uuid", "message"),
}
"""What is compared, and what tells rows of a table apart."""


@dataclass(slots=True)
class Verdict:
    """What a fault did."""

    fault: str
    seed: int
    acknowledged: int = 0
    """Rows."""
    lost: int = 0
    doubled: int = 0
    unexplained_s: int = 0
    """Seconds without a sample that no event and no row of `coverage` tells of."""
    catch_up_s: float | None = None
    """From the fault's end until everything that was made before was stored; None: not in time."""
    taken_meanwhile: int = 0
    """Batches that were acknowledged while the fault lasted."""
    was_unready: bool = False
    """Whether /readyz said 503 meanwhile."""
    alerts: list[str] = field(default_factory=list)
    """Rules that fired."""
    said: list[str] = field(default_factory=list)
    """Answers to agents other than 204."""
    wrong: list[str] = field(default_factory=list)


class Stage:
    """What faults strike."""

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
        self.port = BEHIND
        """Of the collector that is asked."""
        self.settings: dict[str, object] = {}
        """Of collectors, beside those that all runs have."""
        self.env: dict[str, str] = {}
        """Of collectors."""
        self.servers: dict[str, Any] = {}
        """Others that collectors need, by name."""
        for path in (self.relay, self.store, self.spools):
            path.mkdir(parents=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start_relay(self) -> None:
        self.relay_to(self.url)
        arguments = (str(self.relay), COLLECTOR_IP, str(PORT))
        self._start("relay", [sys.executable, "-m", "bench.chaos.witness", *arguments])

    def relay_to(self, url: str) -> None:
        """Have what agents send go to a collector, from the next request on."""
        part = self.relay / f"{witness.TARGET}.new"
        part.write_text(url)
        part.rename(self.relay / witness.TARGET)

    async def start_collector(self) -> None:
        self.collector = await self.run_collector("collector", self.port, self.store, {})

    async def run_collector(
        self, name: str, port: int, store: Path, more: dict[str, object]
    ) -> subprocess.Popen[bytes]:
        """A collector that is ready. `more`: settings of this one alone."""
        config = self.config_of(name)
        settings = {
            "port": port,
            "data_dir": str(store),
            "threads": 1,
            "seal_interval_s": 5,
            "disk_free_bytes_min": FREE_BYTES_MIN,
        }
        lines = {**settings, **self.settings, **more}.items()
        config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in lines))
        words = [str(COMMAND), "collector", "run", "--config", str(config), "--log-format", "json"]
        process = self._start(name, words)
        await self.ready(process, f"http://127.0.0.1:{port}")
        return process

    def config_of(self, name: str) -> Path:
        """File of the settings of a collector."""
        return self.folder / f"{name}.toml"

    async def ready(self, process: subprocess.Popen[bytes], url: str) -> None:
        async with asyncio.timeout(READY_S), aiohttp.ClientSession() as session:
            while True:
                if process.poll() is not None:
                    raise RuntimeError(f"the collector ended with {process.returncode}")
                with suppress(aiohttp.ClientError, OSError, TimeoutError):
                    async with session.get(f"{url}/readyz") as answer:
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
        env = {k: v for k, v in os.environ.items() if not k.startswith("GPUWARDEN_")} | self.env
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
        """The wall clock of a side is off by that from now on, such as "+3600"."""
        self.offsets[name] = offset
        part = self.folder / f"{name}.clock.new"
        part.write_text(f"{offset}\n")
        part.rename(self.folder / f"{name}.clock")

    async def ask(self, sql: str) -> list[list[Any]]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/v1/sql", json={"sql": sql, "row_limit": ROWS_MAX}) as answer,
        ):
            said = await answer.json()
            if answer.status != 200:
                raise RuntimeError(f"{answer.status}: {said}")
            if said["truncated"]:
                raise RuntimeError(f"more than {ROWS_MAX} rows are to be compared")
            rows: list[list[Any]] = said["rows"]
            return rows

    def answers(self) -> Iterator[tuple[float, int, str]]:
        """When a batch was answered, with which status, and what was said."""
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
    """Tells the collector's address, unless it is away."""

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
    """A stage with nothing on it yet."""
    async with AsyncExitStack() as stack:
        stage = Stage(folder, seed, stack)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            lambda: stage.dns, local_addr=(COLLECTOR_IP, 53)
        )
        stack.callback(transport.close)
        stage.start_relay()
        yield stage


async def watch_readiness(stage: Stage, verdict: Verdict) -> None:
    """Note whether /readyz says 503."""
    timeout = aiohttp.ClientTimeout(total=2)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while True:
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with session.get(f"{stage.url}/readyz") as answer:
                    verdict.was_unready |= answer.status == 503
            await asyncio.sleep(0.3)


async def judge(stage: Stage, verdict: Verdict) -> None:
    """Compare what was acknowledged with what is stored."""
    for table, keys in stage.acknowledged().items():
        names = TABLES[table]
        texts = ", ".join("epoch_ms(ts)" if n == "ts" else f"coalesce({n}, '')" for n in names)
        sql = f"SELECT {texts}, count(*) FROM {table} GROUP BY ALL"
        stored = {tuple(key): count for *key, count in await stage.ask(sql)}
        owed = {
            tuple(
                round(v.timestamp() * 1000) if n == "ts" else v or ""
                for n, v in zip(names, k, strict=True)
            )
            for k in ((*map(_utc, key),) for key in keys)
        }
        verdict.acknowledged += len(owed)
        lost = [key for key in owed if key not in stored]
        verdict.lost += len(lost)
        if lost:
            await asyncio.sleep(LATER_S)
            later = {tuple(key) for *key, _ in await stage.ask(sql)}
            verdict.wrong.append(
                f"{table} lacks {len(lost)} rows from {min(lost)} to {max(lost)}; "
                f"{sum(key in later for key in lost)} of them were there {LATER_S} s later"
            )
        doubled = sum(count - 1 for key, count in stored.items() if table != "events")
        verdict.doubled += doubled
        if doubled:
            verdict.wrong.append(f"{table} has {doubled} rows twice")
    verdict.unexplained_s = await unexplained_s(stage)


def _utc(value: Any) -> Any:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and not value.tzinfo else value


async def unexplained_s(stage: Stage) -> int:
    """Seconds without a sample of a GPU between its first and its last, beyond what events of its node,
    `coverage`, and the batches that it set aside as refused account for."""
    missing = await stage.ask(
        "SELECT node, max(s) FROM (SELECT node, gpu_uuid, "
        "date_diff('second', min(ts), max(ts)) + 1 - count(DISTINCT ts) AS s "
        "FROM gpu_samples GROUP BY ALL) GROUP BY node"
    )
    told = {
        node: seconds or 0
        for node, seconds in await stage.ask(
            "SELECT node, sum(s) FROM (SELECT node, duration_seconds + 6 AS s FROM events "
            "WHERE kind IN ('agent_gap', 'ticks_missed') UNION ALL SELECT node, max(s) FROM (SELECT node, gpu_uuid, "
            "sum(expected - taken) AS s FROM coverage WHERE table_name = 'gpu_samples' GROUP BY ALL) "
            "GROUP BY node) GROUP BY node"
        )
    }
    refused = {node: await asyncio.to_thread(set_aside, stage.spools / node) for node, _ in missing}
    return sum(max(int(s) - int(told.get(node, 0)) - refused[node], 0) for node, s in missing)


def waiting(spools: Path, before_ms: int) -> int:
    """Batches in the agents' spools that were made before that."""
    sql = "SELECT count(*) FROM batches WHERE created_ms < ?"
    return sum(count for path in spools.iterdir() for (count,) in in_spool(path, sql, before_ms))


def set_aside(spool: Path) -> int:
    """Seconds of samples in the batches of an agent that were refused for good, and what a batch may lack."""
    told = [decode(body, "zstd") for (body,) in in_spool(spool, "SELECT body FROM refused")]
    ts = {
        row
        for one in told
        if not isinstance(one, RefusedBody) and "gpu_samples" in one.tables
        for row in one.tables["gpu_samples"]["ts"].to_pylist()
    }
    return len(ts) + (BATCH_S if told else 0)


def in_spool(folder: Path, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Rows of an agent's spool; none where it cannot be read."""
    uri = f"{(folder / SPOOL_FILE).as_uri()}?mode=ro"
    with suppress(sqlite3.Error), closing(sqlite3.connect(uri, uri=True)) as spool:
        return spool.execute(sql, parameters).fetchall()
    return []


async def caught_up(stage: Stage, since_s: float) -> float | None:
    """Seconds until nothing that was made before `since_s` waits; None: not within CATCH_UP_S."""
    before_ms = round(since_s * 1000)
    sql = f"SELECT count(DISTINCT node) FROM gpu_samples WHERE epoch_ms(ts) >= {before_ms}"
    began_s = time.monotonic()
    while time.monotonic() - began_s < CATCH_UP_S:
        with suppress(aiohttp.ClientError, OSError, RuntimeError, TimeoutError):
            async with asyncio.timeout(10):
                is_told = (await stage.ask(sql))[0][0] >= stage.nodes
                # What is new goes beside what is old, so that a new row alone says little.
                if is_told and not await asyncio.to_thread(waiting, stage.spools, before_ms):
                    return round(time.monotonic() - began_s, 1)
        await asyncio.sleep(0.3)
    return None


async def play(fault: Any, seed: int, folder: Path) -> Verdict:
    """Run a fault; see `bench.chaos.faults`."""
    verdict = Verdict(fault.name, seed)
    async with staged(folder, seed) as stage:
        await fault.prepare(stage)
        await stage.start_collector()
        stage.start_agents()
        started_s = time.time()
        if await caught_up(stage, started_s) is None:
            raise RuntimeError(f"no samples come; see {folder}")
        watching = asyncio.ensure_future(watch_readiness(stage, verdict))
        await asyncio.sleep(STEADY_S)
        began_s = time.time()
        await fault.strike(stage)
        ended_s = time.time()
        verdict.catch_up_s = await caught_up(stage, ended_s + fault.ahead_s)
        if verdict.catch_up_s is None:
            verdict.wrong.append("did not catch up")
        watching.cancel()
        await asyncio.sleep(2)
        # What waits in spools is sent before the agents end.
        assert stage.agents is not None
        stage.agents.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(stage.agents.wait, 30)
        await judge(stage, verdict)
        fired = await stage.ask(
            "SELECT DISTINCT rule FROM alerts WHERE state <> 'pending' ORDER BY 1"
        )
        verdict.alerts = [rule for (rule,) in fired]
        verdict.taken_meanwhile = sum(
            status == 204 and began_s + 1 < at_s < ended_s for at_s, status, _ in stage.answers()
        )
        verdict.wrong += fault.wrong(verdict)
        verdict.said = sorted(
            {f"{status}\t{said}" for _, status, said in stage.answers() if status != 204}
        )
    return verdict


def run_fault(name: str, seed: int, folder: Path) -> Verdict:
    """Run a fault in namespaces of its own."""
    words = [sys.executable, "-m", __name__, name, str(seed), str(folder)]
    with namespaces():
        done = subprocess.run(
            ["ip", "netns", "exec", COLLECTOR_NS, *words],
            env=os.environ | {"GPUWARDEN_CHAOS_NAMESPACE": _NS},
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
    if done.returncode:
        why = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return Verdict(name, seed, wrong=[why[-1]])
    return Verdict(**json.loads(done.stdout.splitlines()[-1]))


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


def main() -> None:
    """Play a fault within the namespace."""
    from bench.chaos.faults import FAULTS

    name, seed, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    print(json.dumps(asdict(asyncio.run(play(FAULTS[name], seed, folder)))))


if __name__ == "__main__":
    main()
