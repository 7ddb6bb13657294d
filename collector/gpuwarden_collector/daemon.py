"""Starts the collector stage by stage, and ends the stages in reverse order."""

import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from gpuwarden.alert import AlertStore
from gpuwarden.clock import Clock
from gpuwarden.cluster import Cluster
from gpuwarden.diagnosis import DiagnosisStore
from gpuwarden.incident import IncidentStore
from gpuwarden.query import ExpectedQuery, Querier
from gpuwarden_collector import stages
from gpuwarden_collector.auth.access_control import AccessControl
from gpuwarden_collector.http.annotations import annotation_routes
from gpuwarden_collector.http.app import Api, node_routes
from gpuwarden_collector.http.copies import copy_routes
from gpuwarden_collector.http.gpu_tests import gpu_test_routes
from gpuwarden_collector.http.listen import raise_descriptors, serve
from gpuwarden_collector.http.openapi import openapi_routes
from gpuwarden_collector.http.receive import Ingest
from gpuwarden_collector.http.saved_queries import query_routes
from gpuwarden_collector.http.sql import SqlEndpoint
from gpuwarden_collector.ingest.port import SampleFront
from gpuwarden_collector.ingest.writer import StoredEvents
from gpuwarden_collector.ops.health import Duties, Health
from gpuwarden_collector.ops.readiness_probe import Readiness
from gpuwarden_collector.query.port import Front, HttpFront
from gpuwarden_collector.rule_stores import (
    SqlAlertStore,
    SqlDiagnosisStore,
    SqlIncidentStore,
    SqlPolicyRecords,
)
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.second_copy import CopyFolder
from gpuwarden_collector.storage.state import StateFile
from gpuwarden_collector.supervision import ending_with

log = logging.getLogger(__name__)

Routes = Callable[[Querier], Iterable[web.AbstractRouteDef]]


def no_routes(querier: Querier) -> Iterable[web.AbstractRouteDef]:
    """No routes besides the API."""
    return ()


@dataclass(frozen=True, slots=True)
class Collector:
    """A running collector."""

    url: str
    """Its URL, such as http://127.0.0.1:8750."""
    querier: Querier
    """Sees all rows, for every caller."""
    rules_querier: Querier
    """For rules, which must not wait for other queries."""
    expect: Callable[[Sequence[ExpectedQuery]], None]
    """Has the rows that these queries read kept in memory for `rules_querier`."""
    background: Querier
    """For background queries: they use the rules' processes, which have the newest rows in memory. At most one of
    them waits before a rule."""
    alerts: AlertStore
    incidents: IncidentStore
    diagnoses: DiagnosisStore
    stats: Stats
    is_alive: Callable[[], bool]
    """Whether batches are decoded and written; for the watchdog."""
    queue_bytes: Callable[[], int]
    """Decoded bytes that wait for the writer."""
    endpoints: Sequence[tuple[str, str]]
    """Method and path of each endpoint."""
    reload: Callable[[], None]
    """Reads tokens and certificate again; the collector also does so by itself within seconds."""
    take_prices: Callable[[], Awaitable[str | None]]
    """Reads the prices file again. Returns what is wrong with it, and then keeps the old prices; None: nothing."""
    policy_records: SqlPolicyRecords
    events: StoredEvents
    """Calls a listener when events are stored."""
    seal: Callable[[], Awaitable[int]]
    """Moves all rows in segments to the lake; returns their number."""
    cluster: Cluster
    postgres: tuple[str, int] | None
    """Address and port for PostgreSQL's clients; None: not served."""


