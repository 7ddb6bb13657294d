"""Serves the pages in states that a running fleet is seldom in: no data, few GPUs, not judged, no prices, agents gone, no answers.

All is in this process: rows of `fleet_rows.py` in a DuckDB in memory, which a fresh sample every two seconds keeps up.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web
from tests.dashboards.fleet_rows import FleetSize, alerts, inventory, rollups, sample_sql

from gpuwarden.clock import SystemClock
from gpuwarden.judgement import Judgement, JudgementState
from gpuwarden.query import QueryError, Result
from gpuwarden_dashboards.routes import routes
from gpuwarden_rules.testing import MemoryDatabase

SAMPLE_S = 2.0
KEPT_S = 60
OLD = timedelta(minutes=12)


@dataclass(frozen=True)
class FleetState:
    """A fleet, and what is the matter with it."""

    size: FleetSize
    is_judged: bool = True
    has_prices: bool = True
    is_silent: bool = False
    """No sample has come for a while."""
    is_broken: bool = False
    """Every query fails."""


_EIGHT = FleetState(FleetSize(1))
STATES: Mapping[str, FleetState] = {
    "empty": FleetState(FleetSize(0)),
    "one": FleetState(FleetSize(1, gpus_max=1)),
    "many": FleetState(FleetSize(8)),
    "unjudged": replace(_EIGHT, is_judged=False),
    "unpriced": replace(_EIGHT, has_prices=False),
    "offline": replace(_EIGHT, is_silent=True),
    "broken": replace(_EIGHT, is_broken=True),
}


class StateQuerier:
    """The port to the rows; fails where the state says so."""

    def __init__(self, database: MemoryDatabase, *, is_broken: bool) -> None:
        self._database = database
        self._is_broken = is_broken

    async def query(
        self,
        sql: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        row_limit: int | None = None,
    ) -> Result:
        """Rows of a query. Raises QueryError."""
        if self._is_broken:
            raise QueryError("the query took longer than 30 s")
        return self._database.run(sql, params)


def _filled(state: FleetState, now: datetime) -> MemoryDatabase:
    database = MemoryDatabase()
    for rows in (inventory, rollups, alerts):
        if rows is alerts and not state.is_judged:
            continue
        for table, select in rows(state.size, now):
            database.execute(f"INSERT INTO {table} BY NAME {_changed(state, table, select)}")
    return database


def _changed(state: FleetState, table: str, select: str) -> str:
    changed = []
    if not state.has_prices and table in ("gpus", "alerts", "incidents"):
        changed.append("NULL AS usd_per_hour")
    if not state.has_prices and table == "waste_1h":
        changed.append("NULL AS usd")
    if state.is_silent and table in ("nodes", "gpus"):
        changed.append(f"last_seen_at - INTERVAL {OLD.seconds} SECOND AS last_seen_at")
    return f"SELECT * REPLACE ({', '.join(changed)}) FROM ({select})" if changed else select


async def _sampled(database: MemoryDatabase, size: FleetSize) -> None:
    while True:
        for table in ("gpu_samples", "host_samples", "process_samples"):
            database.execute(
                f"INSERT INTO {table} BY NAME {sample_sql(table, size, 'now()::TIMESTAMP')}"
            )
            database.execute(
                f"DELETE FROM {table} WHERE ts < now()::TIMESTAMP - INTERVAL {KEPT_S} SECOND"
            )
        for table in ("nodes", "gpus"):
            database.execute(
                f"UPDATE {table} SET last_seen_at = now() WHERE last_seen_at > now()::TIMESTAMP - INTERVAL {OLD.seconds} SECOND"
            )
        await asyncio.sleep(SAMPLE_S)


@contextlib.asynccontextmanager
async def in_state(state: FleetState) -> AsyncIterator[str]:
    """Address of a server of the pages in that state."""
    now = datetime.now(UTC)
    database = _filled(state, now)
    querier = StateQuerier(database, is_broken=state.is_broken)
    begun = Judgement(JudgementState.NOT_YET, now, 71, 3)
    judged = Judgement(JudgementState.YES, None, 71, 71)
    app = web.Application()
    app.add_routes(routes(querier, SystemClock(), lambda: judged if state.is_judged else begun))
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with asyncio.TaskGroup() as group:
            sampling = None
            if state.size.gpus and not state.is_silent:
                sampling = group.create_task(_sampled(database, state.size))
                await asyncio.sleep(0)
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
            if sampling is not None:
                sampling.cancel()
    finally:
        await runner.cleanup()
        database.close()
