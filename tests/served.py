"""Runs a collector beside a test, for clients that block."""

import asyncio
import threading
import urllib.request
from typing import Any

from gpuwarden.clock import Clock
from gpuwarden.wire import CONTENT_TYPE, INGEST_PATH, BatchId, headers_of
from gpuwarden_collector.daemon import Collector, running
from gpuwarden_collector.settings import CollectorSettings


class Served:
    """A collector in a thread of its own, so that clients may block."""

    def __init__(self, settings: CollectorSettings, clock: Clock, **fronts: Any) -> None:
        """`fronts`: those of `running`."""
        self._settings = settings
        self._clock = clock
        self._fronts = fronts
        self._is_up = threading.Event()
        self.collector: Collector | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    async def _run(self) -> None:
        try:
            async with running(self._settings, self._clock, **self._fronts) as self.collector:
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
