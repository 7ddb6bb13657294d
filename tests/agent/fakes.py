"""Stand-ins for probes and collectors, and how tests wait and read batches."""

import asyncio
import io
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import zstandard
from aiohttp import web

Tables = dict[str, list[dict[str, Any]]]


def decode_body(body: bytes) -> dict[str, pa.Table]:
    """Read a batch's body the way the collector's library does."""
    raw = zstandard.ZstdDecompressor().decompressobj().decompress(body)
    stream, tables = io.BytesIO(raw), {}
    while stream.tell() < len(raw):
        table = pyarrow.ipc.open_stream(stream).read_all()
        table.validate(full=True)
        name = table.schema.metadata[b"gpuwarden.table"].decode()
        assert name not in tables
        tables[name] = table
    return tables


class FakeProbe:
    """A source under the test's control: what it answers, and whether it hangs."""

    def __init__(
        self,
        name: str = "host",
        *,
        blocking: bool = False,
        simulated: bool = False,
        gpu_uuid: str | None = None,
        tables: Mapping[str, int] | None = None,
    ) -> None:
        self.name, self.blocking, self.simulated = name, blocking, simulated
        self.gpu_uuid = gpu_uuid
        own = "host_samples" if gpu_uuid is None else "gpu_samples"
        self.tables: Mapping[str, int] = {own: 1} if tables is None else tables
        self.answer: Callable[[int], Mapping[str, Sequence[dict[str, Any]]]] = self._one_row
        self.inventory: Mapping[str, Sequence[dict[str, Any]]] = {}
        self.read_at: list[int] = []
        self.closed = 0
        self.go_on = threading.Event()
        self.go_on.set()

    def _one_row(self, ts_ms: int) -> Mapping[str, Sequence[dict[str, Any]]]:
        if self.gpu_uuid is not None:
            row = {"gpu": 0, "gpu_uuid": self.gpu_uuid, "util_percent": 50.0}
            return {"gpu_samples": [row]}
        return {"host_samples": [{"load_1m": 0.5}]}

    def describe(self) -> Mapping[str, Sequence[dict[str, Any]]]:
        return self.inventory

    def read(
        self, ts_ms: int, due: Collection[str] | None = None
    ) -> Mapping[str, Sequence[dict[str, Any]]]:
        self.read_at.append(ts_ms)
        assert self.go_on.wait(30)
        return self.answer(ts_ms)

    def close(self) -> None:
        self.closed += 1


def fake_probe(*arguments: Any, **more: Any) -> Any:
    """A scriptable probe, to which a test may give attributes of other probes."""
    return FakeProbe(*arguments, **more)


class StubCollector:
    """A real HTTP server that answers as scripted, and 204 when the script is over."""

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.stored: dict[tuple[str, str, int], Tables] = {}
        self.broken_by: set[int] = set()
        """Sequences that are always answered with 500."""
        self.hang = asyncio.Event()
        self.in_flight = self.in_flight_max = 0
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def rows(self, table: str) -> list[dict[str, Any]]:
        return [row for tables in self.stored.values() for row in tables.get(table, [])]

    def kinds(self) -> list[str]:
        return [row["kind"] for row in self.rows("events")]

    async def start(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/ingest", self._ingest)
        self._runner = web.AppRunner(app, access_log=None, auto_decompress=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        self.hang.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _ingest(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.requests.append((dict(request.headers), body))
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            return await self._answer(request, body)
        finally:
            self.in_flight -= 1

    async def _answer(self, request: web.Request, body: bytes) -> web.Response:
        step = self.script.pop(0) if self.script else 204
        if int(request.headers["Gpuwarden-Sequence"]) in self.broken_by:
            step = 500
        if step == "hang":
            await self.hang.wait()
            return web.Response(status=204)
        if step == "reset":
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=204)
        if step == "stored, then reset":
            self._store(request, body)
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=204)
        status, headers, *text = step if isinstance(step, tuple) else (int(step), {})
        if status == 204:
            self._store(request, body)
            return web.Response(status=204, headers=headers)
        return web.Response(
            status=status, headers=headers, text=text[0] if text else f"scripted {status}\n"
        )

    def _store(self, request: web.Request, body: bytes) -> None:
        headers = request.headers
        key = (
            headers["Gpuwarden-Agent-Id"],
            headers["Gpuwarden-Boot-Id"],
            int(headers["Gpuwarden-Sequence"]),
        )
        tables = {name: table.to_pylist() for name, table in decode_body(body).items()}
        assert self.stored.setdefault(key, tables) == tables, "one batch id, two contents"


async def until_true(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait for a real condition with a deadline."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # the condition is not ours to signal
            await asyncio.sleep(0.005)
