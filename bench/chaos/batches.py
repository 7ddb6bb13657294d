"""Runs collectors that are killed under load, and makes batches whose rows follow from agent and number.

Such a collector seals every second and maintains its lake all the time. After a kill it is known which rows
the store must have.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp
import pyarrow as pa
import zstandard

from gpuwarden.clock import SystemClock
from gpuwarden.wire import CONTENT_TYPE, INGEST_PATH, TABLE_KEY, BatchId, headers_of
from gpuwarden_collector import daemon, stages
from gpuwarden_collector.ingest.decode import WIRE_SCHEMAS
from gpuwarden_collector.processes import forkserver
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.storage.seal import SealPolicy

ROWS = 20
"""Of a batch."""


@dataclass(frozen=True, slots=True)
class KnownBatches:
    """Batches of all agents; the first of an agent has sequence 1."""

    since: datetime

    def rows(self, agent: int, sequence: int) -> list[dict[str, object]]:
        """Rows of a batch. Two agents in three send rows that are days old: days that are over are merged."""
        base = self.since - timedelta(days=agent % 3, seconds=3_600)
        return [
            {
                "ts": base + timedelta(milliseconds=10 * (sequence * ROWS + n)),
                "node": f"n{agent}",
                "gpu_uuid": f"GPU-{agent}",
                "simulated": True,
                "util_percent": float(sequence % 100),
            }
            for n in range(ROWS)
        ]

    def request(self, agent: int, sequence: int) -> tuple[bytes, dict[str, str]]:
        """Body and headers of a batch."""
        schema = WIRE_SCHEMAS["gpu_samples"].with_metadata({TABLE_KEY: "gpu_samples"})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(pa.Table.from_pylist(self.rows(agent, sequence), schema=schema))
        headers = headers_of(BatchId(f"agent-{agent}", "boot", sequence, 0))
        headers |= {"Content-Type": CONTENT_TYPE, "Content-Encoding": "zstd"}
        return zstandard.compress(bytes(sink.getvalue())), headers


async def serve(data_dir: Path, fork_server: str, **settings: Any) -> None:
    """Run a collector until it is killed or stdin closes; the first line that is printed is its URL.

    `fork_server`: the module that its fork server runs.
    """
    forkserver._server = forkserver.ForkServer(fork_server, os.environ.keys())
    chosen = CollectorSettings(port=0, data_dir=data_dir, **settings)
    each_second = partial(SealPolicy, interval_s=1.0)
    with patch.object(stages, "SealPolicy", each_second):
        async with daemon.running(chosen, SystemClock()) as collector:
            print(collector.url, flush=True)
            reader = asyncio.StreamReader()
            loop = asyncio.get_running_loop()
            await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
            await reader.read()


async def start(
    *arguments: str, env: Mapping[str, str] | None = None
) -> tuple[asyncio.subprocess.Process, str]:
    """Start `python -m` with these arguments, which calls `serve`; the process and its URL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=env,
    )
    assert process.stdout is not None
    if url := (await process.stdout.readline()).decode().strip():
        return process, url
    raise RuntimeError("the collector does not start; see above")


async def post(
    session: aiohttp.ClientSession, url: str | None, request: tuple[bytes, dict[str, str]]
) -> tuple[bool, str | None]:
    """Send a batch: whether it was acknowledged, and the answer that refused it permanently.

    `url` None: no collector runs.
    """
    if url is None:
        return False, None
    body, headers = request
    try:
        async with session.post(url + INGEST_PATH, data=body, headers=headers) as answer:
            if answer.status in (400, 413, 415, 422):
                return False, f"{answer.status}: {await answer.text()}"
            return answer.status == 204, None
    except (aiohttp.ClientError, OSError):
        return False, None
