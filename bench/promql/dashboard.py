"""Ten panels of a dashboard at once, as PromQL over HTTP; each answer is checked.

    python -m bench.promql.dashboard [--gpus 1000] [--hours 6] [--runs 20] [--prometheus]

A store is filled with rollups of some hours and samples of the last minutes, and a collector is run over it. Prints
milliseconds from question to answer of each panel and of all at once, and the CPU of all of the collector's processes:
of a first question (`nocache=1`), and of a refresh, for which the collector has kept the steps that are rolled up.
With `--prometheus` Debian's Prometheus answers too, from one sample a minute of the same values; the means of a panel must
agree within a hundredth.
"""

import argparse
import http.client
import json
import math
import statistics
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import psutil
from bench.promql.compare import prometheus_of
from bench.sql import seconds_at_once
from bench.store import ours
from bench.this_host import free_port

from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits

RAW_MINUTES = 4
"""Minutes that are not rolled up yet: what a collector has at any time."""
_WARM = 3
NOTHING: Mapping[str, object] = {}
_NAMES = (
    "'n' || (g // 8) AS node, (g % 8)::INTEGER AS gpu, 'GPU-' || g AS gpu_uuid, true AS simulated"
)
_UTIL = "(g * 37 + epoch(ts)::BIGINT // 60) % 100"
_MINUTES = f"""
    INSERT INTO lake.main.gpu_1m BY NAME SELECT * EXCLUDE (g), {_UTIL} AS util_percent_avg, {_UTIL} AS util_percent_min,
        {_UTIL} AS util_percent_max, {_UTIL} AS util_percent_last, 300 + g % 50 AS power_watts_avg,
        300 + g % 50 AS power_watts_max, 300 + g % 50 AS power_watts_last, 60 AS temperature_celsius_last,
        60 AS temperature_celsius_max, 40e9 AS memory_used_bytes_last, 1410 AS sm_clock_mhz_last,
        18000.0 AS energy_joules_delta, 1e9 AS nvlink_tx_bytes_delta, 1e9 AS nvlink_rx_bytes_delta,
        50 AS sm_active_percent_avg, 6 AS detail_samples, 1 AS health_samples, 0.0 AS idle_seconds, 60.0 AS busy_seconds
    FROM (SELECT $begin::TIMESTAMP + to_minutes(m) AS ts, {_NAMES}, g, 60 AS samples
        FROM range($minutes) t(m), range($gpus) u(g)) ORDER BY gpu_uuid, ts
"""
_SAMPLES = f"""
    INSERT INTO lake.main.gpu_samples BY NAME SELECT * EXCLUDE (g), {_UTIL} AS util_percent, 300 + g % 50 AS power_watts,
        60 AS temperature_celsius, 40e9 AS memory_used_bytes, 1410 AS sm_clock_mhz,
        300.0 * epoch(ts) AS energy_joules_total, 1e7 * epoch(ts) AS nvlink_tx_bytes_total,
        1e7 * epoch(ts) AS nvlink_rx_bytes_total
    FROM (SELECT $begin::TIMESTAMP + to_seconds(s) AS ts, {_NAMES}, g FROM range($seconds) t(s), range($gpus) u(g))
    ORDER BY gpu_uuid, ts
"""


@dataclass(frozen=True, slots=True)
class Panel:
    """A query, and how many series its answer has."""

    query: str
    series: str
    """A Python number, or `nodes`."""


PANELS = (
    Panel("avg(DCGM_FI_DEV_GPU_UTIL)", "1"),
    Panel("avg by (Hostname) (DCGM_FI_DEV_GPU_UTIL)", "nodes"),
    Panel("sum(DCGM_FI_DEV_POWER_USAGE)", "1"),
    Panel("max by (Hostname) (DCGM_FI_DEV_GPU_TEMP)", "nodes"),
    Panel("sum(gpuwarden_gpu_memory_used_bytes) / 1e9", "1"),
    Panel("count(gpuwarden_gpu_util_ratio < 0.5)", "1"),
    Panel("quantile(0.95, gpuwarden_gpu_util_ratio)", "1"),
    Panel("sum by (model) (rate(gpuwarden_gpu_energy_joules_total[5m]))", "1"),
    Panel("avg(avg_over_time(gpuwarden_gpu_util_ratio[10m]))", "1"),
    Panel("avg(DCGM_FI_DEV_SM_CLOCK) by (modelName)", "1"),
)


