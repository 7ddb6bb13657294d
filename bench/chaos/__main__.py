"""Runs the campaign: faults of power, processes, network, disks and clocks against a real collector and agents.

`python -m bench.chaos` runs each fault once, and cuts the power at 50 instants of one history; `--seeds 1-100
--instants 100` is the long form. A run that breaks a promise prints the command that repeats it, and its files
stay. `--results FILE` adds the outcomes to those of earlier runs; `--table PAGE` writes the table of all of them
into docs/reliability.md, between its markers; with `--faults none` nothing is run.
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
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.chaos import power_cut
from bench.chaos.faults import FAULTS, Verdict
from bench.chaos.run_fault import run_fault

POWER_CUT = "power cut"
MARKERS = ("<!-- campaign -->", "<!-- end of campaign -->")


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


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the table needs of a run, or of one instant."""

    fault: str
    during: tuple[str, ...]
    """Operations that a power cut fell into."""
    seed: int
    commit: str
    acknowledged: int
    lost: int
    doubled: int
    caught_up_s: float | None
    is_kept: bool
    """Whether the run broke no promise."""


def of_power_cut(found: power_cut.Found, seed: int, version: str) -> Outcome:
    """The outcome of a power cut at one instant."""
    return Outcome(
        POWER_CUT,
        found.instant.during,
        seed,
        version,
        found.acknowledged,
        found.lost,
        found.doubled,
        found.start_s,
        not (found.wrong or found.lost or found.doubled),
    )


def of_fault(verdict: Verdict, version: str) -> Outcome:
    """The outcome of another fault."""
    return Outcome(
        verdict.fault,
        (),
        verdict.seed,
        version,
        verdict.acknowledged,
        verdict.lost,
        verdict.doubled,
        verdict.catch_up_s,
        not (verdict.wrong or verdict.lost or verdict.doubled),
    )


def lines(outcomes: Sequence[Outcome]) -> list[str]:
    """The table, in Markdown; a row whose runs broke a promise says so."""
    cuts = [one for one in outcomes if one.fault == POWER_CUT]
    rows = [
        _row(f"{POWER_CUT} during {name}", [one for one in cuts if name in one.during])
        for name in sorted({name for one in cuts for name in one.during})
    ]
    if cuts:
        rows.append(_row(f"**{POWER_CUT}, all instants**", cuts))
    of_others = ((name, [o for o in outcomes if o.fault == name]) for name in FAULTS)
    rows += [_row(name, of_it) for name, of_it in of_others if of_it]
    return [
        "| fault | runs | rows acknowledged | longest until caught up, s |",
        "| --- | ---: | ---: | ---: |",
        *rows,
    ]


def _row(name: str, outcomes: Sequence[Outcome]) -> str:
    caught_up = max((one.caught_up_s or 0.0 for one in outcomes), default=0.0)
    acknowledged, lost, doubled = (
        sum(getattr(one, n) for one in outcomes) for n in ("acknowledged", "lost", "doubled")
    )
    if broken := sum(not one.is_kept for one in outcomes):
        name += f" (**broken in {broken}**: {lost:,} rows lost, {doubled:,} doubled)"
    return f"| {name} | {len(outcomes):,} | {acknowledged:,} | {caught_up:.1f} |"


def put_table(path: Path, table: Iterable[str], how: str) -> None:
    """Write the table between the markers of a page."""
    before, _, rest = path.read_text().partition(MARKERS[0])
    _, _, after = rest.partition(MARKERS[1])
    text = "\n".join((MARKERS[0], how, "", *table, MARKERS[1]))
    path.write_text(before + text + after)


def run_faults(names: Sequence[str], seed: int, folder: Path) -> list[Verdict]:
    """Run each fault, and print its result."""
    verdicts = []
    for number, name in enumerate(names):
        if missing := FAULTS[name].missing:
            print(f"{name}: left out, as these packages are not installed: {', '.join(missing)}")
            continue
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
    """The commit of the code that runs."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return said.stdout.strip() or "?"


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
        help=f"none, or by semicolons: {'; '.join((POWER_CUT, *FAULTS))}".replace("%", "%%"),
    )
    made.add_argument("--seeds", type=seeds_of, default=[1], help="such as 1-5,9")
    made.add_argument("--instants", type=int, default=50, help="of a power cut, each seed")
    made.add_argument("--keep", type=Path, help="folder of what runs leave")
    made.add_argument("--results", type=Path, help="file of outcomes, a JSON line each")
    made.add_argument("--table", type=Path, help="page whose table is written again")
    return made


def chosen(text: str) -> list[str]:
    """Names of faults."""
    known = (POWER_CUT, *FAULTS)
    names = {"all": list(known), "none": []}.get(text) or [
        n for n in text.split("; ") if n != "none"
    ]
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"there is no fault {unknown[0]!r}: see --help")
    return names


def main() -> int:
    """Run the campaign; 1 when a promise was broken."""
    options = parser().parse_args()
    names = options.faults
    if names and os.geteuid() != 0:
        sys.exit("bench.chaos needs root: it mounts disks and makes network namespaces")
    folder = options.keep or Path(tempfile.mkdtemp(prefix="gpuwarden-chaos-"))
    version = commit()
    outcomes: list[Outcome] = []
    for seed in options.seeds:
        made = []
        if POWER_CUT in names:
            place = folder / f"{seed}-power-cut"
            found = cut_power(place, seed, options.instants)
            made += [of_power_cut(one, seed, version) for one in found]
            shutil.rmtree(place, ignore_errors=True)
        verdicts = run_faults([n for n in names if n != POWER_CUT], seed, folder)
        made += [of_fault(verdict, version) for verdict in verdicts]
        if options.results:
            with options.results.open("a") as file:
                file.writelines(json.dumps(asdict(one)) + "\n" for one in made)
        outcomes += made
    broken = sum(not one.is_kept for one in outcomes)
    if options.results:
        outcomes = [Outcome(**json.loads(line)) for line in options.results.open()]
    print(*lines(outcomes), sep="\n")
    if options.table:
        versions = sorted({one.commit for one in outcomes})
        put_table(options.table, lines(outcomes), f"Of commit {', '.join(versions)}:")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
