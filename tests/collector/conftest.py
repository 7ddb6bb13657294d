"""Shares what the collector's tests need: batches made by hand, collectors to send them to, tokens and certificates."""

import asyncio
import itertools
import resource
import shutil
import signal
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest
import trustme
import zstandard

from gpuwarden.access import Scope, Token
from gpuwarden.clock import ManualClock, SystemClock
from gpuwarden.wire import CONTENT_TYPE, INGEST_PATH, TABLE_KEY, BatchId, headers_of
from gpuwarden_collector import stages
from gpuwarden_collector.auth.token_file import NAME, edit
from gpuwarden_collector.auth.token_store import TokenEntry
from gpuwarden_collector.daemon import Collector, running
from gpuwarden_collector.ingest.decode import WIRE_SCHEMAS
from gpuwarden_collector.query.querier import SqlQuerier
from gpuwarden_collector.query.worker import WorkerSettings
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.seal import SealPolicy
from gpuwarden_postgres.front import POSTGRES

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


class Wire:
    """Makes rows, streams and bodies as an agent would."""

    now = NOW

    def gpu_row(self, gpu: int = 0, second: int = 0, **values: Any) -> dict[str, Any]:
        return {
            "ts": NOW + timedelta(seconds=second),
            "node": "n1",
            "gpu": gpu,
            "gpu_uuid": f"GPU-{gpu}",
            "simulated": True,
            "util_percent": 50.0,
            **values,
        }

    def gpu_rows(self, gpus: int, seconds: Sequence[int]) -> list[dict[str, Any]]:
        return [self.gpu_row(gpu, second) for second in seconds for gpu in range(gpus)]

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        schema = WIRE_SCHEMAS[name].with_metadata({TABLE_KEY: name})
        return pa.Table.from_pylist(list(rows), schema=schema)

    def stream(self, name: str, rows: Sequence[Mapping[str, Any]]) -> bytes:
        return self.written(self.table(name, rows))

    def written(self, table: pa.Table, name: str | None = None, **options: Any) -> bytes:
        """Any table as an IPC stream; `name` sets which table it says it is."""
        if name is not None:
            table = table.replace_schema_metadata({TABLE_KEY: name})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, **options) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())

    def zstd(self, raw: bytes) -> bytes:
        return zstandard.compress(raw)


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture(scope="session")
def wire_maker() -> type[Wire]:
    """For fixtures that live longer than a test."""
    return Wire


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


class StuckClock(ManualClock):
    """A clock at which the writer thread, and only it, gets stuck when told to."""

    def __init__(self, start: datetime) -> None:
        super().__init__(start)
        self.may_go = threading.Event()
        self.may_go.set()
        self.is_stuck = threading.Event()

    def __reduce__(self) -> Any:
        """In another process nothing gets stuck."""
        return ManualClock, (super().now(),)

    def now(self) -> datetime:
        if threading.current_thread().name == "writer" and not self.may_go.is_set():
            self.is_stuck.set()
            self.may_go.wait(30)
        return super().now()


