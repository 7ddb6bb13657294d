"""Ingest outlives hostile bodies and kill -9: nothing acknowledged is lost, nothing is doubled."""

import asyncio
import itertools
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pyarrow as pa
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwarden.clock import SystemClock, to_ms
from gpuwarden.wire import CONTENT_TYPE, INGEST_PATH, NOW_HEADER, BatchId, headers_of
from gpuwarden_collector.ingest.admit import window
from gpuwarden_collector.ingest.decode import Decoded, RefusedBody
from gpuwarden_collector.ingest.decode_pool import Body, admit

SCRIPT = Path(__file__).parents[1] / "serve_collector.py"


@contextmanager
def served(data_dir: Path, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A collector in a process of its own: its URL and the process."""
    paths = [str(Path(__file__).parents[3] / part) for part in ("contract", "collector")]
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(data_dir), str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert process.stdin and process.stdout
    try:
        yield process.stdout.readline().decode().strip(), process
    finally:
        if process.poll() is None:
            process.stdin.close()
            process.wait(30)
        process.stdout.close()


def damaged(wire: Any, dice: random.Random) -> bytes:
    """A good body with a few bytes changed, cut off or put twice."""
    raw = wire.stream("gpu_samples", wire.gpu_rows(4, range(3))) + wire.stream(
        "host_samples", [{"ts": wire.now, "node": "n1", "simulated": True}]
    )
    content = bytearray(raw)
    for _ in range(dice.randrange(1, 6)):
        at = dice.randrange(len(content))
        match dice.randrange(4):
            case 0:
                content[at] = dice.randrange(256)
            case 1:
                content[at : at + 8] = dice.choice([b"\xff" * 8, b"\0" * 8, b"\x7f" * 8])
            case 2:
                del content[at : at + dice.randrange(1, 40)]
            case 3:
                content[at:at] = content[at : at + dice.randrange(1, 40)]
    return bytes(content)


@given(seed=st.integers(0, 2**32))
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_damage_is_admitted_or_refused_and_never_raises(wire: Any, seed: int) -> None:
    body = damaged(wire, random.Random(seed))
    (result,) = admit([Body(body, "")], window(wire.now, 3600, 300))
    assert isinstance(result, (Decoded, RefusedBody))
    if isinstance(result, RefusedBody):
        assert 400 <= result.status < 500
        assert result.reason


def hostile(wire: Any) -> dict[str, tuple[bytes, str]]:
    """Bodies that would each cost memory or a crash if they were believed."""
    good = wire.stream("gpu_samples", wire.gpu_rows(8, range(5)))
    wide = pa.table({f"c{n}": [1] for n in range(5000)})
    nulls = pa.table({"node": pa.nulls(150_000_000)})
    return {
        "truncated zstd": (zstandard.compress(good)[:-9], "zstd"),
        "bomb": (zstandard.compress(bytes(500_000_000), 1), "zstd"),
        "bombs": (zstandard.compress(bytes(30_000_000)) * 20, "zstd"),
        "no columns we know": (wire.written(wide, "gpu_samples"), ""),
        "rows that are not there": (wire.written(nulls, "nodes"), ""),
        "unknown table": (wire.written(wire.table("gpu_samples", []), "passwords"), ""),
        "wrong schema": (wire.written(pa.table({"ts": ["x"]}), "gpu_samples"), ""),
        "absurd times": (wire.stream("gpu_samples", [wire.gpu_row(second=10**9)]), ""),
        "noise": (random.Random(1).randbytes(1_000_000), "zstd"),
    }


@pytest.mark.slow
async def test_hostile_bodies_get_4xx_and_memory_stays_flat(wire: Any, tmp_path: Path) -> None:
    bodies = hostile(wire)
    with served(tmp_path) as (url, process):
        watched = psutil.Process(process.pid)
        async with aiohttp.ClientSession() as session:

            async def send(name: str, sequence: int) -> None:
                body, encoding = bodies[name]
                headers = {
                    **headers_of(BatchId("hostile", "b", sequence)),
                    # Of a clock that is right: it refuses rows in the future permanently.
                    NOW_HEADER: str(to_ms(SystemClock().now())),
                    "Content-Type": CONTENT_TYPE,
                    **({"Content-Encoding": encoding} if encoding else {}),
                }
                async with session.post(url + INGEST_PATH, data=body, headers=headers) as answer:
                    said = await answer.json()
                    assert 400 <= answer.status < 500, (name, said)
                    assert said["status"] == answer.status
                    assert said["error"]

            for name in bodies:
                await send(name, 1)
            before = watched.memory_info().rss
            for _ in range(3):
                await asyncio.gather(*(send(name, 1) for name in bodies for _ in range(4)))
            grown = watched.memory_info().rss - before
            async with session.get(url + "/metrics") as answer:
                assert "gpuwarden_collector_request_failures_total 0.0" in await answer.text()
    assert grown < 200 * 2**20


class Sender:
    """A client that resends each batch until it is acknowledged, as agents do."""

    def __init__(self, wire: Any, name: str) -> None:
        self.wire = wire
        self.name = name
        self.start = SystemClock().now().replace(microsecond=0) - timedelta(hours=1)
        self.acknowledged = 0

    def body(self, sequence: int) -> bytes:
        rows = [
            {
                "ts": self.start + timedelta(seconds=2 * sequence + s),
                "node": self.name,
                "gpu_uuid": f"{self.name}-{gpu}",
                "simulated": True,
            }
            for s in range(2)
            for gpu in range(4)
        ]
        return bytes(self.wire.zstd(self.wire.stream("gpu_samples", rows)))

    async def run(self, session: aiohttp.ClientSession, url: str, batches: int) -> None:
        for sequence in range(1, batches + 1):
            body = self.body(sequence)
            for _ in itertools.count():
                if await self.is_acknowledged(session, url, sequence, body):
                    break
                await asyncio.sleep(0.02)
            self.acknowledged = sequence

    async def is_acknowledged(
        self, session: aiohttp.ClientSession, url: str, sequence: int, body: bytes
    ) -> bool:
        headers = {
            **headers_of(BatchId(self.name, "b", sequence, sequence)),
            "Content-Type": CONTENT_TYPE,
            "Content-Encoding": "zstd",
        }
        try:
            async with session.post(url + INGEST_PATH, data=body, headers=headers) as answer:
                assert answer.status in (204, 429, 503), await answer.text()
                return answer.status == 204
        except (aiohttp.ClientError, TimeoutError):
            return False


async def rows_of(url: str) -> tuple[int, int]:
    """Rows and distinct keys; on a connection of its own, as old ones may lead to a dead process."""
    sql = "SELECT count(*), count(DISTINCT (gpu_uuid, ts)) FROM gpu_samples"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + "/v1/sql", data=sql) as answer,
    ):
        (row,) = (await answer.json())["rows"]
        return row[0], row[1]


@pytest.fixture
async def impatient() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
        yield session


@pytest.mark.slow
async def test_kill_9_under_load_loses_nothing_acknowledged_and_doubles_nothing(
    wire: Any, tmp_path: Path, impatient: aiohttp.ClientSession, eventually: Any
) -> None:
    batches, senders = 80, [Sender(wire, f"n{n}") for n in range(8)]
    with ExitStack() as stack:
        url, process = stack.enter_context(served(tmp_path))
        port = int(url.rpartition(":")[2])
        async with asyncio.TaskGroup() as group:
            for sender in senders:
                group.create_task(sender.run(impatient, url, batches))
            for share in (0.2, 0.5):
                least = share * batches * len(senders)
                await eventually(lambda least=least: sum(s.acknowledged for s in senders) > least)
                process.kill()
                acknowledged = sum(s.acknowledged for s in senders)
                process.wait(30)
                _, process = stack.enter_context(served(tmp_path, port))
                _, distinct = await rows_of(url)
                assert distinct >= 8 * acknowledged
        everything = 8 * batches * len(senders)
        assert await rows_of(url) == (everything, everything)
