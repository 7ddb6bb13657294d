"""Samples this host's GPUs quickly for a short time: `gpuwarden agent burst`."""

import argparse
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from gpuwarden import logs
from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden_cli.output import counted, render

if TYPE_CHECKING:
    from gpuwarden_agent.burst import Burst, BurstSample
    from gpuwarden_agent.settings import AgentSettings

WIDTH, HEIGHT = 72, 4
"""Cells of a graph."""
GRAPHS = (("power_watts", "W", None), ("util_percent", "% utilization", 100.0), ("sm_clock_mhz", "MHz SM clock", None))  # fmt: skip
"""Metric, its unit in words, and the value of a full column."""
ROW_COLUMNS = ("at_us", "gpu", "metric", "value", "source")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpuwarden agent burst`."""
    parser.add_argument("gpus", nargs="*", type=int, metavar="GPU", help="index (default: all)")
    parser.add_argument("--hz", type=float, default=20.0, help="readings a second, 1 to 50 (default 20)")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=30.0, metavar="S", help="at most 600 (default 30)")  # fmt: skip
    parser.add_argument(
        "--format",
        choices=("table", "json", "csv"),
        default="table",
        help="summary and graphs, or every sample (default table)",
    )


def run(settings: "AgentSettings", args: argparse.Namespace) -> int:
    """Run `gpuwarden agent burst`. Raises StartError."""
    from gpuwarden_agent.burst import HZ_MAX, HZ_MIN, SECONDS_MAX, run_burst, sources_of_burst
    from gpuwarden_cli.composition.agent import sources_of

    if not HZ_MIN <= args.hz <= HZ_MAX:
        raise StartError(f"--hz {args.hz:g} must be between {HZ_MIN:g} and {HZ_MAX:g}")
    if not 1 <= args.seconds <= SECONDS_MAX:
        raise StartError(f"--seconds {args.seconds:g} must be between 1 and {SECONDS_MAX:g}")
    logs.setup(settings.log_level, settings.log_format)
    found = sources_of(settings)
    try:
        sources = sources_of_burst(found.probes, args.gpus)
        if not sources:
            return _nothing(args.gpus, found.message)
        print(
            f"gpuwarden agent: {found.message}; {args.seconds:g} s at {args.hz:g} Hz",
            file=sys.stderr,
            flush=True,
        )
        burst = run_burst(sources, SystemClock(), args.hz, args.seconds)
    finally:
        for probe in found.probes:
            probe.close()
    if args.gpus:
        burst.samples = [sample for sample in burst.samples if sample.gpu in args.gpus]
    for reason, count in burst.failed.items():
        print(f"gpuwarden: {counted(count, 'reading')} failed: {reason}", file=sys.stderr)
    if not burst.samples and not burst.failed:
        return _nothing(args.gpus, found.message)
    if args.format == "table":
        print(report(burst, args.hz))
    else:
        rows = [[getattr(one, name) for name in ROW_COLUMNS] for one in burst.samples]
        print(render(ROW_COLUMNS, rows, args.format), end="")
    return 0 if burst.samples else 1


def _nothing(gpus: Sequence[int], message: str) -> int:
    wanted = f"GPU {', '.join(map(str, gpus))}" if gpus else "GPU"
    print(f"gpuwarden: there is no {wanted} here: {message}", file=sys.stderr)
    return 1


def report(burst: "Burst", hz: float) -> str:
    """Summary and graphs as text."""
    from gpuwarden_agent.burst import summaries

    columns = ("GPU", "metric", "samples", "from", "new every ms", "least", "5 %", "mean", "95 %", "most", "means of a second")  # fmt: skip
    rows = [
        [
            one.gpu, one.metric, one.samples, one.source,
            None if one.renewed_ms is None else round(one.renewed_ms),
            *(round(value, 1) for value in (one.least, one.p5, one.mean, one.p95, one.greatest)),
            f"{one.least_second:,.0f} to {one.greatest_second:,.0f}",
        ]
        for one in summaries(burst.samples)
    ]  # fmt: skip
    lines = [render(columns, rows, "table")]
    for gpu, of_gpu in groupby(burst.samples, lambda sample: sample.gpu):
        several = list(of_gpu)
        for metric, unit, top in GRAPHS:
            if drawn := _graph([one for one in several if one.metric == metric], top):
                lines += [f"GPU {gpu}: {unit}, {drawn[0]}", *drawn[1], ""]
    missed = f", {burst.missed:,} left out because readings took too long" if burst.missed else ""
    lines.append(f"{counted(burst.ticks, 'reading')} at {hz:g} Hz{missed}.")
    return "\n".join(lines)


def _graph(samples: Sequence["BurstSample"], top: float | None) -> tuple[str, list[str]] | None:
    """The range in words and the lines, with the greatest sample in each cell; None: nothing changed."""
    from gpuwarden_cli.top.braille import graph

    if len({sample.value for sample in samples}) < 2:
        return None
    begin, end = samples[0].at_us, samples[-1].at_us
    count = 2 * WIDTH
    cells: list[float | None] = [None] * count
    for sample in samples:
        at = (sample.at_us - begin) * (count - 1) // max(1, end - begin)
        before = cells[at]
        cells[at] = sample.value if before is None else max(before, sample.value)
    last: float | None = None
    for at, value in enumerate(cells):  # between two samples the older one holds
        cells[at] = last = last if value is None else value
    least, most = min(s.value for s in samples), max(s.value for s in samples)
    words = f"{least:,.0f} to {most:,.0f} in {(end - begin) / 1e6:,.1f} s"
    return words, graph(cells, WIDTH, HEIGHT, top)
