"""A collector with eight GPUs and ten seconds of them, whose Prometheus API the tests of this folder ask."""

import asyncio
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.collector.conftest import wire_maker  # noqa: F401  a fixture

from gpuwarden.clock import ManualClock
from gpuwarden.wire import CONTENT_TYPE, INGEST_PATH, BatchId, headers_of
from gpuwarden_collector.daemon import Collector, running
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_prometheus.front import PROMETHEUS


class Served:
    """A collector in a thread of its own, so that clients may block."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self._settings = CollectorSettings(
            port=0, data_dir=folder, threads=1, commit_interval_s=0.01
        )
        self._clock = clock
        self._is_up = threading.Event()
        self.collector: Collector | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    async def _run(self) -> None:
        try:
            async with running(
                self._settings, self._clock, http_fronts=[PROMETHEUS]
            ) as self.collector:
                self._is_up.set()
                await self._stop.wait()
        finally:
            self._is_up.set()

    def begin(self) -> None:
        self._thread.start()
        assert self._is_up.wait(60) and self.collector is not None

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._loop.close()

    def post(self, body: bytes) -> None:
        assert self.collector is not None
        headers = {**headers_of(BatchId("agent-1", "boot-1", 1, 0)), "Content-Type": CONTENT_TYPE}
        headers["Content-Encoding"] = "zstd"
        asked = urllib.request.Request(self.collector.url + INGEST_PATH, body, headers)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            assert answer.status == 204


@pytest.fixture(scope="package")
def served(
    tmp_path_factory: pytest.TempPathFactory,
    wire_maker: Any,  # noqa: F811
) -> Iterator[tuple[str, float]]:
    """The API's address, and the time in seconds of the last row."""
    wire = wire_maker()
    clock = ManualClock(wire.now)
    served = Served(tmp_path_factory.mktemp("prometheus"), clock)
    served.begin()
    rows = [
        wire.gpu_row(gpu, second, power_watts=300.0 + gpu)
        for second in range(10)
        for gpu in range(8)
    ]
    served.post(wire.zstd(wire.stream("gpu_samples", rows)))
    assert served.collector is not None
    yield served.collector.url + "/prometheus/api/v1", rows[-1]["ts"].timestamp()
    served.end()
