"""What a million samples cost to forward, ours beside Prometheus': `python -m bench.remote_write`.

Both send the same samples to the same server, which only counts them. Ours reads them from segments, as they come (five
seconds in a commit) and as a backlog. Prometheus gets them by remote write, once with a `remote_write` of its own and
once without; the difference is what forwarding costs it. It needs Debian's prometheus.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from aiohttp import web
from bench.this_host import free_port

from gpuwarden.clock import SystemClock
from gpuwarden_collector.forwarding import feed as feeds
from gpuwarden_collector.forwarding.feed import SegmentFeed, begin_positions
from gpuwarden_collector.forwarding.port import CommitPosition, ReceiverState
from gpuwarden_collector.storage.kept_segments import begin_keeping
from gpuwarden_collector.storage.segment import FOLDER, SCHEMAS, Frame, read_header, segment_path
from gpuwarden_collector.storage.segment_log import SegmentLog
from gpuwarden_prometheus.remote_write import sender
from gpuwarden_prometheus.remote_write.messages import decode
from gpuwarden_prometheus.remote_write.samples import chosen_metrics
from gpuwarden_prometheus.remote_write.settings import RemoteReceiver

COMMIT_S = 5
WITHIN_S = 300


def uuid(gpu: int) -> str:
    """A GPU's UUID."""
    return f"GPU-{gpu:08x}-4c5d-4e6f-8a7b-000000000000"


def _rows(gpus: int, begin_us: int) -> Any:
    """COMMIT_S seconds of all GPUs, with a value in every column."""
    random = np.random.default_rng(begin_us)
    size = gpus * COMMIT_S
    given = {
        "ts": np.repeat(begin_us + np.arange(COMMIT_S) * 1_000_000, gpus),
        "node": [f"node-{gpu // 8:05}" for gpu in range(gpus)] * COMMIT_S,
        "gpu": np.tile(np.arange(gpus) % 8, COMMIT_S),
        "gpu_uuid": [uuid(gpu) for gpu in range(gpus)] * COMMIT_S,
        "simulated": np.zeros(size, bool),
    }
    columns = []
    for field in SCHEMAS["gpu_samples"]:
        values: Any = given.get(field.name)
        if values is None and field.name == "mig_instance":
            columns.append(pa.nulls(size, field.type))
            continue
        if values is None:
            # As readings are: they change a little.
            values = np.round(np.tile(random.random(gpus) * 90, COMMIT_S) + random.random(size))
        array = pa.array(values)
        columns.append(array.cast(field.type))
    return pa.Table.from_arrays(columns, schema=SCHEMAS["gpu_samples"])


def filled(folder: Path, gpus: int, seconds: int) -> int:
    """A store with samples from now on and one receiver at its begin; the number of samples."""
    log = SegmentLog(folder)
    log.begin(0)
    begin_keeping(folder)
    header = read_header(segment_path(folder / FOLDER, log.segment_number))
    begin_positions(folder, ["r"], CommitPosition(log.segment_number, log.end, header.salt))
    # A Prometheus forwards only what is newer than its start.
    begin_us = (int(datetime.now(UTC).timestamp()) + 20) * 1_000_000
    for second in range(0, seconds, COMMIT_S):
        log.append(Frame({"gpu_samples": _rows(gpus, begin_us + second * 1_000_000)}))
    log._end()
    log.state.close()
    metrics = chosen_metrics(["own"], lambda name: True)["gpu_samples"]
    return gpus * seconds * len(metrics)


class _Context:
    """Implements `ForwardingContext` for rows: the collector's own metrics are not chosen."""

    def __init__(self, folder: Path, receiver: RemoteReceiver, gpus: int) -> None:
        self._folder = folder
        self._gpus = gpus
        self.settings = (receiver,)
        self.clock = SystemClock()
        self.states = {"r": ReceiverState()}

    def feed(self, name: str, tables: frozenset[str]) -> SegmentFeed:
        return SegmentFeed(self._folder, name, tables, self.states[name])

    def inventory(self, name: str) -> Sequence[dict[str, Any]]:
        if name == "nodes":
            return []
        model = {"model": "NVIDIA H100 80GB HBM3", "vendor": "nvidia"}
        return [{"gpu_uuid": uuid(gpu), **model} for gpu in range(self._gpus)]


