"""Runs the measured collector in a process of its own, reads its figures, and fills stores beforehand."""

import asyncio
import json
import logging
import os
import resource
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
from bench.store.data_clock import DataClock

from gpuwarden.clock import SystemClock
from gpuwarden.metrics import METRICS, Type
from gpuwarden_collector import stages
from gpuwarden_collector.daemon import running
from gpuwarden_collector.processes.footprint import keep_small
from gpuwarden_collector.settings import CollectorSettings
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.lake import seal
from gpuwarden_collector.storage.seal import SealPolicy
from gpuwarden_postgres.front import POSTGRES
from gpuwarden_prometheus.front import PROMETHEUS

SEALED_ROWS_MAX = 10_000_000
"""Rows filled in by one statement; more than a seal has."""
_SEALED = "samples moved to the lake"


class Seals(logging.Handler):
    """Notes when each seal ran, on the monotonic clock."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[float, float, int]] = []
        """Begin, end and rows."""

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line of the collector's log."""
        if record.getMessage() == _SEALED:
            fields: Mapping[str, Any] = record.__dict__
            now_s = time.monotonic()
            self.seen.append((now_s - fields["s"], now_s, fields["rows"]))


async def serve(settings: Mapping[str, Any]) -> None:
    """Run a collector; print its URL, and a line of figures for each line that is read."""
    seals = Seals()
    logging.getLogger("gpuwarden_collector").addHandler(seals)
    logging.getLogger("gpuwarden_collector").setLevel(logging.INFO)
    paths = {name: Path(settings[name]) for name in ("data_dir", "access_file") if name in settings}
    chosen = {**settings, **paths, "port": 0}
    path = chosen.pop("clock", None)
    policy = partial(SealPolicy, **chosen.pop("seal", {}))
    clock = SystemClock() if path is None else DataClock(Path(path), 0)
    served = running(CollectorSettings(**chosen), clock, front=POSTGRES, http_fronts=[PROMETHEUS])
    with patch.object(stages, "SealPolicy", policy):
        async with served as collector:
            print(collector.url, flush=True)
            loop = asyncio.get_running_loop()
            while await loop.run_in_executor(None, sys.stdin.readline):
                figures = {"seals": seals.seen, "rows": collector.stats.rows_total}
                print(json.dumps(figures), flush=True)


class Child:
    """A running collector."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.pid = process.pid
        self._usage = psutil.Process(process.pid)
        self.url = self._line().strip()
        self.port = int(self.url.rpartition(":")[2])

    def _line(self) -> str:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return line
        raise SystemExit("the collector did not start, or has ended; see above")

    def figures(self) -> dict[str, Any]:
        """Rows stored and seals so far."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._line())
        return found

    def cpu_s(self) -> float:
        """CPU seconds so far of all its processes that run."""
        return sum(sum(process.cpu_times()[:2]) for process in self._processes())

    def pss_mib(self) -> float:
        """Memory of all its processes now, shared pages once."""
        return sum(float(p.memory_full_info().pss) for p in self._processes()) / 2**20

    def _processes(self) -> list[psutil.Process]:
        return [self._usage, *self._usage.children(recursive=True)]

    def query(self, sql: str) -> list[Any]:
        """Rows of a query over HTTP."""
        request = urllib.request.Request(
            self.url + "/v1/sql",
            json.dumps({"sql": sql}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            rows: list[Any] = json.load(answer)["rows"]
            return rows


@contextmanager
def collector(data_dir: Path, **settings: Any) -> Iterator[Child]:
    """A collector over a data folder, stopped in good order with the block. `settings`: its own, and
    `clock`: the file of a `DataClock`, `seal`: fields of `SealPolicy`."""
    root = Path(__file__).parents[2]
    options = json.dumps({**settings, "data_dir": str(data_dir)}, default=str)
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.store.ours", options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    try:
        yield Child(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(120)


def size_bytes(folder: Path) -> int:
    """Bytes of all files under a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def fill(
    data_dir: Path, rows: int, gpus: int, rolled_until: datetime, memory: str = "2GiB"
) -> dict[str, float]:
    """Store generated rows of gpu_samples, the last of them sealed as the collector does; what that took.

    `rolled_until`: naive UTC, a whole hour; rollups begin there.
    """
    database = Database.open(data_dir, EngineLimits(memory=memory))
    try:
        segment = database.freeze()
        with database.maintaining() as cursor:
            began_s = time.perf_counter()
            for first in range(0, rows - SEALED_ROWS_MAX, SEALED_ROWS_MAX):
                some = _fill_sql(first, SEALED_ROWS_MAX, gpus)
                cursor.execute(f"INSERT INTO lake.main.gpu_samples BY NAME {some}")
            first = (rows - 1) // SEALED_ROWS_MAX * SEALED_ROWS_MAX
            rest = _fill_sql(first, rows - first, gpus)
            cursor.execute(f"CREATE TEMP TABLE filled AS {rest}")
            filled_s = time.perf_counter() - began_s
            began_s, cpu_s = time.perf_counter(), time.process_time()
            seal(
                cursor,
                database.lake_root,
                database.collector,
                segment,
                {"gpu_samples": "SELECT * FROM filled"},
            )
            took_s = time.perf_counter() - began_s
            used_s = time.process_time() - cpu_s
        with database.state.writing() as writing:
            # As if all of it were rolled up: what is measured is ingest beside it, not its rollups.
            writing.set_meta(dict.fromkeys(("minutes_until", "hours_until"), rolled_until))
        database.drop(segment)
    finally:
        database.close()
    return {
        "rows": rows,
        "filled_s": filled_s,
        "seal_s": took_s,
        "sealed_rows_per_s": (rows - first) / took_s,
        "sealed_rows_per_cpu_s": (rows - first) / used_s,
        "rss_most_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "bytes_per_value": size_bytes(data_dir / "lake" / "data") / rows / len(_filled()),
    }


def _filled() -> Sequence[str]:
    return [m.name for m in METRICS["gpu_samples"] if m.type is not Type.BOOL]


def _fill_sql(first: int, rows: int, gpus: int) -> str:
    """SELECT of `rows` rows from the row `first` on, second by second for all GPUs, with whole numbers as sensors give."""
    values = ", ".join(
        f"least(100, 30 + (hash(i % {gpus} * {number + 1}, i // {gpus} // 20) % 40) "
        f"+ (i // {gpus}) % 3) AS {name}"
        if number % 3
        else f"(i % {gpus}) % 7 AS {name}"
        for number, name in enumerate(_filled())
    )
    return (
        "SELECT "
        f"(now()::TIMESTAMP - INTERVAL 2 DAY) + to_seconds(i // {gpus}) AS ts, "
        f"'old-' || (i % {gpus}) // 8 AS node, (i % 8)::INTEGER AS gpu, "
        f"'GPU-old-' || (i % {gpus}) AS gpu_uuid, true AS simulated, {values} "
        f"FROM range({first}, {first + rows}) r(i)"
    )


if __name__ == "__main__":
    keep_small()  # as the command does
    asyncio.run(serve(json.loads(sys.argv[1])))
