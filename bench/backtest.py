"""Measures how much faster than real time rules are replayed over stored history.

    python -m bench.week /tmp/week [--gpus 1000] [--hours 168]
    python -m bench.backtest /tmp/week [--hours 168] [--rules gpu_idle_held,gpu_power_brake]

The store is one that `bench.week` made, or was stopped at. It is asked through the collector's own door for queries, with its limits of
time, rows and memory, and one thread for every two cores. CPU seconds are of all threads. The last lines add up all
rules, and have the most memory that the process ever held. A rule that is never evaluated ends the run, and so does
`gpu_idle_held` where it does not fire, as it does in a store of four hours or more.
"""

import argparse
import asyncio
import time
from datetime import timedelta
from pathlib import Path

import psutil

from gpuwarden.clock import SystemClock
from gpuwarden_collector.query.querier import SqlQuerier
from gpuwarden_collector.query.worker import WorkerSettings
from gpuwarden_collector.stats import Stats
from gpuwarden_collector.storage.database import Database
from gpuwarden_collector.storage.engine import EngineLimits
from gpuwarden_rules.backtest.replay import first_sample_at, replay
from gpuwarden_rules.definition.language import Rule, builtin_rules

FIRES = "gpu_idle_held"
"""Fires in every store of `bench.week` that has a few hours."""


async def measure(store: Path, hours: float | None, rules: list[Rule], threads: int) -> None:
    limits = EngineLimits(memory="2GiB", threads=threads)
    database = Database.open(store, limits)
    clock = SystemClock()
    worker = WorkerSettings(store, database.address, limits, database.spill_dir, 0)
    async with SqlQuerier(worker, Stats(), clock) as querier:
        first = await first_sample_at(querier)
        assert first is not None, "the store is empty"
        until = (await querier.query("SELECT max(ts) FROM gpu_1h")).rows[0][0] + timedelta(hours=1)
        since = max(first, until - timedelta(hours=hours)) if hours else first
        span_s = (until - since).total_seconds()
        print(f"{span_s / 3600:g} h")
        print(
            f"{'rule':26} {'evaluations':>6} {'queries':>7} {'fired':>6} {'s':>7} {'CPU s':>7} {'x real time':>12}"
        )
        total_s = total_cpu_s = 0.0
        for rule in rules:
            began_s, cpu_began_s = time.perf_counter(), _cpu_s(querier)
            done = await replay(rule, querier, since, until, clock)
            wall_s, cpu_s = time.perf_counter() - began_s, _cpu_s(querier) - cpu_began_s
            total_s, total_cpu_s = total_s + wall_s, total_cpu_s + cpu_s
            if not done.evaluations or (rule.name == FIRES and not done.episodes):
                raise SystemExit(f"{rule.name}: {done.evaluations} evaluations, and none fired")
            print(
                f"{rule.name:26} {done.evaluations:6d} {done.queries:7d} {len(done.episodes):6d} {wall_s:7.2f} {cpu_s:7.2f}"
                f" {span_s / wall_s:12,.0f}",
                flush=True,
            )
        print(
            f"{'all':26} {'':6} {'':7} {'':6} {total_s:7.2f} {total_cpu_s:7.2f} {span_s / total_s:12,.0f}"
        )
        rss_bytes = sum(psutil.Process(pid).memory_info().rss for pid in querier.pids)
        print(f"{rss_bytes / 2**30:.1f} GiB of memory in query processes")
    database.close()


def _cpu_s(querier: SqlQuerier) -> float:
    """CPU seconds of this process and of its query processes."""
    spent = [psutil.Process(pid).cpu_times() for pid in querier.pids]
    return time.process_time() + sum(s.user + s.system for s in spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--hours", type=float, help="default: all that is stored")
    parser.add_argument("--rules", help="names, separated by commas; default: all")
    parser.add_argument("--threads", type=int, default=1, help="of DuckDB, for a query")
    args = parser.parse_args()
    wanted = set(args.rules.split(",")) if args.rules else None
    rules = [rule for rule in builtin_rules() if wanted is None or rule.name in wanted]
    if not rules:
        parser.error(f"no rule is named {args.rules}")
    asyncio.run(measure(args.store, args.hours, rules, args.threads))


if __name__ == "__main__":
    main()
