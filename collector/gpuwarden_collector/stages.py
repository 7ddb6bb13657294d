"""Builds the stages of the collector from its settings; `daemon.py` has their order.

Everything that a stage starts ends when the stack unwinds.
"""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gpuwarden.clock import Clock
from gpuwarden.lifecycle import StartError
from gpuwarden.query import QUERY_SEND_S
from gpuwarden.wire import AHEAD_S_MAX, PAST_S_MAX
from gpuwarden_collector.auth.access_control import RELOAD_S, AccessControl
from gpuwarden_collector.auth.gate import GRANT, node_of, sender_of
from gpuwarden_collector.http.bodies import BodyReader, Busy
from gpuwarden_collector.ingest.admission import Admission
from gpuwarden_collector.ingest.clock_check import CHECK_INTERVAL_S as CLOCK_CHECK_INTERVAL_S
from gpuwarden_collector.ingest.clock_check import ClockCheck, kernel_synchronised
from gpuwarden_collector.ingest.commit_plan import Known
from gpuwarden_collector.ingest.decode import RefusedBody
from gpuwarden_collector.ingest.decode_pool import DecodePool
from gpuwarden_collector.ingest.pacing import CHECK_INTERVAL_S as PACING_INTERVAL_S
from gpuwarden_collector.ingest.pacing import Pacing
from gpuwarden_collector.ingest.port import RequestSender, SampleContext, SampleFront
from gpuwarden_collector.ingest.prices import PriceBook, PricesError, load_book
from gpuwarden_collector.ingest.quota import SenderQuota
from gpuwarden_collector.ingest.receiver import TURN_S, ReceiverLimits, SampleReceiver
from gpuwarden_collector.ingest.writer import (
    WRITE_ERRORS,
    StoredEvents,
    Writer,
    load_known,
    reprice,
)
from gpuwarden_collector.ops.audit import Audit, token_notes
from gpuwarden_collector.ops.health import SAMPLE_S, Health
from gpuwarden_collector.ops.query_log import FLUSH_S, QueryLog, QueryService
from gpuwarden_collector.processes import control_socket as control
from gpuwarden_collector.processes.footprint import GIVE_BACK_S, Memory
from gpuwarden_collector.processes.forkserver import QUERY, RULES
from gpuwarden_collector.query.fair_queue import SPARE, QueryQueue
from gpuwarden_collector.query.port import (
    BodyAccess,
    Front,
    HttpFront,
    HttpFrontContext,
    Refusal,
)
from gpuwarden_collector.query.querier import CallersQuerier, SqlQuerier
from gpuwarden_collector.query.stored import LOOK_S as LATEST_S
from gpuwarden_collector.query.stored import RUNNING_LOOK_S, label_running, take_stored
from gpuwarden_collector.query.worker import WorkerSettings, recent_bytes_max
from gpuwarden_collector.query.worker import limits as memory_limits
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.stats import Levels, Stats
from gpuwarden_collector.storage import maintenance, spill
from gpuwarden_collector.storage.address import AddressError, LakeAddress, address_of
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
from gpuwarden_collector.storage.second_copy import SecondCopy, Standby
from gpuwarden_collector.storage.segment_log import SegmentLog
from gpuwarden_collector.storage.supervisor import LOOK_S as STORAGE_LOOK_S
from gpuwarden_collector.storage.supervisor import StorageProcess
from gpuwarden_collector.supervision import task_group
from gpuwarden_collector.timetable import Timetable

log = logging.getLogger(__name__)

STOP_WRITER_S = 10.0
QUERY_LOG_DAYS = 30
"""For which the query log is kept."""
"""Time for the writer to stop."""


@dataclass(frozen=True, slots=True)
class OpenStore:
    """The segments that batches are appended to, the lake, and the process that moves rows to the lake."""

    frames: SegmentLog
    storage: StorageProcess
    known: Known
    address: LakeAddress
    spill_dir: Path
    """Folder to which the processes of this run spill."""
    prices: PriceBook


async def open_store(
    stack: AsyncExitStack, settings: CollectorSettings, stats: Stats, clock: Clock
) -> OpenStore:
    """Open the store after the last segment in the lake, with the prices of the settings. Raises StartError."""
    prices = load_book(settings.prices_file)
    address = _address(settings)
    frames, spill_dir = _frames(stack, settings.data_dir)
    storage = await _storage(stack, settings, address, spill_dir, stats, clock)
    known = await _first_segment(stack, settings, frames, storage, address, prices, clock)
    return OpenStore(frames, storage, known, address, spill_dir, prices)


