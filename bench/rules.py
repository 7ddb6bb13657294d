"""Cost of one evaluation of each group of built-in rules over a large fleet, and of all of them together.

    python -m bench.rules [--gpus 1000] [--runs 5] [--seconds 900] [--rules gpu_hung,xid_critical] [--keep FILE]

A DuckDB file holds made-up samples: a quarter of the GPUs idle and held, a quarter starved by their loader, a quarter
busy at their power cap, the rest busy. Two hours and more of minutes are rolled up from them as the
collector does. The slower tables reach as far back as the rules look: health an hour, links and ports
five minutes, hours of rollups a week, and a week of events, a hundred a node. One GPU in ten has a link that once had
errors. Every row has all columns that the rules read, as a whole fleet of NVIDIA's newest would.

CPU s is of all threads. Alerts are there already, as they mostly are; `plan` is the part that does not grow
with the fleet, `step` the part in Python. The last lines add up one evaluation of all, one after the
other and as many at a time as the engine's lanes let through, and what they take of a core when each runs on its interval.
A rule that has a cause in the samples and finds another number of GPUs ends the run.
"""

import argparse
import queue
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb

from gpuwarden.rollups import ROLLUPS
from gpuwarden.schema import TABLES, create_sql, views_sql
from gpuwarden_collector.storage.idle_minutes import States, advance_minutes
from gpuwarden_collector.storage.rollup import minutes
from gpuwarden_rules.definition.form_group import Member
from gpuwarden_rules.definition.language import builtin_rules
from gpuwarden_rules.evaluation.group import RuleGroup, groups_of
from gpuwarden_rules.evaluation.runtime import RuleRuntime
from gpuwarden_rules.evaluation.state import RuleState, step

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECONDS = 900
"""Span of `gpu_samples`, `host_samples` and `process_samples`: no rule looks further back than ten minutes."""
MINUTES = 160
"""Span of rollups."""

CAUSES = {"gpu_idle_held": "gpu % 4 = 0", "gpu_data_loader_bound": "gpu % 4 = 1"}
"""Rules that fire, and the GPUs for which they do."""

NAMES = """
CREATE OR REPLACE TEMP TABLE named AS
SELECT g, 'GPU-' || md5(g::VARCHAR)::UUID AS gpu_uuid, (g % 8)::INTEGER AS gpu,
    'gpu-node-' || lpad((g // 8)::VARCHAR, 6, '0') AS node
FROM range($gpus) t(g)
"""
"""Names and UUIDs are as long as those of a real fleet."""
COMMON = "$now - to_seconds(s) AS ts, node, gpu, gpu_uuid, true AS simulated"

