"""How much faster than real time rules are replayed over stored history.

    python bench/backtest.py [--gpus 1000] [--hours 2] [--every 1] [--rules gpu_idle_held,gpu_power_brake]
    python bench/backtest.py --hours 168 --every 10                a week

A fleet's samples of some hours lie in a DuckDB file, `--every` seconds apart, and every rule is replayed
over them, with two threads and at most a gigabyte for DuckDB. What a look costs hardly depends on how long the
history is, as the filter on `ts` skips the rest. CPU seconds are of all threads; the last line has the most memory
that the process, samples being made included, ever held.
"""

import argparse
import asyncio
import resource
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb

from gpuwarden.query import Result
from gpuwarden.schema import TABLES, create_sql, views_sql
from gpuwarden_rules.backtest import replay
from gpuwarden_rules.language import builtin_rules

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
START_UP = timedelta(hours=1)
"""History before the replay, for the windows of its first looks."""

GPU_ROWS = """
INSERT INTO gpu_samples BY NAME
SELECT
    ts, 'n' || (g // 8) AS node, (g % 8)::INTEGER AS gpu, 'GPU-' || g AS gpu_uuid, true AS simulated,
    -- Now and then a GPU is idle for an hour: it begins and ends at its own time.
    CASE WHEN (epoch(ts) // 3600 + g) % 20 = 0 THEN 0 ELSE 90 + random() * 10 END AS util_percent,
    85899345920 AS memory_total_bytes, 40000000000 AS memory_used_bytes,
    400 + random() * 50 AS power_watts, 700 AS power_limit_watts, 60 + random() AS temperature_celsius,
    1980 AS sm_clock_mhz, 0 AS clocks_event_reasons, 0 AS power_violation_seconds_total,
    0 AS thermal_violation_seconds_total, 0 AS sw_thermal_seconds_total,
    0 AS hw_thermal_seconds_total, 0 AS hw_power_brake_seconds_total
FROM range($since, $now, $every * INTERVAL 1 SECOND) t(ts), range($gpus) u(g)
"""
PROCESS_ROWS = """
INSERT INTO process_samples BY NAME
SELECT
    ts, 'n' || (g // 8) AS node, (g % 8)::INTEGER AS gpu, 'GPU-' || g AS gpu_uuid, true AS simulated,
    1000 + g AS pid, 'python' AS process_name, 'alice' AS username,
    $since AS started_at, 40000000000 AS gpu_memory_bytes, 100 AS cpu_percent,
    40 AS main_cpu_percent, 4 AS loader_workers, 30 AS loader_cpu_percent,
    0 AS loader_saturated_percent, 0 AS loader_blocked_percent, 128 AS cpus_allowed
FROM range($since, $now, INTERVAL 10 SECOND) t(ts), range($gpus) u(g)
"""
INVENTORY = (
    """
INSERT INTO gpus BY NAME
SELECT 'GPU-' || g AS gpu_uuid, 'n' || (g // 8) AS node, (g % 8)::INTEGER AS gpu,
    'NVIDIA H100 80GB HBM3' AS model, 85899345920 AS memory_total_bytes, 2.95 AS usd_per_hour,
    $now AS last_seen_at, true AS simulated
FROM range($gpus) t(g)
""",
    """
INSERT INTO nodes BY NAME
SELECT DISTINCT 'n' || (g // 8) AS node, 'a' || (g // 8) AS agent_id, 'b' AS boot_id,
    $now AS last_seen_at, true AS simulated
FROM range($gpus) t(g)
""",
)


class Store:
    """The history, as a Querier."""

    def __init__(self, path: Path, gpus: int, since: datetime, every_s: int) -> None:
        config = {"threads": 2, "memory_limit": "1GiB"}
        self.connection = duckdb.connect(str(path), config=config)
        self.connection.execute("SET TimeZone = 'UTC'")
        for table in TABLES.values():
            self.connection.execute(create_sql(table))
        self.connection.execute(views_sql())
        values = {"now": NOW.replace(tzinfo=None), "since": since.replace(tzinfo=None)}
        for sql in (GPU_ROWS, PROCESS_ROWS, *INVENTORY):
            known = {**values, "gpus": gpus, "every": every_s}
            bound = {k: v for k, v in known.items() if f"${k}" in sql}
            self.connection.execute(sql, bound)
        self.connection.execute("CHECKPOINT")

    async def query(
        self,
        sql: str,
        params: dict,
        *,
        timeout_s: float | None = None,
        row_limit: int | None = None,
    ) -> Result:
        """As `gpuwarden.query.Querier`."""
        bound = {
            k: v.replace(tzinfo=None) if isinstance(v, datetime) else v for k, v in params.items()
        }
        cursor = self.connection.execute(sql, bound)
        described = cursor.description or []
        rows = [
            tuple(v.replace(tzinfo=UTC) if isinstance(v, datetime) else v for v in row)
            for row in cursor.fetchall()
        ]
        return Result([name for name, *_ in described], [str(d[1]) for d in described], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--hours", type=float, default=2)
    parser.add_argument("--every", type=int, default=1, help="seconds between two samples")
    parser.add_argument("--rules", help="names, separated by commas; default: all")
    args = parser.parse_args()
    wanted = set(args.rules.split(",")) if args.rules else None
    rules = [rule for rule in builtin_rules() if wanted is None or rule.name in wanted]
    since = NOW - timedelta(hours=args.hours)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "fleet.duckdb", args.gpus, since - START_UP, args.every)
        print(f"{args.gpus} GPUs, {args.hours:g} h, a sample every {args.every} s")
        print(
            f"{'rule':28} {'looks':>6} {'fired':>6} {'s':>7} {'CPU s':>7} {'x real time':>12} {'by CPU':>9}"
        )
        for rule in rules:
            began, cpu = time.perf_counter(), time.process_time()
            done = asyncio.run(replay(rule, store, since, NOW))
            wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
            span_s = args.hours * 3600
            print(
                f"{rule.name:28} {done.queries:6d} {len(done.episodes):6d} {wall_s:7.2f} {cpu_s:7.2f}"
                f" {span_s / wall_s:12,.0f} {span_s / cpu_s:9,.0f}",
                flush=True,
            )
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB of memory at most")


if __name__ == "__main__":
    main()
