"""Time of one evaluation of each built-in rule over a large fleet, and of the alerts' step.

    python bench/rules.py [--gpus 1000] [--runs 5] [--seconds 1200] [--rules gpu_hung,xid_critical] [--keep FILE]

A DuckDB file with two threads holds made-up samples: a quarter of the GPUs idle and held, a quarter
starved by their loader, the rest busy; host samples for each node, process samples every ten seconds.
Four hours of minutes are rolled up from them as the collector does. The slower tables reach as far back as the rules look: health an hour, links and ports five minutes,
hours of rollups a week, and a week of events, a hundred a node. Every row has all columns that the
rules read, as a whole fleet of NVIDIA's newest would. CPU s is of both
threads: half of it is the time on two cores that nobody else uses. The last lines add up one evaluation
of all, and what they take of a core when each runs on its interval.
"""

import argparse
import statistics
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb

from gpuwarden.rollups import ROLLUPS
from gpuwarden.schema import TABLES, create_sql, views_sql
from gpuwarden_collector.store.rollup_sql import Span, rollup_sql
from gpuwarden_rules.language import builtin_rules
from gpuwarden_rules.state import step

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECONDS = 1200
"""No rule reads raw samples further back than 15 minutes."""
MINUTES = 240
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
OTHER_ROWS = (
    """
INSERT INTO gpu_detail_samples BY NAME
SELECT $now - to_seconds(s) AS ts, 'n' || (g // 8) AS node, (g % 8)::INTEGER AS gpu, 'GPU-' || g AS gpu_uuid,
    true AS simulated, 16 AS pcie_width, 5 AS pcie_generation, 3 AS pcie_replays_total,
    18 AS nvlinks_active, 30 AS temperature_margin_celsius, 40 AS fan_percent
FROM range($gpus) t(g), range(0, 1800, 10) u(s)
""",
    """
INSERT INTO gpu_health_samples BY NAME
SELECT $now - to_seconds(s) AS ts, 'n' || (g // 8) AS node, (g % 8)::INTEGER AS gpu, 'GPU-' || g AS gpu_uuid,
    true AS simulated, 'none' AS recovery_action, 'completed' AS fabric_state,
    'success' AS fabric_status, 'healthy' AS fabric_health, 0 AS ecc_corrected_volatile_total,
    0 AS ecc_uncorrected_volatile_total, 0 AS ecc_uncorrected_aggregate_total,
    0 AS sram_uncorrected_aggregate_total, false AS sram_threshold_exceeded,
    0 AS remapped_rows_corrected_total, 0 AS remapped_rows_uncorrected_total, false AS remap_pending,
    g % 1000 = 0 AS remap_failed, 0 AS remap_banks_none, 0 AS remap_banks_low,
    0 AS retired_pages_corrected_total, 0 AS retired_pages_uncorrected_total,
    false AS retired_pages_pending, false AS memory_unrepairable, true AS inforom_valid
FROM range($gpus) t(g), range(0, 3600, 60) u(s)
""",
    """
INSERT INTO link_samples BY NAME
SELECT $now - to_seconds(s) AS ts, 'n' || (g // 8) AS node, (g % 8)::INTEGER AS gpu, 'GPU-' || g AS gpu_uuid,
    true AS simulated, 'nvlink' AS link_type, l AS link, true AS active, 0 AS replay_errors_total,
    0 AS recovery_errors_total, 0 AS crc_flit_errors_total, 0 AS crc_data_errors_total
FROM range(0, 300, 10) u(s), range($gpus) t(g), range(18) v(l)
""",
    """
INSERT INTO infiniband_samples BY NAME
SELECT $now - to_seconds(s) AS ts, 'n' || n AS node, true AS simulated, 'mlx5_' || d AS device, 1 AS port,
    'InfiniBand' AS link_layer, 'active' AS state, 'LinkUp' AS physical_state
FROM range($nodes) t(n), range(8) v(d), range(0, 300, 10) u(s)
""",
    """
INSERT INTO coverage BY NAME
SELECT $now - to_seconds(s) AS ts, 'n' || n AS node, true AS simulated, 'gpu' || p AS probe, t.name AS table_name,
    60 AS expected, 60 AS taken, 0 AS missed, 0 AS skipped, 0 AS late, 0 AS failed
FROM range($nodes) r(n), range(8) v(p), range(0, 900, 60) u(s),
    (VALUES ('gpu_samples'), ('gpu_detail_samples'), ('gpu_health_samples'), ('link_samples')) t(name)
""",
    """
INSERT INTO gpu_1h BY NAME
SELECT date_trunc('hour', $now::TIMESTAMP) - to_hours(h::INTEGER) AS ts, 'n' || (g // 8) AS node,
    'GPU-' || g AS gpu_uuid, (g % 8)::INTEGER AS gpu, true AS simulated, 3600 AS samples,
    360 AS detail_samples, 60 AS health_samples, 18 AS nvlinks_active_max, 16 AS pcie_width_max,
    5 AS pcie_generation_max
FROM range(1, 169) u(h), range($gpus) t(g)
""",
    """
INSERT INTO events BY NAME
SELECT $now - to_seconds(6000 * e) AS ts, 'n' || n AS node, 0 AS gpu, 'GPU-' || 8 * n AS gpu_uuid,
    true AS simulated, kind[1 + (n + e) % 8] AS kind, 'warning' AS severity, 'Something happened' AS message,
    '{"action": "RESTART_APP", "xid": 31, "pid": 4711, "device": "mlx5_0", "port": 1}' AS details
FROM range($nodes) t(n), range(100) u(e), (SELECT ['slowdown_began', 'slowdown_ended', 'probe_failed',
    'probe_recovered', 'xid', 'agent_gap', 'port_down', 'port_up'] AS kind)
""",
)
INVENTORY = (
    (
        "INSERT INTO gpus BY NAME SELECT 'GPU-' || g AS gpu_uuid, 'n' || (g // 8) AS node, g % 8 AS gpu,"
        " 'NVIDIA H100 80GB HBM3' AS model, 2.95 AS usd_per_hour, 1980 AS sm_clock_max_mhz,"
        " 'nvidia' AS vendor, 18 AS nvlinks, 700 AS power_limit_default_watts,"
        " true AS persistence_mode, $now AS last_seen_at,"
        " true AS simulated FROM range($gpus) t(g)"
    ),
    (
        "INSERT INTO nodes BY NAME SELECT 'n' || n AS node, 'a' AS agent_id, 'b' AS boot_id, 64 AS cpus,"
        " 64 AS cpu_cores, 8 AS gpus, $now AS last_seen_at, true AS simulated FROM range($nodes) t(n)"
    ),
)


