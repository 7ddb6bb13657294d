"""Measures what the agent costs the host that it watches: memory, CPU, jitter, bytes on the wire.

    python -m bench.agent [--gpus 8] [--seconds 60] [--batches 720] [--backend simulator]

`gpuwarden agent run` in a process of its own, as on a host, against a stub in another that
acknowledges all. First as many batches as an hour has, ten times as fast, for the memory; then 1 Hz
for the rest. On a machine with GPUs: `--backend nvml --gpus <number>`. A run whose batches were not all
acknowledged fails, as does a body that does not have the rows that were encoded.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from aiohttp import web
from bench.this_host import cpu_s

BATCHES_TIMED = 200
START_S = 60.0


@dataclass(slots=True)
class Running:
    """An agent that runs, or ran."""

    pid: int
    counters: dict[str, Any] = field(default_factory=dict)


def serve(pipe: Connection) -> None:
    """The stub: sends its port, then for each message the bytes of the bodies so far."""
    received = 0

    async def ingest(request: web.Request) -> web.Response:
        nonlocal received
        received += len(await request.read())
        return web.Response(status=204)

    async def main() -> None:
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_post("/v1/ingest", ingest)
        runner = web.AppRunner(app, access_log=None, auto_decompress=False)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        pipe.send(runner.addresses[0][1])
        loop = asyncio.get_running_loop()
        loop.add_reader(pipe.fileno(), lambda: (pipe.recv(), pipe.send(received)))
        await asyncio.Event().wait()

    asyncio.run(main())


@contextmanager
def agent(url: str, options: argparse.Namespace, **settings: float) -> Iterator[Running]:
    """The agent, stopped in good order at the end, when its last counters are in `counters`."""
    with tempfile.TemporaryDirectory() as state_dir:
        environment = {
            f"GPUWARDEN_AGENT_{name.upper()}": str(value)
            for name, value in {
                **settings,
                "backend": options.backend,
                "simulate_gpus": options.gpus,
                "collector_url": url,
                "state_dir": state_dir,
                "log_format": "json",
            }.items()
        }
        with subprocess.Popen(
            [Path(sys.executable).with_name("gpuwarden"), "agent", "run"],
            env={**os.environ, **environment},
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            running = Running(process.pid)
            yield running
            process.terminate()
            _, log = process.communicate(timeout=30)
        lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
        counted = [line for line in lines if line["message"] == "counters"]
        if not counted:
            raise SystemExit(f"the agent ended without its counters: {log[-2000:]}")
        running.counters = counted[-1]
        check(running.counters)


def check(counters: dict[str, Any]) -> None:
    """Raise SystemExit for an agent that sampled nothing, or whose samples did not all arrive."""
    if not counters["batches_sealed"]:
        raise SystemExit("the agent has sealed no batch")
    if counters["batches_acknowledged"] != counters["batches_sealed"] or counters["rows_dropped"]:
        raise SystemExit(f"not all that the agent sampled was acknowledged: {counters}")


def memory_mib(pid: int) -> dict[str, float]:
    """RSS and PSS of a process, and the part of it that is its own."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return {
        "RSS": kib["Rss"] / 1024,
        "PSS": kib["Pss"] / 1024,
        "private": (kib["Private_Clean"] + kib["Private_Dirty"]) / 1024,
    }


