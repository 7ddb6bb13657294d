"""Offers PostgreSQL's protocol as a front of the collector."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpuwarden_collector.query.port import Front, FrontAccess, FrontStats, Queries
from gpuwarden_postgres.server import PostgresServer


@asynccontextmanager
async def _listening(
    host: str,
    port: int,
    group: asyncio.TaskGroup,
    queries: Queries,
    access: FrontAccess,
    stats: FrontStats,
) -> AsyncIterator[tuple[str, int]]:
    server = PostgresServer(queries, access, stats)
    async with server.listening(host, port, group) as address:
        yield address


POSTGRES = Front("postgres", "gpuwarden_postgres.dialect:PostgresDialect", _listening)