GPU_ROWS = f"""
INSERT INTO gpu_samples BY NAME
SELECT
    {COMMON},
    CASE g % 4 WHEN 0 THEN 0 WHEN 1 THEN 35 + random() * 10 ELSE 95 + random() * 5 END AS util_percent,
    85899345920 AS memory_total_bytes, 40000000000 AS memory_used_bytes,
    500 + random() * 50 AS power_watts, 700 AS power_limit_watts, 60 + random() AS temperature_celsius,
    70 AS memory_temperature_celsius,
    1900 + random() * 80 AS sm_clock_mhz, CASE g % 4 WHEN 2 THEN 4 ELSE 0 END AS clocks_event_reasons,
    CASE g % 4 WHEN 2 THEN $seconds - s ELSE 7 END AS power_violation_seconds_total,
    0 AS thermal_violation_seconds_total, 0 AS sw_thermal_seconds_total,
    0 AS hw_thermal_seconds_total, 0 AS hw_power_brake_seconds_total,
    (7200 - s) * 1000000 AS pcie_tx_bytes_total, (7200 - s) * 1000000 AS pcie_rx_bytes_total,
    (7200 - s) * 2000000 AS nvlink_tx_bytes_total, (7200 - s) * 2000000 AS nvlink_rx_bytes_total
FROM range($seconds - 1, -1, -1) u(s), named
"""
PROCESS_ROWS = f"""
INSERT INTO process_samples BY NAME
SELECT
    {COMMON}, 1000 + g AS pid, 'python' AS process_name, 'alice' AS username,
    'python train.py --config run.yaml --epochs 90' AS command, '/user.slice/' || g AS cgroup,
    $now - INTERVAL 1 DAY AS started_at, 40000000000 AS gpu_memory_bytes, 'S' AS state,
    CASE g % 4 WHEN 0 THEN 1 ELSE 300 END AS cpu_percent, CASE g % 4 WHEN 0 THEN 1 ELSE 40 END AS main_cpu_percent,
    CASE g % 4 WHEN 0 THEN 0 ELSE 4 END AS loader_workers, CASE g % 4 WHEN 0 THEN NULL ELSE 97 END AS loader_cpu_percent, 100 AS loader_saturated_percent,
    0 AS loader_blocked_percent, 4 AS loader_started_total, 128 AS cpus_allowed, 7 AS read_bytes_total,
    7 AS read_chars_total, 7 AS write_bytes_total
FROM range($seconds - 10, -1, -10) u(s), named
"""
HOST_ROWS = """
INSERT INTO host_samples BY NAME
SELECT $now - to_seconds(s) AS ts, node, true AS simulated, 20 AS cpu_util_percent,
    80 AS cpu_idle_percent, 0 AS cpu_iowait_percent, 1 AS psi_io_some_percent,
    1 AS psi_cpu_some_percent, 5 AS disk_busy_percent
FROM range($seconds - 1, -1, -1) u(s), named WHERE gpu = 0
"""
OTHER_ROWS = (
    f"""
INSERT INTO gpu_detail_samples BY NAME
SELECT {COMMON}, 16 AS pcie_width, 5 AS pcie_generation, 3 AS pcie_replays_total,
    18 AS nvlinks_active, 30 AS temperature_margin_celsius, 40 AS fan_percent,
    60 AS sm_active_percent, 40 AS tensor_active_percent, 30 AS dram_active_percent
FROM range(1790, -1, -10) u(s), named
""",
    f"""
INSERT INTO gpu_health_samples BY NAME
SELECT {COMMON}, 'none' AS recovery_action, 'completed' AS fabric_state,
    'success' AS fabric_status, 'healthy' AS fabric_health, 0 AS ecc_corrected_volatile_total,
    0 AS ecc_uncorrected_volatile_total, 0 AS ecc_uncorrected_aggregate_total,
    0 AS sram_uncorrected_aggregate_total, false AS sram_threshold_exceeded,
    0 AS remapped_rows_corrected_total, 0 AS remapped_rows_uncorrected_total, false AS remap_pending,
    g % 1000 = 0 AS remap_failed, 0 AS remap_banks_none, 0 AS remap_banks_low,
    0 AS retired_pages_corrected_total, 0 AS retired_pages_uncorrected_total,
    false AS retired_pages_pending, false AS memory_unrepairable, true AS inforom_valid
FROM range(3540, -1, -60) u(s), named
""",
    f"""
INSERT INTO link_samples BY NAME
SELECT {COMMON}, 'nvlink' AS link_type, l AS link, true AS active,
    if(g % 10 = 0 AND l = 3, 5, 0) AS replay_errors_total,
    0 AS recovery_errors_total, 0 AS crc_flit_errors_total, 0 AS crc_data_errors_total
FROM range(140, -1, -10) u(s), named, range(18) v(l)
""",
    """
INSERT INTO infiniband_samples BY NAME
SELECT $now - to_seconds(s) AS ts, node, true AS simulated, 'mlx5_' || d AS device, 1 AS port,
    'InfiniBand' AS link_layer, 'active' AS state, 'LinkUp' AS physical_state
FROM named, range(8) v(d), range(140, -1, -10) u(s) WHERE gpu = 0
""",
    f"""
INSERT INTO coverage BY NAME
SELECT {COMMON}, 'gpu' || gpu AS probe, t.name AS table_name,
    60 AS expected, 60 AS taken, 0 AS missed, 0 AS skipped, 0 AS late, 0 AS failed
FROM named, range(840, -1, -60) u(s),
    (VALUES ('gpu_samples'), ('gpu_detail_samples'), ('gpu_health_samples'), ('link_samples')) t(name)
""",
    """
INSERT INTO gpu_1h BY NAME
SELECT date_trunc('hour', $now::TIMESTAMP) - to_hours(h::INTEGER) AS ts, node,
    gpu_uuid, gpu, true AS simulated, 3600 AS samples,
    360 AS detail_samples, 60 AS health_samples, 18 AS nvlinks_active_max, 16 AS pcie_width_max,
    5 AS pcie_generation_max, CASE g % 4 WHEN 0 THEN 0 WHEN 1 THEN 40 ELSE 97 END AS util_percent_avg,
    CASE g % 4 WHEN 0 THEN 0 WHEN 1 THEN 45 ELSE 100 END AS util_percent_p95,
    CASE g % 4 WHEN 0 THEN 3600 ELSE 0 END AS idle_seconds, 3600 - idle_seconds AS busy_seconds,
    40000000000 AS memory_used_bytes_max, 85899345920 AS memory_total_bytes_last
FROM range(168, 0, -1) u(h), named
""",
    """
INSERT INTO diagnoses BY NAME
SELECT gpu_uuid AS subject, 'gpu' AS kind,
    CASE g % 4 WHEN 0 THEN 'idle_held' WHEN 1 THEN 'loader_workers' ELSE 'compute_bound' END AS bottleneck,
    1 AS confidence, 'Too few data-loader workers: each is busy, and cores are idle.' AS summary,
    'num_workers 3 -> 10; 20 cores are idle.' AS advice, '[]' AS evidence, '[]' AS misses,
    CASE g % 4 WHEN 0 THEN 1 WHEN 1 THEN 0.6 ELSE 0.02 END AS stall, 1.77 AS usd_per_hour, node, gpu,
    'process ' || g AS job, 'alice' AS username, 1 AS gpus, $now::TIMESTAMP - INTERVAL 5 HOUR AS began_at,
    $now::TIMESTAMP - INTERVAL 2 MINUTE AS seen_at, true AS simulated
FROM named
""",
    """
INSERT INTO events BY NAME
SELECT $now - to_seconds(6000 * e) AS ts, node, gpu, gpu_uuid,
    true AS simulated, kind[1 + (g // 8 + e) % 8] AS kind, 'warning' AS severity, 'Something happened' AS message,
    '{"action": "RESTART_APP", "xid": 31, "pid": 4711, "device": "mlx5_0", "port": 1}' AS details
FROM named, range(99, -1, -1) u(e), (SELECT ['slowdown_began', 'slowdown_ended', 'probe_failed',
    'probe_recovered', 'xid', 'agent_gap', 'port_down', 'port_up'] AS kind) WHERE gpu = 0
""",
)
INVENTORY = (
    (
        "INSERT INTO gpus BY NAME SELECT gpu_uuid, node, gpu,"
        " 'NVIDIA H100 80GB HBM3' AS model, 2.95 AS usd_per_hour, 1980 AS sm_clock_max_mhz,"
        " 'nvidia' AS vendor, 18 AS nvlinks, 700 AS power_limit_default_watts,"
        " 5 AS pcie_generation_max, 16 AS pcie_width_max, 90 AS temperature_gpu_max_celsius,"
        " true AS persistence_mode, $now AS last_seen_at,"
        " true AS simulated FROM named"
    ),
    (
        "INSERT INTO nodes BY NAME SELECT node, 'a' AS agent_id, 'b' AS boot_id, 64 AS cpus,"
        " 64 AS cpu_cores, 8 AS gpus, $now AS last_seen_at, true AS simulated FROM named WHERE gpu = 0"
    ),
)