def _address(settings: CollectorSettings) -> LakeAddress:
    try:
        return address_of(settings.data_dir, settings.catalog, settings.data, os.environ)
    except AddressError as error:
        raise StartError(str(error)) from error


def _frames(stack: AsyncExitStack, data_dir: Path) -> tuple[SegmentLog, Path]:
    """The segments that batches are appended to, and the folder to which this run's processes spill."""
    make_data_dir(data_dir)
    with starting(data_dir):
        frames = SegmentLog(data_dir)
    stack.callback(frames.close)
    spill_dir = spill.begin(data_dir)
    stack.callback(spill.end, spill_dir)
    spill.empty_others(spill_dir)
    return frames, spill_dir


async def _storage(
    stack: AsyncExitStack,
    settings: CollectorSettings,
    address: LakeAddress,
    spill_dir: Path,
    stats: Stats,
    clock: Clock,
) -> StorageProcess:
    group = await stack.enter_async_context(task_group())
    wanted = StorageSettings(
        settings.data_dir,
        address,
        EngineLimits(settings.memory_limit),
        spill_dir / "storage",
        SealPolicy(),
        _maintenance(settings),
        Budget(settings.disk_bytes_max, settings.disk_free_bytes_min),
        clock,
        log.getEffectiveLevel(),
    )
    return StorageProcess(wanted, stats, group)


async def _first_segment(
    stack: AsyncExitStack,
    settings: CollectorSettings,
    frames: SegmentLog,
    storage: StorageProcess,
    address: LakeAddress,
    prices: PriceBook,
    clock: Clock,
) -> Known:
    """Begin a segment after the last one in the lake, and load the writer's state with the prices of the settings."""
    try:
        frames.begin(await storage.start())
        if not address.is_shared:
            stack.callback(_kept_open(Path(address.catalog)).close)
        known = load_known(frames, clock.now(), has_peers=address.is_shared)
        reprice(frames, known, prices)
    except (OSError, sqlite3.Error, StoreUnavailableError, RowsRefusedError) as error:
        raise StartError(f"{settings.data_dir}: {error}: check that the disk has space") from error
    return known


def _kept_open(path: Path) -> sqlite3.Connection:
    """Open the catalogue for as long as the collector runs.

    SQLite deletes its write-ahead log and the log's index with the last connection, and query processes, which may only
    read, cannot create them again. This process has no other copy of SQLite that it could disturb.
    """
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("SELECT count(*) FROM ducklake_snapshot").fetchone()
    return connection


def _maintenance(settings: CollectorSettings) -> maintenance.MaintenancePolicy:
    days = {
        Tier.SAMPLES: settings.keep_samples_days,
        Tier.QUERIES: QUERY_LOG_DAYS,
        Tier.MINUTES: settings.keep_minutes_days,
        Tier.HOURS: settings.keep_hours_days,
        Tier.EVENTS: settings.keep_events_days,
    }
    return maintenance.MaintenancePolicy(days, settings.query_timeout_s + QUERY_SEND_S)


def clock_check_of(frames: SegmentLog, clock: Clock) -> ClockCheck:
    """The check of the collector's clock, with the time at which a node was last seen."""
    heard = (row["last_seen_at"] for row in frames.state.rows("nodes"))
    newest = max((at for at in heard if at is not None), default=None)
    return ClockCheck(clock, newest and newest.replace(tzinfo=UTC), kernel_synchronised)


def _second_copy(
    stack: AsyncExitStack, settings: CollectorSettings, frames: SegmentLog, clock: Clock
) -> Callable[[], None]:
    """Returns a function that copies the segments to the standby. Raises StartError."""
    if settings.standby_url is None:
        return lambda: None
    standby = Standby(settings.standby_url, settings.standby_token_file, settings.standby_tls_ca)
    second = SecondCopy(settings.data_dir, frames.state.collector, standby, clock)
    stack.callback(second.close)
    return lambda: second.bring_up_to_date(frames.segment_number, frames.end)


def start_writer(
    stack: AsyncExitStack,
    settings: CollectorSettings,
    store: OpenStore,
    stats: Stats,
    clock: Clock,
    clock_check: ClockCheck,
) -> "tuple[Writer, asyncio.Future[None]]":
    """Start the thread that appends batches; the future is done when the thread ends."""
    writer = Writer(
        store.frames,
        store.known,
        stats,
        clock,
        prices=store.prices,
        copy=_second_copy(stack, settings, store.frames, clock),
        trusts_clock=lambda: clock_check.is_trusted,
    )
    ended = writer.start()
    stack.push_async_callback(_stop_writer, writer)
    return writer, ended


