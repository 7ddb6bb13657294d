"""Questions about a whole fleet over a day of rollups that were made up: how long they take.

python -m bench.store.fleet_day --gpus 80000

The rows have the columns that are filled on any data-centre GPU; the rest is NULL, which costs a
question nothing. They are written to the lake as sealing writes them, an hour at a time. An answer that
lacks rows ends the run.
"""

import argparse
import json
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits

DAY = datetime(2026, 3, 1, tzinfo=UTC)
GPUS_A_NODE = 8
RUNS = 5
TABLES = {"gpu_1m": (24, 60), "gpu_1h": (1, 1440)}
"""Parts to write the day in, and minutes of a part."""

_COLUMNS = f"""
    'gpu-node-' || lpad((g // {GPUS_A_NODE})::VARCHAR, 5, '0') AS node,
    'GPU-' || md5(g::VARCHAR) AS gpu_uuid, (g % {GPUS_A_NODE})::INT AS gpu, false AS simulated,
    60 * minutes AS samples, 60 * minutes AS expected,
    if(hash(g, m // 120) % 5 = 0, 60.0 * minutes, 0.0) AS idle_seconds,
    60.0 * minutes - idle_seconds AS busy_seconds, 0.0 AS unknown_seconds,
    if(idle_seconds > 0, 0, 70 + hash(g, m) % 30)::FLOAT AS util_percent_avg,
    least(100, util_percent_avg + 5)::FLOAT AS util_percent_p95,
    (90 + 5 * util_percent_avg + hash(m, g) % 20)::FLOAT AS power_watts_avg,
    power_watts_avg * 60.0 * minutes AS energy_joules_delta,
    (35 + util_percent_avg / 3)::FLOAT AS temperature_celsius_max,
    (1e9 * (1 + hash(g) % 70))::BIGINT AS memory_used_bytes_max
"""

QUESTIONS = {
    "average utilization of the fleet, a day of gpu_1m": """
        SELECT avg(util_percent_avg) FROM gpu_1m WHERE ts >= $begin AND ts < $end""",
    "idle hours of the fleet, a day of gpu_1m": """
        SELECT sum(idle_seconds) / 3600 FROM gpu_1m WHERE ts >= $begin AND ts < $end""",
    "average by node, the last hour of gpu_1m": """
        SELECT node, avg(util_percent_avg) FROM gpu_1m
        WHERE ts >= $end - INTERVAL 1 HOUR AND ts < $end GROUP BY node""",
    "top 20 idle GPUs, a day of gpu_1h": """
        SELECT gpu_uuid, any_value(node), sum(idle_seconds) AS idle FROM gpu_1h
        WHERE ts >= $begin AND ts < $end GROUP BY gpu_uuid ORDER BY idle DESC LIMIT 20""",
    "utilization and energy by node, a day of gpu_1h": """
        SELECT node, avg(util_percent_avg), sum(energy_joules_delta) FROM gpu_1h
        WHERE ts >= $begin AND ts < $end GROUP BY node""",
    "utilization by hour, a day of gpu_1h": """
        SELECT ts, avg(util_percent_avg) FROM gpu_1h
        WHERE ts >= $begin AND ts < $end GROUP BY ts ORDER BY ts""",
    "one GPU, a day of gpu_1m": """
        SELECT ts, util_percent_avg FROM gpu_1m
        WHERE gpu_uuid = 'GPU-' || md5('5') AND ts >= $begin AND ts < $end ORDER BY ts""",
}


def check(name: str, rows: list[tuple[Any, ...]], gpus: int) -> None:
    """Raise SystemExit for an answer that cannot be."""
    nodes = -(-gpus // GPUS_A_NODE)
    wanted = {
        "average by node, the last hour of gpu_1m": nodes,
        "top 20 idle GPUs, a day of gpu_1h": min(20, gpus),
        "utilization and energy by node, a day of gpu_1h": nodes,
        "utilization by hour, a day of gpu_1h": 24,
        "one GPU, a day of gpu_1m": 24 * 60,
    }.get(name, 1)
    if len(rows) != wanted or any(value is None for row in rows for value in row):
        raise SystemExit(f"{name}: {len(rows)} rows, expected {wanted} without NULL: {rows[:3]}")
    if name.startswith("idle hours") and not 0 < rows[0][0] < 24 * gpus:
        raise SystemExit(f"{name}: {rows[0][0]} of {24 * gpus} hours")


def fill(database: Database, gpus: int) -> None:
    """A day of rollups in the lake."""
    with database.maintaining() as cursor:
        for table, (parts, part_minutes) in TABLES.items():
            step = 60 if table == "gpu_1h" else 1
            for part in range(parts):
                begin = part * part_minutes
                cursor.execute(
                    f"INSERT INTO lake.main.{table} BY NAME "
                    f"SELECT $day::TIMESTAMP + to_minutes(m) AS ts, {_COLUMNS} "
                    f"FROM range({begin}, {begin + part_minutes}, {step}) t(m), range({gpus}) q(g), "
                    f"(VALUES ({step})) s(minutes)",
                    {"day": DAY.replace(tzinfo=None)},
                )
                print(f"  {table}: part {part + 1} of {parts}", flush=True)


def ask(database: Database, gpus: int) -> dict[str, float]:
    """Milliseconds of each question, the fastest of a few runs."""
    window = {"begin": DAY, "end": DAY + timedelta(days=1)}
    taken: dict[str, float] = {}
    with database.reading() as cursor:
        for name, sql in QUESTIONS.items():
            bound = {key: at.replace(tzinfo=None) for key, at in window.items() if f"${key}" in sql}
            runs = []
            for _ in range(RUNS):
                began_s = time.perf_counter()
                rows = cursor.execute(sql, bound).fetchall()
                runs.append(1000 * (time.perf_counter() - began_s))
                check(name, rows, gpus)
            taken[name] = round(min(runs), 1)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gpus", type=int, default=80_000)
    parser.add_argument("--folder", type=Path, help="where the store is made (default: /tmp)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        database = Database.open(Path(folder), EngineLimits(memory="8GiB", threads=2))
        began_s = time.perf_counter()
        fill(database, given.gpus)
        print(f"written in {time.perf_counter() - began_s:.0f} s", flush=True)
        size = sum(file.stat().st_size for file in Path(folder).rglob("*.parquet"))
        taken = ask(database, given.gpus)
        for name, ms in taken.items():
            print(f"{ms:8.1f} ms  {name}")
        print(json.dumps({"gpus": given.gpus, "lake_bytes": size, "ms": taken}))
        database.close()


if __name__ == "__main__":
    main()