def filled(
    path: Path, gpus: int, seconds: int, memory: str, threads: int
) -> duckdb.DuckDBPyConnection:
    """A database with so many seconds of a fleet; one that is there is taken as it is."""
    is_new = not path.exists()
    db = duckdb.connect(str(path), config={"threads": threads, "memory_limit": memory})
    db.execute("SET TimeZone = 'UTC'")
    if not is_new:
        return db
    for table in TABLES.values():
        db.execute(create_sql(table))
    db.execute(views_sql())
    values = {"now": NOW.replace(tzinfo=None), "gpus": gpus, "seconds": seconds}
    for sql in (NAMES, *INVENTORY, GPU_ROWS, PROCESS_ROWS, HOST_ROWS, *OTHER_ROWS):
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
            db.register("computed", minutes(db, rollup, end - timedelta(minutes=1), end))
            db.execute("CREATE OR REPLACE TEMP TABLE minute AS FROM computed")
            for back in reversed(range(MINUTES)):
                db.execute(
                    f"INSERT INTO {name} BY NAME"
                    f" SELECT * REPLACE (ts - INTERVAL {back} MINUTE AS ts) FROM minute"
                )
    states: States = {}
    for back in reversed(range(MINUTES)):
        begin = end - timedelta(minutes=back + 1)
        span = f"ts >= '{begin}' AND ts < '{begin + timedelta(minutes=1)}'"
        gpus, processes, allocations = (
            db.execute(f"FROM {name} WHERE {span}").to_arrow_table()
            for name in ("gpu_1m", "process_1m", "allocation_samples")
        )
        advanced = advance_minutes(db, gpus, processes, allocations, begin, states)
        states = advanced.states
        db.register("computed", advanced.rows)
        db.execute("INSERT INTO idle_1m BY NAME FROM computed")


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one evaluation of a group of rules; `cpu_s` is of all threads, the steps included."""

    group: RuleGroup
    wall_s: float
    cpu_s: float
    plan_ms: float
    step_ms: float
    rows: int
    alerts: Mapping[str, int]

    def __str__(self) -> str:
        return (
            f"{self.group.name:46} {self.wall_s:9.2f} {self.cpu_s:8.2f} {self.plan_ms:8.1f}"
            f" {self.step_ms:8.1f} {self.rows:7d} {sum(self.alerts.values()):7d}"
        )


class Evaluation:
    """The SQL of a group and the states of its rules."""

    def __init__(self, group: RuleGroup) -> None:
        self.group = group
        self.rules = [runtime.rule for runtime in group.runtimes]
        self.states = [RuleState() for _ in self.rules]
        forms = [(rule.form, rule.params) for rule in self.rules]
        members = [Member(form, params) for form, params in forms if form]
        self._select = group.select(members) if len(self.rules) > 1 else None
        self.sql = group.plain_sql
        self.bindings = {
            name: value.replace(tzinfo=None) if isinstance(value, datetime) else value
            for name, value in group.bindings(NOW).items()
        }

    def run(self, db: duckdb.DuckDBPyConnection) -> tuple[int, float]:
        """Evaluate once: rows of the SQL, and seconds that the steps took."""
        rows = records(db.execute(self.sql, self.bindings))
        began = time.perf_counter()
        for number, rule in enumerate(self.rules):
            own = [*self._select.rows_of(number, rows)] if self._select else rows
            self.states[number], _ = step(self.states[number], own, rule, NOW)
        return len(rows), time.perf_counter() - began


def records(db: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    names = [column[0] for column in db.description or ()]
    return [
        {
            n: v.replace(tzinfo=UTC) if isinstance(v, datetime) else v
            for n, v in zip(names, row, strict=True)
        }
        for row in db.fetchall()
    ]


def cost_of(db: duckdb.DuckDBPyConnection, evaluation: Evaluation, runs: int) -> Cost:
    """Medians over some evaluations, the alerts of which are there already."""
    rows, _ = evaluation.run(db)
    walls, cpus, steps = [], [], []
    for _ in range(runs):
        wall_began, cpu_began = time.perf_counter(), time.process_time()
        rows, step_s = evaluation.run(db)
        walls.append(time.perf_counter() - wall_began)
        cpus.append(time.process_time() - cpu_began)
        steps.append(step_s)
    cpu_began = time.process_time()
    db.execute(f"EXPLAIN {evaluation.sql}", evaluation.bindings).fetchall()
    plan_s = time.process_time() - cpu_began
    wall_s, cpu_s, step_s = (statistics.median(taken) for taken in (walls, cpus, steps))
    names = [rule.name for rule in evaluation.rules]
    alerts = dict(zip(names, map(len, evaluation.states), strict=True))
    return Cost(evaluation.group, wall_s, cpu_s, 1e3 * plan_s, 1e3 * step_s, rows, alerts)


def check(db: duckdb.DuckDBPyConnection, costs: Sequence[Cost]) -> None:
    """Raise SystemExit where a rule did not find each GPU that it fires for."""
    alerts = {name: count for cost in costs for name, count in cost.alerts.items()}
    for name, where in CAUSES.items():
        if name in alerts:
            gpus = db.execute(f"SELECT count(*) FROM gpus WHERE {where}").fetchall()[0][0]
            if not gpus or alerts[name] != gpus:
                raise SystemExit(f"{name}: {alerts[name]} alerts, not {gpus}")


def together_s(
    db: duckdb.DuckDBPyConnection, evaluations: Sequence[Evaluation], lanes: int
) -> tuple[float, float]:
    """Wall and CPU seconds of all rules at once, so many at a time, as the engine's lanes do."""
    cursors: queue.SimpleQueue[duckdb.DuckDBPyConnection] = queue.SimpleQueue()
    for _ in range(lanes):
        cursors.put(db.cursor())

    def evaluate(evaluation: Evaluation) -> None:
        cursor = cursors.get()
        evaluation.run(cursor)
        cursors.put(cursor)

    wall_began, cpu_began = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(lanes) as pool:
        list(pool.map(evaluate, evaluations))
    return time.perf_counter() - wall_began, time.process_time() - cpu_began