async def _stop_writer(writer: Writer) -> None:
    try:
        await writer.stop(STOP_WRITER_S)
    except TimeoutError:
        log.error("the writer did not stop in time; agents keep batches that were not answered")


async def start_timetable(stack: AsyncExitStack, access: AccessControl) -> Timetable:
    """Start the scheduled jobs: the first ones reload tokens and certificate, and return free memory to the system."""
    stack.push_async_callback(access.close)
    timetable = Timetable()
    await stack.enter_async_context(timetable.running())
    timetable.every("access", RELOAD_S, access.refresh)
    memory = Memory()
    stack.callback(memory.close)
    timetable.every("memory", GIVE_BACK_S, partial(asyncio.to_thread, memory.give_back_if_grown))
    return timetable


@dataclass(frozen=True, slots=True)
class Queriers:
    """Query processes for clients and for rules, and the source of stored events."""

    clients: SqlQuerier
    rules: SqlQuerier
    events: StoredEvents

    @property
    def callers(self) -> CallersQuerier:
        """For requests: each sees the rows that its caller may see."""
        return CallersQuerier(self.clients)


def dialects_of(front: Front | None, http_fronts: Sequence[HttpFront]) -> Mapping[str, str]:
    """Classes of the fronts' dialects, by name."""
    dialects = {found.dialect: found.dialect_class for found in http_fronts}
    return dialects if front is None else {**dialects, front.dialect: front.dialect_class}


async def start_queriers(
    stack: AsyncExitStack,
    settings: CollectorSettings,
    store: OpenStore,
    timetable: Timetable,
    stats: Stats,
    clock: Clock,
    dialects: Mapping[str, str],
    rule_processes: int,
) -> Queriers:
    """Start the query processes, with the dialects of fronts, and keep for them the newest rows and the waste of the current hours."""
    newest_dir = store.spill_dir / LATEST
    # In a shared lake other collectors may have newer rows than those kept here.
    latest = None if store.address.is_shared else LatestRows(newest_dir, clock)
    running = RunningWaste(newest_dir, clock)
    worker = _worker(settings, store, dialects)
    make = partial(_querier, stack, settings, stats, clock, latest)
    clients = await make(worker, settings.query_processes + SPARE, running)
    # Rules compute the cost of alerts from the rows themselves, not from the kept waste.
    keeping = replace(worker, recent_bytes_max=recent_bytes_max(worker.limits.memory))
    rules = await make(keeping, rule_processes, None, RULES)
    timetable.every(
        "running_waste", RUNNING_LOOK_S, partial(label_running, running, rules.background)
    )
    events = StoredEvents()
    _follow(store.frames, events, latest, stats)
    if latest is not None:
        timetable.every("newest_rows", LATEST_S, partial(take_stored, latest, rules.background))
    return Queriers(clients, rules, events)


def _worker(
    settings: CollectorSettings, store: OpenStore, dialects: Mapping[str, str]
) -> WorkerSettings:
    memory, data_bytes_max = memory_limits(settings.query_memory_limit)
    return WorkerSettings(
        settings.data_dir,
        store.address,
        EngineLimits(memory, threads=1),
        store.spill_dir,
        data_bytes_max,
        newest=store.spill_dir / LATEST,
        dialects=dialects,
    )


async def _querier(
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
        latest=latest,
        running=running,
        kind=kind,
    )
    return await stack.enter_async_context(querier)


def _follow(
    frames: SegmentLog, events: StoredEvents, latest: LatestRows | None, stats: Stats
) -> None:
    """Pass stored rows to the events and to the newest rows; if that fails, read these from the store again."""

    def take(tables: Mapping[str, Any]) -> None:
        events.add(tables)
        if latest is not None:
            latest.add(tables)

    def start_again(error: Exception) -> None:
        stats.faults.note("newest_rows", error)
        if latest is not None:
            latest.restart()

    frames.follow(take, start_again)


async def start_storage(
    stack: AsyncExitStack,
    store: OpenStore,
    writer: Writer,
    timetable: Timetable,
    clock_check: ClockCheck,
) -> None:
    """Have the storage process move rows to the lake, and drop rows by age only while the clock is trusted."""
    storage = store.storage
    storage.trust_clock(clock_check.confirmed_s)
    await storage.begin(writer)
    stack.push_async_callback(storage.stop)
    # A start of the storage process may take long; `StorageProcess.trouble` reports it.
    timetable.every("storage", STORAGE_LOOK_S, storage.look, late_s=None)

    async def check_clock() -> None:
        clock_check.evaluate()
        clock_check.log_change()
        storage.trust_clock(clock_check.confirmed_s)

    timetable.every("clock", CLOCK_CHECK_INTERVAL_S, check_clock)


