"""Measures what the storage process costs for each batch: CPU of minutes and seals, bytes of what is sealed.

    python -m bench.rollups [--agents 500] [--minutes 4]

Batches are those of `bench.store.batches`, stored as the collector does, in frames of a group commit.
Minutes are rolled up once while their samples are in segments and once when they are sealed already.
What was rolled up is compared with the SQL that defines it; a difference, or minutes that are missing,
end the run with 1.
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from bench.store.batches import BATCH_S, GPUS, Fleet, Template, simulated

from gpuwarden.clock import ManualClock
from gpuwarden.rollups import ROLLUPS
from gpuwarden_collector.ingest.writer import Writer, load_known
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.address import FILES, FOLDER
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.rollup import minutes
from gpuwarden_collector.storage.rollup_schedule import GRACE, Roller
from gpuwarden_collector.storage.rollup_sql import WindowSpan, rollup_sql
from gpuwarden_collector.storage.seal import Sealer, SealPolicy
from gpuwarden_collector.storage.segment import SCHEMAS

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
NODES, ROUNDS = 8, 24
"""Simulated nodes, and batches of each until they begin again."""
FRAME_AGENTS = 100
"""Batches of one frame."""
BATCHES_A_MINUTE = 60 // BATCH_S


def frames(fleet: Fleet, agents: int, number: int) -> Iterator[dict[str, Any]]:
    """Tables of all agents' batches of that number, in groups as they are committed."""
    shift_ms = fleet.shift_ms(number, int(START.timestamp() * 1000))
    for first in range(0, agents, FRAME_AGENTS):
        group: dict[str, list[Any]] = {}
        for agent in range(first, min(first + FRAME_AGENTS, agents)):
            for name, table in _stamped(fleet.template(agent, number), agent, shift_ms).items():
                group.setdefault(name, []).append(table)
        yield {
            name: pa.concat_tables(tables).combine_chunks()
            for name, tables in group.items()
            if name in SCHEMAS
        }


def _stamped(template: Template, agent: int, shift_ms: int) -> dict[str, Any]:
    raw = pa.py_buffer(template.stamped_raw(agent, shift_ms))
    return Template(raw).tables


def cpu_s() -> float:
    """CPU seconds so far of this process, all threads."""
    return time.process_time()


