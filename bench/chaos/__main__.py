"""Runs the campaign: faults of power, processes, network, disks and clocks against a real collector and agents.

`python -m bench.chaos` runs each fault once, and cuts the power at 50 instants of one history; `--seeds 1-100
--instants 100` is the long form. A run that breaks a promise prints the command that repeats it, and its files
stay.
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.chaos import power_cut
from bench.chaos.faults import FAULTS, Verdict
from bench.chaos.run_fault import run_fault

POWER_CUT = "power cut"


def seeds_of(text: str) -> list[int]:
    """Parse "1-3,7" to 1, 2, 3, 7."""
    spans = (part.partition("-") for part in text.split(","))
    return [seed for low, _, high in spans for seed in range(int(low), int(high or low) + 1)]


def cut_power(folder: Path, seed: int, instants: int) -> list[power_cut.Found]:
    """Cut the power at instants of one history; print the results."""
    began_s = time.monotonic()
    found = asyncio.run(power_cut.campaign(folder, seed, 1, instants))
    print(
        f"{POWER_CUT}, seed {seed}: {len(found)} instants in {time.monotonic() - began_s:.0f} s",
        flush=True,
    )
    for one in found:
        if one.wrong or one.lost or one.doubled:
            print(one.instant, f"{one.lost} lost, {one.doubled} doubled", *one.wrong, sep="\n    ")
            print(
                f'    again: python -m bench.chaos --faults "{POWER_CUT}" --seeds {seed} --instants {instants}'
            )
    return found


def run_faults(names: Sequence[str], seed: int, folder: Path) -> list[Verdict]:
    """Run each fault, and print its result."""
    verdicts = []
    for number, name in enumerate(names):
        place = folder / f"{seed}-{number}"
        verdict = run_fault(name, seed, place)
        verdicts.append(verdict)
        caught_up = "-" if verdict.catch_up_s is None else f"{verdict.catch_up_s:.0f} s"
        print(
            f"{name}, seed {seed}: {verdict.acknowledged} rows acknowledged, {verdict.lost} lost, "
            f"{verdict.doubled} doubled, caught up in {caught_up}",
            *verdict.wrong,
            sep="\n    ",
            flush=True,
        )
        if verdict.wrong:
            print(f'    again: python -m bench.chaos --faults "{name}" --seeds {seed}')
            print(f"    files: {place}")
        else:
            shutil.rmtree(place, ignore_errors=True)
    return verdicts


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--faults",
        type=chosen,
        default="all",
        # A name has a percent sign, which argparse takes for one of its own.
        help=f"by semicolons: {'; '.join((POWER_CUT, *FAULTS))}".replace("%", "%%"),
    )
    made.add_argument("--seeds", type=seeds_of, default=[1], help="such as 1-5,9")
    made.add_argument("--instants", type=int, default=50, help="of a power cut, each seed")
    made.add_argument("--keep", type=Path, help="folder of what runs leave")
    return made


def chosen(text: str) -> list[str]:
    """Names of faults."""
    known = (POWER_CUT, *FAULTS)
    names = list(known) if text == "all" else text.split("; ")
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"there is no fault {unknown[0]!r}: see --help")
    return names


def main() -> int:
    """Run the campaign; 1 when a promise was broken."""
    options = parser().parse_args()
    names = options.faults
    if os.geteuid() != 0:
        sys.exit("bench.chaos needs root: it mounts disks and makes network namespaces")
    folder = options.keep or Path(tempfile.mkdtemp(prefix="gpuwarden-chaos-"))
    broken = 0
    for seed in options.seeds:
        if POWER_CUT in names:
            place = folder / f"{seed}-power-cut"
            found = cut_power(place, seed, options.instants)
            broken += sum(bool(one.wrong or one.lost or one.doubled) for one in found)
            shutil.rmtree(place, ignore_errors=True)
        verdicts = run_faults([n for n in names if n != POWER_CUT], seed, folder)
        broken += sum(bool(one.wrong or one.lost or one.doubled) for one in verdicts)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
