"""Measures what labelling every GPU-second costs: an hour of a large fleet, and a day asked for at once.

`python -m bench.waste --gpus 10000 --hours 1`. Each GPU-second must be labelled once, at its price.
"""

import argparse
import time
from datetime import UTC, datetime, timedelta

from gpuwarden.waste import WasteScope, waste_sql
from gpuwarden_rules.testing.database import MemoryDatabase

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
USD_PER_HOUR = 2.95


def fill(database: MemoryDatabase, gpus: int, hours: int) -> None:
    """A fleet of nodes with eight GPUs each; a tenth idle, a process on most."""
    database.execute(f"""
        INSERT INTO gpus BY NAME
        SELECT 'GPU-' || i AS gpu_uuid, 'node' || i // 8 AS node, (i % 8)::INTEGER AS gpu,
            'NVIDIA H100 80GB HBM3' AS model, true AS simulated, {USD_PER_HOUR} AS usd_per_hour,
            1980 AS sm_clock_max_mhz, TIMESTAMP '2026-02-01' AS first_seen_at,
            TIMESTAMP '2026-03-03' AS last_seen_at
        FROM range({gpus}) r(i)
    """)
    minutes = f"range({hours * 60}) m(m), gpus"
    database.execute(f"""
        INSERT INTO gpu_1m BY NAME
        SELECT TIMESTAMP '2026-03-01' + to_minutes(m) AS ts, node, gpu_uuid, gpu, true AS simulated,
            60 AS samples, 6 AS detail_samples, 1 AS health_samples,
            if(hash(gpu_uuid) % 10 = 0, 60, 3)::FLOAT AS idle_seconds,
            60 - idle_seconds AS busy_seconds, 0::FLOAT AS unknown_seconds,
            busy_seconds * 1.6 AS util_percent_avg, 4e10::BIGINT AS memory_used_bytes_max,
            1700 AS sm_clock_mhz_avg, 0 AS sw_thermal_seconds_delta, 0 AS hw_thermal_seconds_delta,
            0 AS hw_power_brake_seconds_delta, 36000 AS energy_joules_delta
        FROM {minutes}
    """)
    database.execute(f"""
        INSERT INTO process_1m BY NAME
        SELECT TIMESTAMP '2026-03-01' + to_minutes(m) AS ts, node, gpu_uuid, gpu, 7 AS pid,
            'user' || hash(node) % 50 AS username, (hash(node) % 500)::VARCHAR AS slurm_job_id,
            true AS simulated, 6 AS samples, 4e10::BIGINT AS gpu_memory_bytes_max
        FROM {minutes}
    """)
    database.execute(f"""
        INSERT INTO host_1m BY NAME
        SELECT DISTINCT TIMESTAMP '2026-03-01' + to_minutes(m) AS ts, node, true AS simulated, 60 AS samples
        FROM {minutes}
    """)


def main() -> None:
    """Print rows and seconds."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--gpus", type=int, default=10_000)
    arguments.add_argument("--hours", type=int, default=1)
    args = arguments.parse_args()
    database = MemoryDatabase()
    fill(database, args.gpus, args.hours)
    scope = WasteScope(BEGIN, BEGIN + timedelta(hours=args.hours))
    began, cpu = time.perf_counter(), time.process_time()
    result = database.run(f"SELECT count(*), sum(seconds), sum(usd) FROM ({waste_sql(scope)})")
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    rows, total, usd = result.rows[0]
    gpu_hours = args.gpus * args.hours
    if abs(total - 3600 * gpu_hours) > 1 or abs(usd - USD_PER_HOUR * gpu_hours) > 0.01 * usd:
        raise SystemExit(f"{gpu_hours} GPU-hours have {total} seconds and cost {usd}")
    print(
        f"{args.gpus} GPUs, {args.hours} h: {rows} rows, {total:.0f} GPU-seconds, ${usd:.0f}: {seconds:.1f} s, {cpu:.1f} s of CPU"
    )


if __name__ == "__main__":
    main()
