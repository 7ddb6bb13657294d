"""Measures what a simulated fleet costs: many agents in one process against a collector that takes all.

    python -m bench.fleet [--nodes 125] [--gpus 8] [--seconds 20]

The stub answers 204 from a process of its own, so that the CPU time printed is the fleet's alone.
"""

import argparse
import asyncio
import multiprocessing
import resource
import time

from bench.agent import serve

from gpuwarden.clock import SystemClock
from gpuwarden.models import model_named
from gpuwarden_simulator import fleet_nodes
from gpuwarden_simulator.fleet import run_fleet


async def measure(nodes: int, gpus: int, seconds: float, history_s: float, port: int) -> None:
    """Run the fleet and print its CPU time, memory and counts."""
    fleet = fleet_nodes([gpus] * nodes, model_named("H100-SXM-80GB"), seed=1)
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    counters = await run_fleet(
        fleet,
        collector_url=f"http://127.0.0.1:{port}",
        clock=SystemClock(),
        stop=asyncio.Event(),
        duration_s=seconds,
        history_s=history_s,
    )
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    samples, readings = counters.rows["gpu_samples"], counters.readings.total()
    if not samples or samples != gpus * readings:
        raise SystemExit(f"{samples} rows of gpu_samples of {readings} readings of {gpus} GPUs")
    if counters.batches_acknowledged != counters.batches_sealed or counters.rows_dropped:
        raise SystemExit("not all that the fleet sampled was acknowledged")
    print(f"{nodes} nodes x {gpus} GPUs for {wall:.1f} s: {cpu / wall:.1%} of a core")
    print(f"rows {counters.rows.total()}, {counters.rows.total() / wall:,.0f} rows/s")
    print(f"batches sealed {counters.batches_sealed}, acknowledged {counters.batches_acknowledged}")
    print(f"ticks {counters.ticks}, missed {counters.ticks_missed}, lost {counters.rows_dropped}")
    print(f"bytes {counters.bytes_sealed:,}, largest RSS {after.ru_maxrss / 1024:.0f} MiB")


def main() -> None:
    """Start the stub, measure, stop the stub."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=125)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--history", type=float, default=0.0)
    arguments = parser.parse_args()
    here, there = multiprocessing.Pipe()
    stub = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    stub.start()
    asyncio.run(
        measure(arguments.nodes, arguments.gpus, arguments.seconds, arguments.history, here.recv())
    )
    stub.terminate()


if __name__ == "__main__":
    main()