def fill(folder: Path, gpus: int, hours: float) -> None:
    """Fill rollups until some minutes ago, and samples since then."""
    now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    rolled = now.replace(second=0) - timedelta(minutes=RAW_MINUTES)
    begin = rolled - timedelta(hours=hours)
    database = Database.open(folder, EngineLimits(memory="2GiB", threads=1))
    try:
        with database.maintaining() as cursor:
            minutes = {"begin": begin, "minutes": round(hours * 60), "gpus": gpus}
            cursor.execute(_MINUTES, minutes)
            seconds = {"begin": rolled, "seconds": 60 * RAW_MINUTES + 120, "gpus": gpus}
            cursor.execute(_SAMPLES, seconds)
        with database.state.writing() as writing:
            writing.set_meta({"minutes_until": rolled, "hours_until": rolled.replace(minute=0)})
    finally:
        database.close()


_EXPOSED = {
    "DCGM_FI_DEV_GPU_UTIL": ("gauge", _UTIL),
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", "300 + g % 50"),
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", "60"),
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", "1410"),
    "gpuwarden_gpu_memory_used_bytes": ("gauge", "40e9"),
    "gpuwarden_gpu_util_ratio": ("gauge", f"({_UTIL}) / 100"),
    "gpuwarden_gpu_energy_joules": ("counter", "300.0 * epoch(ts)"),
}


def openmetrics(gpus: int, hours: float) -> str:
    """A sample a minute of what the panels read, until now."""
    end = datetime.now(UTC).replace(tzinfo=None, second=0, microsecond=0)
    span = {"begin": end - timedelta(hours=hours), "minutes": round(hours * 60), "gpus": gpus}
    labels = (
        """'{Hostname="n' || (g // 8) || '",gpu="' || g % 8 || '",UUID="GPU-' || g || """
        """'",modelName="NVIDIA H100",model="NVIDIA H100"} '"""
    )
    connection = duckdb.connect()
    lines = []
    for name, (kind, value) in _EXPOSED.items():
        suffix = "_total" if kind == "counter" else ""
        # A minute's reading is at its end.
        line = f"$name || {labels} || ({value}) || ' ' || epoch(ts + INTERVAL 1 MINUTE)::BIGINT"
        found = connection.execute(
            f"SELECT string_agg({line}, chr(10) ORDER BY g, ts) FROM (SELECT $begin::TIMESTAMP + to_minutes(m) AS ts, g "
            "FROM range($minutes) t(m), range($gpus) u(g))",
            {"name": name + suffix, **span},
        ).fetchone()
        assert found is not None
        lines += [f"# TYPE {name} {kind}", found[0]]
    return "\n".join([*lines, "# EOF", ""])


def ask(
    base: str, panel: Panel, hours: float, step_s: int, more: Mapping[str, object] = NOTHING
) -> dict[str, list[list[object]]]:
    """The answer of a range query: values by labels. `base`: address of the API, without `http://`."""
    end_s = time.time() // step_s * step_s
    asked = {
        "query": panel.query,
        "start": end_s - hours * 3600,
        "end": end_s,
        "step": step_s,
        **more,
    }
    host, _, path = base.partition("/")
    connection = http.client.HTTPConnection(host, timeout=120)
    connection.request("GET", f"/{path}/query_range?{urllib.parse.urlencode(asked)}")
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 200, body
    return {json.dumps(one["metric"]): one["values"] for one in json.loads(body)["data"]["result"]}


