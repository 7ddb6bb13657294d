"""Rolling up a large fleet: time and CPU of a minute and an hour, disk a row, with and without ingest.

python bench/rollups.py --gpus 10000
"""

import argparse
import asyncio
import contextlib
import json
import resource
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from gpuwarden.clock import ManualClock
from gpuwarden.metrics import METRICS, Kind, Metric, Type
from gpuwarden.schema import TABLES
from gpuwarden_collector.rolling import Roller
from gpuwarden_collector.sealing import Policy, Sealer
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.store.address import FILES, FOLDER
from gpuwarden_collector.store.commit import Changes, commit
from gpuwarden_collector.store.database import Database
from gpuwarden_collector.store.engine import Limits
from gpuwarden_collector.store.segment import SCHEMAS
from gpuwarden_collector.writer import Writer, load_known

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
GPUS_A_NODE = 8
CADENCES = {
    "gpu_samples": 1,
    "gpu_detail_samples": 10,
    "gpu_health_samples": 60,
    "process_samples": 10,
    "host_samples": 1,
}


def _value(metric: Metric) -> str:
    if metric.type is Type.BOOL:
        return "false"
    if metric.kind is Kind.COUNTER:
        slow = metric.cadence_s > 1
        return "g" if slow else "second * (700 + g % 50) + g"
    if metric.kind is Kind.FLAGS:
        return "if(g % 3 = 0, 4, 1)"
    # A plateau that moves slowly and a little noise, as samples of a GPU have.
    return "10 + g % 80 + (second // 30) % 5 + (hash(g, second) % 3)"


def samples(gpus: int, begin_s: int, end_s: int) -> dict[str, Any]:
    """Rows by table of the seconds from `begin_s` to `end_s`, in arrival order."""
    found = {}
    for table, every_s in CADENCES.items():
        things = gpus // GPUS_A_NODE if table == "host_samples" else gpus
        node = "g" if table == "host_samples" else f"g // {GPUS_A_NODE}"
        known = {
            "ts": f"TIMESTAMP '{START:%Y-%m-%d %H:%M:%S}' + to_seconds(second)",
            "node": f"'gpu-node-' || ({node})",
            "gpu": f"g % {GPUS_A_NODE}",
            "gpu_uuid": "'GPU-' || md5(g::VARCHAR)",
            "pid": "4000 + g",
            "username": "'user' || (g % 40)",
            "simulated": "true",
        }
        columns = {n: e for n, e in known.items() if n in TABLES[table].names}
        columns |= {metric.name: _value(metric) for metric in METRICS[table]}
        select = ", ".join(f"{expression} AS {name}" for name, expression in columns.items())
        with duckdb.connect() as connection:
            made = connection.execute(
                f"SELECT {select} "
                f"FROM range({begin_s}, {end_s}, {every_s}) s(second), range({things}) q(g)"
            ).to_arrow_table()
        arrays = [
            made[f.name].cast(f.type) if f.name in columns else pa.nulls(made.num_rows, f.type)
            for f in SCHEMAS[table]
        ]
        found[table] = pa.Table.from_arrays(arrays, schema=SCHEMAS[table])
    return found


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Bench:
    """A store with a fleet's samples."""

    def __init__(self, folder: Path, gpus: int) -> None:
        self.folder = folder
        self.gpus = gpus
        self.clock = ManualClock(START)
        self.database = Database.open(folder, Limits())
        self.figures: dict[str, Any] = {"gpus": gpus}

    async def run(self, minutes: int) -> None:
        writer = Writer(
            self.database, load_known(self.database, self.clock.now()), Stats(), self.clock
        )
        writer.start()
        sealer = Sealer(self.database, writer, Stats(), self.clock, Policy(1e9, 1 << 40))
        roller = Roller(self.database, writer, Stats(), self.clock, sealer)
        try:
            for minute in range(minutes):
                await writer.do(lambda m=minute: self._fill(m))  # type: ignore[misc]
                self.clock.advance(60)
                if minute == 0:
                    self.clock.advance(90)
                async with self._ingest(writer, is_busy=minute == minutes - 1):
                    began_s, cpu = time.perf_counter(), cpu_s()
                    await roller.run_once()
                what = "minute_with_ingest" if minute == minutes - 1 else "minute"
                self._note(what, time.perf_counter() - began_s, cpu_s() - cpu)
            self.clock.advance(3600)
            began_s, cpu = time.perf_counter(), cpu_s()
            await roller.run_once()
            self._note(f"hour_of_{minutes}_minutes", time.perf_counter() - began_s, cpu_s() - cpu)
            await sealer.run_once(is_forced=True)
        finally:
            await writer.stop()
        self._weigh()
        self.database.close()

    def _fill(self, minute: int) -> None:
        tables = samples(self.gpus, 60 * minute, 60 * minute + 60)
        commit(self.database, Changes(appended=tables))

    def _note(self, what: str, seconds: float, cpu: float) -> None:
        best = self.figures.get(what)
        if best is None or seconds < best["s"]:
            self.figures[what] = {"s": round(seconds, 2), "cpu_s": round(cpu, 2)}

    def _ingest(self, writer: Writer, *, is_busy: bool) -> Any:
        return _Ingest(writer, self.gpus, self.figures) if is_busy else contextlib.nullcontext()

    def _weigh(self) -> None:
        for name in ("gpu_1m", "gpu_1h", "host_1m", "process_1m"):
            files = list((self.folder / FOLDER / FILES).rglob(f"**/{name}/**/*.parquet"))
            with self.database.reading() as cursor:
                rows = cursor.execute(f"SELECT count(*) FROM {name}").fetchone()
            size = sum(file.stat().st_size for file in files)
            if rows and rows[0] and size:
                self.figures[f"{name}_bytes_a_row"] = round(size / rows[0], 1)


class _Ingest:
    """Stores a second of samples at a time, as fast as it can."""

    def __init__(self, writer: Writer, gpus: int, figures: dict[str, Any]) -> None:
        self._writer = writer
        self._gpus = gpus
        self._figures = figures
        self._is_over = False
        self._waits: list[float] = []

    async def _insert(self) -> None:
        second = 100_000
        while not self._is_over:
            tables = await asyncio.to_thread(samples, self._gpus, second, second + 1)
            began_s = time.perf_counter()
            await self._writer.write(Changes(appended=tables))
            self._waits.append(time.perf_counter() - began_s)
            second += 1

    async def __aenter__(self) -> None:
        self._task = asyncio.ensure_future(self._insert())

    async def __aexit__(self, *error: object) -> None:
        self._is_over = True
        await self._task
        self._figures["ingest_rows_s"] = round(self._gpus * len(self._waits) / sum(self._waits))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--minutes", type=int, default=6)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.gpus)
        asyncio.run(bench.run(options.minutes))
        print(json.dumps(bench.figures, indent=2))


if __name__ == "__main__":
    main()
