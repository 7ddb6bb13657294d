"""Query processes end with their collector, however it ends, and never hold up what it does besides."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

SERVER = Path(__file__).parents[1] / "serve_collector.py"
STUBBORN = b"SELECT bitstring('1', 2000000000)"


@asynccontextmanager
async def _serving(data_dir: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SERVER),
        str(data_dir),
        "0",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            url = (await process.stdout.readline()).decode().strip()
        yield process, url
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _below(pid: int, count: int) -> list[psutil.Process]:
    """All that a process has started, once there are so many query processes."""
    async with asyncio.timeout(30):
        while True:
            there = psutil.Process(pid).children(recursive=True)
            if len([p for p in there if p.name() == "gpuwarden-query"]) >= count:
                return there
            await asyncio.sleep(0.02)


def _kill(process: asyncio.subprocess.Process) -> None:
    process.kill()


def _interrupt_group(process: asyncio.subprocess.Process) -> None:
    os.killpg(process.pid, signal.SIGINT)


def _terminate_all(process: asyncio.subprocess.Process) -> None:
    """As a service manager does."""
    for one in (*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)):
        one.terminate()


def _close_stdin(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()


@pytest.mark.slow
@pytest.mark.parametrize("end", [_kill, _interrupt_group, _terminate_all, _close_stdin])
async def test_no_process_outlives_its_collector(
    data_dir: Path, session: aiohttp.ClientSession, end: Callable[[Any], None]
) -> None:
    async with _serving(data_dir) as (process, url):
        asked = asyncio.ensure_future(session.post(url + "/v1/sql", data=STUBBORN))
        there = await _below(process.pid, 1)
        await asyncio.sleep(0.5)
        assert not asked.done()
        end(process)
        async with asyncio.timeout(120):
            await process.wait()
        _, left = await asyncio.to_thread(psutil.wait_procs, there, 20)
        assert left == []
        await asyncio.gather(asked, return_exceptions=True)
    async with (
        _serving(data_dir) as (_, url),  # the store is not held by anything
        session.post(url + "/v1/sql", data=b"SELECT 7") as answer,
    ):
        assert (await answer.json())["rows"] == [[7]]


@pytest.mark.slow
async def test_batches_and_health_do_not_wait_for_queries_that_want_everything(
    data_dir: Path, session: aiohttp.ClientSession, wire: Any, post: Any
) -> None:
    greedy = (
        STUBBORN,
        b"SELECT len(list_sort(range(20000000)))",
        b"SELECT count(*) FROM range(1000000000) a(i) JOIN range(1000000000) b(i) USING (i)",
        b"SELECT len(format('{:.1000000000f}', 1.0))",
    )

    async def ask(url: str, sql: bytes) -> None:
        async with asyncio.timeout(3):
            await session.post(url + "/v1/sql", data=sql)

    async with _serving(data_dir) as (process, url):
        collector = psutil.Process(process.pid)
        await asyncio.gather(ask(url, greedy[3]), return_exceptions=True)
        before = collector.memory_info().rss
        asked = [asyncio.ensure_future(ask(url, sql)) for sql in greedy * 2]
        sequence = 0
        while not all(task.done() for task in asked):
            sequence += 1
            body = wire.stream("gpu_samples", [wire.gpu_row(ts=datetime.now(UTC))])
            async with asyncio.timeout(10):
                assert (await post(url, body, sequence, encoding=None))[0] == 204
                async with session.get(url + "/healthz") as answer:
                    assert answer.status == 200
            await asyncio.sleep(0.05)
        await asyncio.gather(*asked, return_exceptions=True)
        assert sequence > 10
        assert collector.memory_info().rss < before + 64 * 2**20
