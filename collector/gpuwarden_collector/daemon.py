"""Starts and stops the collector: access, store, writer, HTTP, in this order, and back."""

import asyncio
import errno
import logging
import os
import sqlite3
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web
from aiohttp.http import HttpProcessingError

from gpuwarden.alert import AlertStore
from gpuwarden.clock import Clock
from gpuwarden.diagnosis import DiagnosisStore
from gpuwarden.incident import IncidentStore
from gpuwarden.lifecycle import StartError
from gpuwarden.query import ExpectedQuery, Querier
from gpuwarden_collector.auth.access_control import LOOK_S, AccessControl
from gpuwarden_collector.http.app import Api, node_routes
from gpuwarden_collector.http.bodies import BodyReader
from gpuwarden_collector.http.copies import copy_routes
from gpuwarden_collector.http.listen import IDLE_S, listen, raise_descriptors
from gpuwarden_collector.http.openapi import openapi_routes
from gpuwarden_collector.http.receive import Ingest
from gpuwarden_collector.http.saved_queries import query_routes
from gpuwarden_collector.http.sql import SqlEndpoint
from gpuwarden_collector.ingest.clock_check import LOOK_S as CLOCK_LOOK_S
from gpuwarden_collector.ingest.clock_check import ClockCheck, kernel_synchronised
from gpuwarden_collector.ingest.commit_plan import Known
from gpuwarden_collector.ingest.decode_pool import DecodePool
from gpuwarden_collector.ingest.pacing import LOOK_S as PACING_LOOK_S
from gpuwarden_collector.ingest.pacing import Pacing
from gpuwarden_collector.ingest.prices import PriceBook, PricesError, load_book
from gpuwarden_collector.ingest.quota import SenderQuota
from gpuwarden_collector.ingest.writer import StoredEvents, Writer, load_known, reprice
from gpuwarden_collector.ops.health import SAMPLE_S, Duties, Health
from gpuwarden_collector.ops.query_log import FLUSH_S, QueryLog, QueryService
from gpuwarden_collector.processes import control_socket as control
from gpuwarden_collector.processes.footprint import GIVE_BACK_S, Memory
from gpuwarden_collector.processes.forkserver import QUERY, RULES
from gpuwarden_collector.query.fair_queue import SPARE, QueryQueue
from gpuwarden_collector.query.port import Front
from gpuwarden_collector.query.querier import SqlQuerier
from gpuwarden_collector.query.stored import LOOK_S as LATEST_S
from gpuwarden_collector.query.stored import RUNNING_LOOK_S, label_running, take_stored
from gpuwarden_collector.query.worker import WorkerSettings, recent_bytes_max
from gpuwarden_collector.query.worker import limits as memory_limits
from gpuwarden_collector.rule_stores import SqlAlertStore, SqlDiagnosisStore, SqlIncidentStore
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.stats import Levels, Stats
from gpuwarden_collector.storage import maintenance, spill
from gpuwarden_collector.storage.address import AddressError, LakeAddress, address_of
from gpuwarden_collector.storage.commit import WriterStopped
from gpuwarden_collector.storage.database import make_data_dir, starting
from gpuwarden_collector.storage.disk import Budget, DiskMonitor
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.errors import RowsRefusedError, StoreUnavailableError
from gpuwarden_collector.storage.newest_rows import FOLDER as LATEST
from gpuwarden_collector.storage.newest_rows import LatestRows
from gpuwarden_collector.storage.process import DISK_LOOK_S, StorageSettings
from gpuwarden_collector.storage.retention import Tier
from gpuwarden_collector.storage.running_waste import RunningWaste
from gpuwarden_collector.storage.seal import SealPolicy
from gpuwarden_collector.storage.second_copy import CopyFolder, SecondCopy, Standby
from gpuwarden_collector.storage.segment_log import SegmentLog
from gpuwarden_collector.storage.supervisor import LOOK_S as STORAGE_LOOK_S
from gpuwarden_collector.storage.supervisor import StorageProcess
from gpuwarden_collector.timetable import Timetable

