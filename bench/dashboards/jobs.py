"""Measures the page of a job and what a GPU's page compares with, over stores of made-up jobs.

    python -m bench.dashboards.jobs [--gpus 8 1024] [--days 0.1 2 30] [--rounds 3]

A job on that many GPUs has rollups by minute and hour, as the collector keeps them; it ended ten minutes ago. Printed
are the median milliseconds until the page's HTML is there, those of CPU, its bytes and phases; then of a GPU's page: its series
alone, the band of its model, and lines of the eight GPUs of its node. Queries run in two processes, as by default, and
read waste of the current hours and newest rows from files, as the collector keeps them.
"""

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
from aiohttp import ClientSession, web
from bench.dashboards.__main__ import cpu_s
from bench.dashboards.fill import FleetSize, inventory
from bench.dashboards.serve import LIMITS, store

from gpuwarden.clock import SystemClock, to_ms
from gpuwarden.query import timestamp_sql
from gpuwarden_collector.query.querier import SqlQuerier
from gpuwarden_collector.query.stored import label_running, take_stored
from gpuwarden_collector.query.worker import WorkerSettings
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.newest_rows import LatestRows
from gpuwarden_collector.storage.running_waste import RunningWaste
from gpuwarden_dashboards.routes import routes

JOB = "4711"
CHUNK = timedelta(days=1)
METRICS = (
    "util_percent,sm_active_percent,memory_used_bytes,power_watts,temperature_celsius,sm_clock_mhz"
)
SPANS = {"1 h": 1, "24 h": 24, "30 d": 720}
_OF = "node, gpu, gpu_uuid, true AS simulated"
_IS_PAUSE = "epoch(ts)::BIGINT // 60 % 20 = 0"
"""A checkpoint each 20 minutes."""
_GPUS = """
    {s} AS samples, {s} AS detail_samples, {s} AS health_samples, if({pause}, 80, 97) AS util_percent_avg,
    if({pause}, 0, 90) AS util_percent_min, 6e10 AS memory_used_bytes_avg, 6e10::BIGINT AS memory_used_bytes_max,
    500 + hash(gpu_uuid) % 50 AS power_watts_avg, 60 AS temperature_celsius_max, 1900 AS sm_clock_mhz_avg,
    70 AS sm_active_percent_avg, 4e10 AS nvlink_rx_bytes_per_second_avg, 0 AS idle_seconds, {s} AS busy_seconds,
    0 AS unknown_seconds, 6e4 AS energy_joules_delta"""
_PROCESSES = f"""
    1000 + gpu AS pid, 'ada' AS username, '{JOB}' AS slurm_job_id, 6 AS samples, 60 AS main_cpu_percent_avg,
    450 AS cpu_percent_avg, 8 AS loader_workers_avg, 6e9::BIGINT AS read_chars_delta,
    if({{pause}}, 24e9, 1e6)::BIGINT AS write_bytes_delta"""
_WASTE = (
    f"'ada' AS username, '{JOB}' AS slurm_job_id, 'busy' AS label, 3600 AS seconds, 2.95 AS usd"
)


def rollups(begin: datetime, end: datetime) -> Iterator[tuple[str, str]]:
    """Tables, and a SELECT of rows for each, by the day."""
    for table, step_s, columns in (
        ("gpu_1m", 60, _GPUS.format(s=60, pause=_IS_PAUSE)),
        ("process_1m", 60, _PROCESSES.format(pause=_IS_PAUSE)),
        ("gpu_1h", 3600, _GPUS.format(s=3600, pause="false")),
        ("waste_1h", 3600, _WASTE),
    ):
        at = begin.replace(minute=0, second=0, microsecond=0) if step_s == 3600 else begin
        while at < end:
            until = min(end, at + CHUNK)
            times = (
                f"range({timestamp_sql(at)}, {timestamp_sql(until)}, to_seconds({step_s})) t(ts)"
            )
            yield table, f"SELECT ts, {_OF}, {columns} FROM {times}, gpus"
            at = until


async def measured(gpus: int, days: float, rounds: int) -> bool:
    """Print the figures of one job; whether the page has what was made."""
    clock, now = SystemClock(), datetime.now(UTC).replace(second=0, microsecond=0)
    end = now - timedelta(minutes=10)
    begin = (end - timedelta(days=days)).replace(second=0)
    with tempfile.TemporaryDirectory(prefix="bench-jobs-") as name:
        folder = Path(name)
        database = Database.open(folder, LIMITS)
        store(database, inventory(FleetSize(-(-gpus // 8)), now))
        store(database, rollups(begin, end))
        newest = database.spill_dir / "newest"
        latest, running = LatestRows(newest, clock), RunningWaste(newest, clock)
        worker = WorkerSettings(folder, database.address, LIMITS, database.spill_dir, 0, newest)
        stack = AsyncExitStack()
        querier = await stack.enter_async_context(
            SqlQuerier(worker, Stats(), clock, latest=latest, running=running)
        )
        await take_stored(latest, querier)
        await label_running(running, querier)
        app = web.Application()
        app.add_routes(routes(querier, clock))
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            async with ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
                uuid = (
                    await querier.query("SELECT min(gpu_uuid) FROM gpus WHERE node = 'gpu-00000'")
                ).rows[0][0]
                return await printed(session, str(uuid), (gpus, days), end, rounds)
        finally:
            await runner.cleanup()
            await stack.aclose()
            database.close()


async def timed(session: ClientSession, path: str, rounds: int) -> tuple[str, str]:
    """Median milliseconds and milliseconds of CPU, in words; and the last text."""
    took, text = [], ""
    began_cpu_s = cpu_s(psutil.Process())
    for _ in range(rounds):
        began_s = time.perf_counter()
        async with session.get(path) as answer:
            text = await answer.text()
            assert answer.status == 200, text
        took.append((time.perf_counter() - began_s) * 1000)
    busy_ms = (cpu_s(psutil.Process()) - began_cpu_s) * 1000 / rounds
    return f"{statistics.median(took):,.0f} ms ({busy_ms:,.0f} of CPU)", text


async def printed(
    session: ClientSession, uuid: str, job: tuple[int, float], end: datetime, rounds: int
) -> bool:
    """Print what pages take; whether the job's page has its GPUs and its cost."""
    gpus, days = job
    ms, text = await timed(session, f"/jobs/{JOB}", rounds)
    phases = len(re.findall(r'<rect class="phase-[a-z-]+" x=', text))
    print(
        f"{gpus:,} GPUs for {days:g} days: page of the job {ms}, {len(text) / 1000:,.0f} kB, {phases} phases"
    )
    for words, hours in SPANS.items():
        if hours > 24 * days + 1:
            continue
        to_ = to_ms(end)
        asked = f"metrics={METRICS}&columns=300&begin={to_ - hours * 3_600_000}&end={to_}"
        alone, _ = await timed(session, f"/v1/series?gpu_uuid={uuid}&{asked}", rounds)
        band, found = await timed(session, f"/v1/series/model?gpu_uuid={uuid}&{asked}", rounds)
        none = "" if json.loads(found)["lines"] else " (none)"
        print(f"  a GPU, {words}: series {alone}; band of its model {band}{none}")
    sys.stdout.flush()
    return f"<b>{gpus:,}</b>" in text and "training" in text


async def main() -> int:
    """Command line."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gpus", type=int, nargs="+", default=[8, 1024])
    arguments.add_argument("--days", type=float, nargs="+", default=[0.1, 2, 30])
    arguments.add_argument("--rounds", type=int, default=3)
    args = arguments.parse_args()
    right = [await measured(g, d, args.rounds) for g in args.gpus for d in args.days]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
