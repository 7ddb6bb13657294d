"""Runs worlds of agents, a collector and faults, each decided by its seed, in one process.

`python -m bench.deterministic --steps 1000000`; a world that breaks a promise prints its last steps and the
command that repeats it, shortened to the fewest steps with which it still does.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.deterministic.world import Rates, Tally, ViolationError, World

STEPS = 4_000
"""Of one world."""


def run_world(
    seed: int, steps: int, rates: Rates
) -> tuple[Tally, ViolationError | None, list[str]]:
    """One world: what happened, what is wrong, and the last steps."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        world = World(seed, Path(folder), rates)
        try:
            world.run(steps)
        except ViolationError as violation:
            return world.tally, violation, list(world.events)
        return world.tally, None, list(world.events)


def fewest_steps(seed: int, steps: int, rates: Rates) -> int:
    """Steps before the calm with which the world still breaks a promise."""
    least = 1
    while least < steps:
        middle = (least + steps) // 2
        if run_world(seed, middle, rates)[1] is not None:
            steps = middle
        else:
            least = middle + 1
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first world")
    parser.add_argument("--steps", type=int, default=100_000, help="of all worlds")
    parser.add_argument("--world-steps", type=int, default=STEPS, help="of one")
    options = parser.parse_args()
    rates = Rates()
    steps: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    seed, began_s = options.seed, time.monotonic()
    while steps.total() < options.steps:
        tally, violation, events = run_world(seed, options.world_steps, rates)
        steps += tally.steps
        for name in ("put", "acknowledged", "dropped", "unsynced", "sealed_segments"):
            totals[name] += getattr(tally, name)
        if violation is not None:
            fewest = fewest_steps(seed, min(options.world_steps, tally.total), rates)
            _, violation, events = run_world(seed, fewest, rates)
            print("\n".join(events))
            print(f"seed {seed}: {violation}")
            again = f"python -m bench.deterministic --seed {seed} --steps 1 --world-steps {fewest}"
            print(f"again: {again}")
            sys.exit(1)
        seed += 1
    seconds = time.monotonic() - began_s
    print(f"{seed - options.seed} worlds, {steps.total()} steps in {seconds:.0f} s", end=": ")
    print(f"{steps.total() / seconds * 60:,.0f} a minute; lost 0, doubled 0")
    print(dict(totals))
    print(dict(steps.most_common()))


if __name__ == "__main__":
    main()