class Run:
    """A store of its own that is filled, rolled up and sealed."""

    def __init__(self, folder: Path, fleet: Fleet, agents: int, minutes: int) -> None:
        self._folder = folder
        self._fleet = fleet
        self._agents = agents
        self._minutes = minutes
        self._clock = ManualClock(START)
        self._database = Database.open(folder, EngineLimits())
        self.figures: dict[str, Any] = {}

    async def measure(self, *, is_sealed_first: bool) -> None:
        """Fill, roll up each minute as it closes, seal."""
        database, clock, stats = self._database, self._clock, Stats()
        writer = Writer(database, load_known(database, clock.now()), stats, clock)
        writer.start()
        sealer = Sealer(database, writer, stats, clock, SealPolicy(1e9, 1 << 50))
        roller = Roller(database, writer, stats, clock, sealer)
        rolled_s, sealed_s, batches = [], 0.0, self._agents * BATCHES_A_MINUTE
        try:
            for minute in range(self._minutes):
                await writer.do(lambda m=minute: self._fill(m))  # type: ignore[misc]
                clock.advance(60 + (GRACE.total_seconds() if minute == 0 else 0))
                if is_sealed_first:
                    sealed_s += await self._timed(sealer.run_once(is_forced=True))
                rolled_s.append(await self._timed(roller.run_once()))
            sealed_s += await self._timed(sealer.run_once(is_forced=True))
            clock.advance(3600)
            hour_s = await self._timed(roller.run_once())
        finally:
            await writer.stop()
        self.figures = {
            "minute_us_a_batch": [round(1e6 * s / batches) for s in rolled_s],
            "seal_us_a_batch": round(1e6 * sealed_s / batches / self._minutes),
            "sealed_rows_a_cpu_s": round(stats.sealed_rows.total() / sealed_s),
            "hour_us_a_batch": round(1e6 * hour_s / batches / self._minutes),
            "rss_most_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
        if not is_sealed_first:
            self.figures |= self._weigh()
        self._check()
        database.close()

    def _fill(self, minute: int) -> None:
        for number in range(minute * BATCHES_A_MINUTE, (minute + 1) * BATCHES_A_MINUTE):
            for tables in frames(self._fleet, self._agents, number):
                commit(self._database, Changes(appended=tables))

    async def _timed(self, work: Any) -> float:
        began_s = cpu_s()
        await work
        return cpu_s() - began_s

    def _weigh(self) -> dict[str, Any]:
        """Bytes of sealed samples a value, and of each table a row."""
        files = self._folder / FOLDER / FILES / "main"
        sizes = {
            name: sum(file.stat().st_size for file in (files / name).rglob("*.parquet"))
            for name in SCHEMAS
        }
        batches = self._agents * BATCHES_A_MINUTE * self._minutes
        agents = min(self._agents, 4 * NODES)
        values = sum(
            self._fleet.template(agent, number).values
            for agent in range(agents)
            for number in range(BATCHES_A_MINUTE * self._minutes)
        )
        samples = sum(size for name, size in sizes.items() if name not in ROLLUPS)
        mean_values = values / agents / BATCHES_A_MINUTE / self._minutes
        with self._database.reading() as cursor:
            rows = {
                name: cursor.execute(f"SELECT count(*) FROM {name}").fetchone() for name in sizes
            }
        return {
            "bytes_a_value": round(samples / (batches * mean_values), 3),
            "bytes_a_row": {
                name: round(size / count[0], 1)
                for name, size in sizes.items()
                if size and (count := rows[name]) and count[0]
            },
        }

    def _check(self) -> None:
        """Compare the stored rollups with those of all samples at once, to the last bit."""
        until = self._clock.now().replace(tzinfo=None)
        with self._database.reading() as cursor:
            minutes = cursor.execute("SELECT count(*) FROM gpu_1m").fetchall()[0][0]
            if minutes != GPUS * self._agents * self._minutes:
                raise SystemExit(f"gpu_1m: {minutes} rows for {self._agents} agents")
            for name, (_, *wrong) in compared(cursor, START.replace(tzinfo=None), until).items():
                if any(wrong):
                    raise SystemExit(f"{name}: {wrong} rows differ from the definition")


def compared(cursor: Any, begin: datetime, end: datetime) -> dict[str, tuple[int, int, int]]:
    """By rollup: its rows, those that the samples of that time do not give, and those that are missing."""
    found = {}
    for name, rollup in ROLLUPS.items():
        columns = ", ".join(rollup.table.names)
        if rollup.made_of is None:
            cursor.execute(f"CREATE OR REPLACE TEMP TABLE wanted AS FROM {name} LIMIT 0")
            for at in range(0, int((end - begin).total_seconds()), 600):
                first = begin + timedelta(seconds=at)
                last = min(first + timedelta(seconds=600), end)
                cursor.register("computed", minutes(cursor, rollup, first, last))
                cursor.execute("INSERT INTO wanted BY NAME FROM computed")
            sql = "FROM wanted"
        else:
            sql = rollup_sql(rollup, WindowSpan(begin, end))
        wanted = f"SELECT {columns} FROM ({sql})"
        got = f"SELECT {columns} FROM {name}"
        counts = (
            cursor.execute(f"SELECT count(*) FROM ({sql})").fetchone()[0]
            for sql in (got, f"{got} EXCEPT ALL {wanted}", f"{wanted} EXCEPT ALL {got}")
        )
        rows, extra, missing = counts
        found[name] = (rows, extra, missing)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--agents", type=int, default=500)
    parser.add_argument("--minutes", type=int, default=4)
    options = parser.parse_args(arguments)
    fleet = simulated(min(NODES, options.agents), min(ROUNDS, options.minutes * BATCHES_A_MINUTE))
    figures: dict[str, Any] = {
        "machine": f"{os.cpu_count()} CPUs, {_model()}, load {os.getloadavg()[0]:.1f}",
        "batch": {"rows": round(fleet.mean_rows()), "values": round(fleet.mean_values())},
    }
    for what, is_sealed_first in (("from segments", False), ("from the lake", True)):
        with tempfile.TemporaryDirectory(prefix="gpuwarden-bench-") as folder:
            run = Run(Path(folder), fleet, options.agents, options.minutes)
            asyncio.run(run.measure(is_sealed_first=is_sealed_first))
            figures[what] = run.figures
    json.dump(figures, sys.stdout, indent=1)
    print()


def _model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
