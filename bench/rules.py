"""Time of one evaluation of each built-in rule over a fleet's last two hours, and of the alerts' step.

    python bench/rules.py [--gpus 1000] [--runs 5]

A DuckDB file with two threads holds made-up samples: a quarter of the GPUs idle and held, a quarter
starved by their loader, the rest busy; host samples for each node, process samples every ten seconds.
"""

import argparse
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import duckdb

from gpuwarden.schema import TABLES, create_sql, views_sql
from gpuwarden_rules.language import builtin_rules
from gpuwarden_rules.state import step

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECONDS = 7200
GPUS_PER_NODE = 8

GPU_ROWS = """
INSERT INTO gpu_samples BY NAME
SELECT
    $now - to_seconds(s) AS ts, 'n' || (g // 8) AS node, (g % 8)::INTEGER AS gpu, 'GPU-' || g AS gpu_uuid,
    true AS simulated,
    CASE g % 4 WHEN 0 THEN 0 WHEN 1 THEN 35 + random() * 10 ELSE 95 + random() * 5 END AS util_percent,
    85899345920 AS memory_total_bytes, 40000000000 AS memory_used_bytes,
    400 + random() * 50 AS power_watts, 700 AS power_limit_watts, 60 + random() AS temperature_celsius,
    1980 AS sm_clock_mhz, 0 AS clocks_event_reasons, 0 AS power_violation_seconds_total,
    0 AS thermal_violation_seconds_total, 0 AS sw_thermal_seconds_total,
    0 AS hw_thermal_seconds_total, 0 AS hw_power_brake_seconds_total
FROM range($gpus) t(g), range($seconds) u(s)
"""
PROCESS_ROWS = """
INSERT INTO process_samples BY NAME
SELECT
    $now - to_seconds(s) AS ts, 'n' || (g // 8) AS node, (g % 8)::INTEGER AS gpu, 'GPU-' || g AS gpu_uuid,
    true AS simulated, 1000 + g AS pid, 'python' AS process_name, 'alice' AS username,
    $now - INTERVAL 1 DAY AS started_at, 40000000000 AS gpu_memory_bytes, CASE g % 4 WHEN 0 THEN 1 ELSE 300 END AS cpu_percent, CASE g % 4 WHEN 0 THEN 1 ELSE 40 END AS main_cpu_percent,
    CASE g % 4 WHEN 0 THEN 0 ELSE 4 END AS loader_workers, CASE g % 4 WHEN 0 THEN NULL ELSE 97 END AS loader_cpu_percent, 100 AS loader_saturated_percent,
    0 AS loader_blocked_percent, 128 AS cpus_allowed
FROM range($gpus) t(g), range(0, $seconds, 10) u(s)
"""
HOST_ROWS = """
INSERT INTO host_samples BY NAME
SELECT $now - to_seconds(s) AS ts, 'n' || n AS node, true AS simulated, 20 AS cpu_util_percent,
    80 AS cpu_idle_percent, 0 AS cpu_iowait_percent, 1 AS psi_io_some_percent
FROM range($nodes) t(n), range($seconds) u(s)
"""
INVENTORY = (
    (
        "INSERT INTO gpus BY NAME SELECT 'GPU-' || g AS gpu_uuid, 'n' || (g // 8) AS node, g % 8 AS gpu,"
        " 'NVIDIA H100 80GB HBM3' AS model, 2.95 AS usd_per_hour, 1980 AS sm_clock_max_mhz,"
        " true AS simulated FROM range($gpus) t(g)"
    ),
    (
        "INSERT INTO nodes BY NAME SELECT 'n' || n AS node, 'a' AS agent_id, 'b' AS boot_id, 64 AS cpus,"
        " 64 AS cpu_cores, true AS simulated FROM range($nodes) t(n)"
    ),
)


def filled(path: Path, gpus: int) -> duckdb.DuckDBPyConnection:
    """A database with two hours of a fleet."""
    db = duckdb.connect(str(path), config={"threads": 2, "memory_limit": "4GiB"})
    db.execute("SET TimeZone = 'UTC'")
    for table in TABLES.values():
        db.execute(create_sql(table))
    db.execute(views_sql())
    values = {
        "now": NOW.replace(tzinfo=None),
        "gpus": gpus,
        "nodes": -(-gpus // GPUS_PER_NODE),
        "seconds": SECONDS,
    }
    for sql in (*INVENTORY, GPU_ROWS, PROCESS_ROWS, HOST_ROWS):
        db.execute(sql, {k: v for k, v in values.items() if f"${k}" in sql})
    db.execute("CHECKPOINT")
    return db


def records(db: duckdb.DuckDBPyConnection) -> list[dict]:
    names = [column[0] for column in db.description or ()]
    return [
        {
            n: v.replace(tzinfo=UTC) if isinstance(v, datetime) else v
            for n, v in zip(names, row, strict=True)
        }
        for row in db.fetchall()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        db = filled(Path(folder) / "fleet.duckdb", args.gpus)
        print(f"{args.gpus} GPUs x {SECONDS} s: {args.gpus * SECONDS:,} rows of gpu_samples")
        print(f"{'rule':26} {'first s':>8} {'median s':>9} {'alerts':>7} {'step ms':>8}")
        for rule in builtin_rules():
            bindings = {
                k: v.replace(tzinfo=None) if isinstance(v, datetime) else v
                for k, v in rule.bindings(NOW).items()
            }
            times = []
            for _ in range(args.runs):
                began = time.perf_counter()
                db.execute(rule.sql, bindings)
                rows = records(db)
                times.append(time.perf_counter() - began)
            began = time.perf_counter()
            state, _ = step({}, rows, rule, NOW)
            step_ms = (time.perf_counter() - began) * 1000
            print(
                f"{rule.name:26} {times[0]:8.2f} {statistics.median(times):9.2f} {len(state):7d}"
                f" {step_ms:8.1f}"
            )


if __name__ == "__main__":
    main()
