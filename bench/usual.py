"""Measures how often hours of healthy simulated GPUs are outside of the band that is usual for them.

    python -m bench.usual [--weeks 9] [--gpus 8] [--every 600]

The weeks of a node without faults are simulated at a coarse interval; every hour after the sixth week is judged as the
page of a GPU does. Then one fault is made to see that the band says something: the power of one GPU is halved for a day.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping

from gpuwarden.models import model_named
from gpuwarden_dashboards.read.usual import HOUR_MS, WEEKS, band_of
from gpuwarden_simulator.node import SimulatedNode

BEGIN_MS = 1_772_323_200_000
WEEK_HOURS = 168
METRICS = (
    "util_percent",
    "memory_used_bytes",
    "power_watts",
    "temperature_celsius",
    "sm_clock_mhz",
)
Means = dict[tuple[str, int], dict[int, float]]


def simulated(weeks: int, gpus: int, every_s: int) -> Means:
    """Hourly means by metric and GPU."""
    node = SimulatedNode(
        "usual", gpus, model_named("H100-SXM"), 1, host=False, stride_ms=1000 * every_s
    )
    sums: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for at_ms in range(BEGIN_MS, BEGIN_MS + weeks * WEEK_HOURS * HOUR_MS, 1000 * every_s):
        for row in node.read(at_ms, {"gpu_samples"})["gpu_samples"]:
            for metric in METRICS:
                if row.get(metric) is not None:
                    hour_ms = at_ms // HOUR_MS * HOUR_MS
                    sums[metric, int(row["gpu"]), hour_ms].append(float(row[metric]))  # type: ignore[arg-type]
    means: Means = defaultdict(dict)
    for (metric, gpu, hour_ms), values in sums.items():
        means[metric, gpu][hour_ms] = sum(values) / len(values)
    return means


def rate(means: Mapping[int, float], hours: range) -> tuple[int, int]:
    """Hours that were judged, and those outside."""
    found = band_of("", means, hours)
    return found.judged, found.outside


def main() -> int:
    """Command line."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--weeks", type=int, default=9)
    arguments.add_argument("--gpus", type=int, default=8)
    arguments.add_argument("--every", type=int, default=600, help="seconds between readings")
    args = arguments.parse_args()
    means = simulated(args.weeks, args.gpus, args.every)
    begin_ms = BEGIN_MS + min(WEEKS, args.weeks - 1) * WEEK_HOURS * HOUR_MS
    hours = range(begin_ms, BEGIN_MS + args.weeks * WEEK_HOURS * HOUR_MS, HOUR_MS)
    judged = outside = 0
    for metric in METRICS:
        found = [rate(of, hours) for (name, _), of in means.items() if name == metric]
        all_hours, wrong = (sum(counts) for counts in zip(*found, strict=True))
        judged, outside = judged + all_hours, outside + wrong
        print(f"{metric:24} {100 * wrong / all_hours:5.1f} % of {all_hours} hours outside")
    print(f"{'all':24} {100 * outside / judged:5.1f} % of {judged} hours outside")
    changed = dict(means["power_watts", 1])
    day = range(begin_ms, begin_ms + 24 * HOUR_MS, HOUR_MS)
    changed |= {hour_ms: changed[hour_ms] / 2 for hour_ms in day}
    all_hours, wrong = rate(changed, day)
    print(
        f"{'half the power for a day':24} {100 * wrong / all_hours:5.1f} % of {all_hours} hours outside"
    )
    return 0 if wrong else 1


if __name__ == "__main__":
    sys.exit(main())
