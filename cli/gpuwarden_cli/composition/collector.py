"""Composes the collector with rules, web pages and the MCP endpoint in one process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from aiohttp.web import AbstractRouteDef

from gpuwarden import logs
from gpuwarden.alert import Alert
from gpuwarden.clock import Clock, SystemClock
from gpuwarden.query import Querier
from gpuwarden_cli.composition.rules import RuleServices
from gpuwarden_cli.composition.supervision import (
    on_reload,
    reload_logging,
    run_until_signalled,
    supervised,
)
from gpuwarden_cli.mcp.http import McpEndpoint
from gpuwarden_collector.auth.access_control import has_sign_in
from gpuwarden_collector.daemon import Collector, running
from gpuwarden_collector.query.port import Front
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_dashboards.routes import routes as page_routes
from gpuwarden_prometheus.front import PROMETHEUS
from gpuwarden_prometheus.received.front import RECEIVED


@asynccontextmanager
async def collecting(
    settings: CollectorSettings,
    clock: Clock,
    *,
    on_change: Callable[[Alert], None] = lambda alert: None,
    reload: asyncio.Event | None = None,
    rule_processes: int = 2,
) -> AsyncIterator[Collector]:
    """Run a collector with rules and page while the block runs. Raises StartError.

    `on_change` is called with each alert that changes. When `reload` is set, rules, receivers and prices are read
    again. `rule_processes`: as of `running`.
    """
    rules = RuleServices(settings, clock, on_change)
    assistants = McpEndpoint(clock, rules.judgement)

    def routes(querier: Querier) -> Iterable[AbstractRouteDef]:
        pages = page_routes(
            querier,
            clock,
            rules.judgement,
            settings.grafana_url,
            settings.query_timeout_s,
            has_sign_in(settings),
        )
        return [*pages, *assistants.routes(querier), *rules.routes(querier)]

    async with running(
        settings,
        clock,
        routes=routes,
        more_metrics=rules.metrics,
        duties=rules.duties,
        front=_postgres(settings),
        http_fronts=[PROMETHEUS],
        sample_front=RECEIVED,
        rule_processes=rule_processes,
    ) as collector:
        rules.start(collector)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(
                rules.run(collector.background, reload or asyncio.Event(), stop), name="rules"
            )
            group.create_task(assistants.run(stop), name="assistants")
            try:
                yield collector
            finally:
                stop.set()


def _postgres(settings: CollectorSettings) -> Front | None:
    """PostgreSQL's protocol, if the settings have a port for it."""
    if settings.postgres_port is None:
        return None
    from gpuwarden_postgres.front import POSTGRES

    return POSTGRES


def run_collector(settings: CollectorSettings, load: Callable[[], CollectorSettings]) -> int:
    """Run `gpuwarden collector run`; `load` reads the settings again on SIGHUP."""
    logs.setup(settings.log_level, settings.log_format)

    async def main(stop: asyncio.Event) -> None:
        reload = asyncio.Event()
        on_reload(reload.set)  # SIGHUP must not end a process that is still starting
        async with collecting(settings, SystemClock(), reload=reload) as collector:

            def reload_all() -> None:
                reload.set()
                collector.reload()
                reload_logging(settings, load)

            on_reload(reload_all)
            await supervised(stop, f"listening on {collector.url}", collector.is_alive)

    return run_until_signalled(main)
