"""Judges recordings of labelled loops with the product's own features and classes, and prints a report.

    python -m bench.diagnosis.judge [--folder build/diagnosis] [--explain]

Needs no PyTorch. --explain adds what was measured of each GPU whose verdict is not right.
"""

import argparse
import asyncio
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

from bench.diagnosis import published
from bench.diagnosis.published import Series
from bench.diagnosis.recordings import END, LOSSES, SUFFIX, Keep, Recording, Run, database_of, load
from bench.diagnosis.scenarios import SCENARIOS, Scenario

from gpuwarden.diagnosis import HEALTHY, INPUT_BOUND, Bottleneck
from gpuwarden_rules.diagnosis import classify
from gpuwarden_rules.diagnosis.advice import advise, wanted_workers
from gpuwarden_rules.diagnosis.features import NAMES, ObservedGpu
from gpuwarden_rules.diagnosis.observe import observe
from gpuwarden_rules.diagnosis.service import judged_of
from gpuwarden_simulator.recordings.format import RecordingError

ALL_DATA = "all data"
Table = list[Sequence[str]]
LOOKS_S = tuple(range(0, 120, 15))
"""Seconds before the end at which verdicts are asked for."""


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


def settled_s(looks: Mapping[int, Sequence[Judged]], seconds: int) -> dict[str, int]:
    """By UUID: seconds from an empty window on after which every verdict was right, where one was.

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


def text(
    by_loss: Mapping[str, Sequence[Judged]],
    settled: Mapping[str, int],
    series: Mapping[str, Series],
    tried: Sequence[Mapping[str, Any]],
) -> str:
    """The report in Markdown. `settled`: seconds to the verdict by UUID; `tried`: results of the search."""
    full = by_loss.get(ALL_DATA, ())
    parts = ["\n".join(summary(by_loss)), markdown(by_scenario(by_loss, settled))]
    if full:
        parts += [markdown(by_class(full)), markdown(against_others(full, series))]
    if tried:
        parts.append(markdown(workers_advised(full, tried)))
    return "\n\n".join(parts)


def markdown(table: Table) -> str:
    """The first row is the head."""
    head, *rows = table
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def summary(by_loss: Mapping[str, Sequence[Judged]]) -> list[str]:
    """A line for each kind of loss."""
    lines = []
    for name, several in by_loss.items():
        right, unknown, wrong = _counts(several)
        accused = sum(v.scenario.truth in HEALTHY and v.said in INPUT_BOUND for v in several)
        missed = sum(v.scenario.truth in INPUT_BOUND and v.said in HEALTHY for v in several)
        lines.append(
            f"- {name}: {len(several)} verdicts, {right} right, {unknown} unknown, {wrong} wrong; {accused} healthy called "
            f"input-bound, {missed} input-bound called healthy"
        )
        lines += [f"  - wrong: {line}" for line in _confusions(several)]
    return lines


def _confusions(several: Iterable[Judged]) -> list[str]:
    found = Counter((v.scenario.name, v.said.value) for v in several if v.is_wrong)
    return [
        f"`{name}` called `{said}` ({number})" for (name, said), number in sorted(found.items())
    ]


def _counts(several: Iterable[Judged]) -> tuple[int, int, int]:
    right = unknown = wrong = 0
    for verdict in several:
        right += verdict.is_right
        unknown += verdict.is_unknown and not verdict.is_right
        wrong += verdict.is_wrong
    return right, unknown, wrong


def by_scenario(by_loss: Mapping[str, Sequence[Judged]], settled: Mapping[str, int]) -> Table:
    """Verdicts of each loop as right / unknown / wrong, and how long the right one took."""
    table: Table = [["loop", "what it is", "class", *by_loss, "s to verdict"]]
    for name, scenario in SCENARIOS.items():
        cells = []
        for several in by_loss.values():
            own = [verdict for verdict in several if verdict.scenario is scenario]
            cells.append(" / ".join(map(str, _counts(own))) if own else "")
        uuids = {v.gpu_uuid for s in by_loss.values() for v in s if v.scenario is scenario}
        took = sorted(settled[uuid] for uuid in uuids if uuid in settled)
        if uuids:
            seconds = f"{median(took):.0f}" if took else "-"
            table.append([f"`{name}`", scenario.text, f"`{scenario.truth.value}`", *cells, seconds])
    return table


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


def by_class(several: Sequence[Judged]) -> Table:
    """The confusion matrix without its zeros, precision, recall and F1."""
    table: Table = [["class", "verdicts", "was called", "precision", "recall", "F1"]]
    decided = [verdict for verdict in several if not verdict.scenario.is_undecidable]
    numbers = Counter(verdict.scenario.truth for verdict in decided)
    called: dict[Bottleneck, Counter[Bottleneck]] = defaultdict(Counter)
    for verdict in decided:
        called[verdict.scenario.truth][verdict.said] += 1
    for kind, (precision, recall) in sorted(scores(several).items()):
        shown = "-" if precision is None else f"{precision:.2f}"
        table.append(
            [
                f"`{kind.value}`",
                str(numbers[kind]),
                ", ".join(f"`{said.value}` {n}" for said, n in called[kind].most_common()),
                shown,
                f"{recall:.2f}",
                f"{f1(precision, recall):.2f}",
            ]
        )
    table.append(["macro", str(len(decided)), "", "", "", f"{macro_f1(several):.2f}"])
    return table


def against_others(several: Sequence[Judged], series: Mapping[str, Series]) -> Table:
    """The same GPUs by published rules, on the two questions that those answer."""
    table: Table = [["question", "by", "precision", "recall"]]

    def add(
        question: str, by: str, is_true: Callable[[Judged], bool], says: Callable[[Judged], bool]
    ) -> None:
        hits = sum(is_true(v) and says(v) for v in several)
        said, true = sum(map(says, several)), sum(map(is_true, several))
        precision = f"{hits / said:.2f} ({hits} of {said})" if said else "never said"
        table.append(
            [question, by, precision, f"{hits / true:.2f} ({hits} of {true})" if true else "-"]
        )

    def starves(verdict: Judged) -> bool:
        return verdict.scenario.truth in INPUT_BOUND

    def is_ill(verdict: Judged) -> bool:
        return verdict.scenario.truth not in HEALTHY

    def rule(of: Callable[[Series], bool]) -> Callable[[Judged], bool]:
        return lambda verdict: verdict.gpu_uuid in series and of(series[verdict.gpu_uuid])

    data, ill = "do data not arrive?", "is anything wrong?"
    add(data, "gpuwarden", starves, lambda v: v.said in INPUT_BOUND)
    add(data, "SageMaker CPUBottleneck", starves, rule(published.cpu_bottleneck))
    add(data, "SageMaker IOBottleneck", starves, rule(published.io_bottleneck))
    add(ill, "gpuwarden", is_ill, lambda v: v.said not in HEALTHY | {Bottleneck.UNKNOWN})
    add(ill, "SageMaker LowGPUUtilization", is_ill, rule(published.low_utilization))
    add(ill, "utilization below 50 %", is_ill, rule(published.below_half))
    return table


def workers_advised(several: Sequence[Judged], tried: Sequence[Mapping[str, Any]]) -> Table:
    """Advised workers, and the fewest with which the loop no longer waited."""
    table: Table = [["loop", "seed", "busy by workers", "fewest that are enough", "advised"]]
    advised: dict[tuple[str, float, int], int | None] = defaultdict(lambda: None)
    for verdict in several:
        seen, run = verdict.seen, verdict.run
        advice = advise(seen.place, verdict.said, seen.features)
        number = advice.after if advice and advice.knob == "num_workers" else wanted_workers(seen.features)  # fmt: skip
        advised[verdict.scenario.name, run.speed_s, run.seed] = (
            None if number is None else int(number)
        )
    for one in tried:
        shares = {int(workers): share for workers, share in one["busy"].items()}
        enough = next((n for n, share in sorted(shares.items()) if share >= one["from"]), None)
        number = advised[one["scenario"], one["speed_s"], one["seed"]]
        table.append(
            [
                f"`{one['scenario']}`",
                str(one["seed"]),
                ", ".join(f"{n}: {100 * share:.0f} %" for n, share in sorted(shares.items())),
                "none" if enough is None else str(enough),
                "-" if number is None else str(number),
            ]
        )
    return table


def main() -> int:
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
    print(text(by_loss, settled_s(looks, seconds_of(plain)) if plain else {}, series, tried))
    if args.explain:
        for name, several in by_loss.items():
            for verdict in several:
                if verdict.is_wrong or (verdict.is_unknown and name == "all data"):
                    print(f"\n[{name}] {explained(verdict)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
