"""Judges recordings of labelled loops with the product's own features and classes.

    python -m bench.diagnosis.judge [--folder tests/bench/diagnosis/data] [--explain]

--explain adds what was measured of each GPU whose verdict is not right.
"""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from bench.diagnosis.recordings import END, LOSSES, SUFFIX, Keep, Recording, Run, database_of, load
from bench.diagnosis.scenarios import Scenario

from gpuwarden.diagnosis import HEALTHY, INPUT_BOUND, Bottleneck
from gpuwarden_rules.diagnosis import classify
from gpuwarden_rules.diagnosis.features import NAMES, ObservedGpu
from gpuwarden_rules.diagnosis.observe import observe
from gpuwarden_rules.diagnosis.service import judged_of
from gpuwarden_simulator.recordings.format import RecordingError

FOLDER = Path(__file__).parents[2] / "tests/bench/diagnosis/data"


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on one GPU of one run."""

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
        """The class of the verdict."""
        return self.verdict.bottleneck

    @property
    def is_right(self) -> bool:
        """The verdict is what the label says."""
        return self.scenario.is_right(self.said, self.run.is_loaded)

    @property
    def is_unknown(self) -> bool:
        """The verdict is "unknown", or true but says less than the label."""
        return self.said is Bottleneck.UNKNOWN or self.said in self.scenario.vague

    @property
    def is_wrong(self) -> bool:
        """The verdict is neither right nor unknown."""
        return not (self.is_right or self.is_unknown)


def verdicts(
    recordings: Sequence[Recording],
    keep: Keep = LOSSES["all data"],
    before_end_s: Sequence[int] = (0,),
) -> dict[int, list[Judged]]:
    """Verdicts on every GPU at these instants, in seconds before the end."""
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


def load_all(folder: Path) -> list[Recording]:
    """Every recording of a folder. Raises RecordingError."""
    return [load(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]


def explained(verdict: Judged) -> str:
    """One verdict with all measured features."""
    measured = (
        f"{name} {value:.4g}"
        for name in NAMES
        if (value := getattr(verdict.seen.features, name)) is not None
    )
    return (
        f"{verdict.run.name} {verdict.scenario.name}: said {verdict.said.value}"
        f"{f' ({verdict.verdict.reason})' if verdict.is_unknown else ''}\n  {', '.join(measured)}"
    )


def summary(by_loss: Mapping[str, Sequence[Judged]]) -> list[str]:
    """A line for each kind of loss."""
    lines = []
    for name, several in by_loss.items():
        right, unknown, wrong = _counts(several)
        accused = sum(v.scenario.truth in HEALTHY and v.said in INPUT_BOUND for v in several)
        missed = sum(v.scenario.truth in INPUT_BOUND and v.said in HEALTHY for v in several)
        lines.append(
            f"{name}: {len(several)} verdicts, {right} right, {unknown} unknown, {wrong} wrong; "
            f"{accused} healthy called input-bound, {missed} input-bound called healthy; "
            f"macro F1 {macro_f1(several):.2f}"
        )
    return lines


def _counts(several: Iterable[Judged]) -> tuple[int, int, int]:
    right = unknown = wrong = 0
    for verdict in several:
        right += verdict.is_right
        unknown += verdict.is_unknown and not verdict.is_right
        wrong += verdict.is_wrong
    return right, unknown, wrong


def scores(several: Sequence[Judged]) -> dict[Bottleneck, tuple[float | None, float]]:
    """Precision (None: never said) and recall of each class that is true of a loop and can be decided.

    Where a loop has other names for its truth, a right verdict counts for the class of the label.
    """
    said: Counter[Bottleneck] = Counter()
    true: Counter[Bottleneck] = Counter()
    right: Counter[Bottleneck] = Counter()
    for verdict in several:
        if verdict.scenario.is_undecidable:
            continue
        true[verdict.scenario.truth] += 1
        said[verdict.scenario.truth if verdict.is_right else verdict.said] += 1
        right[verdict.scenario.truth] += verdict.is_right
    return {
        kind: (right[kind] / said[kind] if said[kind] else None, right[kind] / number)
        for kind, number in true.items()
    }


def f1(precision: float | None, recall: float) -> float:
    """0 for a class that is never said."""
    return 2 * precision * recall / (precision + recall) if precision and recall else 0.0


def macro_f1(several: Sequence[Judged]) -> float:
    """Mean over the classes, however many verdicts each has."""
    found = [f1(precision, recall) for precision, recall in scores(several).values()]
    return sum(found) / len(found)


def main() -> int:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--folder", type=Path, default=FOLDER)
    options.add_argument("--explain", action="store_true")
    args = options.parse_args()
    try:
        recordings = load_all(args.folder)
    except RecordingError as error:
        print(error, file=sys.stderr)
        return 1
    if not recordings:
        print(
            f"{args.folder} has no recordings",
            file=sys.stderr,
        )
        return 1
    plain = [recording for recording in recordings if not recording.run.is_loaded]
    loaded = [recording for recording in recordings if recording.run.is_loaded]
    by_loss = {name: verdicts(plain, keep)[0] for name, keep in LOSSES.items()} if plain else {}
    if loaded:
        by_loss["other load"] = verdicts(loaded)[0]
    print("\n".join(summary(by_loss)))
    if args.explain:
        for name, several in by_loss.items():
            for verdict in several:
                if verdict.is_wrong or (verdict.is_unknown and name == "all data"):
                    print(f"\n[{name}] {explained(verdict)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