def filled(path: Path, gpus: int, seconds: int) -> duckdb.DuckDBPyConnection:
    """A database with so many seconds of a fleet; one that is there is taken as it is."""
    is_new = not path.exists()
    db = duckdb.connect(str(path), config={"threads": 2, "memory_limit": "4GiB"})
    db.execute("SET TimeZone = 'UTC'")
    if not is_new:
        return db
    for table in TABLES.values():
        db.execute(create_sql(table))
    db.execute(views_sql())
    values = {
        "now": NOW.replace(tzinfo=None),
        "gpus": gpus,
        "nodes": -(-gpus // GPUS_PER_NODE),
        "seconds": seconds,
    }
    for sql in (*INVENTORY, GPU_ROWS, PROCESS_ROWS, HOST_ROWS, *OTHER_ROWS):
        db.execute(sql, {k: v for k, v in values.items() if f"${k}" in sql})
    roll_up(db)
    db.execute("CHECKPOINT")
    return db


def roll_up(db: duckdb.DuckDBPyConnection) -> None:
    """The last minute as the collector rolls it up, and the same again for the minutes before it."""
    end = NOW.replace(tzinfo=None)
    for rollup in ROLLUPS.values():
        if rollup.made_of is None:
            name = rollup.table.name
            span = Span(end - timedelta(minutes=1), end)
            db.execute(f"INSERT INTO {name} BY NAME {rollup_sql(rollup, span)}")
            db.execute(
                f"INSERT INTO {name} SELECT {name}.* REPLACE (ts - to_minutes(m::INTEGER) AS ts) "
                f"FROM {name}, range(1, {MINUTES}) t(m) ORDER BY ts"
            )


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
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of samples a second")
    parser.add_argument("--rules", help="names, separated by commas; default: all")
    parser.add_argument("--keep", type=Path, help="database to keep, and to take if it is there")
    args = parser.parse_args()
    wanted = set(args.rules.split(",")) if args.rules else None
    rules = [rule for rule in builtin_rules() if wanted is None or rule.name in wanted]
    with tempfile.TemporaryDirectory() as folder:
        db = filled(args.keep or Path(folder) / "fleet.duckdb", args.gpus, args.seconds)
        print(
            f"{args.gpus} GPUs x {args.seconds} s: {args.gpus * args.seconds:,} rows of gpu_samples"
        )
        print(f"{'rule':26} {'median s':>9} {'CPU s':>8} {'alerts':>7} {'step ms':>8}")
        total_s = total_cpu_s = steady = 0.0
        lines: list[tuple[float, str]] = []
        for rule in rules:
            bindings = {
                k: v.replace(tzinfo=None) if isinstance(v, datetime) else v
                for k, v in rule.bindings(NOW).items()
            }
            times, cpu_times = [], []
            for _ in range(args.runs):
                began, cpu_began = time.perf_counter(), time.process_time()
                db.execute(rule.sql, bindings)
                rows = records(db)
                times.append(time.perf_counter() - began)
                cpu_times.append(time.process_time() - cpu_began)
            began = time.perf_counter()
            state, _ = step({}, rows, rule, NOW)
            step_ms = (time.perf_counter() - began) * 1000
            median_s, cpu_s = statistics.median(times), statistics.median(cpu_times)
            total_s += median_s + step_ms / 1000
            total_cpu_s += cpu_s + step_ms / 1000
            steady += (cpu_s + step_ms / 1000) / rule.interval_s
            lines.append(
                (
                    cpu_s,
                    f"{rule.name:26} {median_s:9.2f} {cpu_s:8.2f} {len(state):7d} {step_ms:8.1f}",
                )
            )
        print(*(line for _, line in sorted(lines, reverse=True)), sep="\n")
        print(f"{'all rules once':26} {total_s:9.2f} {total_cpu_s:8.2f}")
        print(f"on their intervals: {100 * steady:.0f} % of a core")


if __name__ == "__main__":
    main()
