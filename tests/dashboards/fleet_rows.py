"""Rows of a made-up fleet, as SQL by table: inventory with labels, samples of now, a week of rollups, alerts.

What each GPU does follows from its number alone, so that what a page shows of it can be checked.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuwarden.query import timestamp_sql

PER_NODE = 8
WEEK_HOURS = 168
Rows = Iterator[tuple[str, str]]
"""Tables, and a SELECT of rows for each; some read tables that came before."""


@dataclass(frozen=True)
class FleetSize:
    """How many nodes, and for how many of the last hours there are minutes."""

    nodes: int
    minute_hours: int = 8
    gpus_max: int | None = None
    """The last node has fewer GPUs, so that there are this many; None: each has 8."""

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        gpus = self.nodes * PER_NODE
        return gpus if self.gpus_max is None else min(gpus, self.gpus_max)

    @property
    def silent_nodes(self) -> list[int]:
        """Numbers of nodes that do not report: one in 50, at least one."""
        return list(range(7, self.nodes, 50))

    @property
    def reporting(self) -> int:
        """GPUs that report."""
        return self.gpus - len(self.silent_nodes) * PER_NODE

    @property
    def idle(self) -> int:
        """GPUs that report and are idle: one in ten of all."""
        silent = set(self.silent_nodes)
        return sum(1 for i in range(0, self.gpus, 10) if i // PER_NODE not in silent)

    @property
    def alerting(self) -> int:
        """GPUs with an alert: the third of each node whose number is 3 more than a multiple of 20."""
        return len(range(3, self.nodes, 20))


def node_name(number: int) -> str:
    """Name of the node of that number."""
    return f"gpu-{number:05d}"


_NODE = "format('gpu-{:05d}', i // 8)"
_UUID = "'GPU-' || md5(i::VARCHAR)"
_JOB = "(i // 32)"
_UTIL = "CASE WHEN i % 10 = 0 THEN 0 ELSE 35 + (i * 37 + i // 32 * 13) % 64 END"


def inventory(size: FleetSize, now: datetime) -> Rows:
    """nodes and gpus."""
    at = timestamp_sql(now)
    silent = "(n >= 7 AND (n - 7) % 50 = 0)"
    yield (
        "nodes",
        f"""
        SELECT format('gpu-{{:05d}}', n) AS node, 'agent' || n AS agent_id, 'boot' AS boot_id, true AS simulated,
            MAP {{'rack': 'r' || n // 8,
                'team': ['vision', 'language', 'speech', 'robotics', 'science'][1 + n // 16 % 5],
                'zone': ['east', 'west'][1 + n % 2]}} AS labels,
            8 AS gpus, {at} - INTERVAL 30 DAY AS first_seen_at,
            {at} - to_seconds(CASE WHEN {silent} THEN 2700 ELSE 1 END) AS last_seen_at
        FROM range({size.nodes}) t(n)
    """,
    )
    yield (
        "gpus",
        f"""
        SELECT {_NODE} AS node, (i % 8)::INTEGER AS gpu, {_UUID} AS gpu_uuid, true AS simulated,
            CASE WHEN n % 4 = 3 THEN 'NVIDIA A100-SXM4-80GB' ELSE 'NVIDIA H100 80GB HBM3' END AS model,
            CASE WHEN n % 4 = 3 THEN 1.79 ELSE 2.95 END AS usd_per_hour, 90 AS temperature_slowdown_celsius,
            {at} - INTERVAL 30 DAY AS first_seen_at,
            {at} - to_seconds(CASE WHEN {silent} THEN 2700 ELSE 1 END) AS last_seen_at
        FROM (SELECT i, i // 8 AS n FROM range({size.gpus}) t(i))
    """,
    )


def sample_sql(table: str, size: FleetSize, ts: str) -> str:
    """SELECT of one sample of everything that reports, for a table of samples. `ts`: SQL of its time."""
    gpus = (
        f"(SELECT i, i // 8 AS n, {_NODE} AS node, (i % 8)::INTEGER AS gpu, {_UUID} AS gpu_uuid "
        f"FROM range({size.gpus}) t(i) WHERE i // 8 < 7 OR (i // 8 - 7) % 50 <> 0)"
    )
    wobble = f"(hash(i, {ts}) % 5)::INTEGER"
    columns = {
        "gpu_samples": f"""
            node, gpu, gpu_uuid, ({_UTIL} + CASE WHEN i % 10 = 0 THEN 0 ELSE {wobble} - 2 END)::FLOAT AS util_percent,
            (90 + 5.5 * {_UTIL} + {wobble})::FLOAT AS power_watts, (38 + {_UTIL} * 0.4 + i % 8)::FLOAT AS temperature_celsius,
            ((i * 7 % 90) * 1e9)::BIGINT AS memory_used_bytes, 85899345920::BIGINT AS memory_total_bytes,
            1755 AS sm_clock_mhz, CASE WHEN i % 97 = 5 AND i % 10 > 0 THEN 64 ELSE 0 END AS clocks_event_reasons""",
        "gpu_detail_samples": f"""
            node, gpu, gpu_uuid, ({_UTIL} * 0.8 + {wobble})::FLOAT AS sm_active_percent,
            ((20 + {wobble}) * 1e9)::BIGINT AS nvlink_rx_bytes_per_second""",
        "process_samples": f"""
            node, gpu, gpu_uuid, 1000 + i AS pid, 'python' AS process_name, 'user' || {_JOB} % 23 AS username,
            (70000 + {_JOB})::VARCHAR AS job, 4e10::BIGINT AS gpu_memory_bytes""",
        "host_samples": """
            node, (10 + n % 60)::FLOAT AS cpu_util_percent, (n % 7)::FLOAT AS cpu_iowait_percent,
            400000000000::BIGINT AS memory_used_bytes, 2000000000000::BIGINT AS memory_total_bytes""",
    }[table]
    where = "WHERE i % 10 <> 0" if table == "process_samples" else ""
    distinct = "DISTINCT" if table == "host_samples" else ""
    return f"SELECT {distinct} {ts} AS ts, true AS simulated, {columns} FROM {gpus} {where}"


def _gpus(size: FleetSize) -> str:
    """A CTE of every GPU: its names are made once, not for each row."""
    return f"""WITH g AS MATERIALIZED (SELECT i, {_NODE} AS node, {_UUID} AS gpu_uuid, (i % 8)::INTEGER AS gpu,
        {_UTIL} AS util, 'user' || {_JOB} % 23 AS username, (70000 + {_JOB})::VARCHAR AS job,
        ['vision', 'language', 'speech', 'robotics', 'science'][1 + i // 8 // 16 % 5] AS team
        FROM range({size.gpus}) t(i))"""


def rollups(size: FleetSize, now: datetime) -> Rows:
    """gpu_1m of the last hours, gpu_1h and waste_1h of the last week, all as far as they are whole, by the day."""
    hour = now.replace(minute=0, second=0, microsecond=0)
    minute = now.replace(second=0, microsecond=0)
    week = hour - timedelta(hours=WEEK_HOURS)
    for table, row_s, begin, end in (
        ("gpu_1m", 60, hour - timedelta(hours=size.minute_hours), minute),
        ("gpu_1h", 3600, week, hour),
        ("waste_1h", 3600, week + timedelta(hours=1), hour),
    ):
        columns = _WASTE if table == "waste_1h" else _measured(row_s)
        while begin < end:
            until = min(end, begin + timedelta(days=1))
            times = (
                f"range({timestamp_sql(begin)}, {timestamp_sql(until)}, to_seconds({row_s})) h(ts)"
            )
            yield (
                table,
                (
                    f"{_gpus(size)} SELECT ts, node, gpu_uuid, gpu, true AS simulated, {columns} FROM {times}, g"
                ),
            )
            begin = until


_WASTE = """username, job, team, CASE WHEN i % 10 = 0 THEN 'idle_held' ELSE 'busy' END AS category,
    3600 AS seconds, 2.0 AS usd"""


def _measured(row_s: int) -> str:
    return f"""{row_s} AS samples, {row_s} AS detail_samples, {row_s} AS health_samples,
        {_day("ts")} * util AS util_percent_avg, 90 + 5.5 * util_percent_avg AS power_watts_avg,
        CASE WHEN i % 10 = 0 THEN {row_s} ELSE 0 END AS idle_seconds, {row_s} - idle_seconds AS busy_seconds"""


def _day(ts: str) -> str:
    return f"(0.8 + 0.2 * sin(epoch({ts}) / 86400 * 6.283))"


def alerts(size: FleetSize, now: datetime) -> Rows:
    """One alert on each 20th node, and incidents of the first of them."""
    at = timestamp_sql(now - timedelta(minutes=50))
    yield (
        "alerts",
        f"""
        SELECT 'f' || n AS fingerprint, 'gpu_hung' AS rule, CASE WHEN n % 40 = 3 THEN 'critical' ELSE 'warning' END AS severity,
            'slow_work' AS consequence, 'firing' AS state, format('gpu-{{:05d}}', n) AS node, 2 AS gpu,
            'GPU-' || md5((n * 8 + 2)::VARCHAR) AS gpu_uuid, '{{}}' AS labels,
            format('GPU 2 of gpu-{{:05d}} has stood still for 48 min while job {{}} holds it', n, 70000 + n // 4) AS summary,
            'Restart the job.' AS remedy, 2.95 AS usd_per_hour, {at} AS began_at, {at} AS active_at, {at} AS fired_at,
            {at} AS seen_at, true AS simulated
        FROM range(3, {size.nodes}, 20) t(n)
    """,
    )
    yield (
        "incidents",
        """
        SELECT 'i' || fingerprint AS id, 'open' AS state, fingerprint AS root, rule, severity, consequence, summary, remedy,
            node AS place, '{}' AS labels, 1 AS nodes, 1 AS roots, 1 AS alerts, 1 AS firing, usd_per_hour, true AS simulated,
            began_at, began_at AS opened_at
        FROM alerts WHERE fingerprint IN (SELECT fingerprint FROM alerts ORDER BY length(fingerprint), fingerprint LIMIT 40)
    """,
    )
    yield (
        "incident_alerts",
        """
        SELECT 'i' || fingerprint AS incident, fingerprint, active_at, rule, labels, began_at AS joined_at
        FROM alerts WHERE 'i' || fingerprint IN (SELECT id FROM incidents)
    """,
    )
