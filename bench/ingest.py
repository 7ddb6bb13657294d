"""Measures ingest over HTTP: acknowledgement times at a steady fleet, and rows per second flat out.

    python bench/ingest.py [--gpus 1000] [--seconds 20] [--data DIR]

The collector runs in a process of its own; the load generator shares the machine with it. Bodies
are made before the clock starts. A batch that is refused ends the run, and so does a store that does
not have the rows that were acknowledged.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import aiohttp
import psutil
import pyarrow as pa
import zstandard

from gpuwarden.clock import SystemClock, to_ms
from gpuwarden.schema import HOST_SAMPLES
from gpuwarden.wire import CONTENT_TYPE, INGEST_PATH, TABLE_KEY, BatchId, headers_of
from gpuwarden_collector.daemon import running
from gpuwarden_collector.ingest.decode import WIRE_SCHEMAS
from gpuwarden_collector.settings import CollectorSettings

GPUS_PER_NODE = 8
BATCH_S = 5


@dataclass
class Tally:
    """What the load generator saw."""

    rows: int = 0
    batches: int = 0
    acknowledge_s: list[float] = field(default_factory=list)

    def quantile_ms(self, share: float) -> float:
        """A quantile of the acknowledgement times, in milliseconds."""
        ordered = sorted(self.acknowledge_s)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def body_of(node: int, first_ms: int, dice: random.Random) -> bytes:
    """A node's batch: eight GPUs and the host, five seconds."""
    seconds = [first_ms + 1000 * s for s in range(BATCH_S)]
    gpu_rows = [
        {
            "ts": ts,
            "node": f"node{node:05}",
            "gpu": gpu,
            "gpu_uuid": f"GPU-{node:05}-{gpu}",
            "simulated": True,
            **metrics("gpu_samples", dice),
        }
        for ts in seconds
        for gpu in range(GPUS_PER_NODE)
    ]
    host_rows = [
        {"ts": ts, "node": f"node{node:05}", "simulated": True, **metrics("host_samples", dice)}
        for ts in seconds
    ]
    raw = stream("gpu_samples", gpu_rows) + stream(HOST_SAMPLES.name, host_rows)
    return zstandard.compress(raw, 3)


def metrics(table: str, dice: random.Random) -> dict[str, float | int]:
    """A value for each metric of a table; three digits, as sensors have."""
    skipped = {"ts", "node", "gpu", "gpu_uuid", "mig_instance", "simulated"}
    return {
        f.name: round(dice.uniform(0, 30), 1)
        if pa.types.is_floating(f.type)
        else dice.randrange(30)
        for f in WIRE_SCHEMAS[table]
        if f.name not in skipped
    }


def stream(table: str, rows: list[dict[str, object]]) -> bytes:
    """Rows as an Arrow IPC stream."""
    schema = WIRE_SCHEMAS[table].with_metadata({TABLE_KEY: table})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema=schema))
    return bytes(sink.getvalue())


async def send(
    session: aiohttp.ClientSession, url: str, batch: BatchId, body: bytes, tally: Tally
) -> None:
    """Send one batch and note its answer."""
    headers = {
        **headers_of(batch),
        "Content-Type": CONTENT_TYPE,
        "Content-Encoding": "zstd",
    }
    started = time.perf_counter()
    async with session.post(url + INGEST_PATH, data=body, headers=headers) as answer:
        if answer.status == 204:
            tally.acknowledge_s.append(time.perf_counter() - started)
            tally.batches += 1
            tally.rows += (GPUS_PER_NODE + 1) * BATCH_S
        else:
            raise SystemExit(f"a batch was refused: {answer.status} {await answer.text()}")


async def steady(url: str, bodies: list[list[bytes]], seconds: float) -> Tally:
    """Every node sends a batch each five seconds, nodes spread evenly over them."""
    tally = Tally()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:

        async def node_loop(node: int) -> None:
            await asyncio.sleep(BATCH_S * node / len(bodies))
            for number, body in enumerate(bodies[node], 1):
                batch = BatchId(f"node-{node}", "boot", number, number)
                due = time.perf_counter() + BATCH_S
                await send(session, url, batch, body, tally)
                if number * BATCH_S >= seconds:
                    return
                await asyncio.sleep(max(0.0, due - time.perf_counter()))

        for node in range(len(bodies)):
            group.create_task(node_loop(node))
    return tally