log = logging.getLogger(__name__)

DRAIN_S = 10.0
"""Most time that requests in flight get on stopping, and the writer after them."""
_LINGER_S = 2.0


class WriterFailedError(RuntimeError):
    """The writer thread ended by a fault; the process should end and be started again."""


Routes = Callable[[Querier], Iterable[web.AbstractRouteDef]]


def no_routes(querier: Querier) -> Iterable[web.AbstractRouteDef]:
    """Nothing beside the API."""
    return ()


@dataclass(frozen=True, slots=True)
class Collector:
    """A running collector."""

    url: str
    """Where it listens, such as http://127.0.0.1:8750."""
    querier: Querier
    rules_querier: Querier
    """For rules: they must not wait until anything else is done."""
    expect: Callable[[Sequence[ExpectedQuery]], None]
    """Has what these need kept at hand for `rules_querier`."""
    beside: Querier
    """For what nobody waits for: in the rules' processes, which have the newest rows at hand; rules go first."""
    alerts: AlertStore
    incidents: IncidentStore
    diagnoses: DiagnosisStore
    stats: Stats
    is_alive: Callable[[], bool]
    """Whether batches are decoded and written: what feeds the watchdog."""
    queue_bytes: Callable[[], int]
    """Decoded bytes that wait for the writer."""
    endpoints: Sequence[tuple[str, str]]
    """Method and path of all that it serves."""
    reload: Callable[[], None]
    """Takes tokens and certificate anew; it does so by itself within seconds, too."""
    take_prices: Callable[[], Awaitable[str | None]]
    """Reads the prices file anew; what is wrong with it, and then the old prices go on."""
    events: StoredEvents
    """Whom it tells of events that it has stored."""
    seal: Callable[[], Awaitable[int]]
    """Moves to the lake what is hot; rows."""
    postgres: tuple[str, int] | None
    """Address and port for PostgreSQL's clients; None: they are not served."""


@asynccontextmanager
async def running(
    settings: CollectorSettings,
    clock: Clock,
    *,
    routes: Routes = no_routes,
    more_metrics: Callable[[], str] = str,
    duties: Callable[[], Duties] = Duties,
    front: Front | None = None,
) -> AsyncIterator[Collector]:
    """A collector that listens until the block is left; then what was taken is stored.

    `more_metrics` gives Prometheus text that /metrics shows after the collector's own; `duties` what the
    process does beside it. `front` listens on `postgres_port`, if that is set.

    Raises StartError when it cannot start. A fault of the writer ends the block with it.
    """
    async with AsyncExitStack() as stack:
        stats = Stats()
        access = AccessControl(settings, clock, stats.denied, raise_descriptors())
        kept = await _keeping(stack, settings, clock, stats, access, front)
        frames, writer, disk = kept.frames, kept.writer, kept.disk
        querier, rules_querier = kept.querier, kept.rules_querier
        bodies = BodyReader(settings.body_bytes_in_flight_max, settings.body_timeout_s)
        decode_pool = _decode_pool(stack, settings, clock, stats)
        no_room, clock_check = (lambda: disk.refusal), kept.clock_check
        quota = SenderQuota(settings.agent_bytes_per_day_max, clock)
        ingest = Ingest(writer, bodies, decode_pool, stats, clock, no_room, clock_check, quota)
        pacing = Pacing(clock, stats.acknowledge_seconds)
        kept.timetable.every("pacing", PACING_LOOK_S, pacing.look)
        levels = partial(_levels, kept, bodies, decode_pool, access, pacing, quota)
        identity = frames.state.collector
        health = Health(identity, writer, stats, clock, querier, levels, disk.budget, duties)
        await _watch_itself(kept.timetable, health)
        await _listen_locally(stack, settings, kept.storage, health)
        make_api = partial(Api, more_metrics=more_metrics, pacing=pacing, guard=access.middleware)
        api = make_api(ingest, stats, clock, levels, settings.body_timeout_s)
        queries = _queries(settings, kept, querier, stats, clock)
        sql = SqlEndpoint(queries, bodies, send_s=settings.query_send_s)
        copies = copy_routes(CopyFolder(settings.data_dir), bodies, no_room)
        own = (*access.routes, *sql.routes(), *node_routes(writer), *copies)
        app = _application(api, [*own, *query_routes(frames.state, clock), *routes(querier)])
        url = health.url = await _listen(stack, settings, app, access, _http_log(stats))
        postgres = await _listen_beside(stack, settings, front, queries, access, stats)
        # First of all: whoever waits for an answer would keep the server from its end.
        stack.push_async_callback(querier.close)
        log.info("collector listens", extra={"url": url, "data": str(settings.data_dir)})
        with _ending_with(kept.ended):
            yield Collector(
                url,
                querier,
                rules_querier,
                rules_querier.expect,
                rules_querier.beside,
                SqlAlertStore(writer, rules_querier, clock),
                SqlIncidentStore(writer, rules_querier),
                SqlDiagnosisStore(writer, rules_querier),
                stats,
                lambda: writer.is_alive() and decode_pool.is_alive,
                lambda: writer.queue_bytes,
                endpoints_of(app),
                access.reload,
                partial(_take_prices, settings, writer),
                kept.events,
                kept.storage.seal,
                postgres,
            )
    log.info("collector stopped", extra={"batches": stats.batches, "rows": stats.rows_total})


