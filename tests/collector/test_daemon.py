"""The collector starts with clear words, stops without loss, and ends when its writer fails."""

import asyncio
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.clock import ManualClock
from gpuwarden.lifecycle import StartError
from gpuwarden_collector import stages
from gpuwarden_collector.daemon import running
from gpuwarden_collector.ingest.writer import Writer
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.storage.state import FILE_NAME
from gpuwarden_collector.supervision import WriterFailedError


async def test_a_port_in_use_is_named_and_nothing_stays_open(start: Any, tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(StartError, match=f"127.0.0.1:{port} is in use.*another --port"):
            async with start(port=port):
                pass
    async with start() as collector:  # the database was let go
        assert collector.is_alive()


async def test_an_address_that_is_not_ours_is_named(start: Any) -> None:
    with pytest.raises(StartError, match=r"cannot listen on 192\.0\.2\.1:0"):
        async with start(host="192.0.2.1", allow_insecure=True):
            pass


async def test_an_ipv6_url_can_be_used_as_it_is(start: Any, session: Any) -> None:
    try:
        async with (
            start(host="::1") as collector,
            session.get(collector.url + "/healthz") as answer,
        ):
            assert answer.status == 200
            assert collector.url.startswith("http://[::1]:")
    except StartError:
        pytest.skip("this machine has no IPv6")


@pytest.mark.slow
async def test_requests_in_flight_are_answered_before_it_stops(
    start: Any,
    wire: Any,
    post: Any,
    eventually: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stages, "Writer", partial(Writer, commit_interval_s=2))
    async with asyncio.TaskGroup() as group, start() as collector:
        assert (await post(collector.url, wire.stream("gpu_samples", []), encoding=None))[0] == 204
        sent = [
            group.create_task(
                post(
                    collector.url,
                    wire.stream("gpu_samples", [wire.gpu_row(second=n)]),
                    n,
                    encoding=None,
                )
            )
            for n in range(2, 10)
        ]
        await eventually(lambda: collector.queue_bytes() > 0)
    answered = [task.result()[0] for task in sent]
    async with start() as collector:
        count = await collector.querier.query("SELECT count(*) FROM gpu_samples")
    assert count.rows == [(answered.count(204),)]
    assert answered.count(204) >= 1
    assert not (tmp_path / f"{FILE_NAME}-wal").exists()


async def test_prices_are_applied_to_known_gpus_at_start(
    start: Any, wire: Any, post: Any, tmp_path: Path
) -> None:
    gpu = {
        "gpu_uuid": "GPU-0",
        "node": "n1",
        "simulated": True,
        "model": "NVIDIA H100 80GB HBM3",
    }
    prices = []
    async with start() as collector:
        await post(collector.url, wire.stream("gpus", [gpu]), encoding=None)
        prices += (await collector.querier.query("SELECT usd_per_hour FROM gpus")).rows
    path = tmp_path / "prices.toml"
    path.write_text('[[price]]\nmodel = "H100"\nusd_per_hour = 1.25\n')
    for prices_file in (path, None):
        async with start(prices_file=prices_file) as collector:
            prices += (await collector.querier.query("SELECT usd_per_hour FROM gpus")).rows
    assert prices == [(2.95,), (1.25,), (2.95,)]


async def test_a_fault_of_the_writer_ends_the_collector(tmp_path: Path, wire: Any) -> None:
    class Faulty(ManualClock):
        """Goes wrong once the collector runs."""

        is_faulty = False

        def __reduce__(self) -> Any:
            return ManualClock, (super().now(),)

        def monotonic(self) -> float:
            if self.is_faulty:
                raise ZeroDivisionError("a fault")
            return super().monotonic()

    clock = Faulty(wire.now)
    settings = CollectorSettings(port=0, data_dir=tmp_path)
    with pytest.raises(WriterFailedError, match="ZeroDivisionError"):
        async with running(settings, clock), asyncio.timeout(20):
            clock.is_faulty = True
            await asyncio.Event().wait()
