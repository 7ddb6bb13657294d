"""A store with a made-up week of a fleet, as the collector would have it after that time.

    python -m bench.week FOLDER [--gpus 1000] [--hours 168]

Rows are written to the lake an hour at a time, as sealing does, and at every table's own pace: seconds, ten
seconds and minutes of samples, rollups, events, coverage. Most GPUs work; each is idle with its memory held for 20
to 110 minutes in three of ten quarters of a day, one in a hundred is too hot for hours every day, a
node has an Xid sometimes. Columns that no rule reads are NULL, which costs a question nothing. A store that lacks
rows in the end is named and ends the run with an error.
"""

import argparse
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb

from gpuwarden.rollups import ROLLUPS
from gpuwarden_collector.storage.commit import Changes, commit
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_collector.storage.rollup import minutes
from gpuwarden_collector.storage.segment import SCHEMAS, TABLE_NAMES

UNTIL = datetime(2026, 3, 8, tzinfo=UTC)
GPUS_A_NODE = 8
LINKS_A_GPU = 18

_GPU = f"'n' || (g // {GPUS_A_NODE}) AS node, (g % {GPUS_A_NODE})::INTEGER AS gpu, 'GPU-' || g AS gpu_uuid, true AS simulated"
_QUARTER = "(epoch(ts)::BIGINT // 21600)"
_IDLE = f"""(hash(g, {_QUARTER}) % 10 < 3
    AND epoch(ts)::BIGINT % 21600 >= 60 * (hash(g, 1, {_QUARTER}) % 240)
    AND epoch(ts)::BIGINT % 21600 < 60 * (hash(g, 1, {_QUARTER}) % 240 + 20 + hash(g, 2, {_QUARTER}) % 90))"""
_HOT = "(g % 100 = 7 AND hour(ts) BETWEEN 10 AND 13)"

SAMPLES = {
    "gpu_samples": f"""SELECT ts, {_GPU}, if({_IDLE}, 0, 92 + hash(g, ts) % 8) AS util_percent,
            85899345920 AS memory_total_bytes, 40000000000 AS memory_used_bytes,
            if({_IDLE}, 120, 600 + hash(ts, g) % 50) AS power_watts, 700 AS power_limit_watts,
            if({_HOT}, 86, 60 + hash(ts, g) % 5) AS temperature_celsius, 80 AS memory_temperature_celsius,
            if({_HOT}, 1500, 1980) AS sm_clock_mhz, if({_HOT}, 32, 0) AS clocks_event_reasons,
            0 AS power_violation_seconds_total, 0 AS thermal_violation_seconds_total,
            if({_HOT}, epoch(ts) / 2, 0) AS sw_thermal_seconds_total, 0 AS hw_thermal_seconds_total,
            0 AS hw_power_brake_seconds_total
        FROM (SELECT $begin + to_seconds(i % 3600) AS ts, i // 3600 AS g FROM range($gpus * 3600) t(i))""",
    "host_samples": """SELECT $begin + to_seconds(i % 3600) AS ts, 'n' || i // 3600 AS node, true AS simulated,
            20 AS cpu_util_percent, 80 AS cpu_idle_percent, 0 AS cpu_iowait_percent, 1 AS psi_io_some_percent
        FROM range($nodes * 3600) t(i)""",
    "gpu_detail_samples": f"""SELECT $begin + to_seconds(10 * (i % 360)) AS ts, {_GPU}, 16 AS pcie_width, 5 AS pcie_generation,
            3 AS pcie_replays_total, 18 AS nvlinks_active, 30 AS temperature_margin_celsius, 40 AS fan_percent
        FROM (SELECT i, i // 360 AS g FROM range($gpus * 360) t(i))""",
    "process_samples": f"""SELECT $begin + to_seconds(10 * (i % 360)) AS ts, {_GPU}, 1000 + g AS pid, 'python' AS process_name,
            'alice' AS username, 'python train.py' AS command, (g // 16)::VARCHAR AS slurm_job_id,
            $first AS started_at, 40000000000 AS gpu_memory_bytes, if({_IDLE}, 1, 200) AS cpu_percent,
            if({_IDLE}, 1, 40) AS main_cpu_percent, if({_IDLE}, 0, 4) AS loader_workers,
            if({_IDLE}, NULL, 30) AS loader_cpu_percent,
            0 AS loader_saturated_percent, 0 AS loader_blocked_percent, 128 AS cpus_allowed,
            i % 360 * 10000000 AS read_bytes_total, i % 360 * 10000000 AS read_chars_total, 0 AS write_bytes_total
        FROM (SELECT i, i // 360 AS g FROM range($gpus * 360) t(i))""",
    "link_samples": f"""SELECT $begin + to_seconds(10 * (i % 360)) AS ts, {_GPU}, 'nvlink' AS link_type, l AS link, true AS active,
            0 AS replay_errors_total, 0 AS recovery_errors_total, 0 AS crc_flit_errors_total,
            0 AS crc_data_errors_total
        FROM (SELECT i, i // {360 * LINKS_A_GPU} AS g, i // 360 % {LINKS_A_GPU} AS l
              FROM range($gpus * {360 * LINKS_A_GPU}) t(i))""",
    "infiniband_samples": """SELECT $begin + to_seconds(10 * (i % 360)) AS ts, 'n' || i // 2880 AS node, true AS simulated,
            'mlx5_' || i // 360 % 8 AS device, 1 AS port, 'InfiniBand' AS link_layer, 'active' AS state,
            'LinkUp' AS physical_state
        FROM range($nodes * 2880) t(i)""",
    "gpu_health_samples": f"""SELECT $begin + to_minutes(i % 60) AS ts, {_GPU}, 'none' AS recovery_action, 'completed' AS fabric_state,
            'success' AS fabric_status, 'healthy' AS fabric_health, 0 AS ecc_corrected_volatile_total,
            0 AS ecc_uncorrected_volatile_total, 0 AS ecc_uncorrected_aggregate_total,
            0 AS sram_uncorrected_aggregate_total, false AS sram_threshold_exceeded,
            0 AS remapped_rows_corrected_total, 0 AS remapped_rows_uncorrected_total, false AS remap_pending,
            false AS remap_failed, 0 AS remap_banks_none, 0 AS remap_banks_low,
            0 AS retired_pages_corrected_total, 0 AS retired_pages_uncorrected_total,
            false AS retired_pages_pending, false AS memory_unrepairable, true AS inforom_valid
        FROM (SELECT i, i // 60 AS g FROM range($gpus * 60) t(i))""",
    "coverage": """SELECT $begin + to_minutes(i % 60) AS ts, 'n' || i // 480 AS node, true AS simulated,
            'gpu' || i // 60 % 8 AS probe, t.name AS table_name, t.expected, t.expected AS taken, 0 AS missed,
            0 AS skipped, 0 AS late, 0 AS failed
        FROM range($nodes * 480) u(i), (VALUES ('gpu_samples', 60), ('gpu_detail_samples', 6),
            ('gpu_health_samples', 1), ('link_samples', 6)) t(name, expected)""",
    "events": f"""SELECT $begin + to_seconds(n * 20) AS ts, 'n' || n AS node, 0 AS gpu, 'GPU-' || {GPUS_A_NODE} * n AS gpu_uuid,
            true AS simulated, 'xid' AS kind, 'warning' AS severity, 'Xid 31' AS message,
            '{{"action": "RESTART_APP", "xid": 31, "pid": 4711}}' AS details
        FROM range($nodes) t(n) WHERE hash(n, $begin) % 24 = 0""",
}
"""An hour of rows, by table."""


