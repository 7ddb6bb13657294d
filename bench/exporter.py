"""Measures what the Prometheus page costs: its state, its time and its size for a node with every table full.

    python -m bench.exporter [--gpus 8] [--links 18] [--processes 64]

Every column of every table has a value, which no device gives: it is the most that a node can cost.
"""

import argparse
import gzip
import random
import re
import statistics
import time
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from gpuwarden.clock import ManualClock, to_ms
from gpuwarden.metrics import METRICS, Metric, Type
from gpuwarden.prometheus_names import NAME_SETS, PREFIXES
from gpuwarden_agent.counters import Counters
from gpuwarden_agent.exporter.latest import Latest
from gpuwarden_agent.exporter.page import metrics_page
from gpuwarden_agent.exporter.server import COMPRESSION

START = datetime(2026, 1, 1, tzinfo=UTC)
PORTS = 8
READINGS = 60
_TABLE = re.compile(r"^gpuwarden_([a-z]+)_\w+(?:\{| )", re.MULTILINE)
"""The prefix of a table in the name of a series."""


def identities(table: str, gpus: int, links: int, processes: int) -> list[dict[str, Any]]:
    """What tells the rows of a table apart."""
    of_gpu = [{"gpu": g, "gpu_uuid": f"GPU-{g:032x}"} for g in range(gpus)]
    match table:
        case "host_samples":
            return [{}]
        case "infiniband_samples":
            return [{"device": f"mlx5_{n}", "port": 1} for n in range(PORTS)]
        case "link_samples":
            return [{**g, "link_type": "nvlink", "link": n} for g in of_gpu for n in range(links)]
        case "process_samples":
            return [{**of_gpu[n % gpus], "pid": 4000 + n} for n in range(processes)]
    return of_gpu


def value_of(metric: Metric, rng: random.Random) -> int | float | bool:
    """A value with as many digits as real ones have."""
    if metric.type is Type.BOOL:
        return rng.random() < 0.5
    if metric.type in (Type.FLOAT32, Type.FLOAT64):
        return round(rng.uniform(0, 100), 3)
    return rng.randrange(10**9)


def fill(latest: Latest, clock: ManualClock, arguments: argparse.Namespace) -> list[float]:
    """A minute of readings, each table as often as it comes; CPU seconds of each second."""
    rng, spent = random.Random(1), []
    for second in range(READINGS):
        clock.advance(1)
        stamp = {"ts": to_ms(clock.now()), "node": "bench", "simulated": True}
        rows: dict[str, list[dict[str, Any]]] = {}
        for table, metrics in METRICS.items():
            if second % min(m.cadence_s for m in metrics) == 0:
                who = identities(table, arguments.gpus, arguments.links, arguments.processes)
                rows[table] = [stamp | w | {m.name: value_of(m, rng) for m in metrics} for w in who]
        began_s = time.process_time()
        for table, several in rows.items():
            latest.take(table, several)
        spent.append(time.process_time() - began_s)
    return spent


def check(text: str, arguments: argparse.Namespace) -> None:
    """Raise SystemExit for a page of our own names that lacks a value of some table."""
    found = Counter(_TABLE.findall(text))
    for table, metrics in METRICS.items():
        who = identities(table, arguments.gpus, arguments.links, arguments.processes)
        # Several tables share a prefix, and ages of samples have it too.
        found[PREFIXES[table]] -= len(metrics) * len(who)
    if missing := {prefix: -count for prefix, count in found.items() if count < 0}:
        raise SystemExit(f"the page lacks series: {missing}")


def pages(latest: Latest, names: Sequence[str], arguments: argparse.Namespace) -> None:
    """Time and size of one choice of names."""
    times = []
    for _ in range(20):
        began_s = time.process_time()
        text = metrics_page("bench", latest, Counters(), names)
        times.append(time.process_time() - began_s)
    if "own" in names:
        check(text, arguments)
    elif "\nDCGM_FI_DEV_GPU_UTIL_RATIO{" not in text:
        raise SystemExit(f"the page of {names} has no utilization")
    body = text.encode()
    began_s = time.process_time()
    packed = gzip.compress(body, COMPRESSION)
    packing_s = time.process_time() - began_s
    series = sum(1 for line in text.splitlines() if not line.startswith("#"))
    print(
        f"page   {' '.join(names):<16} {series} series, {len(body) / 1e3:.0f} KB"
        f" ({len(packed) / 1e3:.0f} KB compressed, {1000 * packing_s:.1f} ms),"
        f" {1000 * statistics.median(times):.1f} ms,"
        f" {100 * (statistics.median(times) + packing_s) / 15:.3f} % of a core at a scrape in 15 s"
    )


def main() -> None:
    """Fill a node and print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--links", type=int, default=18)
    parser.add_argument("--processes", type=int, default=64)
    arguments = parser.parse_args()
    clock = ManualClock(START)
    latest = Latest(clock)
    spent = fill(latest, clock, arguments)
    per_s = sum(spent) / len(spent)
    print(f"take   {1e6 * per_s:.0f} us a second of readings, {100 * per_s:.3f} % of a core")
    for names in (("own",), ("dcgm49",), NAME_SETS):
        pages(latest, names, arguments)
    tracemalloc.start()
    clock = ManualClock(START)
    latest = Latest(clock)
    fill(latest, clock, arguments)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    metrics_page("bench", latest, Counters(), NAME_SETS)
    _, peak = tracemalloc.get_traced_memory()
    print(
        f"memory {held / 2**20:.1f} MiB of state, {(peak - held) / 2**20:.1f} MiB while a page is made"
    )


if __name__ == "__main__":
    main()