async def flat_out(url: str, bodies: list[bytes], seconds: float, in_flight: int) -> Tally:
    """As many batches as get acknowledged, `in_flight` at a time."""
    tally = Tally()
    until = time.perf_counter() + seconds
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:

        async def sender_loop(sender: int) -> None:
            number = 0
            while time.perf_counter() < until:
                # A node's name belongs to one agent, in one boot at a time.
                turn, at = divmod(sender + number * in_flight, len(bodies))
                number += 1
                batch = BatchId(f"node-{at}", f"flat-{in_flight}", turn + 1, 1)
                await send(session, url, batch, bodies[at], tally)

        for sender in range(in_flight):
            group.create_task(sender_loop(sender))
    return tally


async def serve(data_dir: Path) -> None:
    """The collector, for the child process; prints its URL and stops when stdin closes."""
    async with running(CollectorSettings(port=0, data_dir=data_dir), SystemClock()) as collector:
        print(collector.url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def stored(url: str) -> int:
    """Rows of GPUs and hosts in the store."""
    sql = "SELECT (SELECT count(*) FROM gpu_samples) + (SELECT count(*) FROM host_samples)"
    content = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/sql", json.dumps({"sql": sql}).encode(), content)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return int(json.load(answer)["rows"][0][0])


def check(url: str, before: int, rows: int) -> None:
    """Raise SystemExit where the store does not have so many rows more than before, or none."""
    found = stored(url) - before
    if not rows or found != rows:
        raise SystemExit(f"{rows} rows were acknowledged, and the store has {found} more")


def report(name: str, tally: Tally, seconds: float, child: psutil.Process, cpu_s: float) -> None:
    """Print one line of figures."""
    used_s = sum(child.cpu_times()[:2]) - cpu_s
    print(
        f"{name}: {tally.rows / seconds:,.0f} rows/s, {tally.batches / seconds:,.0f} batches/s, "
        f"ack p50 {tally.quantile_ms(0.5):.0f} ms p99 {tally.quantile_ms(0.99):.0f} ms "
        f"max {tally.quantile_ms(1):.0f} ms, "
        f"collector {100 * used_s / seconds:.0f} % of a core, "
        f"RSS {child.memory_info().rss / 2**20:.0f} MiB"
    )


def main() -> None:
    """Run both measurements."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(given.serve))
        return
    dice = random.Random(1)
    nodes = given.gpus // GPUS_PER_NODE
    start_ms = to_ms(SystemClock().now() - timedelta(hours=1)) // 1000 * 1000
    rounds = int(given.seconds // BATCH_S) + 1
    bodies = [
        [body_of(n, start_ms + 1000 * BATCH_S * r, dice) for r in range(rounds)]
        for n in range(nodes)
    ]
    everything = [body for of_node in bodies for body in of_node]
    print(f"{len(everything)} bodies, {sum(map(len, everything)) / len(everything):.0f} B each")
    with tempfile.TemporaryDirectory() as folder:
        child = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(given.data or folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout and child.stdin
        url = child.stdout.readline().strip()
        process = psutil.Process(child.pid)
        try:
            before = stored(url)
            cpu_s, began = sum(process.cpu_times()[:2]), time.perf_counter()
            tally = asyncio.run(steady(url, bodies, given.seconds))
            name = f"steady, {given.gpus} GPUs at 1 Hz"
            rows = tally.rows
            report(name, tally, time.perf_counter() - began, process, cpu_s)
            for in_flight in (64, 512):
                cpu_s, began = sum(process.cpu_times()[:2]), time.perf_counter()
                tally = asyncio.run(flat_out(url, everything, given.seconds / 2, in_flight))
                name = f"flat out, {in_flight} in flight"
                rows += tally.rows
                report(name, tally, time.perf_counter() - began, process, cpu_s)
            check(url, before, rows)
        finally:
            child.stdin.close()
            child.wait(60)


if __name__ == "__main__":
    main()
