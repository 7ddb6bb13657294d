"""Measures how long it takes to roll up minutes whose samples come late, as after days without a collector.

    python -m bench.late [--nodes 50] [--gpus 4] [--hours 6] [--period-s 10] [--noted 0] [--on-time]

The store has been rolled up until now when agents send what they have kept: each row is late. What is
sealed is mended, step by step; a seal waits for its turn meanwhile, as another one does in a collector.
`--noted`: windows that come after these and must cost nothing. `--on-time`: the same samples, none of
them late, to compare with. What was rolled up is compared with the SQL that defines it; a difference,
or a window that is missing, ends the run with 1.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from bench.rollups import compared

from gpuwarden.clock import ManualClock
from gpuwarden.wire import BatchId
from gpuwarden_collector.ingest.commit_plan import Batch
from gpuwarden_collector.ingest.decode import WIRE_SCHEMAS, Decoded
from gpuwarden_collector.ingest.writer import Writer, load_known
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.rollup_schedule import Roller
from gpuwarden_collector.storage.seal import Sealer, SealPolicy

START = datetime(2026, 3, 1, tzinfo=UTC)
NODES_A_BATCH = 10


def batch_tables(nodes: range, gpus: int, hour: int, period_s: int) -> dict[str, Any]:
    """Samples of some nodes over an hour."""
    rng = np.random.default_rng(hour * 100_000 + nodes.start)
    seconds = np.arange(hour * 3600, (hour + 1) * 3600, period_s)
    begin_ms = int(START.timestamp() * 1000)
    names = np.repeat([f"node-{n:05d}" for n in nodes], len(seconds))
    host = {
        "node": names,
        "ts": np.tile(seconds * 1000 + begin_ms, len(nodes)),
        "simulated": np.ones(len(names), np.bool_),
        "cpu_util_percent": rng.random(len(names), np.float32) * 100,
    }
    number = np.tile(np.arange(gpus), len(names))
    of_gpu = np.repeat(names, gpus)
    ts = np.repeat(host["ts"], gpus)
    gpu = {
        "node": of_gpu,
        "gpu": number,
        "gpu_uuid": np.char.add(np.char.add(of_gpu, "-"), number.astype(str)),
        "ts": ts,
        "simulated": np.ones(len(ts), np.bool_),
        "util_percent": rng.random(len(ts), np.float32) * 100,
        "power_watts": rng.random(len(ts), np.float32) * 700,
        "energy_joules_total": (ts - begin_ms) / 1000 * 300.0,
        "memory_used_bytes": rng.integers(0, 1 << 36, len(ts)),
        "temperature_celsius": rng.integers(30, 90, len(ts)),
        "clocks_event_reasons": rng.integers(0, 64, len(ts)),
    }
    return {"gpu_samples": _wire("gpu_samples", gpu), "host_samples": _wire("host_samples", host)}


def _wire(name: str, columns: dict[str, Any]) -> Any:
    schema, count = WIRE_SCHEMAS[name], len(columns["ts"])
    return pa.table(
        [
            pa.array(columns[f.name]).cast(f.type) if f.name in columns else pa.nulls(count, f.type)
            for f in schema
        ],
        schema=schema,
    )


class Run:
    """A collector whose agents come back."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._options = options
        self._clock = ManualClock(START + timedelta(hours=options.hours, minutes=10))
        self._database = Database.open(folder, EngineLimits())
        self._seal_waits_s: list[float] = []
        self.figures: dict[str, Any] = {}

    async def measure(self) -> bool:
        """Mend; return whether minutes and hours equal those of the SQL."""
        database, clock, stats, options = self._database, self._clock, Stats(), self._options
        writer = Writer(database, load_known(database, clock.now()), stats, clock)
        writer.start()
        sealer = Sealer(database, writer, stats, clock, SealPolicy(1e9, 1 << 50))
        roller = Roller(database, writer, stats, clock, sealer)
        try:
            if not options.on_time:
                await roller.run_once()
            sequence = 0
            for hour in range(options.hours):
                for first in range(0, options.nodes, NODES_A_BATCH):
                    nodes = range(first, min(first + NODES_A_BATCH, options.nodes))
                    tables = batch_tables(nodes, options.gpus, hour, options.period_s)
                    sequence += 1
                    decoded = Decoded.of(tables, 1000)
                    await writer.store(Batch(BatchId("bench", "boot", sequence, 0), decoded))
                await sealer.run_once(is_forced=True)
            self._note_more()
            began_s, before_s = time.perf_counter(), time.process_time()
            clock.advance(60)
            steps_s = await self._mended(roller, sealer)
            wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - before_s
            windows = options.nodes * options.hours * 60
            self.figures = {
                "windows": windows,
                "mended_s": round(wall_s, 1),
                "cpu_us_a_window": round(1e6 * cpu_s / windows),
                "steps": len(steps_s),
                "longest_step_s": round(max(steps_s), 2),
                "longest_wait_of_a_seal_s": round(max(self._seal_waits_s), 2),
                "windows_computed": stats.mended_windows,
            }
            return self._is_right() and self._is_whole()
        finally:
            await writer.stop()
            database.close()

    def _note_more(self) -> None:
        """Add windows of unknown nodes, after all others."""
        count = self._options.noted
        later = (START + timedelta(hours=self._options.hours)).replace(tzinfo=None)
        ts = [later - timedelta(minutes=1)] * count
        with self._database.state.writing() as writing:
            writing.add_late(pa.table({"node": [f"z{n:07d}" for n in range(count)], "ts": ts}))

    async def _mended(self, roller: Roller, sealer: Sealer) -> list[float]:
        steps_s: list[float] = []
        step = roller._step

        async def timed() -> bool:
            began_s = time.perf_counter()
            is_more = await step()
            steps_s.append(time.perf_counter() - began_s)
            return is_more and not (self._options.noted and self._is_done())

        roller._step = timed  # type: ignore[method-assign]
        is_over = asyncio.Event()

        async def seal() -> None:
            while not is_over.is_set():
                began_s = time.perf_counter()
                await sealer.run_once()
                self._seal_waits_s.append(time.perf_counter() - began_s)
                await asyncio.sleep(0.05)

        sealing = asyncio.ensure_future(seal())
        await asyncio.sleep(0)
        await roller.run_once()
        is_over.set()
        await sealing
        return steps_s

    def _is_done(self) -> bool:
        """Whether only windows of unknown nodes are left."""
        late = self._database.state.late(1 << 62, None, 1)
        return not late.num_rows or late["node"][0].as_py().startswith("z")

    def _is_whole(self) -> bool:
        """Whether each minute of each GPU is there, and was rolled up again where it came late."""
        windows = self.figures["windows"]
        with self._database.reading() as cursor:
            rows = cursor.execute("SELECT count(*) FROM gpu_1m").fetchall()[0][0]
        is_mended = self._options.on_time or self.figures["windows_computed"] >= windows
        return bool(rows == windows * self._options.gpus and is_mended)

    def _is_right(self) -> bool:
        begin = START.replace(tzinfo=None)
        end = begin + timedelta(hours=self._options.hours)
        with self._database.reading() as cursor:
            differing = compared(cursor, begin, end)
        self.figures["rows, too many, missing"] = differing
        return not any(one or other for _, one, other in differing.values())


def main() -> int:
    """Print figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--hours", type=int, default=6)
    parser.add_argument("--period-s", type=int, default=10)
    parser.add_argument("--noted", type=int, default=0)
    parser.add_argument("--on-time", action="store_true")
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), parser.parse_args())
        is_right = asyncio.run(run.measure())
    print(json.dumps(run.figures, indent=2))
    if not is_right:
        print("what is stored is not what the SQL gives", file=sys.stderr)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