@dataclass(frozen=True, slots=True)
class _Kept:
    """What keeps the store: who writes, who moves rows to the lake, and who reads."""

    frames: SegmentLog
    writer: Writer
    ended: "asyncio.Future[None]"
    """Of the writer."""
    storage: StorageProcess
    querier: SqlQuerier
    rules_querier: SqlQuerier
    timetable: Timetable
    disk: DiskMonitor
    clock_check: ClockCheck
    events: StoredEvents


async def _keeping(
    stack: AsyncExitStack,
    settings: CollectorSettings,
    clock: Clock,
    stats: Stats,
    access: AccessControl,
    front: Front | None,
) -> _Kept:
    """Start them, in the order in which each needs the others; they end as the stack unwinds."""
    prices = load_book(settings.prices_file, settings.prices)
    address = _address(settings)
    frames, spill_dir = _frames(stack, settings)
    storage = await _storage(stack, settings, address, spill_dir, stats, clock)
    known = await _first_segment(stack, settings, frames, storage, address, prices, clock)
    clock_check = _clock_check(frames, clock)
    copy = _second_copy(stack, settings, frames, clock)
    writer = _writer(settings, frames, known, stats, clock, prices, copy, clock_check)
    ended = writer.start()
    stack.push_async_callback(_stop_writer, writer)
    timetable = await _timetable(stack, access)
    # What other collectors seal into a shared lake may be newer than what is kept here.
    latest = None if address.is_shared else LatestRows(spill_dir / LATEST, clock)
    running = RunningWaste(spill_dir / LATEST, clock)
    worker = replace(
        _worker(settings, address, spill_dir),
        newest=spill_dir / LATEST,
        dialects={} if front is None else {front.dialect: front.dialect_class},
    )
    make = partial(_querier, stack, settings, stats, clock, latest)
    querier = make(worker, settings.query_processes + SPARE, running)
    # What alerts cost is counted from their rows, not from what was kept some time ago.
    keeping = replace(worker, recent_bytes_max=recent_bytes_max(worker.limits.memory))
    rules_querier = make(keeping, settings.rule_processes, None, RULES)
    timetable.every(
        "running_waste", RUNNING_LOOK_S, partial(label_running, running, rules_querier.beside)
    )
    events = StoredEvents()
    _follow(frames, events, latest, stats)
    if latest is not None:
        timetable.every("newest_rows", LATEST_S, partial(take_stored, latest, rules_querier.beside))
    storage.trust_clock(clock_check.confirmed_s)
    await storage.begin(writer)
    stack.push_async_callback(storage.stop)
    # A start of the storage process may take long, which `StorageProcess.trouble` tells.
    timetable.every("storage", STORAGE_LOOK_S, storage.look, late_s=None)

    async def look_at_clock() -> None:
        clock_check.look()
        clock_check.tell()
        storage.trust_clock(clock_check.confirmed_s)

    timetable.every("clock", CLOCK_LOOK_S, look_at_clock)
    disk = _disk(timetable, settings, spill_dir, (storage, querier, rules_querier))
    return _Kept(
        frames, writer, ended, storage, querier, rules_querier, timetable, disk, clock_check, events
    )


