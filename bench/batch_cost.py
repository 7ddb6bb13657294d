"""Measures what a batch costs the collector, by part: event loop, decoding, writer, storage process.

    python -m bench.batch_cost [--rates 20 200 700] [--agents 1000] [--seconds 15]

At each rate (batches a second; 0: flat out) agents of simulated nodes with 8 GPUs send batches of five seconds;
the first batches after a start are listed apart. Prints microseconds of CPU a batch. Every batch is acknowledged and
its rows are counted by the collector; a difference ends the run with 1.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.store import ours
from bench.store.data_clock import DataClock
from bench.store.load import Load, Setup, Tally, load

FIRST = 100
"""Batches after a start that are listed apart."""
FLAT_MOST = 2_500
"""Batches a second that are made ready where they are sent flat out."""
PARTS = ("loop", "decode", "writer", "storage")


def costs(child: ours.Child, sender: Load, batches: int, seconds: float, rate: float | None) -> str:
    """Send them, and say what each cost by part."""
    sender.make(batches)
    rows, before = child.figures()["rows"], child.cpu_by_part_s()
    tally: Tally = sender.run(min(1_000, batches), seconds, rate)
    after = child.cpu_by_part_s()
    stored = child.figures()["rows"] - rows
    if stored < tally.rows:  # rows of the collector itself come besides
        raise SystemExit(f"{tally.rows} rows were acknowledged, and {stored} stored")
    per = {part: 1e6 * (after[part] - before.get(part, 0.0)) / tally.batches for part in PARTS}
    figures = "".join(f"{per[part]:9.0f}" for part in PARTS)
    return (
        f"{figures}{sum(per.values()):9.0f}{tally.batches / tally.seconds:11.0f}"
        f"{tally.quantile_ms(0.5):9.0f}{tally.quantile_ms(0.99):9.0f}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[20, 200, 700, 0])
    parser.add_argument("--agents", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=15)
    chosen = parser.parse_args(arguments)
    heads = "".join(f"{head:>9}" for head in (*PARTS, "all"))
    print(f"{'us of CPU a batch':22}{heads}{'batches/s':>11}{'p50 ms':>9}{'p99 ms':>9}")
    for rate in chosen.rates:
        begin_ms = int(time.time() - 12 * 3600) * 1000
        with tempfile.TemporaryDirectory(prefix="gpuwarden-bench-") as name:
            clock = DataClock(Path(name) / "clock", begin_ms)
            with (
                ours.collector(Path(name) / "store", clock=str(Path(name) / "clock")) as child,
                load(Setup(child.port, chosen.agents, begin_ms, clock=clock)) as sender,
            ):
                first = costs(child, sender, FIRST, 60, rate or 200)
                print(f"{f'the first {FIRST}':22}{first}", flush=True)
                count = int((rate or FLAT_MOST) * chosen.seconds) + 1
                later = costs(child, sender, count, chosen.seconds, rate or None)
                print(f"{f'{rate:g} a second' if rate else 'flat out':22}{later}", flush=True)


if __name__ == "__main__":
    main()
