"""What a minute of the metrics that only the collector knows costs to compute and to send by remote write.

    python -m bench.remote_write_minutes [--gpus 2000] [--runs 5]

A store is filled with a fleet whose GPUs each have an owner, a verdict and four tables of coverage, and a collector is
run over it. Prints for each source its series, milliseconds from question to rows, CPU of the collector's processes, and
CPU to make requests of them, for one minute and for ten at once. The number of series is checked.
"""

import argparse
import json
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from bench.store import ours

from gpuwarden.collector_metrics import MINUTE_MS, SOURCES
from gpuwarden.query import ARROW_TYPE
from gpuwarden.schema import TABLES, stored_columns
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.schemas import arrow_schema
from gpuwarden_prometheus.remote_write.bodies import BodyEncoder, requests_of
from gpuwarden_prometheus.remote_write.computed import (
    COMPUTED_KINDS,
    ComputedSeries,
    minutes_sql,
)

HOURS = 3
_PLACE = (
    "'node' || (g // 8) AS node, (g % 8)::INTEGER AS gpu, 'GPU-' || lpad(g::VARCHAR, 32, '0') AS gpu_uuid, "
    "false AS simulated"
)
_OWNER = "'user' || (g // 8 % 50) AS username, (g // 8)::VARCHAR AS slurm_job_id"
_LAKE = {
    "gpu_1m": f"""SELECT $rolled::TIMESTAMP - to_minutes(1 + m) AS ts, {_PLACE}, 60 AS samples, 6 AS detail_samples,
        1 AS health_samples, if(g % 10 = 0, 60.0, 3.0) AS idle_seconds, if(g % 10 = 0, 0.0, 57.0) AS busy_seconds,
        0.0 AS unknown_seconds, 95.0 AS util_percent_avg, 4e10::BIGINT AS memory_used_bytes_max
        FROM range($gpus) a(g), range($minutes) b(m)""",
    "process_1m": f"""SELECT $rolled::TIMESTAMP - to_minutes(1 + m) AS ts, {_PLACE}, 7 AS pid, {_OWNER}, 6 AS samples,
        4e10::BIGINT AS gpu_memory_bytes_max FROM range($gpus) a(g), range($minutes) b(m)""",
    "host_1m": """SELECT $rolled::TIMESTAMP - to_minutes(1 + m) AS ts, 'node' || g AS node, false AS simulated,
        60 AS samples FROM range(($gpus + 7) // 8) a(g), range($minutes) b(m)""",
    "allocation_samples": f"""SELECT $now::TIMESTAMP - to_seconds(10 * s) AS ts, {_PLACE}, 'slurm' AS scheduler,
        (g // 8)::VARCHAR AS owner, {_OWNER} FROM range($gpus) a(g), range(6 * $minutes) b(s)""",
    "coverage": f"""SELECT $now::TIMESTAMP - to_minutes(m) AS ts, {_PLACE}, 'gpu' || g % 8 AS probe,
        ['gpu_samples', 'gpu_health_samples', 'process_samples', 'link_samples'][k + 1] AS table_name, 60 AS expected,
        60 AS taken, 0 AS missed, 0 AS skipped, 0 AS late, 0 AS failed
        FROM range($gpus) a(g), range($minutes) b(m), range(4) c(k)""",
    "waste_1h": f"""SELECT date_trunc('hour', $now::TIMESTAMP) - to_hours(1 + h) AS ts, {_PLACE}, {_OWNER},
        ['busy', 'idle_held'][k + 1] AS label, 1800.0 AS seconds, 1.5 AS usd, 'NVIDIA H100 80GB HBM3' AS model
        FROM range($gpus) a(g), range(1, $minutes // 60) b(h), range(2) c(k)""",
}
_STATE = {
    "gpus": f"""SELECT {_PLACE}, 'NVIDIA H100 80GB HBM3' AS model, 2.95::DOUBLE AS usd_per_hour,
        $now::TIMESTAMP - INTERVAL 1 DAY AS first_seen_at, $now::TIMESTAMP AS last_seen_at FROM range($gpus) a(g)""",
    "diagnoses": f"""SELECT * RENAME (gpu_uuid AS subject), 'gpu' AS kind, 'throttled' AS bottleneck, 0.9::DOUBLE AS confidence,
        's' AS summary, '[]' AS evidence, '[]' AS misses, 0.1::DOUBLE AS stall, 0.3::DOUBLE AS usd_per_hour, 1 AS gpus,
        $now::TIMESTAMP - INTERVAL 2 HOUR AS began_at, $now::TIMESTAMP AS seen_at
        FROM (SELECT {_PLACE} FROM range($gpus) a(g))""",
}


