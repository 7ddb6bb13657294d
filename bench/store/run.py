"""Measures the store: ingest over HTTP, seals, sizes and queries.

    python -m bench.store.run [--quick] [--data DIR]
    python -m bench.store.run --stored 100000000
    python -m bench.store.run --rate 700

The second loads stores of so many rows alone. The third sends so many batches a second, for 20 s after 3 s, and
prints how long acknowledgements took. The load generator has the same cores as what it measures; bodies are made before
the clock starts. A value is a metric that is not NULL, in every table of the agents' batches.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.store import ours
from bench.store.data_clock import DataClock
from bench.store.load import Setup, Tally, load

from gpuwarden.clock import from_ms

Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    agents: tuple[int, ...] = (100, 1_000, 10_000)
    seconds: float = 20.0
    """Seconds of each load, flat out and at half of that rate."""
    batches: int = 45_000
    """Made for one load; it ends early when they are used up."""
    connections: int = 10_000
    nodes: int = 16
    rounds: int = 24
    """Simulated nodes whose batches the agents send, and batches of each until they begin again."""
    seal_bytes: int = 128 * 1024 * 1024
    """Bytes at which the collector seals while it is measured."""
    stored_rows: tuple[int, ...] = (10_000_000,)
    agents_stored: int = 1_000
    """Agents of the loads into stores that hold rows already."""
    same_nodes: int = 16
    same_rounds: int = 72
    """Nodes and batches of each, whose bytes, seal and queries are measured."""
    queries: int = 5


QUICK = Plan(
    agents=(1_000,), seconds=16, batches=32_000, stored_rows=(1_000_000,), same_rounds=24, queries=3
)
TINY = Plan(
    agents=(4,), seconds=0.4, batches=40, connections=4, nodes=1, rounds=2, seal_bytes=1024 * 1024,
    stored_rows=(), same_nodes=1, same_rounds=2, queries=1,
)  # fmt: skip
"""For the test that the whole of it works."""


@contextmanager
def folder_in(parent: Path | None) -> Iterator[Path]:
    """A folder that is removed with the block."""
    with tempfile.TemporaryDirectory(prefix="gpuwarden-bench-", dir=parent) as name:
        yield Path(name)


@contextmanager
def collecting(
    plan: Plan, folder: Path, begin_ms: int, **seal: float
) -> Iterator[tuple[ours.Child, DataClock]]:
    """A collector whose clock goes with what is sent, from `begin_ms` on. `seal`: fields of `SealPolicy`."""
    path = folder / "clock"
    clock = DataClock(path, begin_ms)
    policy = {"bytes_max": plan.seal_bytes, **seal}
    with ours.collector(folder / "store", seal=policy, clock=str(path)) as child:
        yield child, clock


def loads(plan: Plan, child: ours.Child, clock: DataClock, agents: int, begin_ms: int) -> Row:
    """Flat out, then at half of what that gave."""
    setup = Setup(
        child.port,
        agents,
        begin_ms,
        nodes=plan.nodes,
        rounds=plan.rounds,
        clock=clock,
    )
    with load(setup) as sender:
        connections = min(plan.connections, max(agents, 64))
        sender.make(plan.batches // 10)
        sender.run(connections, plan.seconds / 4)
        sender.make(plan.batches)
        cpu_s = child.cpu_s()
        flat = sender.run(connections, plan.seconds)
        used_s = child.cpu_s() - cpu_s
        rate = flat.batches / flat.seconds / 2
        sender.make(min(plan.batches, int(rate * plan.seconds) + 1))
        half = sender.run(connections, plan.seconds, rate)
    rss_mib = child.pss_mib()
    rolled = child.query("SELECT count(*) FROM gpu_1m")[0][0]
    seals = child.figures()["seals"]
    in_seals = while_sealing(half, seals)
    return {
        "agents": agents,
        "values_per_s": flat.values / flat.seconds,
        "rows_per_s": flat.rows / flat.seconds,
        "batches_per_s": flat.batches / flat.seconds,
        "values_per_cpu_s": flat.values / max(used_s, 0.01),
        "cores": used_s / flat.seconds,
        "flat_p50_ms": flat.quantile_ms(0.5),
        "flat_p99_ms": flat.quantile_ms(0.99),
        "half_p50_ms": half.quantile_ms(0.5),
        "half_p99_ms": half.quantile_ms(0.99),
        "seals": len(seals),
        "rolled": rolled,
        "seal_p99_ms": in_seals.quantile_ms(0.99) if in_seals.acknowledge_s else None,
        "refused": dict(flat.others + half.others),
        "rss_mib": rss_mib,
        "ran_out": flat.ran_out,
    }


def while_sealing(tally: Tally, seals: Sequence[tuple[float, float, int]]) -> Tally:
    """The answers that were waited for while a seal ran (its begin, end and rows)."""
    found = Tally()
    for took_s, ended_s in zip(tally.acknowledge_s, tally.ended_s, strict=True):
        if any(begin_s <= ended_s and ended_s - took_s <= end_s for begin_s, end_s, _ in seals):
            found.acknowledge_s.append(took_s)
    return found


def measure_agents(plan: Plan, parent: Path | None) -> list[Row]:
    """Ingest as the number of agents grows, each on an empty store."""
    rows = []
    for agents in plan.agents:
        begin_ms = _begin_ms(12)
        with folder_in(parent) as folder, collecting(plan, folder, begin_ms) as (child, clock):
            rows.append(loads(plan, child, clock, agents, begin_ms))
            _say(f"{agents} agents: {_brief(rows[-1])}")
    return rows


def measure_rate(plan: Plan, parent: Path | None, rate: float) -> str:
    """Times of acknowledgements at a steady rate of batches."""
    begin_ms = _begin_ms(12)
    with folder_in(parent) as folder, collecting(plan, folder, begin_ms) as (child, clock):
        agents = plan.agents_stored
        setup = Setup(
            child.port, agents, begin_ms, nodes=plan.nodes, rounds=plan.rounds, clock=clock
        )
        with load(setup) as sender:
            sender.make(int(3 * rate))
            sender.run(agents, 3, rate)
            sender.make(int(rate * plan.seconds) + 1)
            cpu_s = child.cpu_s()
            tally = sender.run(agents, plan.seconds, rate)
            used_s = child.cpu_s() - cpu_s
        seals = len(child.figures()["seals"])
    assert not tally.others, tally.others
    p50, p90, p99 = (tally.quantile_ms(part) for part in (0.5, 0.9, 0.99))
    return (
        f"{agents} agents, {tally.batches / tally.seconds:.0f} batches and "
        f"{tally.values / tally.seconds / 1e6:.2f} M values a second: acknowledged p50 {p50:.0f} p90 {p90:.0f} "
        f"p99 {p99:.0f} ms, {seals} seals, {used_s / tally.seconds:.2f} cores"
    )


def measure_stored(plan: Plan, parent: Path | None) -> list[Row]:
    """Ingest into stores that hold rows already; sealing those rows is measured with it."""
    rows = []
    for stored in plan.stored_rows:
        begin_ms = _begin_ms(12)
        with folder_in(parent) as folder:
            hour = from_ms(begin_ms).replace(minute=0, second=0, microsecond=0, tzinfo=None)
            filled = ours.fill(folder / "store", stored, min(10_000, stored // 10), hour)
            with collecting(plan, folder, begin_ms) as (child, clock):
                row = loads(plan, child, clock, plan.agents_stored, begin_ms)
            rows.append({"stored_rows": stored, **row, **filled})
            _say(f"{stored} rows stored: {_brief(row)}")
            _say(
                f"  sealed {filled['sealed_rows_per_s']:,.0f} rows/s, {filled['rss_most_mib']:.0f} MiB at most"
            )
    return rows


UUID = "GPU-00000000-4c5d-4e6f-8a7b-000000000000"
QUESTIONS = {
    "one GPU": f"SELECT ts, util_percent FROM gpu_samples WHERE gpu_uuid = '{UUID}' ORDER BY ts",
    "nodes now": "SELECT node, avg(util) FROM (SELECT node, gpu_uuid, "
    "arg_max(util_percent, ts) AS util FROM gpu_samples "
    "WHERE ts > (SELECT max(ts) FROM gpu_samples) - INTERVAL 1 MINUTE "
    "GROUP BY ALL) GROUP BY node",
    "full scan": "SELECT avg(power_watts) FROM gpu_samples",
}


def measure_sizes(plan: Plan, parent: Path | None) -> Row:
    """CPU, bytes a value and times of queries, before and after the seal."""
    begin_ms = _begin_ms(0) - plan.same_rounds * 5000
    batches = plan.same_nodes * plan.same_rounds
    with folder_in(parent) as folder:
        with collecting(Plan(), folder, begin_ms) as (child, clock):
            setup = Setup(
                child.port, plan.same_nodes, begin_ms, plan.same_nodes, plan.same_rounds, clock
            )
            cpu_s = child.cpu_s()
            with load(setup) as sender:
                sender.make(batches)
                tally = sender.run(512, 600)
            assert tally.batches == batches
            used_s = child.cpu_s() - cpu_s
            hot = _timed(plan, child.query)
            rows = child.query("SELECT count(*) FROM gpu_samples")
        hot_bytes = ours.size_bytes(folder / "store" / "segments")
        with collecting(plan, folder, begin_ms, interval_s=1.0) as (child, _):
            cpu_s = child.cpu_s()
            while not child.figures()["seals"]:
                time.sleep(0.2)
            seal_cpu_s = child.cpu_s() - cpu_s
            sealed = _timed(plan, child.query)
            assert child.query("SELECT count(*) FROM gpu_samples") == rows
        sealed_bytes = ours.size_bytes(folder / "store" / "lake" / "data")
    return {
        "values": tally.values,
        "values_per_cpu_s": tally.values / used_s,
        "values_per_cpu_s_sealed": tally.values / (used_s + seal_cpu_s),
        "hot_bytes_per_value": hot_bytes / tally.values,
        "bytes_per_value": sealed_bytes / tally.values,
        **{f"{name}, hot, ms": ms for name, ms in hot.items()},
        **{f"{name}, sealed, ms": ms for name, ms in sealed.items()},
    }


def _timed(plan: Plan, ask: Callable[[str], Sequence[Any]]) -> dict[str, float]:
    """Median time of each query in milliseconds; an empty answer is a mistake of ours."""
    found = {}
    for name, text in QUESTIONS.items():
        took = []
        for _ in range(plan.queries):
            began_s = time.perf_counter()
            if not ask(text):
                raise SystemExit(f"nothing was found by {text}")
            took.append(1000 * (time.perf_counter() - began_s))
        found[name] = statistics.median(took)
    return found


def _begin_ms(hours_ago: float) -> int:
    return int(time.time() - 3600 * hours_ago) * 1000


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _brief(row: Row) -> str:
    return (
        f"{row['values_per_s'] / 1e6:.2f} M values/s, {row['values_per_cpu_s'] / 1e6:.2f} M a "
        f"CPU-second, half load p99 {row['half_p99_ms']:.0f} ms, {row['seals']} seals"
    )


def printed(row: Row) -> None:
    """Print figures, one a line."""
    for name, value in row.items():
        print(f"{name:24} {value:,.2f}" if isinstance(value, float) else f"{name:24} {value}")
    print()


def main(given: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_const", const=QUICK, dest="plan")
    size.add_argument("--tiny", action="store_const", const=TINY, dest="plan")
    parser.add_argument("--data", type=Path, help="folder for the stores that are measured")
    parser.add_argument(
        "--stored",
        type=int,
        nargs="+",
        metavar="ROWS",
        help="into stores of this number of rows, and nothing else",
    )
    parser.add_argument("--rate", type=float, help="batches a second, and nothing else")
    options = parser.parse_args(given)
    plan: Plan = options.plan or Plan()
    if options.rate is not None:
        print(measure_rate(plan, options.data, options.rate))
        return
    if options.stored:
        for row in measure_stored(replace(plan, stored_rows=tuple(options.stored)), options.data):
            printed(row)
        return
    printed(measure_sizes(plan, options.data))
    for row in (*measure_agents(plan, options.data), *measure_stored(plan, options.data)):
        printed(row)


if __name__ == "__main__":
    main()
