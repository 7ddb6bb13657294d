"""Starts and stops the collector: access, store, writer, HTTP, in this order, and back."""

import asyncio
import errno
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial

from aiohttp import web
from aiohttp.http import HttpProcessingError

from gpuwarden.alert import AlertStore
from gpuwarden.clock import Clock
from gpuwarden.diagnosis import DiagnosisStore
from gpuwarden.life import StartError
from gpuwarden.query import Querier
from gpuwarden_collector import control, maintenance
from gpuwarden_collector.access.desk import LOOK_S, Desk
from gpuwarden_collector.alerts import SqlAlertStore
from gpuwarden_collector.app import Api
from gpuwarden_collector.backup import Copier
from gpuwarden_collector.bodies import BodyReader
from gpuwarden_collector.diagnoses import SqlDiagnosisStore
from gpuwarden_collector.disk import Budget, Disk
from gpuwarden_collector.group import Known
from gpuwarden_collector.health import SAMPLE_S, Duties, Health
from gpuwarden_collector.ingest import Ingest
from gpuwarden_collector.intake import Intake
from gpuwarden_collector.maintenance import Maintainer
from gpuwarden_collector.prices import PriceBook, PricesError, load_book
from gpuwarden_collector.query import SqlQuerier
from gpuwarden_collector.repricing import reprice
from gpuwarden_collector.retention import Tier
from gpuwarden_collector.rolling import Roller
from gpuwarden_collector.sealing import Policy, Sealer
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.stats import Levels, Stats
from gpuwarden_collector.store.address import AddressError, address_of
from gpuwarden_collector.store.database import Database, Limits
from gpuwarden_collector.store.errors import RowsRefusedError, StoreUnavailableError
from gpuwarden_collector.timetable import Timetable
from gpuwarden_collector.writer import Writer, WriterStopped, load_known

log = logging.getLogger(__name__)

DRAIN_S = 10.0
"""Most time that requests in flight get on stopping, and the writer after them."""
DISK_LOOK_S = 2.0
"""How often free space is read."""
ROLL_LOOK_S = 15.0
"""How often it is looked whether windows have closed."""
MAINTAIN_LOOK_S = 5.0
"""How often maintenance may begin."""
_LINGER_S = 2.0
_IDLE_S = 75.0
"""How long a connection may be silent, and a request's head take to arrive; proxies close theirs before."""


class WriterFailedError(RuntimeError):
    """The writer thread ended by a fault; the process should end and be started again."""


RULE_QUERIES_MAX = 4
"""Queries of rules at the same time: as many as the engine evaluates at once."""

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
    """For rules, which must not wait until people's queries are done."""
    alerts: AlertStore
    diagnoses: DiagnosisStore
    stats: Stats
    is_alive: Callable[[], bool]
    """Whether the writer makes progress: what feeds the watchdog."""
    queue_bytes: Callable[[], int]
    """Decoded bytes that wait for the writer."""
    endpoints: Sequence[tuple[str, str]]
    """Method and path of all that it serves."""
    reload: Callable[[], None]
    """Takes tokens and certificate anew; it does so by itself within seconds, too."""
    take_prices: Callable[[], Awaitable[str | None]]
    """Reads the prices file anew; what is wrong with it, and then the old prices go on."""


