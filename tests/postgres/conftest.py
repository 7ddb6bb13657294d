"""A collector that PostgreSQL's clients query, for all tests of this folder, with a few rows in it."""

import asyncio
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.collector.conftest import (  # noqa: F401  fixtures
    clock,
    data_dir,
    empty_store,
    eventually,
    start,
    wire_maker,
)

from gpuwarden.clock import ManualClock
from gpuwarden.wire import CONTENT_TYPE, INGEST_PATH, BatchId, headers_of
from gpuwarden_collector.daemon import Collector, running
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_postgres.front import POSTGRES


class Served:
    """A collector in a thread of its own, so that clients may block."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:  # noqa: F811
        self._settings = CollectorSettings(
            port=0, postgres_port=0, data_dir=folder, threads=1, commit_interval_s=0.01
        )
        self._clock = clock
        self._is_up = threading.Event()
        self.collector: Collector | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    async def _run(self) -> None:
        try:
            async with running(self._settings, self._clock, front=POSTGRES) as self.collector:
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
def address(
    tmp_path_factory: pytest.TempPathFactory,
    wire_maker: Any,  # noqa: F811
) -> Iterator[tuple[str, int]]:
    """Host and port of a collector with eight GPUs and ten seconds of them."""
    wire = wire_maker()
    served = Served(tmp_path_factory.mktemp("postgres"), ManualClock(wire.now))
    served.begin()
    served.post(wire.zstd(wire.stream("gpu_samples", wire.gpu_rows(8, range(10)))))
    assert served.collector is not None and served.collector.postgres is not None
    yield served.collector.postgres
    served.end()


Connect = Callable[..., psycopg.Connection[tuple[Any, ...]]]


@pytest.fixture
def connect(address: tuple[str, int]) -> Iterator[Connect]:
    """A connection of psycopg; autocommit by default."""
    opened = []

    def connected(**more: Any) -> psycopg.Connection[tuple[Any, ...]]:
        chosen = {"host": address[0], "port": address[1], "user": "anyone", "dbname": "gpuwarden"}
        made = psycopg.connect(**{**chosen, "autocommit": True, **more})
        opened.append(made)
        return made

    yield connected
    for one in opened:
        one.close()