def watch_disk(
    timetable: Timetable, settings: CollectorSettings, store: OpenStore, queriers: Queriers
) -> DiskMonitor:
    """Check the free disk space regularly: whether batches are stored, and how much may be spilled."""
    spilling = (store.storage, queriers.clients, queriers.rules)

    def limit_spill(bytes_max: int) -> None:
        for process in spilling:
            process.limit_spill(bytes_max // len(spilling))

    disk = DiskMonitor(
        settings.data_dir,
        Budget(settings.disk_bytes_max, settings.disk_free_bytes_min),
        spill_dir=lambda: store.spill_dir,
        limit_spill=limit_spill,
    )
    disk.look()

    async def look() -> None:
        await asyncio.to_thread(disk.look)

    timetable.every("disk", DISK_LOOK_S, look)
    return disk


def start_decode_pool(stack: AsyncExitStack, clock: Clock, stats: Stats) -> DecodePool:
    """Start the threads that decode batches."""
    decode_pool = DecodePool(
        clock, ts_past_max_s=PAST_S_MAX, ts_future_max_s=AHEAD_S_MAX, stats=stats
    )
    stack.callback(decode_pool.close)
    return decode_pool


def start_pacing(timetable: Timetable, stats: Stats, clock: Clock) -> Pacing:
    """Observe regularly how long batches take, to ask agents for longer ones."""
    pacing = Pacing(clock, stats.acknowledge_seconds)
    timetable.every("pacing", PACING_INTERVAL_S, pacing.update)
    return pacing


class Intake(NamedTuple):
    """What a batch passes on its way to the store."""

    bodies: BodyReader
    decode_pool: DecodePool
    quota: SenderQuota
    admission: Admission


def start_intake(
    stack: AsyncExitStack,
    settings: CollectorSettings,
    writer: Writer,
    disk: DiskMonitor,
    clock: Clock,
    stats: Stats,
) -> Intake:
    """Start the threads that decode batches, and bound what is received."""
    bodies = BodyReader()
    decode_pool = start_decode_pool(stack, clock, stats)
    quota = SenderQuota(settings.agent_bytes_per_day_max, clock)
    admission = Admission(writer, quota, stats, lambda: disk.refusal)
    return Intake(bodies, decode_pool, quota, admission)


def start_receiver(
    stack: AsyncExitStack,
    settings: CollectorSettings,
    front: SampleFront | None,
    intake: Intake,
    timetable: Timetable,
    stats: Stats,
    clock: Clock,
) -> Sequence[Any]:
    """Open the requests of senders that are not agents, and store their rows regularly; returns the front's routes.
    Raises StartError."""
    if front is None:
        return ()
    try:
        receiver = SampleReceiver(
            settings.data_dir,
            front.maker,
            intake.admission,
            intake.decode_pool,
            stats,
            clock,
            ReceiverLimits(past_max_s=PAST_S_MAX, future_max_s=AHEAD_S_MAX),
        )
    except (OSError, sqlite3.Error) as error:
        raise StartError(f"{settings.data_dir}: {error}: check that the disk has space") from error
    stack.push_async_callback(receiver.close)
    timetable.every("received", TURN_S, receiver.turn)

    context = SampleContext(
        receiver,
        clock,
        body_access(intake.bodies),
        lambda request: RequestSender(sender_of(request), node_of(request)),
        PAST_S_MAX,
        AHEAD_S_MAX,
    )
    return [*front.routes(context)]


def body_access(bodies: BodyReader) -> BodyAccess:
    """The reader of bodies, for protocols that the collector does not import."""

    async def read(request: Any, bytes_max: int) -> bytes | Refusal:
        match await bodies.read(request, bytes_max):
            case RefusedBody(status, reason):
                return Refusal(status, reason)
            case Busy(reason, retry_after_s, status):
                return Refusal(status, reason, retry_after_s)
            case body:
                return body

    return BodyAccess(read, bodies.release)


def query_service(
    settings: CollectorSettings,
    store: OpenStore,
    writer: Writer,
    querier: SqlQuerier,
    timetable: Timetable,
    stats: Stats,
    clock: Clock,
) -> QueryService:
    """The service for clients' queries, over HTTP and the front's protocol."""
    query_log = QueryLog(store.frames.state.collector, writer, clock)
    timetable.every("query_log", FLUSH_S, query_log.flush)
    return QueryService(querier, QueryQueue(settings.query_processes), query_log, stats)


def start_audit(
    store: OpenStore, writer: Writer, timetable: Timetable, access: AccessControl, clock: Clock
) -> Audit:
    """Start the audit, of changes of tokens too."""
    audit = Audit(store.frames.state.collector, writer, clock)
    timetable.every("audit", FLUSH_S, audit.flush)
    access.on_tokens = lambda before, after: audit.later(token_notes(before, after))
    return audit


def front_routes(
    fronts: Sequence[HttpFront],
    queries: QueryService,
    bodies: BodyReader,
    clock: Clock,
    stats: Stats,
    keep_samples_days: int,
) -> Sequence[Any]:
    """Routes of the protocols that are served over HTTP."""
    context = HttpFrontContext(
        queries,
        body_access(bodies),
        clock,
        lambda request: request.get(GRANT),
        lambda request: f"{grant.entry.id} {grant.team}" if (grant := request.get(GRANT)) else "",
        lambda: (stats.rolled_until, stats.hours_rolled_until),
        timedelta(days=keep_samples_days),
    )
    return [route for front in fronts for route in front.routes(context)]


async def take_commands(
    stack: AsyncExitStack, settings: CollectorSettings, storage: StorageProcess, health: Health
) -> None:
    """Serve commands from this host over the socket in the data folder."""
    commands: dict[str, control.Command] = {
        "backup": storage.backup,
        "maintain": storage.maintain,
        "health": health.document,
    }
    await stack.enter_async_context(control.serving(settings.data_dir, commands))


async def sample_itself(timetable: Timetable, health: Health) -> None:
    """Sample the collector now and every SAMPLE_S seconds. Without a first sample, rules would see a silent collector."""
    await health.sample()
    timetable.every("sample", SAMPLE_S, health.sample)


async def listen_beside(
    stack: AsyncExitStack,
    settings: CollectorSettings,
    front: Front | None,
    queries: QueryService,
    access: AccessControl,
    stats: Stats,
) -> tuple[str, int] | None:
    """Listen with the front's protocol until the stack unwinds, if `postgres_port` is set. Raises StartError."""
    if settings.postgres_port is None:
        return None
    if front is None:
        raise StartError("postgres_port is set, but this process cannot serve PostgreSQL's clients")
    group = await stack.enter_async_context(task_group())
    listening = front.listening(
        settings.host, settings.postgres_port, group, queries, access, stats
    )
    found = await stack.enter_async_context(listening)
    log.info(
        "collector listens with another protocol",
        extra={"dialect": front.dialect, "host": found[0], "port": found[1]},
    )
    return found


async def take_prices(settings: CollectorSettings, writer: Writer) -> str | None:
    """Read the prices file again and use its prices; returns what is wrong with it, or None."""
    if settings.prices_file is None:
        return None
    try:
        prices = await asyncio.to_thread(load_book, settings.prices_file)
        changed = await writer.take_prices(prices)
    except (PricesError, *WRITE_ERRORS) as error:
        log.error("prices not reloaded; the old ones stay in use", extra={"problem": str(error)})
        return str(error)
    log.info("prices reloaded", extra={"entries": len(prices.entries), "gpus_changed": changed})
    return None


def levels_of(
    store: OpenStore,
    writer: Writer,
    timetable: Timetable,
    disk: DiskMonitor,
    clock_check: ClockCheck,
    bodies: BodyReader,
    decode_pool: DecodePool,
    pacing: Pacing,
    quota: SenderQuota,
    access: AccessControl,
) -> Levels:
    """The current levels of all stages, for /metrics, readiness and the doctor."""
    return Levels(
        queue_bytes=writer.queue_bytes,
        body_bytes_in_flight=bodies.in_flight_bytes,
        database_bytes=store.frames.size_bytes,
        batch_s=pacing.batch_s,
        is_alive=writer.is_alive(),
        is_decoding=decode_pool.is_alive,
        is_failing=writer.is_failing(),
        disk=disk.usage,
        late_jobs=(*timetable.late, *store.storage.late_jobs),
        storage_trouble=store.storage.trouble,
        rollup_lag_s=store.storage.rollup_lag_s,
        over_quota=quota.over,
        clock_doubt=clock_check.reason,
        is_clock_confirmed=clock_check.is_trusted,
        disk_refusal=disk.refusal,
        certificate_ends_at=access.certificate_ends_at,
        authority_ends_at=access.authority_ends_at,
    )