def _follow(
    frames: SegmentLog, events: StoredEvents, latest: LatestRows | None, stats: Stats
) -> None:
    """Tell of events, and keep the newest rows; where that fails they are read from the store again."""

    def take(tables: Mapping[str, Any]) -> None:
        events.add(tables)
        if latest is not None:
            latest.add(tables)

    def start_again(error: Exception) -> None:
        stats.faults.note("newest_rows", error)
        if latest is not None:
            latest.restart()

    frames.follow(take, start_again)


async def _watch_itself(timetable: Timetable, health: Health) -> None:
    """The first sample comes before the first rule, which would else see a collector that is silent."""
    await health.sample()
    timetable.every("sample", SAMPLE_S, health.sample)


async def _listen_locally(
    stack: AsyncExitStack, settings: CollectorSettings, storage: StorageProcess, health: Health
) -> None:
    """Take commands of this host."""
    commands: dict[str, control.Command] = {
        "backup": storage.backup,
        "maintain": storage.maintain,
        "health": health.document,
    }
    await stack.enter_async_context(control.serving(settings.data_dir, commands))


def endpoints_of(app: web.Application) -> list[tuple[str, str]]:
    """Method and path of what an application serves."""
    return [
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None
    ]


def _writer(
    settings: CollectorSettings,
    frames: SegmentLog,
    known: Known,
    stats: Stats,
    clock: Clock,
    prices: PriceBook,
    copy: Callable[[], None],
    clock_check: ClockCheck,
) -> Writer:
    return Writer(
        frames,
        known,
        stats,
        clock,
        commit_interval_s=settings.commit_interval_s,
        queue_bytes_max=settings.queue_bytes_max,
        prices=prices,
        copy=copy,
        trusts_clock=lambda: clock_check.is_trusted,
    )


def _clock_check(frames: SegmentLog, clock: Clock) -> ClockCheck:
    heard = (row["last_seen_at"] for row in frames.state.rows("nodes"))
    newest = max((at for at in heard if at is not None), default=None)
    return ClockCheck(clock, newest and newest.replace(tzinfo=UTC), kernel_synchronised)


def _second_copy(
    stack: AsyncExitStack, settings: CollectorSettings, frames: SegmentLog, clock: Clock
) -> Callable[[], None]:
    """Has the standby hold what is in the segments. Raises StartError."""
    if settings.standby_url is None:
        return lambda: None
    standby = Standby(settings.standby_url, settings.standby_token_file, settings.standby_tls_ca)
    second = SecondCopy(settings.data_dir, frames.state.collector, standby, clock)
    stack.callback(second.close)
    return lambda: second.bring_up_to_date(frames.segment_number, frames.end)


async def _timetable(stack: AsyncExitStack, access: AccessControl) -> Timetable:
    """What is done by the clock, first of all looking whether access is another one now."""
    stack.push_async_callback(access.close)
    timetable = Timetable()
    await stack.enter_async_context(timetable.running())
    timetable.every("access", LOOK_S, access.look)
    memory = Memory()
    stack.callback(memory.close)

    async def give_back() -> None:
        await asyncio.to_thread(memory.give_back_if_grown)

    timetable.every("memory", GIVE_BACK_S, give_back)
    return timetable