@asynccontextmanager
async def running(
    settings: CollectorSettings,
    clock: Clock,
    *,
    routes: Routes = no_routes,
    more_metrics: Callable[[], str] = str,
    duties: Callable[[], Duties] = Duties,
    front: Front | None = None,
    http_fronts: Sequence[HttpFront] = (),
    sample_front: SampleFront | None = None,
    rule_processes: int = 2,
) -> AsyncIterator[Collector]:
    """Run a collector until the end of the block, and store all batches that it has received.

    `more_metrics` returns Prometheus text that /metrics adds to the collector's own; `duties` the state of the
    process's other duties. `front` listens on `postgres_port`, if that is set; `http_fronts` and `sample_front` add
    routes. `rule_processes`: queries of rules, and then of the diagnosis, that run at the same time.

    Raises StartError when it cannot start. If the writer fails, the block ends with WriterFailedError.
    """
    async with AsyncExitStack() as stack:
        stats = Stats()
        access = AccessControl(settings, clock, stats.denied, raise_descriptors())

        # Store rows: the store, the writer that appends to it, the process that moves rows to the lake.
        store = await stages.open_store(stack, settings, stats, clock)
        clock_check = stages.clock_check_of(store.frames, clock)
        writer, ended = stages.start_writer(stack, settings, store, stats, clock, clock_check)
        timetable = await stages.start_timetable(stack, access)
        queriers = await stages.start_queriers(stack, settings, store, timetable, stats, clock, stages.dialects_of(front, http_fronts), rule_processes)  # fmt: skip
        await stages.start_storage(stack, store, writer, timetable, clock_check)
        disk = stages.watch_disk(timetable, settings, store, queriers)

        # Receive batches.
        intake = stages.start_intake(stack, settings, writer, disk, clock, stats)
        bodies, decode_pool, quota, admission = intake
        ingest = Ingest(admission, bodies, decode_pool, stats, clock, clock_check)
        receiving = stages.start_receiver(stack, settings, sample_front, intake, timetable, stats, clock)  # fmt: skip
        pacing = stages.start_pacing(timetable, stats, clock)

        # Observe the collector itself.
        levels = partial(stages.levels_of, store, writer, timetable, disk, clock_check, bodies, decode_pool, pacing, quota, access)  # fmt: skip
        state, querier = store.frames.state, queriers.clients
        readiness = Readiness(querier, stats, clock, levels, duties)
        health = Health(state.collector, writer, stats, clock, querier, levels, disk.budget, duties, readiness.look)  # fmt: skip
        await stages.sample_itself(timetable, health)
        await stages.take_commands(stack, settings, store.storage, health)

        # Answer requests: HTTP, and the front's protocol.
        queries = stages.query_service(settings, store, writer, querier, timetable, stats, clock)
        audit = stages.start_audit(store, writer, timetable, access, clock)
        api = Api(
            ingest, stats, clock, levels, readiness, more_metrics=more_metrics,
            pacing=pacing, middlewares=(audit.middleware, access.middleware),
        )  # fmt: skip
        sql = SqlEndpoint(queries, bodies)
        fronts = stages.front_routes(
            http_fronts, queries, bodies, clock, stats, settings.keep_samples_days
        )
        own = (*access.routes, access.enrolment(store.known.nodes), *sql.routes(), *fronts, *node_routes(writer), *gpu_test_routes(admission, clock), *copy_routes(CopyFolder(settings.data_dir), bodies, lambda: disk.refusal), *receiving)  # fmt: skip
        app = _application(api, [*own, *_routes_of_people(state, clock), *routes(queriers.callers)])  # fmt: skip
        url = health.url = await serve(stack, settings, app, access, stats)
        postgres = await stages.listen_beside(stack, settings, front, queries, access, stats)
        # This runs first at the end: a client that waits for an answer would delay the end of the server.
        stack.push_async_callback(querier.close)
        log.info("collector listens", extra={"url": url, "data": str(settings.data_dir)})
        with ending_with(ended):
            yield Collector(
                url=url,
                querier=querier,
                rules_querier=queriers.rules,
                background=queriers.rules.background,
                expect=queriers.rules.expect,
                alerts=SqlAlertStore(writer, queriers.rules, clock),
                incidents=SqlIncidentStore(writer, queriers.rules),
                diagnoses=SqlDiagnosisStore(writer, queriers.rules),
                stats=stats,
                is_alive=lambda: writer.is_alive() and decode_pool.is_alive,
                queue_bytes=lambda: writer.queue_bytes,
                endpoints=endpoints_of(app),
                reload=access.reload,
                take_prices=partial(stages.take_prices, settings, writer),
                policy_records=SqlPolicyRecords(writer, audit),
                events=queriers.events,
                seal=store.storage.seal,
                cluster=store.storage,
                postgres=postgres,
            )
    log.info("collector stopped", extra={"batches": stats.batches, "rows": stats.rows_total})


def _routes_of_people(state: StateFile, clock: Clock) -> Iterable[web.AbstractRouteDef]:
    """Routes of what people save: queries, annotations."""
    yield from query_routes(state, clock)
    yield from annotation_routes(state, clock)


def _application(api: Api, routes: Iterable[web.AbstractRouteDef]) -> web.Application:
    """The application, with the OpenAPI document of its endpoints."""
    served: list[tuple[str, str]] = []
    app = api.application([*routes, *openapi_routes(served)])
    served += endpoints_of(app)
    return app


def endpoints_of(app: web.Application) -> list[tuple[str, str]]:
    """Method and path of each endpoint of an application."""
    return [
        (route.method, route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None
    ]