async def _child(folder: Path, url: str, version: int, gpus: int, samples: int, live: bool) -> None:
    """Forward all, and print the CPU seconds."""
    if live:
        feeds.READ_BYTES_MAX = 1  # a commit at a time
    sender.SEND_S = 0.0
    context = _Context(folder, RemoteReceiver("r", url, version, ("own",)), gpus)
    task = asyncio.ensure_future(sender.forward(context))
    began_s = time.process_time()
    while context.states["r"].sent < samples:
        await asyncio.sleep(0.05)
        if task.done():
            await task
    print(json.dumps({"cpu_s": time.process_time() - began_s}))
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class Sink:
    """Counts samples by path."""

    def __init__(self) -> None:
        self.samples: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        version = (
            2
            if "v2" in request.content_type or "write.v2" in request.headers["Content-Type"]
            else 1
        )
        message = decode(version, body, 1 << 28)
        count = sum(len(one.samples) for one in message.timeseries)
        self.samples[request.path] += count
        self.bytes[request.path] += len(body)
        written = {"X-Prometheus-Remote-Write-Samples-Written": str(count)}
        return web.Response(status=204, headers=written)

    async def wait(self, path: str, samples: int) -> None:
        async with asyncio.timeout(WITHIN_S):
            while True:
                if self.samples[path] >= samples:
                    return
                await asyncio.sleep(0.05)


async def _ours(
    folder: Path, url: str, chosen: argparse.Namespace, samples: int, version: int, live: bool
) -> float:
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.remote_write", "--child", copy, "--url", url, "--version", str(version),
            "--gpus", str(chosen.gpus), "--samples", str(samples), *(["--live"] if live else []),
            stdout=subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
        return float(json.loads(out)["cpu_s"])


async def _prometheus(
    folder: Path,
    sink: str,
    chosen: argparse.Namespace,
    samples: int,
    counter: Sink,
    *,
    forwards: bool,
) -> float:
    """CPU seconds of a Prometheus that gets the samples, and forwards them or not."""
    port = free_port()
    with tempfile.TemporaryDirectory() as place:
        config = Path(place) / "prometheus.yml"
        config.write_text(
            f"remote_write: [{{url: '{sink}/prometheus'}}]\n"
            if forwards
            else "scrape_configs: []\n"
        )
        process = await asyncio.create_subprocess_exec(
            "prometheus", f"--config.file={config}", f"--storage.tsdb.path={place}/data", "--log.level=error",
            "--web.enable-remote-write-receiver", f"--web.listen-address=127.0.0.1:{port}",
        )  # fmt: skip
        try:
            for _ in range(200):
                with suppress(OSError):
                    await asyncio.to_thread(
                        urllib.request.urlopen, f"http://127.0.0.1:{port}/-/ready"
                    )
                    break
                await asyncio.sleep(0.1)
            usage = psutil.Process(process.pid)
            until = counter.samples["/prometheus"] + samples
            before_s = sum(usage.cpu_times()[:2])
            await _ours(
                folder, f"http://127.0.0.1:{port}/api/v1/write", chosen, samples, 1, live=True
            )
            if forwards:
                await counter.wait("/prometheus", until)
            return sum(usage.cpu_times()[:2]) - before_s
        finally:
            process.terminate()
            await process.wait()


async def _compare(chosen: argparse.Namespace) -> None:
    sink = Sink()
    app = web.Application(client_max_size=1 << 28)
    app.router.add_post("/{name}", sink.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    with tempfile.TemporaryDirectory() as place:
        for number in range(chosen.rounds):
            folder = Path(place) / str(number)
            folder.mkdir()
            samples = filled(folder, chosen.gpus, chosen.seconds)
            found: dict[str, float] = {}
            if shutil.which("prometheus"):
                forwarding = await _prometheus(folder, url, chosen, samples, sink, forwards=True)
                alone = await _prometheus(folder, url, chosen, samples, sink, forwards=False)
                found["Prometheus"] = forwarding - alone
                found["Prometheus without it"] = alone
            for name, version, live in (
                ("ours, as rows come", 1, True),
                ("ours, a backlog", 1, False),
                ("ours, version 2, as rows come", 2, True),
            ):
                path = name.replace(" ", "-").replace(",", "")
                found[name] = await _ours(folder, f"{url}/{path}", chosen, samples, version, live)
                assert sink.samples[f"/{path}"] == samples * (number + 1), "samples are missing"
            print(f"{samples:,} samples of {chosen.gpus} GPUs, CPU µs a sample:")
            for name, cpu_s in found.items():
                print(f"  {name:32} {cpu_s / samples * 1e6:6.2f}")
            if "Prometheus" in found:
                print(
                    f"  ratio, as rows come {found['Prometheus'] / found['ours, as rows come']:.1f}"
                )
            shutil.rmtree(folder)
    for path, size in sink.bytes.items():
        print(f"  {path}: {size / max(1, sink.samples[path]):.1f} bytes a sample")
    await runner.cleanup()


def main() -> None:
    """Run the comparison, or one sender of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=512)
    parser.add_argument("--seconds", type=int, default=75)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--version", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--samples", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--live", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child is None:
        asyncio.run(_compare(chosen))
    else:
        asyncio.run(
            _child(
                chosen.child, chosen.url, chosen.version, chosen.gpus, chosen.samples, chosen.live
            )
        )


if __name__ == "__main__":
    main()