def time_encoding(gpus: int) -> None:
    """Five seconds of samples to a body, the whole of what sealing computes."""
    from gpuwarden.models import model_named
    from gpuwarden_agent.probe import Row
    from gpuwarden_agent.queue.encode import encode
    from gpuwarden_simulator import SimulatedNode

    node = SimulatedNode("bench", gpus, model_named("H100-SXM-80GB"), 1)
    stamp: Row = {"node": "bench", "simulated": True}
    batch: dict[str, list[Row]] = {}
    for second in range(5):
        ts_ms = 1_767_225_600_000 + 1000 * second
        fast = {"gpu_samples", "host_samples"}
        for table, rows in node.read(ts_ms, fast).items():
            batch.setdefault(table, []).extend({**row, **stamp, "ts": ts_ms} for row in rows)
    took = []
    for _ in range(BATCHES_TIMED):
        began = time.perf_counter()
        body = encode(batch)
        took.append(1000 * (time.perf_counter() - began))
    count = sum(map(len, batch.values()))
    check_body(body, count)
    took.sort()
    median, p99 = took[len(took) // 2], took[int(0.99 * len(took))]
    print(f"encode: {count} rows to {len(body):,} bytes in {median:.1f} ms (p99 {p99:.1f} ms)")


def check_body(body: bytes, rows: int) -> None:
    """Raise SystemExit where the collector would not read so many rows in a body."""
    from gpuwarden_collector.ingest.decode import Decoded, decode

    decoded = decode(body, "zstd")
    if not isinstance(decoded, Decoded):
        raise SystemExit(f"the body cannot be decoded: {decoded}")
    if decoded.rows != rows:
        raise SystemExit(f"the body has {decoded.rows} rows, not {rows}")


def received(stub: Connection) -> int:
    """Bytes of bodies that the stub has so far."""
    stub.send(None)
    return int(stub.recv())


def wait_for_a_batch(stub: Connection, bytes_before: int) -> None:
    """Until an agent that starts has sent one: on a busy machine its start takes a while."""
    deadline_s = time.monotonic() + START_S
    while received(stub) == bytes_before:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"the agent sent no batch within {START_S:g} s")
        time.sleep(0.1)


def measure_memory(url: str, options: argparse.Namespace, stub: Connection) -> None:
    """Memory after this number of batches of five ticks, made ten times as fast."""
    with agent(url, options, interval_s=0.1, batch_s=0.5) as running:
        wait_for_a_batch(stub, 0)
        time.sleep(options.batches * 0.5)
        memory = memory_mib(running.pid)
        threads = len(os.listdir(f"/proc/{running.pid}/task"))
    sealed = running.counters["batches_sealed"]
    figures = ", ".join(f"{name} {mib:.1f} MiB" for name, mib in memory.items())
    print(f"memory after {sealed} batches: {figures}; {threads} threads")


def measure_rate(url: str, options: argparse.Namespace, stub: Connection) -> None:
    """CPU, jitter and bytes at 1 Hz, once the start is over."""
    bytes_before = received(stub)
    with agent(url, options, batch_s=options.batch_s) as running:
        wait_for_a_batch(stub, bytes_before)
        time.sleep(options.warm)
        bytes_before, cpu_before, began = received(stub), cpu_s(running.pid), time.monotonic()
        time.sleep(options.seconds)
        sent, cpu = received(stub) - bytes_before, cpu_s(running.pid) - cpu_before
        took = time.monotonic() - began
    if not sent:
        raise SystemExit(f"no batch was sent within {took:.0f} s")
    print(f"CPU: {cpu / took:.2%} of one core over {took:.0f} s")
    print(f"jitter: p99 {running.counters['tick_delay_p99_ms']} ms behind the second")
    per_hour = sent / options.gpus / took * 3600
    print(f"wire: {per_hour / 1024:.0f} KiB per GPU and hour, {sent / took:,.0f} bytes/s")


def main() -> None:
    """Run the agent twice and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--batches", type=int, default=720)
    parser.add_argument(
        "--warm", type=float, default=10.0, help="seconds before those of --seconds"
    )
    parser.add_argument("--batch-s", type=float, default=5.0, help="seconds of a batch at 1 Hz")
    parser.add_argument("--backend", choices=("simulator", "nvml"), default="simulator")
    options = parser.parse_args()
    stub, stub_end = multiprocessing.Pipe()
    collector = multiprocessing.Process(target=serve, args=(stub_end,), daemon=True)
    collector.start()
    url = f"http://127.0.0.1:{stub.recv()}"
    measure_memory(url, options, stub)
    measure_rate(url, options, stub)
    time_encoding(options.gpus)
    collector.terminate()


if __name__ == "__main__":
    main()
