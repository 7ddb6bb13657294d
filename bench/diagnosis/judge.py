"""Judges recordings of labelled loops with the product's own features and classes, and prints a report.

    python -m bench.diagnosis.judge [--folder build/diagnosis] [--explain]

Needs no PyTorch. --explain adds what was measured of each GPU whose verdict is not right.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from bench.diagnosis import published
from bench.diagnosis.recordings import END, LOSSES, SUFFIX, Keep, Recording, Run, database_of, load
from bench.diagnosis.scenarios import Scenario

from gpuwarden.diagnosis import Bottleneck
from gpuwarden_rules.diagnosis import classify
from gpuwarden_rules.diagnosis.features import NAMES, ObservedGpu
from gpuwarden_rules.diagnosis.observe import observe
from gpuwarden_rules.diagnosis.service import judged_of
from gpuwarden_simulator.recordings.format import RecordingError

LOOKS_S = tuple(range(0, 120, 15))
"""Seconds before the end at which is looked."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What was said of one GPU of one run."""

    run: Run
    scenario: Scenario
    seen: ObservedGpu
    verdict: classify.Verdict

    @property
    def gpu_uuid(self) -> str:
        """Unique among all runs."""
        return self.seen.place.gpu_uuid

    @property
    def said(self) -> Bottleneck:
        """The class that was given."""
        return self.verdict.bottleneck

    @property
    def is_right(self) -> bool:
        """It is what the label says."""
        return self.scenario.is_right(self.said, self.run.is_loaded)

    @property
    def is_unknown(self) -> bool:
        """It is that nobody can say, or true and says less than the label."""
        return self.said is Bottleneck.UNKNOWN or self.said in self.scenario.vague

    @property
    def is_wrong(self) -> bool:
        """It is something else."""
        return not (self.is_right or self.is_unknown)


def verdicts(
    recordings: Sequence[Recording],
    keep: Keep = LOSSES["all data"],
    before_end_s: Sequence[int] = (0,),
) -> dict[int, list[Judged]]:
    """What is said at these instants, seconds before the end, of every GPU."""
    database = database_of(recordings, keep)
    labels = {
        uuid: (recording.run, scenario)
        for recording in recordings
        for uuid, scenario in recording.scenarios.items()
    }
    found: dict[int, list[Judged]] = {}
    try:
        for seconds in before_end_s:
            seen = asyncio.run(observe(database, END - timedelta(seconds=seconds)))
            found[seconds] = [
                Judged(*labels[one.seen.place.gpu_uuid], one.seen, one.verdict)
                for one in judged_of(seen)[0]
            ]
    finally:
        database.close()
    return found


def settled_s(looks: Mapping[int, Sequence[Judged]], seconds: int) -> dict[str, int]:
    """By UUID: seconds from an empty window on after which every look was right, where one was.

    `seconds`: length of the recording.
    """
    found: dict[str, int] = {}
    wrong: set[str] = set()
    for before_end_s in sorted(looks):
        for verdict in looks[before_end_s]:
            if not verdict.is_right:
                wrong.add(verdict.gpu_uuid)
            elif verdict.gpu_uuid not in wrong:
                found[verdict.gpu_uuid] = seconds - before_end_s
    return found


def load_all(folder: Path) -> list[Recording]:
    """Every recording of a folder. Raises RecordingError."""
    return [load(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]


def seconds_of(recordings: Iterable[Recording]) -> int:
    """Length of the shortest."""
    lengths = [
        max(row["ts"] for row in rows) - min(row["ts"] for row in rows)
        for rows in (recording.tables["gpu_samples"] for recording in recordings)
    ]
    return int(min(lengths).total_seconds())


def explained(verdict: Judged) -> str:
    """One verdict with all that was measured."""
    measured = (
        f"{name} {value:.4g}"
        for name in NAMES
        if (value := getattr(verdict.seen.features, name)) is not None
    )
    return (
        f"{verdict.run.name} {verdict.scenario.name}: said {verdict.said.value}"
        f"{f' ({verdict.verdict.reason})' if verdict.is_unknown else ''}\n  {', '.join(measured)}"
    )


def main() -> int:
    from bench.diagnosis import report  # it formats what is judged here

    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--folder", type=Path, default=Path("build/diagnosis"))
    options.add_argument("--explain", action="store_true")
    args = options.parse_args()
    try:
        recordings = load_all(args.folder)
    except RecordingError as error:
        print(error, file=sys.stderr)
        return 1
    if not recordings:
        print(
            f"{args.folder} has no recordings: make some with bench.diagnosis.record",
            file=sys.stderr,
        )
        return 1
    plain = [recording for recording in recordings if not recording.run.is_loaded]
    loaded = [recording for recording in recordings if recording.run.is_loaded]
    by_loss = {name: verdicts(plain, keep)[0] for name, keep in LOSSES.items()} if plain else {}
    if loaded:
        by_loss["other load"] = verdicts(loaded)[0]
    looks = verdicts(plain, before_end_s=LOOKS_S) if plain else {}
    series = {uuid: s for recording in plain for uuid, s in published.series_of(recording).items()}
    search = args.folder / "search.json"
    tried = json.loads(search.read_text()) if search.exists() else []
    print(report.text(by_loss, settled_s(looks, seconds_of(plain)) if plain else {}, series, tried))
    if args.explain:
        for name, several in by_loss.items():
            for verdict in several:
                if verdict.is_wrong or (verdict.is_unknown and name == "all data"):
                    print(f"\n[{name}] {explained(verdict)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