@asynccontextmanager
async def running(
    settings: CollectorSettings,
    clock: Clock,
    *,
    routes: Routes = no_routes,
    more_metrics: Callable[[], str] = str,
    duties: Callable[[], Duties] = Duties,
) -> AsyncIterator[Collector]:
    """A collector that listens until the block is left; then what was taken is stored.

    `more_metrics` gives Prometheus text that /metrics shows after the collector's own; `duties` what the
    process does beside it.

    Raises StartError when it cannot start. A fault of the writer ends the block with it.
    """
    async with AsyncExitStack() as stack:
        stats = Stats()
        desk = Desk(settings, clock, stats.denied)
        prices = load_book(settings.prices_file, settings.prices)
        database, known = _open(settings, prices)
        stack.callback(database.close)
        writer = _writer(settings, database, known, stats, clock, prices)
        ended = writer.start()
        stack.push_async_callback(_stop_writer, writer)
        timetable = await _timetable(stack, desk)
        disk, commands = await _keep_store(
            stack, timetable, settings, database, writer, stats, clock
        )
        querier = _querier(stack, settings, database, stats, clock, settings.queries_max)
        rules_querier = _querier(stack, settings, database, stats, clock, RULE_QUERIES_MAX)
        bodies = BodyReader(settings.body_bytes_in_flight_max, settings.body_timeout_s)
        intake = _intake(stack, settings, clock, stats)
        ingest = Ingest(writer, bodies, intake, stats, clock, lambda: disk.refusal)
        levels = partial(_levels, writer, bodies, database, disk, desk)
        identity, budget = database.collector, disk.budget
        health = Health(identity, writer, stats, clock, rules_querier, levels, budget, duties)
        await _watch_itself(timetable, health)
        commands["health"] = health.document
        await stack.enter_async_context(control.serving(settings.data_dir, commands))

        api = Api(
            ingest,
            querier,
            bodies,
            stats,
            clock,
            levels,
            queries_max=settings.queries_max,
            more_metrics=more_metrics,
            guard=desk.middleware,
        )
        app = api.application([*desk.routes, *routes(querier)])
        url = await _listen(stack, settings, app, desk, _http_log(stack, stats))
        log.info("collector listens", extra={"url": url, "data": str(settings.data_dir)})
        alerts = SqlAlertStore(writer, querier, clock)
        with _ending_with(ended):
            yield Collector(
                url,
                querier,
                rules_querier,
                alerts,
                SqlDiagnosisStore(writer, rules_querier),
                stats,
                writer.is_alive,
                lambda: writer.queue_bytes,
                endpoints_of(app),
                desk.reload,
                partial(_take_prices, settings, writer),
            )
    log.info("collector stopped", extra={"batches": stats.batches, "rows": stats.rows_total})


async def _watch_itself(timetable: Timetable, health: Health) -> None:
    """The first sample comes before the first rule, which would else see a collector that is silent."""
    await health.sample()
    timetable.every(SAMPLE_S, health.sample)


def endpoints_of(app: web.Application) -> list[tuple[str, str]]:
    """Method and path of what an application serves."""
    return [
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None
    ]


def _writer(
    settings: CollectorSettings,
    database: Database,
    known: Known,
    stats: Stats,
    clock: Clock,
    prices: PriceBook,
) -> Writer:
    return Writer(
        database,
        known,
        stats,
        clock,
        commit_interval_s=settings.commit_interval_s,
        queue_bytes_max=settings.queue_bytes_max,
        prices=prices,
    )


async def _timetable(stack: AsyncExitStack, desk: Desk) -> Timetable:
    """What is done by the clock, first of all looking whether access is another one now."""
    stack.push_async_callback(desk.close)
    timetable = Timetable()
    await stack.enter_async_context(timetable.running())
    timetable.every(LOOK_S, desk.look)
    return timetable


def _querier(
    stack: AsyncExitStack,
    settings: CollectorSettings,
    database: Database,
    stats: Stats,
    clock: Clock,
    queries_max: int,
) -> SqlQuerier:
    querier = SqlQuerier(
        database,
        stats,
        clock,
        queries_max=queries_max,
        timeout_s=settings.query_timeout_s,
        rows_max=settings.query_rows_max,
    )
    stack.push_async_callback(querier.close)
    return querier


def _intake(
    stack: AsyncExitStack, settings: CollectorSettings, clock: Clock, stats: Stats
) -> Intake:
    intake = Intake(
        clock,
        ts_past_max_s=settings.ts_past_max_s,
        ts_future_max_s=settings.ts_future_max_s,
        faults=stats.faults,
    )
    stack.callback(intake.close)
    return intake