def main() -> None:
    """Fill, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of samples a second")
    parser.add_argument("--rules", help="names, separated by commas; default: all")
    parser.add_argument("--keep", type=Path, help="database to keep, and to take if it is there")
    parser.add_argument("--memory", default="4GiB", help="that DuckDB may use")
    parser.add_argument(
        "--threads", type=int, default=1, help="of DuckDB; a collector has one for two CPUs"
    )
    parser.add_argument("--lanes", type=int, default=2, help="rules at a time in the last lines")
    args = parser.parse_args()
    wanted = set(args.rules.split(",")) if args.rules else None
    rules = [rule for rule in builtin_rules() if wanted is None or rule.name in wanted]
    with tempfile.TemporaryDirectory() as folder:
        path = args.keep or Path(folder) / "fleet.duckdb"
        db = filled(path, args.gpus, args.seconds, args.memory, args.threads)
        print(
            f"{'rules':46} {'wall s':>9} {'CPU s':>8} {'plan ms':>8} {'step ms':>8} {'rows':>7} {'alerts':>7}"
        )
        evaluations = [Evaluation(group) for group in groups_of(map(RuleRuntime, rules))]
        costs = [cost_of(db, evaluation, args.runs) for evaluation in evaluations]
        print(*sorted(costs, key=lambda cost: -cost.cpu_s), sep="\n")
        check(db, costs)
        print(
            f"one after the other: {sum(c.wall_s for c in costs):.2f} s,"
            f" {sum(c.cpu_s for c in costs):.2f} s of CPU,"
            f" of which planning {sum(c.plan_ms for c in costs) / 1e3:.2f}"
            f" and steps {sum(c.step_ms for c in costs) / 1e3:.2f}"
        )
        dear = {cost.group: cost.wall_s for cost in costs}
        dearest_first = sorted(evaluations, key=lambda evaluation: -dear[evaluation.group])
        runs = [together_s(db, dearest_first, args.lanes) for _ in range(args.runs)]
        wall_s, cpu_s = (statistics.median(taken) for taken in zip(*runs, strict=True))
        print(f"{args.lanes} at a time: {wall_s:.2f} s, {cpu_s:.2f} s of CPU")
        steady = sum(cost.cpu_s / cost.group.interval_s for cost in costs)
        print(f"on their intervals: {100 * steady:.0f} % of a core")


if __name__ == "__main__":
    main()