def check(panel: Panel, found: dict[str, list[list[object]]], gpus: int, steps: int) -> None:
    """Raise AssertionError if series or steps are missing."""
    wanted = -(-gpus // 8) if panel.series == "nodes" else int(panel.series)
    assert len(found) == wanted, (panel.query, len(found), wanted)
    least = min(len(values) for values in found.values())
    assert least >= steps * 0.95, (panel.query, least, steps)


def timed(
    base: str, panels: Sequence[Panel], given: argparse.Namespace, more: Mapping[str, object]
) -> float:
    """Milliseconds until all panels, asked at once, are answered."""
    found: list[dict[str, list[list[object]]]] = [{} for _ in panels]
    step_s: int = given.step

    def one(at: int) -> None:
        found[at] = ask(base, panels[at], given.hours, step_s, more)

    took_ms = 1000 * seconds_at_once(one, len(panels))
    steps = int(given.hours * 3600 // step_s)
    for panel, values in zip(panels, found, strict=True):
        check(panel, values, given.gpus, steps)
    return took_ms


def _wait_until_rolled(base: str, given: argparse.Namespace) -> None:
    """Wait until the collector knows how far its rows are rolled up."""
    for _ in range(120):
        found = ask(base, PANELS[0], given.hours, given.step)
        if any(len(values) > 2 * RAW_MINUTES + 2 for values in found.values()):
            return
        time.sleep(0.5)
    raise SystemExit("the collector does not read rollups")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=1_000)
    parser.add_argument("--hours", type=float, default=6.0)
    parser.add_argument("--step", type=int, default=60, help="seconds")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--prometheus", action="store_true")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gpuwarden-bench-") as folder, ExitStack() as stack:
        fill(Path(folder) / "ours", given.gpus, given.hours)
        child = stack.enter_context(ours.collector(Path(folder) / "ours"))
        base = f"127.0.0.1:{child.port}/prometheus/api/v1"
        _wait_until_rolled(base, given)
        print(f"{given.gpus} GPUs, {given.hours:g} hours, a value each {given.step} s")
        print(f"{'':68}  p50 ms   max ms   CPU ms")
        measure("first: ", base, given, child.cpu_s, {"nocache": 1})
        measure("refresh: ", base, given, child.cpu_s)
        if given.prometheus:
            port, theirs = free_port(), Path(folder) / "theirs"
            theirs.mkdir()
            text = openmetrics(given.gpus, given.hours)
            stack.enter_context(prometheus_of(text, theirs, port))
            other = f"127.0.0.1:{port}/api/v1"
            measure("Prometheus: ", other, given, lambda: _cpu_s(port))
            for panel in PANELS:
                means = [_mean(ask(at, panel, given.hours, given.step)) for at in (base, other)]
                assert math.isclose(*means, rel_tol=0.01), (panel.query, means)


def measure(
    of: str,
    base: str,
    given: argparse.Namespace,
    cpu_s: Callable[[], float],
    more: Mapping[str, object] = NOTHING,
) -> None:
    """Print what each panel takes, and all of them."""
    for name, panels in (*((p.query, (p,)) for p in PANELS), ("all at once", PANELS)):
        for _ in range(_WARM):
            timed(base, panels, given, more)
        began_s = cpu_s()
        took_ms = [timed(base, panels, given, more) for _ in range(given.runs)]
        cpu_ms = 1000 * (cpu_s() - began_s) / given.runs
        figures = f"{statistics.median(took_ms):8.1f} {max(took_ms):8.1f} {cpu_ms:8.1f}"
        print(f"{of + name:68}{figures}", flush=True)


def _mean(found: dict[str, list[list[object]]]) -> float:
    return statistics.fmean(float(str(v)) for values in found.values() for _, v in values)


def _cpu_s(port: int) -> float:
    """CPU seconds so far of the Prometheus that listens on a port."""
    for process in psutil.Process().children():
        if f":{port}" in " ".join(process.cmdline()):
            return float(sum(process.cpu_times()[:2]))
    raise SystemExit("prometheus has ended")


if __name__ == "__main__":
    main()