async def _keep_store(
    stack: AsyncExitStack,
    timetable: Timetable,
    settings: CollectorSettings,
    database: Database,
    writer: Writer,
    stats: Stats,
    clock: Clock,
) -> tuple[Disk, dict[str, control.Command]]:
    """Seal, roll up and maintain the store until the stack unwinds; its disk, and what it does when asked."""
    policy = Policy(settings.seal_interval_s, settings.seal_rows_max)
    sealer = Sealer(database, writer, stats, clock, policy)
    stack.push_async_callback(sealer.stop)
    budget = Budget(settings.disk_bytes_max, settings.disk_free_bytes_min)
    disk = Disk(
        settings.data_dir,
        budget,
        reusable=database.reusable_bytes,
        spill_dir=lambda: database.spill_dir,
        limit_spill=database.limit_spill,
    )
    disk.look()
    maintainer = Maintainer(
        database,
        writer,
        stats,
        clock,
        disk,
        _kept(settings),
        sealer.turn,
        seal=lambda: sealer.seal_due(is_forced=True),
        leads=database.coordination.is_leader,
    )
    stack.push_async_callback(maintainer.stop)
    roller = Roller(database, writer, stats, clock, sealer.turn)
    stack.push_async_callback(roller.stop)
    commands: dict[str, control.Command] = {
        "backup": Copier(database, clock, sealer.turn).copy,
        "maintain": maintainer.run_as_asked,
    }
    timetable.every(sealer.look_s, sealer.seal_due)
    timetable.every(DISK_LOOK_S, maintainer.look_at_disk)
    timetable.every(MAINTAIN_LOOK_S, maintainer.run_due)
    timetable.every(ROLL_LOOK_S, roller.roll_due)
    return disk, commands


def _kept(settings: CollectorSettings) -> maintenance.Policy:
    days = {
        Tier.SAMPLES: settings.keep_samples_days,
        Tier.MINUTES: settings.keep_minutes_days,
        Tier.HOURS: settings.keep_hours_days,
        Tier.EVENTS: settings.keep_events_days,
    }
    return maintenance.Policy(days, settings.query_timeout_s)


def _levels(
    writer: Writer, bodies: BodyReader, database: Database, disk: Disk, desk: Desk
) -> Levels:
    return Levels(
        queue_bytes=writer.queue_bytes,
        body_bytes_in_flight=bodies.in_flight_bytes,
        database_bytes=database.size_bytes,
        is_alive=writer.is_alive(),
        is_failing=writer.is_failing(),
        disk=disk.usage,
        disk_refusal=disk.refusal,
        certificate_ends_at=desk.certificate_ends_at,
        authority_ends_at=desk.authority_ends_at,
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


def _open(settings: CollectorSettings, prices: PriceBook) -> tuple[Database, Known]:
    """The database and what it holds, prices as the settings have them now."""
    limits = Limits(
        settings.memory_limit, settings.temp_limit, settings.threads, settings.spill_dir
    )
    try:
        address = address_of(settings.data_dir, settings.catalog, settings.data, os.environ)
    except AddressError as error:
        raise StartError(str(error)) from error
    database = Database.open(settings.data_dir, limits, address)
    try:
        known = load_known(database)
        reprice(database, known, prices)
    except (StoreUnavailableError, RowsRefusedError) as error:
        database.close()
        raise StartError(f"{settings.data_dir}: {error}: see that the disk has space") from error
    return database, known


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


def _http_log(stack: AsyncExitStack, stats: Stats) -> logging.Logger:
    http_log = log.getChild("http")
    http_log.setLevel(logging.DEBUG)  # where aiohttp says some of it
    counted = _MalformedCounted(stats)
    http_log.addFilter(counted)
    stack.callback(http_log.removeFilter, counted)
    return http_log


async def _listen(
    stack: AsyncExitStack,
    settings: CollectorSettings,
    app: web.Application,
    desk: Desk,
    http_log: logging.Logger,
) -> str:
    """Listen until the stack unwinds; the URL. Raises StartError."""
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=http_log,
        auto_decompress=False,
        handler_cancellation=True,  # nobody waits for the rows of a client that has gone
        keepalive_timeout=_IDLE_S,
        lingering_time=_LINGER_S,
        shutdown_timeout=DRAIN_S,
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(
        runner, settings.host, settings.port, backlog=1024, ssl_context=desk.ssl_context
    )
    try:
        await site.start()
    except OSError as error:
        raise _cannot_listen(settings, error) from error
    host, port = runner.addresses[0][:2]
    scheme = "http" if desk.tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _cannot_listen(settings: CollectorSettings, error: OSError) -> StartError:
    where = f"{settings.host}:{settings.port}"
    if error.errno == errno.EADDRINUSE:
        return StartError(f"{where} is in use by another process: stop it or choose another --port")
    if error.errno == errno.EACCES:
        return StartError(f"{where} is not allowed for this user: choose a --port above 1023")
    return StartError(f"cannot listen on {where}: {error.strerror or error}: choose another --host")
