"""A collector forwards from a process of its own, says how it goes, and starts nothing that is not asked for."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.collector.conftest import (  # noqa: F401  fixtures
    clock,
    data_dir,
    empty_store,
    wire_maker,
)
from tests.collector.processes import children

from gpuwarden.lifecycle import StartError
from gpuwarden.wire import CONTENT_TYPE, INGEST_PATH, BatchId, headers_of
from gpuwarden_collector.daemon import running
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_prometheus.remote_write.messages import decode
from gpuwarden_prometheus.remote_write.sender import REMOTE_WRITE

NAME = "gpuwarden-send"


async def _posted(url: str, wire: Any) -> None:
    rows = [wire.gpu_row(gpu, second, power_watts=1.0) for second in range(5) for gpu in range(2)]
    headers = {**headers_of(BatchId("agent-1", "boot-1", 1, 0)), "Content-Type": CONTENT_TYPE}
    headers["Content-Encoding"] = "zstd"
    async with aiohttp.ClientSession() as session:
        body = wire.zstd(wire.stream("gpu_samples", rows))
        async with session.post(url + INGEST_PATH, data=body, headers=headers) as answer:
            assert answer.status == 204


async def _text(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.text()


async def test_rows_are_forwarded_with_their_credentials_and_counted(
    tmp_path: Path,
    data_dir: Path,  # noqa: F811
    clock: Any,  # noqa: F811
    wire_maker: Any,  # noqa: F811
) -> None:
    got: list[Any] = []
    failures = iter([503])

    async def take(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer secret":
            return web.Response(status=401)
        if next(failures, None):
            return web.Response(status=503, text="busy")
        assert request.headers["X-Prometheus-Remote-Write-Version"] == "0.1.0"
        assert request.headers["Content-Encoding"] == "snappy"
        got.extend(decode(1, await request.read(), 1 << 20).timeseries)
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/write", take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    (tmp_path / "token").write_text("secret\n")
    file = tmp_path / "receivers.toml"
    file.write_text(
        f'[[receiver]]\nname = "r"\nurl = "http://127.0.0.1:{port}/write"\n'
        f'bearer_token_file = "{tmp_path / "token"}"\nmetrics = ["gpuwarden_gpu_power_watts"]\n'
    )
    settings = CollectorSettings(
        port=0, data_dir=data_dir, threads=1, commit_interval_s=0.01, remote_write_file=file
    )
    async with running(settings, clock, forwarding=REMOTE_WRITE) as collector:
        await _posted(collector.url, wire_maker())
        async with asyncio.timeout(60):
            text = ""
            while True:
                text = await _text(collector.url + "/metrics")
                if 'remote_write_samples_total{receiver="r"} 10.0' in text:
                    break
                await asyncio.sleep(0.05)
        assert 'remote_write_failures_total{receiver="r"} 1.0' in text
        assert len(children(NAME)) == 1
    assert not children(NAME)
    await runner.cleanup()
    assert sorted(len(one.samples) for one in got) == [5, 5]


async def test_without_receivers_there_is_no_process_and_no_metric(
    data_dir: Path,  # noqa: F811
    clock: Any,  # noqa: F811
) -> None:
    settings = CollectorSettings(port=0, data_dir=data_dir, threads=1)
    async with running(settings, clock, forwarding=REMOTE_WRITE) as collector:
        assert "remote_write" not in await _text(collector.url + "/metrics")
        assert not children(NAME)
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert not {name for name in names if "forward" in name}
    assert not (data_dir / "forwarding").exists()


async def test_a_wrong_file_is_a_reason_not_to_start(
    tmp_path: Path,
    data_dir: Path,  # noqa: F811
    clock: Any,  # noqa: F811
) -> None:
    settings = CollectorSettings(
        port=0, data_dir=data_dir, threads=1, remote_write_file=tmp_path / "no.toml"
    )
    with pytest.raises(StartError, match=r"no\.toml"):
        async with running(settings, clock, forwarding=REMOTE_WRITE):
            pass
    with pytest.raises(StartError, match="cannot forward rows"):
        async with running(settings, clock):
            pass


async def test_a_process_that_ends_is_started_again_and_goes_on(
    tmp_path: Path,
    data_dir: Path,  # noqa: F811
    clock: Any,  # noqa: F811
) -> None:
    file = tmp_path / "receivers.toml"
    file.write_text('[[receiver]]\nname = "r"\nurl = "http://127.0.0.1:1/write"\n')
    settings = CollectorSettings(port=0, data_dir=data_dir, threads=1, remote_write_file=file)

    async def started(but: int = 0) -> int:
        while True:
            if found := [pid for pid in children(NAME) if pid != but]:
                return found[0]
            await asyncio.sleep(0.05)

    async with running(settings, clock, forwarding=REMOTE_WRITE) as collector, asyncio.timeout(60):
        first = await started()
        os.kill(first, signal.SIGKILL)
        await started(but=first)
        while True:
            if "forwarding_restarts_total 1.0" in await _text(collector.url + "/metrics"):
                break
            await asyncio.sleep(0.05)
