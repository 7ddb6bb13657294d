"""Serves the pages over a store of made-up rows, as the collector does: query processes, newest rows in files.

    python -m bench.dashboards.serve FOLDER NODES [--stored | --live]

Fills the folder, prints the port in a line, and gives every GPU a new sample each second, until it is ended. With
`--live` they come as agents send them, five seconds at once, and of the last minutes too.
What a collector does beside it (ingest, rollups, rules) it does not do.
"""

import argparse
import asyncio
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import duckdb
from aiohttp import web
from bench.dashboards.fill import FleetSize, Rows, alerts, inventory, rollups, sample_sql

from gpuwarden.clock import SystemClock
from gpuwarden.schema import UPSERTED
from gpuwarden_collector.http.annotations import annotation_routes
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
BATCH_S = 5
"""As agents send."""
LIVE_PAST_S = 400
LIVE_TABLES = ("gpu_samples", "gpu_detail_samples", "host_samples")


def _size(nodes: int) -> FleetSize:
    return FleetSize(nodes, 0 if nodes > LARGE_NODES else 8)


def fill(database: Database, size: FleetSize, now: datetime) -> None:
    """All rows but those of now: rollups are in the lake."""
    for rows in (inventory, rollups, alerts):
        store(database, rows(size, now))


def store(database: Database, rows: Rows) -> None:
    """Rows of each table: what is updated in the state file, the rest in the lake."""
    for table, select in rows:
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

    def of(self, table: str, seconds: range | None = None) -> object:
        """Rows of a table now, or of each of these seconds, as Arrow in stored types."""
        select = sample_sql(table, self._size, "now()::TIMESTAMP")
        if seconds is not None:
            each = sample_sql(table, self._size, "instant")
            times = f"SELECT make_timestamp(s * 1000000) AS instant FROM range({seconds.start}, {seconds.stop}) t(s)"
            select = f"SELECT r.* FROM ({times}) s, LATERAL ({each}) r"
        found = self._db.execute(f"FROM as_{table} UNION ALL BY NAME ({select})").to_arrow_table()
        return found.select(SCHEMAS[table].names).cast(SCHEMAS[table])


class Batches:
    """Rows of every second, committed as agents send them: some seconds at once."""

    def __init__(self, samples: Samples, database: Database) -> None:
        self._samples = samples
        self._database = database
        self._until_s = int(time.time()) - LIVE_PAST_S

    def commit(self) -> None:
        """Rows of the whole seconds since the last time, once they are a batch."""
        now_s = int(time.time())
        if now_s - self._until_s < BATCH_S:
            return
        seconds = range(self._until_s, now_s)
        rows = {name: self._samples.of(name, seconds) for name in LIVE_TABLES}
        commit(self._database, Changes(appended=rows))
        self._until_s = now_s


async def serve(
    folder: Path, nodes: int, *, is_stored: bool = False, is_live: bool = False
) -> None:
    """Until it is cancelled. `is_stored`: samples of now are in segments too; `is_live`: in batches."""
    size, clock = _size(nodes), SystemClock()
    database = Database.open(folder, LIMITS)
    fill(database, size, datetime.now(UTC))
    newest = database.spill_dir / "newest"
    latest = LatestRows(newest, clock)
    worker = WorkerSettings(folder, database.address, LIMITS, database.spill_dir, 0, newest)
    running, stats = RunningWaste(newest, clock), Stats()
    stack = AsyncExitStack()
    querier = await stack.enter_async_context(
        SqlQuerier(worker, stats, clock, latest=latest, running=running)
    )
    labels = await stack.enter_async_context(SqlQuerier(worker, stats, clock, queries_max=1))
    samples = Samples(size)
    batches = Batches(samples, database) if is_live else None
    await take_stored(latest, querier)
    await label_running(running, labels)
    app = web.Application()
    bodies = BodyReader(in_flight_bytes_max=2**24, timeout_s=10)
    query_log = QueryLog("bench", Nowhere(), clock)  # type: ignore[arg-type]
    queries = QueryService(querier, QueryQueue(2), query_log, stats)
    sql = SqlEndpoint(queries, bodies)
    notes = annotation_routes(database.state, clock)
    app.add_routes([*routes(querier, clock), *sql.routes(), *notes])
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
            if batches is not None:
                await asyncio.to_thread(batches.commit)
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
        await stack.aclose()
        database.close()


def main() -> None:
    """Command line."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("nodes", type=int)
    kind = arguments.add_mutually_exclusive_group()
    kind.add_argument("--stored", action="store_true", help="put samples of now into segments")
    kind.add_argument(
        "--live", action="store_true", help="put batches of every second into segments"
    )
    args = arguments.parse_args()
    asyncio.run(serve(args.folder, args.nodes, is_stored=args.stored, is_live=args.live))


if __name__ == "__main__":
    main()