def _querier(
    stack: AsyncExitStack,
    settings: CollectorSettings,
    stats: Stats,
    clock: Clock,
    latest: LatestRows | None,
    worker: WorkerSettings,
    queries_max: int,
    running: RunningWaste | None,
    kind: bytes = QUERY,
) -> SqlQuerier:
    querier = SqlQuerier(
        worker,
        stats,
        clock,
        queries_max=queries_max,
        timeout_s=settings.query_timeout_s,
        rows_max=settings.query_rows_max,
        export_rows_max=settings.query_export_rows_max,
        take_s=settings.query_send_s,
        latest=latest,
        running=running,
        kind=kind,
    )
    stack.push_async_callback(querier.close)
    return querier


def _application(api: Api, routes: Iterable[web.AbstractRouteDef]) -> web.Application:
    """With the document of all that it serves."""
    served: list[tuple[str, str]] = []
    app = api.application([*routes, *openapi_routes(served)])
    served += endpoints_of(app)
    return app


def _queries(
    settings: CollectorSettings, kept: _Kept, querier: SqlQuerier, stats: Stats, clock: Clock
) -> QueryService:
    """Queries of clients, over HTTP and a front's protocol together."""
    query_log = QueryLog(kept.frames.state.collector, kept.writer, clock)
    kept.timetable.every("query_log", FLUSH_S, query_log.flush)
    return QueryService(querier, QueryQueue(settings.query_processes), query_log, stats)


def _decode_pool(
    stack: AsyncExitStack, settings: CollectorSettings, clock: Clock, stats: Stats
) -> DecodePool:
    decode_pool = DecodePool(
        clock,
        ts_past_max_s=settings.ts_past_max_s,
        ts_future_max_s=settings.ts_future_max_s,
        stats=stats,
    )
    stack.callback(decode_pool.close)
    return decode_pool


def _address(settings: CollectorSettings) -> LakeAddress:
    try:
        return address_of(settings.data_dir, settings.catalog, settings.data, os.environ)
    except AddressError as error:
        raise StartError(str(error)) from error


def _frames(stack: AsyncExitStack, settings: CollectorSettings) -> tuple[SegmentLog, Path]:
    """What batches are appended to, and the folder that this run's processes spill to."""
    make_data_dir(settings.data_dir)
    with starting(settings.data_dir):
        frames = SegmentLog(settings.data_dir)
    stack.callback(frames.close)
    spill_dir = spill.begin(settings.data_dir, settings.spill_dir)
    stack.callback(spill.end, spill_dir)
    spill.empty_others(settings.data_dir, spill_dir)
    return frames, spill_dir


@asynccontextmanager
async def _task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A group of tasks that raises what its block raises as it is, when nothing else went wrong."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        if len(errors.exceptions) > 1:
            raise
        raise errors.exceptions[0] from errors.exceptions[0].__cause__


async def _storage(
    stack: AsyncExitStack,
    settings: CollectorSettings,
    address: LakeAddress,
    spill_dir: Path,
    stats: Stats,
    clock: Clock,
) -> StorageProcess:
    group = await stack.enter_async_context(_task_group())
    asked = StorageSettings(
        settings.data_dir,
        address,
        EngineLimits(settings.memory_limit, settings.temp_limit, settings.threads),
        spill_dir / "storage",
        SealPolicy(settings.seal_interval_s, settings.seal_bytes_max),
        _kept(settings),
        Budget(settings.disk_bytes_max, settings.disk_free_bytes_min),
        clock,
        log.getEffectiveLevel(),
    )
    return StorageProcess(asked, stats, group)


async def _first_segment(
    stack: AsyncExitStack,
    settings: CollectorSettings,
    frames: SegmentLog,
    storage: StorageProcess,
    address: LakeAddress,
    prices: PriceBook,
    clock: Clock,
) -> Known:
    """Begin to write behind what the lake holds; what the store knows, prices as the settings have them."""
    try:
        frames.begin(await storage.start())
        if not address.is_shared:
            stack.callback(_kept_open(Path(address.catalog)).close)
        known = load_known(frames, clock.now(), has_peers=address.is_shared)
        reprice(frames, known, prices)
    except (OSError, sqlite3.Error, StoreUnavailableError, RowsRefusedError) as error:
        raise StartError(f"{settings.data_dir}: {error}: see that the disk has space") from error
    return known


