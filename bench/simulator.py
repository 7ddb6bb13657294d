"""Measures what the simulator costs: CPU time per GPU row, live and for two hours of history.

    python -m bench.simulator [--gpus 1000] [--model H100-SXM-80GB]

Rows are made, counted and thrown away; stamping, encoding and shipping are not in the figure.
"""

import argparse
import resource
import time

from gpuwarden.models import GpuModel, model_named
from gpuwarden_simulator import SimulatedNode, fleet_nodes

START_MS = 1_763_683_200_000
GPUS_PER_NODE = 8


def tick(node: SimulatedNode, second: int) -> int:
    """A second of the node: the tables that the sampler would ask for. Rows of `gpu_samples`."""
    due = {table for table, every_s in node.tables.items() if second % every_s == 0}
    return len(node.read(START_MS + 1000 * second, due)["gpu_samples"])


def check(found: int, rows: int) -> None:
    """Raise SystemExit where not so many rows were made."""
    if not rows or found != rows:
        raise SystemExit(f"{found} rows of gpu_samples, not {rows}")


def live(gpus: int, model: GpuModel, seconds: int) -> None:
    """A fleet at 1 Hz: share of one core that it takes."""
    fleet = fleet_nodes([GPUS_PER_NODE] * max(gpus // GPUS_PER_NODE, 1), model, seed=1)
    for _, node in fleet:
        node.read(START_MS)
    found = 0
    began = time.process_time()
    for second in range(1, seconds + 1):
        for _, node in fleet:
            found += tick(node, second)
    cpu_s = time.process_time() - began
    rows = len(fleet) * GPUS_PER_NODE * seconds
    check(found, rows)
    print(
        f"live     {len(fleet) * GPUS_PER_NODE} GPUs, {seconds} s: {1e6 * cpu_s / rows:.1f} us a GPU row"
        f" (all tables with it), {100 * cpu_s / seconds:.1f} % of one core at 1 Hz"
    )


def history(model: GpuModel) -> None:
    """Two hours of one node, as fast as it goes."""
    node = SimulatedNode("bench", GPUS_PER_NODE, model, seed=1)
    found = 0
    began = time.process_time()
    for second in range(7200):
        found += tick(node, second)
    cpu_s = time.process_time() - began
    check(found, 7200 * GPUS_PER_NODE)
    print(
        f"history  {GPUS_PER_NODE} GPUs, 7200 ticks: {cpu_s:.2f} s,"
        f" {1e6 * cpu_s / 7200 / GPUS_PER_NODE:.1f} us a GPU row"
    )


def main() -> None:
    """Run both and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--model", default="H100-SXM-80GB")
    arguments = parser.parse_args()
    model = model_named(arguments.model)
    live(arguments.gpus, model, arguments.seconds)
    history(model)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"memory   {peak_mib:.0f} MiB at most")


if __name__ == "__main__":
    main()