def _inventory(database: Database, bound: dict) -> None:
    """Nodes and GPUs as agents report them."""
    known = {"seen": UNTIL.replace(tzinfo=None), **bound}
    gpus = (
        f"SELECT {_GPU}, 'NVIDIA H100 80GB HBM3' AS model, 2.95 AS usd_per_hour, 1980 AS sm_clock_max_mhz,"
        " 'nvidia' AS vendor, 18 AS nvlinks, 700 AS power_limit_default_watts, true AS persistence_mode,"
        " $seen AS last_seen_at FROM range($gpus) t(g)"
    )
    nodes = (
        "SELECT 'n' || n AS node, 'a' || n AS agent_id, 'b' AS boot_id, 64 AS cpus, 64 AS cpu_cores,"
        f" {GPUS_A_NODE} AS gpus, $seen AS last_seen_at, true AS simulated FROM range($nodes) t(n)"
    )
    for table, sql in {"gpus": gpus, "nodes": nodes}.items():
        named = {name: value for name, value in known.items() if f"${name}" in sql}
        with database.reading() as cursor:
            rows = cursor.execute(
                f"SELECT * FROM main.{table} WHERE false UNION ALL BY NAME ({sql})", named
            ).to_arrow_table()
        commit(database, Changes(upserted={table: rows.cast(SCHEMAS[table])}))


