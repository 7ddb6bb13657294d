"""Makes samples for the comparison: a small fleet with gaps, resets, a GPU that goes and one that comes."""

import math
from collections.abc import Iterator
from typing import Any

import duckdb

from gpuwarden.schema import TABLES, create_sql
from gpuwarden_prometheus.metrics import named_metrics

BEGAN_S = 1_790_000_000
LENGTH_S = 1_800
OFFSET_MS = 137
"""RangeVector are never at a whole second: Prometheus 2 and 3 differ in whether a window has its first instant."""
INTERVAL_S = 5
NAMES = (
    "gpuwarden_gpu_power_watts",
    "gpuwarden_gpu_util_ratio",
    "gpuwarden_gpu_energy_joules_total",
    "gpuwarden_gpu_memory_used_bytes",
    "gpuwarden_host_load_1m",
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_POWER_USAGE",
)


def filled() -> duckdb.DuckDBPyConnection:
    """A database in memory with the tables and the samples."""
    connection = duckdb.connect()
    for table in TABLES.values():
        connection.execute(create_sql(table))
    for table, rows in (("gpu_samples", _gpu_rows()), ("host_samples", _host_rows())):
        for row in rows:
            names, marks = ", ".join(row), ", ".join(f"${name}" for name in row)
            connection.execute(
                f"INSERT INTO {table} ({names}) VALUES ({marks.replace('$ts', 'make_timestamp_ms($ts)')})",
                row,
            )
    connection.execute(
        "INSERT INTO gpus BY NAME SELECT DISTINCT ON (gpu_uuid) gpu_uuid, node, gpu, simulated, 'nvidia' AS vendor, "
        "if(gpu = 2, 'NVIDIA A100', 'NVIDIA H100') AS model, '0000:1b:00.0' AS pci_bus_id FROM gpu_samples"
    )
    return connection


def _times() -> Iterator[tuple[int, int]]:
    for second in range(0, LENGTH_S, INTERVAL_S):
        yield second, (BEGAN_S + second) * 1000 + OFFSET_MS


def _gpu_rows() -> Iterator[dict[str, Any]]:
    for number in range(6):
        node, gpu = f"n{number // 3}", number % 3
        energy = 1e6 + 1000.0 * number
        for second, ts in _times():
            is_away = (number == 1 and second > 1_200) or (number == 4 and second < 400)
            in_gap = number == 2 and 600 < second < 900
            if is_away or in_gap:
                continue
            energy = 0.0 if number == 3 and second == 700 else energy + 300 + 10 * number
            yield {
                "ts": ts,
                "node": node,
                "gpu": gpu,
                "gpu_uuid": f"GPU-{number}",
                "simulated": False,
                "util_percent": round(50 + 49 * math.sin(second / 97 + number)),
                "power_watts": 300.0 + 5 * number + second % 60,
                "energy_joules_total": energy,
                "memory_used_bytes": 2**30 * (1 + (second // 300 + number) % 7),
            }


def _host_rows() -> Iterator[dict[str, Any]]:
    for node in ("n0", "n1"):
        for second, ts in _times():
            yield {
                "ts": ts,
                "node": node,
                "simulated": False,
                "load_1m": 1 + math.cos(second / 50) / 2,
            }


def openmetrics(connection: duckdb.DuckDBPyConnection) -> str:
    """The samples of `NAMES` as OpenMetrics text with times, which promtool makes blocks of."""
    lines = []
    for name in NAMES:
        (metric,) = named_metrics()[name]
        labels = ", ".join(
            f"{{'k': '{label}', 'v': CAST({sql} AS VARCHAR)}}"
            for label, sql in metric.labels
            if not sql.startswith("o.")  # nobody was given a GPU
        )
        gpus = "LEFT JOIN gpus g USING (gpu_uuid)" if metric.source.has_gpu else ""
        rows = connection.execute(
            f"SELECT epoch_ms(k.ts), {metric.value.replace('x', 'CAST(k.' + metric.columns[0] + ' AS DOUBLE)')}, [{labels}] "
            f"FROM {metric.source.name} k {gpus} LEFT JOIN nodes n ON n.node = k.node ORDER BY 3, 1"
        ).fetchall()
        for ms, value, pairs in rows:
            text = ",".join(f'{p["k"]}="{p["v"]}"' for p in pairs if p["v"])
            lines.append(f"{name}{{{text}}} {value!r} {ms // 1000}.{ms % 1000:03d}")
    return "\n".join([*lines, "# EOF", ""])
