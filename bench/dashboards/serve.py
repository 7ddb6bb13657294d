"""Serves the pages over a store of made-up rows, as the collector does: query processes, newest rows in files.

    python -m bench.dashboards.serve FOLDER NODES [--stored]

Fills the folder, prints the port in a line, and gives every GPU a new sample each second, until it is ended.
What a collector does beside it (ingest, rollups, rules) it does not do.
"""

import argparse
import asyncio
from datetime import UTC, datetime
from pathlib import Path

import duckdb
from aiohttp import web
from bench.dashboards.fill import FleetSize, alerts, inventory, rollups, sample_sql

from gpuwarden.clock import SystemClock
from gpuwarden.schema import UPSERTED
from gpuwarden_collector.http.bodies import BodyReader
from gpuwarden_collector.http.sql import SqlEndpoint
from gpuwarden_collector.ops.query_log import QueryLog, QueryService
from gpuwarden_collector.query.fair_queue import QueryQueue
from gpuwarden_collector.query.querier import SqlQuerier
from gpuwarden_collector.query.stored import RUNNING_LOOK_S, label_running, take_stored
from gpuwarden_collector.query.worker import WorkerSettings
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.newest_rows import LatestRows
from gpuwarden_collector.storage.running_waste import RunningWaste
from gpuwarden_collector.storage.segment import SCHEMAS
from gpuwarden_dashboards.routes import routes

LIMITS = EngineLimits(memory="2GiB", threads=1)
LARGE_NODES = 5_000
PROCESSES_S = 10


def _size(nodes: int) -> FleetSize:
    return FleetSize(nodes, 0 if nodes > LARGE_NODES else 8)


def fill(database: Database, size: FleetSize, now: datetime) -> None:
    """All rows but those of now: rollups are in the lake."""
    for rows in (inventory, rollups, alerts):
        for table, select in rows(size, now):
            if table in UPSERTED:
                with database.reading() as cursor:
                    found = cursor.execute(
                        f"SELECT * FROM main.{table} WHERE false UNION ALL BY NAME ({select})"
                    ).to_arrow_table()
                stored = found.select(SCHEMAS[table].names).cast(SCHEMAS[table])
                commit(database, Changes(upserted={table: stored}))
            else:
                with database.maintaining() as cursor:
                    cursor.execute(f"INSERT INTO lake.main.{table} BY NAME {select}")


class Nowhere:
    """A writer that drops everything."""

    async def write(self, changes: Changes) -> None:
        """Drop it."""


class Samples:
    """Rows of this second, made by a DuckDB of their own."""

    def __init__(self, size: FleetSize) -> None:
        self._size = size
        self._db = duckdb.connect()
        self._db.execute("SET TimeZone = 'UTC'; SET threads = 1")
        for schema in SCHEMAS:
            self._db.register(f"as_{schema}", SCHEMAS[schema].empty_table())

    def of(self, table: str) -> object:
        """Rows of a table now, as Arrow in stored types."""
        select = sample_sql(table, self._size, "now()::TIMESTAMP")
        found = self._db.execute(f"FROM as_{table} UNION ALL BY NAME ({select})").to_arrow_table()
        return found.select(SCHEMAS[table].names).cast(SCHEMAS[table])


async def serve(folder: Path, nodes: int, *, is_stored: bool = False) -> None:
    """Until it is cancelled. `is_stored`: samples of now are in segments too."""
    size, clock = _size(nodes), SystemClock()
    database = Database.open(folder, LIMITS)
    fill(database, size, datetime.now(UTC))
    newest = database.spill_dir / "newest"
    latest = LatestRows(newest, clock)
    worker = WorkerSettings(folder, database.address, LIMITS, database.spill_dir, 0, newest)
    running, stats = RunningWaste(newest, clock), Stats()
    querier = SqlQuerier(worker, stats, clock, latest=latest, running=running)
    labels = SqlQuerier(worker, stats, clock, queries_max=1)
    samples = Samples(size)
    await take_stored(latest, querier)
    await label_running(running, labels)
    app = web.Application()
    bodies = BodyReader(in_flight_bytes_max=2**24, timeout_s=10)
    query_log = QueryLog("bench", Nowhere(), clock)  # type: ignore[arg-type]
    queries = QueryService(querier, QueryQueue(2), query_log, stats)
    sql = SqlEndpoint(queries, bodies, send_s=30)
    app.add_routes([*routes(querier, clock), *sql.routes()])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    second = 0
    try:
        while True:
            fresh = {name: samples.of(name) for name in ("gpu_samples", "host_samples")}
            await asyncio.to_thread(latest.add, fresh)
            if is_stored:
                await asyncio.to_thread(commit, database, Changes(appended=fresh))
            if second % PROCESSES_S == 0:
                rows = {"process_samples": samples.of("process_samples")}
                await asyncio.to_thread(commit, database, Changes(appended=rows))
            if second % RUNNING_LOOK_S == 0:
                await label_running(running, labels)
            if second == 0:
                print(runner.addresses[0][1], flush=True)
            second += 1
            await asyncio.sleep(1)
    finally:
        await runner.cleanup()
        await querier.close()
        await labels.close()
        database.close()


def main() -> None:
    """Command line."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("nodes", type=int)
    arguments.add_argument("--stored", action="store_true", help="put samples of now into segments")
    args = arguments.parse_args()
    asyncio.run(serve(args.folder, args.nodes, is_stored=args.stored))


if __name__ == "__main__":
    main()