def fill(folder: Path, gpus: int, hours: int) -> Iterator[int]:
    """The hours until `UNTIL`, samples and rollups; says which one is written."""
    begin = (UNTIL - timedelta(hours=hours)).replace(tzinfo=None)
    bound = {"gpus": gpus, "nodes": -(-gpus // GPUS_A_NODE), "first": begin, "begin": begin}
    with _opened(folder) as (database, cursor):
        _inventory(database, bound)
        _insert(cursor, SAMPLES, bound)
        _templates(cursor, begin)
        rollups = {
            name: _repeated(name, is_hour=r.made_of is not None) for name, r in ROLLUPS.items()
        }
        _insert(cursor, rollups, bound)
        for hour in range(1, hours):
            bound["begin"] = begin + timedelta(hours=hour)
            _insert(cursor, {**SAMPLES, **rollups}, bound)
            yield hour + 1


@contextmanager
def _opened(folder: Path) -> Iterator[tuple[Database, duckdb.DuckDBPyConnection]]:
    database = Database.open(folder, EngineLimits(memory="4GiB", threads=2))
    with database.maintaining(TABLE_NAMES) as cursor:
        for table in (*SAMPLES, *ROLLUPS):
            # Rows are made in the order of the key; to sort them again would take most of the time.
            cursor.execute(f"ALTER TABLE lake.main.{table} RESET SORTED BY")
        yield database, cursor
    database.close()


def _insert(cursor: duckdb.DuckDBPyConnection, selects: Mapping[str, str], bound: dict) -> None:
    for table, sql in selects.items():
        named = {name: value for name, value in bound.items() if f"${name}" in sql}
        cursor.execute(f"INSERT INTO lake.main.{table} BY NAME {sql}", named)


def _templates(cursor: duckdb.DuckDBPyConnection, begin: datetime) -> None:
    """A minute and an hour as the collector rolls them up, from which all others are made."""
    first, last = begin + timedelta(minutes=1), begin + timedelta(minutes=2)
    for name, rollup in ROLLUPS.items():
        if rollup.made_of is None:
            cursor.register("computed", minutes(cursor, rollup, first, last))
            cursor.execute(f"CREATE TEMP TABLE one_{name} AS FROM computed")
        else:
            cursor.execute(
                f"CREATE TEMP TABLE one_{name} AS SELECT * FROM lake.main.{name} LIMIT 0;"
                f"INSERT INTO one_{name} BY NAME SELECT * FROM one_{rollup.made_of}"
            )


def _repeated(name: str, *, is_hour: bool) -> str:
    """An hour of a rollup: its template, busy or idle as the GPU is."""
    if name == "process_1m":
        # A process that works on the CPU would feed a GPU, which then is starved and not idle.
        return f"""
            SELECT * EXCLUDE (g, idle) REPLACE (if(idle, 1, cpu_percent_avg) AS cpu_percent_avg,
                if(idle, 1, main_cpu_percent_avg) AS main_cpu_percent_avg,
                if(idle, 0, loader_workers_max) AS loader_workers_max,
                if(idle, NULL, loader_cpu_percent_avg) AS loader_cpu_percent_avg)
            FROM ({_repeated_rows(name, "range(60)")})"""
    if not name.startswith("gpu"):
        return f"SELECT * EXCLUDE (m) REPLACE ($begin + to_minutes(m) AS ts) FROM one_{name}, range(60) t(m)"
    every, seconds = ("range(0, 1)", 3600) if is_hour else ("range(60)", 60)
    return f"""
        SELECT * EXCLUDE (g, idle) REPLACE ({seconds} AS samples, {seconds} AS expected,
            if(idle, {seconds}, 0) AS idle_seconds, if(idle, 0, {seconds}) AS busy_seconds,
            if(idle, 0, 95) AS util_percent_avg, if(idle, 0, 99) AS util_percent_p95,
            if(idle, 120, 620) AS power_watts_avg)
        FROM ({_repeated_rows(name, every)})"""


def _repeated_rows(name: str, every: str) -> str:
    """A rollup's template at those minutes, and whether the GPU is idle then."""
    return f"""
        SELECT *, {_IDLE} AS idle FROM (
            SELECT * EXCLUDE (m) REPLACE ($begin + to_minutes(m) AS ts), replace(gpu_uuid, 'GPU-', '')::BIGINT AS g
            FROM one_{name}, {every} t(m))"""


def check(folder: Path, gpus: int, hours: int) -> str:
    """Rows of what was written. Raises SystemExit where some are missing."""
    wanted = {
        "gpu_samples": 3600,
        "process_samples": 360,
        "gpu_1m": 60,
        "process_1m": 60,
        "gpu_1h": 1,
    }
    database = Database.open(folder, EngineLimits(memory="1GiB", threads=1))
    with database.reading() as cursor:
        found = {
            table: cursor.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]
            for table in wanted
        }
        idle = cursor.execute("SELECT sum(idle_seconds) FROM gpu_1m").fetchall()[0][0]
    database.close()
    if found != {table: rows * gpus * hours for table, rows in wanted.items()}:
        raise SystemExit(f"rows of {gpus} GPUs over {hours} h: {found}")
    return f"{found['gpu_samples']:,} rows of gpu_samples, {idle / 3600:,.1f} GPU-hours idle"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--hours", type=int, default=168)
    args = parser.parse_args()
    began_s = time.perf_counter()
    for hour in fill(args.folder, args.gpus, args.hours):
        if hour % 12 == 0 or hour == 2:
            print(f"{hour} h written after {time.perf_counter() - began_s:.0f} s", flush=True)
    print(check(args.folder, args.gpus, args.hours))


if __name__ == "__main__":
    main()