def fill(folder: Path, gpus: int) -> None:
    """Fill the store of a fleet until now."""
    now = datetime.now(UTC).replace(tzinfo=None, second=0, microsecond=0)
    rolled = now - timedelta(minutes=3)
    said = {"now": now, "gpus": gpus, "minutes": 60 * HOURS, "rolled": rolled}
    database = Database.open(folder, EngineLimits(memory="2GiB", threads=1))
    try:
        for table, select in _STATE.items():
            rows = _rows(select, said).to_pylist()
            made = pa.Table.from_pylist(rows, schema=arrow_schema(stored_columns(TABLES[table])))
            commit(database, Changes(upserted={table: made}))
        with database.maintaining() as cursor:
            for table, select in _LAKE.items():
                used = {name: value for name, value in said.items() if f"${name}" in select}
                cursor.execute(f"INSERT INTO lake.main.{table} BY NAME {select}", used)
        with database.state.writing() as writing:
            writing.set_meta({"minutes_until": rolled, "hours_until": rolled.replace(minute=0)})
    finally:
        database.close()


def _rows(select: str, said: dict[str, Any]) -> Any:
    used = {name: value for name, value in said.items() if f"${name}" in select}
    return duckdb.connect().execute(select, used).to_arrow_table()


def ask(url: str, sql: str) -> Any:
    """The rows of a query, as an Arrow table."""
    body = json.dumps({"sql": sql, "row_limit": 10_000_000}).encode()
    headers = {"Content-Type": "application/json", "Accept": ARROW_TYPE}
    with urllib.request.urlopen(urllib.request.Request(url + "/v1/sql", body, headers)) as answer:
        return pa.ipc.open_stream(answer.read()).read_all()


def measure(child: ours.Child, source: str, steps: int, runs: int) -> list[float]:
    """Series, and means of the milliseconds to rows, of the CPU for them, and of the CPU for requests."""
    series = ComputedSeries(source, lambda name: True, {})
    encoder = BodyEncoder(1, COMPUTED_KINDS)
    took_ms, made_ms, count = [], [], 0
    began_s = 0.0
    for run in range(runs + 1):
        if run == 1:
            began_s = child.cpu_s()  # the first one starts a process, and encodes labels
            took_ms, made_ms = [], []
        first_ms = (round(time.time() * 1000) // MINUTE_MS - 4 - steps) * MINUTE_MS
        begun = time.perf_counter()
        rows = ask(child.url, minutes_sql(source, first_ms, steps))
        took_ms.append(1000 * (time.perf_counter() - begun))
        begun = time.process_time()
        made = series.take(rows, first_ms, steps)
        for request in requests_of(made):
            encoder.body(request)
        made_ms.append(1000 * (time.process_time() - begun))
        count = len(made)
    cpu_ms = 1000 * (child.cpu_s() - began_s) / runs
    return [count, statistics.fmean(took_ms), cpu_ms, statistics.fmean(made_ms)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=2_000)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gpuwarden-bench-") as folder:
        fill(Path(folder), given.gpus)
        with ours.collector(Path(folder)) as child:
            for source in SOURCES:
                measure(child, source, 1, 1)  # while the waste of the running hour is computed
            for steps in (1, 10):
                title = f"{given.gpus} GPUs, minutes at once: {steps}"
                print(f"{title:40}{'series':>8} {'rows ms':>9} {'CPU ms':>9} {'made ms':>9}")
                whole = [0.0] * 4
                for source in SOURCES:
                    found = measure(child, source, steps, given.runs)
                    whole = [a + b for a, b in zip(whole, found, strict=True)]
                    _show(source, found)
                assert whole[0] >= 30 * given.gpus, whole
                _show("all", whole)


def _show(name: str, figures: Sequence[float]) -> None:
    series, *times = figures
    print(f"{name:40}{series:8.0f} " + " ".join(f"{ms:9.1f}" for ms in times), flush=True)


if __name__ == "__main__":
    main()