@pytest.fixture
def stuck_clock() -> StuckClock:
    return StuckClock(NOW)


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder as its first opening leaves it, which takes a while."""
    folder = tmp_path_factory.mktemp("store")
    Database.open(folder, EngineLimits(memory="512MiB", threads=1)).close()
    return folder


@pytest.fixture
def data_dir(tmp_path: Path, empty_store: Path) -> Path:
    """A data folder of the test's own, tmp_path itself."""
    shutil.copytree(empty_store, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def database(data_dir: Path) -> Iterator[Database]:
    opened = Database.open(data_dir, EngineLimits(memory="512MiB", threads=1))
    yield opened
    opened.close()


@pytest.fixture
def worker_settings(database: Database) -> WorkerSettings:
    """Of processes that query the test's database."""
    limits = EngineLimits(memory="256MiB", threads=1)
    return WorkerSettings(
        database.data_dir,
        database.address,
        limits,
        database.spill_dir,
        1 << 30,
    )


@pytest.fixture
async def querier(worker_settings: WorkerSettings) -> AsyncIterator[SqlQuerier]:
    """Of the test's database, with one process."""
    async with SqlQuerier(
        worker_settings, Stats(), SystemClock(), queries_max=1, timeout_s=20
    ) as opened:
        yield opened


@contextmanager
def _files_of_at_most(size_bytes: int) -> Iterator[None]:
    """Writes beyond that size fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.fixture
def files_of_at_most() -> Callable[[int], AbstractContextManager[None]]:
    """A full disk for this process: `with files_of_at_most(size_bytes)`."""
    return _files_of_at_most


Start = Callable[..., AbstractAsyncContextManager[Collector]]


@pytest.fixture
def start(data_dir: Path, clock: ManualClock) -> Start:
    """Run a collector on a free port: `async with start(query_processes=...) as collector`."""

    @asynccontextmanager
    async def started(
        *, routes: Any = None, clock: ManualClock = clock, **settings: Any
    ) -> AsyncIterator[Collector]:
        chosen = {"port": 0, "data_dir": data_dir}
        more = {"front": POSTGRES, **({} if routes is None else {"routes": routes})}
        async with running(CollectorSettings(**{**chosen, **settings}), clock, **more) as running_:
            yield running_

    return started


@pytest.fixture
def sealing_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector moves its samples to the lake every second."""
    monkeypatch.setattr(stages, "SealPolicy", partial(SealPolicy, interval_s=1.0))


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout) as opened:
        yield opened


Post = Callable[..., Any]


@pytest.fixture
def post(session: aiohttp.ClientSession) -> Post:
    """Send a batch; (status, answer text, headers)."""

    async def posted(
        url: str,
        body: Any,
        sequence: int = 1,
        *,
        oldest: int = 0,
        agent: str = "agent-1",
        boot: str = "boot-1",
        encoding: str | None = "zstd",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, str, Mapping[str, str]]:
        all_headers = {
            **headers_of(BatchId(agent, boot, sequence, oldest)),
            "Content-Type": CONTENT_TYPE,
            **({"Content-Encoding": encoding} if encoding else {}),
            **(headers or {}),
        }
        async with session.post(url + INGEST_PATH, data=body, headers=all_headers) as answer:
            return answer.status, await answer.text(), dict(answer.headers)

    return posted


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Wait until another process or thread has come that far, for at most 20 seconds."""

    async def waited(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            for _ in itertools.count():
                if condition():
                    return
                await asyncio.sleep(0.005)

    return waited


@pytest.fixture
def grant(data_dir: Path, clock: ManualClock) -> Callable[..., Token]:
    """Make a token in the collector's file: `grant(Scope.INGEST, node="n1")`."""

    def granted(scope: Scope, **more: Any) -> Token:
        token = Token.new(scope)
        entry = TokenEntry(token.id, scope, token.digest, clock.now(), **more)
        edit(data_dir / NAME, lambda book: (book.with_entry(entry), None))
        return token

    return granted


@pytest.fixture
def bearer() -> Callable[[Token], dict[str, str]]:
    return lambda token: {"Authorization": f"Bearer {token.text}"}


class Certified:
    """A certificate on disk by an authority of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.cert, self.key, self.ca = folder / "cert.pem", folder / "key.pem", folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.issue()

    def issue(self, *names: str, ends_at: datetime | None = None) -> None:
        """Put another certificate in the place of the one that is there."""
        made = self.authority.issue_cert(*(names or ("127.0.0.1", "localhost")), not_after=ends_at)
        made.private_key_pem.write_to_path(str(self.key))
        self.cert.unlink(missing_ok=True)
        for blob in made.cert_chain_pems:
            blob.write_to_path(str(self.cert), append=True)

    @property
    def settings(self) -> dict[str, Path]:
        return {"tls_cert": self.cert, "tls_key": self.key, "tls_ca": self.ca}

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca))


@pytest.fixture
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Certified]:
    return Certified(tmp_path_factory.mktemp("tls"))  # type: ignore[return-value]