def _kept_open(path: Path) -> sqlite3.Connection:
    """The catalogue, open for as long as the collector runs.

    Its log and the log's index go with the last connection, and who may only read, as query processes
    may, cannot make them again. This process has no other copy of SQLite that it could disturb.
    """
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("SELECT count(*) FROM ducklake_snapshot").fetchone()
    return connection


class _Spills(Protocol):
    def limit_spill(self, bytes_max: int) -> None: ...


def _disk(
    timetable: Timetable,
    settings: CollectorSettings,
    spill_dir: Path,
    spilling: Sequence[_Spills],
) -> DiskMonitor:
    """Looks at the disk by the clock: whether batches are taken, and how much may be spilled."""

    def limit_spill(bytes_max: int) -> None:
        for one in spilling:
            one.limit_spill(bytes_max // len(spilling))

    disk = DiskMonitor(
        settings.data_dir,
        Budget(settings.disk_bytes_max, settings.disk_free_bytes_min),
        spill_dir=lambda: spill_dir,
        limit_spill=limit_spill,
    )
    disk.look()

    async def look() -> None:
        await asyncio.to_thread(disk.look)

    timetable.every("disk", DISK_LOOK_S, look)
    return disk


def _worker(settings: CollectorSettings, address: LakeAddress, spill_dir: Path) -> WorkerSettings:
    memory, data_bytes_max = memory_limits(
        settings.query_memory_limit, settings.query_memory_bytes_max
    )
    limits = EngineLimits(memory, settings.temp_limit, settings.query_threads)
    return WorkerSettings(settings.data_dir, address, limits, spill_dir, data_bytes_max)


def _kept(settings: CollectorSettings) -> maintenance.MaintenancePolicy:
    days = {
        Tier.SAMPLES: settings.keep_samples_days,
        Tier.QUERIES: settings.keep_query_log_days,
        Tier.MINUTES: settings.keep_minutes_days,
        Tier.HOURS: settings.keep_hours_days,
        Tier.EVENTS: settings.keep_events_days,
    }
    return maintenance.MaintenancePolicy(days, settings.query_timeout_s + settings.query_send_s)


def _levels(
    kept: _Kept,
    bodies: BodyReader,
    decode_pool: DecodePool,
    access: AccessControl,
    pacing: Pacing,
    quota: SenderQuota,
) -> Levels:
    return Levels(
        queue_bytes=kept.writer.queue_bytes,
        body_bytes_in_flight=bodies.in_flight_bytes,
        database_bytes=kept.frames.size_bytes,
        batch_s=pacing.batch_s,
        is_alive=kept.writer.is_alive(),
        is_decoding=decode_pool.is_alive,
        is_failing=kept.writer.is_failing(),
        disk=kept.disk.usage,
        late_jobs=(*kept.timetable.late, *kept.storage.late_jobs),
        storage_trouble=kept.storage.trouble,
        rollup_lag_s=kept.storage.rollup_lag_s,
        over_quota=quota.over,
        clock_doubt=kept.clock_check.reason,
        is_clock_confirmed=kept.clock_check.is_trusted,
        disk_refusal=kept.disk.refusal,
        certificate_ends_at=access.certificate_ends_at,
        authority_ends_at=access.authority_ends_at,
    )


@contextmanager
def _ending_with(ended: "asyncio.Future[None]") -> Iterator[None]:
    """Ends the block with WriterFailedError should the writer fail: a bug must not go unnoticed."""
    owner = asyncio.current_task()
    assert owner is not None

    def end(future: "asyncio.Future[None]") -> None:
        if future.exception() is not None:
            owner.cancel()

    ended.add_done_callback(end)
    try:
        yield
    except asyncio.CancelledError:
        failure = ended.exception() if ended.done() else None
        if failure is None:
            raise
        owner.uncancel()
        raise WriterFailedError(f"the writer has ended: {failure!r}") from failure
    finally:
        ended.remove_done_callback(end)


async def _take_prices(settings: CollectorSettings, writer: Writer) -> str | None:
    """Read the prices file anew, and price GPUs by it from now on; what is wrong with it, if anything is."""
    if settings.prices_file is None:
        return None
    try:
        prices = await asyncio.to_thread(load_book, settings.prices_file, settings.prices)
        changed = await writer.take_prices(prices)
    except (PricesError, StoreUnavailableError, RowsRefusedError, WriterStopped) as error:
        log.error("prices not reloaded; the old ones go on", extra={"problem": str(error)})
        return str(error)
    log.info("prices reloaded", extra={"entries": len(prices.entries), "gpus_changed": changed})
    return None


async def _stop_writer(writer: Writer) -> None:
    try:
        await writer.stop(DRAIN_S)
    except TimeoutError:
        log.error("the writer did not finish in time; unanswered batches stay with their agents")


class _MalformedCounted(logging.Filter):
    """Counts requests that are not HTTP: aiohttp would log a stack trace for each, so anyone who
    can connect could fill the log."""

    def __init__(self, stats: Stats) -> None:
        super().__init__()
        self._stats = stats

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
            self._stats.malformed_requests += 1
            return False
        return record.levelno > logging.DEBUG


def _http_log(stats: Stats) -> logging.Logger:
    """Of one collector, whichever others run in this process."""
    # One of the registry would be shared. aiohttp says some of it as DEBUG.
    http_log = logging.Logger(f"{__name__}.http", logging.DEBUG)  # noqa: LOG001
    http_log.parent = log
    http_log.addFilter(_MalformedCounted(stats))
    return http_log


async def _listen(
    stack: AsyncExitStack,
    settings: CollectorSettings,
    app: web.Application,
    access: AccessControl,
    http_log: logging.Logger,
) -> str:
    """Listen until the stack unwinds; the URL. Raises StartError."""
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=http_log,
        auto_decompress=False,
        handler_cancellation=True,  # nobody waits for the rows of a client that has gone
        keepalive_timeout=IDLE_S,
        lingering_time=_LINGER_S,
        shutdown_timeout=DRAIN_S,
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    try:
        await listen(
            runner,
            settings.host,
            settings.port,
            access.ssl_context,
            access.connections,
            access.refused_connection,
        )
    except OSError as error:
        raise _cannot_listen(settings, error) from error
    host, port = runner.addresses[0][:2]
    scheme = "http" if access.tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def _listen_beside(
    stack: AsyncExitStack,
    settings: CollectorSettings,
    front: Front | None,
    queries: QueryService,
    access: AccessControl,
    stats: Stats,
) -> tuple[str, int] | None:
    """Listen by the front's protocol until the stack unwinds, if that is wanted. Raises StartError."""
    if settings.postgres_port is None:
        return None
    if front is None:
        raise StartError("postgres_port is set, and nothing here serves PostgreSQL's clients")
    group = await stack.enter_async_context(_task_group())
    listening = front.listening(
        settings.host, settings.postgres_port, group, queries, access, stats
    )
    found = await stack.enter_async_context(listening)
    log.info(
        "collector listens by another protocol",
        extra={"dialect": front.dialect, "host": found[0], "port": found[1]},
    )
    return found


def _cannot_listen(settings: CollectorSettings, error: OSError) -> StartError:
    where = f"{settings.host}:{settings.port}"
    if error.errno == errno.EADDRINUSE:
        return StartError(f"{where} is in use by another process: stop it or choose another --port")
    if error.errno == errno.EACCES:
        return StartError(f"{where} is not allowed for this user: choose a --port above 1023")
    return StartError(f"cannot listen on {where}: {error.strerror or error}: choose another --host")
