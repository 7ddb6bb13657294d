"""The campaign: faults of power, processes, network, disks and clocks against a real collector and agents.

`python -m bench.chaos` runs each fault once, and cuts the power at 50 instants of one history; `--seeds 1-100
--instants 100` is the long form. A run that breaks a promise prints the command that repeats it, and its files
stay. `--table FILE` writes the table of docs/reliability.md between its markers.
"""

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.chaos import power_cut
from bench.chaos.faults import FAULTS
from bench.chaos.stage import Verdict, run_fault

POWER_CUT = "power cut"
MARKERS = ("<!-- campaign -->", "<!-- end of campaign -->")


def seeds_of(text: str) -> list[int]:
    """Of "1-3,7": 1, 2, 3, 7."""
    spans = (part.partition("-") for part in text.split(","))
    return [seed for low, _, high in spans for seed in range(int(low), int(high or low) + 1)]


def cut_power(folder: Path, seed: int, instants: int) -> list[power_cut.Found]:
    """Power cuts in one history; prints what it found."""
    began_s = time.monotonic()
    found = asyncio.run(power_cut.campaign(folder, seed, 1, instants))
    print(f"{POWER_CUT}, seed {seed}: {len(found)} instants in {time.monotonic() - began_s:.0f} s")
    return found


def lines(found: Sequence[power_cut.Found], verdicts: Sequence[Verdict]) -> list[str]:
    """The table, in Markdown."""
    rows = []
    if found:
        during = power_cut.counted(found)
        start_s = sorted(one.start_s for one in found)
        rows += [
            _row(
                f"{POWER_CUT} during {name}",
                count,
                sum(f.acknowledged for f in found if name in f.instant.during),
                sum(f.lost for f in found if name in f.instant.during),
                sum(f.doubled for f in found if name in f.instant.during),
                max(f.start_s for f in found if name in f.instant.during),
            )
            for name, count in during.items()
        ]
        rows.append(
            _row(
                f"**{POWER_CUT}, all instants**",
                len(found),
                sum(f.acknowledged for f in found),
                sum(f.lost for f in found),
                sum(f.doubled for f in found),
                start_s[-1],
            )
        )
    for name in FAULTS:
        of_it = [v for v in verdicts if v.fault == name]
        if of_it:
            rows.append(
                _row(
                    name,
                    len(of_it),
                    sum(v.acknowledged for v in of_it),
                    sum(v.lost for v in of_it),
                    sum(v.doubled for v in of_it),
                    max((v.catch_up_s or 0.0) for v in of_it),
                )
            )
    return [
        "| fault | runs | rows acknowledged | lost | doubled | longest until caught up, s |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *rows,
    ]


def _row(*cells: object) -> str:
    texts = (
        f"{c:,}" if isinstance(c, int) else f"{c:.1f}" if isinstance(c, float) else str(c)
        for c in cells
    )
    return f"| {' | '.join(texts)} |"


def put_table(path: Path, table: Iterable[str], how: str) -> None:
    """Write the table between the markers of a page."""
    before, _, rest = path.read_text().partition(MARKERS[0])
    _, _, after = rest.partition(MARKERS[1])
    text = "\n".join((MARKERS[0], how, "", *table, MARKERS[1]))
    path.write_text(before + text + after)


def run_faults(names: Sequence[str], seeds: Sequence[int], folder: Path) -> list[Verdict]:
    """Each fault with each seed; prints what it did."""
    verdicts = []
    for seed in seeds:
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


def commit() -> str:
    """Of the code that runs."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return said.stdout.strip() or "?"


def main() -> int:
    """Run the campaign; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--faults", default="all", help=f"by semicolons, of: {POWER_CUT}; {'; '.join(FAULTS)}"
    )
    parser.add_argument("--seeds", default="1", help="such as 1-5,9")
    parser.add_argument("--instants", type=int, default=50, help="of a power cut, each seed")
    parser.add_argument("--keep", type=Path, help="folder of what a run leaves")
    parser.add_argument(
        "--results", type=Path, help="append results to this file, a JSON line each"
    )
    parser.add_argument("--table", type=Path, help="page whose table is written anew")
    options = parser.parse_args()
    names = [POWER_CUT, *FAULTS]
    if options.faults != "all":
        names = [name.strip() for name in options.faults.split(";")]
    for name in names:
        if name not in (POWER_CUT, *FAULTS):
            parser.error(f"there is no fault {name!r}: see --help")
    if os.geteuid() != 0:
        parser.error("needs root: it mounts disks and makes network namespaces")
    folder = options.keep or Path(tempfile.mkdtemp(prefix="gpuwarden-chaos-"))
    seeds = seeds_of(options.seeds)
    found: list[power_cut.Found] = []
    if POWER_CUT in names:
        for seed in seeds:
            place = folder / f"{seed}-power-cut"
            found += cut_power(place, seed, options.instants)
            shutil.rmtree(place, ignore_errors=True)
    wrong = [one for one in found if one.wrong or one.lost or one.doubled]
    for one in wrong:
        print(one.instant, one.lost, one.doubled, *one.wrong, sep="\n    ")
    others = [name for name in names if name != POWER_CUT]
    verdicts = run_faults(others, seeds, folder)
    table = lines(found, verdicts)
    print("\n".join(table))
    if options.table:
        how = f"`{' '.join(['python -m bench.chaos', *sys.argv[1:]])}`, commit {commit()}:"
        put_table(options.table, table, how)
    if options.results:
        with options.results.open("a") as file:
            for line in (*map(asdict, found), *map(asdict, verdicts)):
                file.write(json.dumps(line, default=str) + "\n")
    outcomes = Counter("broken" if v.wrong else "kept" for v in verdicts)
    outcomes += Counter(broken=len(wrong), kept=len(found) - len(wrong))
    print(f"promises kept in {outcomes['kept']} runs, broken in {outcomes['broken']}")
    return 1 if outcomes["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
