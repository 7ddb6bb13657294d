"""Runs all measurements in order within a hard deadline, and writes the results."""

import argparse
import json
import os
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.gpu import agreement, children, gpm, support
from bench.gpu.machine import Machine, real_machine, simulated_machine
from bench.gpu.scenes import Scene, Workshop, record_scene
from bench.gpu.workloads import WORKLOADS

from gpuwarden import __version__

DEADLINE_S = 520.0
SCENE_S = 36.0
SCENE_LEAST_S = 8.0
SCENE_START_S = 6.0
"""Time to start and kill a workload, beside its recording."""
OVERHEAD_S = 40.0
WALK_LIMIT_S = 60.0
SLOW_US = 5000
"""Calls slower than this do not belong into every second."""


class Evidence:
    """Everything found so far; can be written at any time."""

    def __init__(self, machine: Machine, output: Path, missing: Sequence[str]) -> None:
        self.machine, self.output = machine, output
        self.began_s = time.monotonic()
        self.answers: list[support.Answer] = []
        self.compared: list[agreement.Compared] = []
        self.scenes: list[Scene] = []
        self.overhead: dict[str, Any] = {}
        self.tensor: dict[str, Any] = {}
        self.notes: list[str] = [f"not installed here: {', '.join(missing)}"] if missing else []
        self.doing = "starting"
        self._writing = threading.Lock()

    def note(self, line: str) -> None:
        """Something that a reader of the results must know."""
        self.notes.append(line)
        print(f"- {line}", flush=True)

    def step(self, name: str) -> None:
        """Name the current step, for the log and for the note of a deadline."""
        self.doing = name
        print(f"[{time.monotonic() - self.began_s:5.0f} s] {name}", flush=True)

    def attempt(self, step: Callable[[], None]) -> None:
        """Do a part of the run; a failure becomes a note, and the run continues."""
        try:
            step()
        except Exception as error:  # noqa: BLE001  # the other parts are worth having
            self.note(f"during {self.doing}: {type(error).__name__}: {error}")

    def write(self, recordings: Path) -> str:
        """Write all files; the summary as Markdown."""
        with self._writing:
            text = summary(self)
            (self.output / "summary.md").write_text(text)
            support.write(self.output / "support.csv", list(self.answers))
            agreement.write(self.output / "agreement.csv", list(self.compared))
            document = {
                "gpuwarden": __version__,
                "machine": self.machine.name,
                "python": sys.version.split()[0],
                "notes": self.notes,
                "overhead": self.overhead,
                "tensor": self.tensor,
                "scenes": [asdict(scene) for scene in self.scenes],
            }
            (self.output / "results.json").write_text(json.dumps(document, indent=1))
            with tarfile.open(self.output / "recordings.tar", "w") as tar:
                for path in sorted(recordings.glob("*.jsonl.gz")):
                    tar.add(path, path.name)
            return text


def summary(evidence: Evidence) -> str:
    """The findings in a few lines; the files have the rest."""
    lines = [f"# Evidence: {evidence.machine.name}", ""]
    lines += [f"- {note}" for note in evidence.notes]
    lines += [f"- agent: {name} {value}" for name, value in evidence.overhead.items()]
    lines += [f"- tensor activity: {name} {value}" for name, value in evidence.tensor.items()]
    for scene in evidence.scenes:
        measured = {**scene.means, **scene.achieved, "missed ticks": scene.missed}
        figures = ", ".join(f"{name} {value:.4g}" for name, value in measured.items())
        lines.append(f"- {scene.name}: {scene.skipped or figures}")
    for load in dict.fromkeys(one.load for one in evidence.compared):
        several = [one for one in evidence.compared if one.load == load]
        counts = ", ".join(f"{n} {verdict}" for verdict, n in agreement.counted(several).items())
        lines.append(f"- agreement with nvidia-smi, {load}: {counts}")
        lines += [
            f"  - {one.field}: ours {one.ours}, theirs {one.theirs}, tolerance {one.tolerance}: {one.verdict}"
            for one in several
            if one.verdict not in ("agree", "both absent")
        ]
    kinds = Counter((answer.kind, answer.is_supported) for answer in evidence.answers)
    for kind in dict.fromkeys(kind for kind, _ in kinds):
        lines.append(f"- calls of {kind}: {kinds[kind, True]} answered, {kinds[kind, False]} not")
    for answer in sorted(evidence.answers, key=lambda one: -one.p50_us):
        if answer.p50_us >= SLOW_US:
            lines.append(f"  - {answer.name} {answer.arguments}: {answer.p50_us / 1000:.1f} ms")
    return "\n".join(lines) + "\n"


def run(arguments: Sequence[str], missing: Sequence[str]) -> int:
    """Measure and write; 0 when there is something to read."""
    args = _parsed(arguments)
    machine = simulated_machine() if args.simulator else real_machine()
    if isinstance(machine, str):
        print(f"no GPU to measure: {machine}; --simulator tries everything but the numbers")
        return 2
    args.output.mkdir(parents=True, exist_ok=True)
    print(f"{machine.name}; at most {args.deadline:g} s; into {args.output}", flush=True)
    evidence = Evidence(machine, args.output, missing)
    workshop = Workshop(pretend=args.simulator)  # imports torch while the driver is asked
    with tempfile.TemporaryDirectory(prefix="gpuwarden-recordings-") as folder:
        recordings = Path(folder)
        _end_in_time(evidence, workshop, recordings, args.deadline)
        try:
            _measure(evidence, workshop, recordings, args.deadline, short=args.short)
        finally:
            workshop.close()
            children.kill_all()
            evidence.step("done")
            print(evidence.write(recordings), flush=True)
    return 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Evidence from a real GPU; see README.md.")
    out = os.environ.get("OUT")
    parser.add_argument(
        "--output", type=Path, default=Path(out) if out else None, required=not out, metavar="DIR",
        help="where files go (default: $OUT)",
    )  # fmt: skip
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="S")
    parser.add_argument("--simulator", action="store_true", help="measure no GPU, try the code")
    parser.add_argument("--short", action="store_true", help="a second of everything")
    return parser.parse_args(arguments)


def _end_in_time(
    evidence: Evidence, workshop: Workshop, recordings: Path, deadline_s: float
) -> None:
    """At the deadline write what there is and end the process, whatever hangs."""

    def end() -> None:
        time.sleep(max(0.0, deadline_s - (time.monotonic() - evidence.began_s)))
        evidence.note(f"stopped at the deadline of {deadline_s:g} s during: {evidence.doing}")
        workshop.close()
        children.kill_all()
        print(evidence.write(recordings), flush=True)
        os._exit(3)

    threading.Thread(target=end, name="deadline", daemon=True).start()


def _measure(
    evidence: Evidence, workshop: Workshop, recordings: Path, deadline_s: float, *, short: bool
) -> None:
    evidence.step("asking the driver for everything")
    evidence.attempt(lambda: _walk(evidence))
    evidence.step("comparing with nvidia-smi, idle")
    evidence.attempt(lambda: _compare(evidence, "idle"))
    workshop.wait()
    evidence.step("overhead of the agent, and the workload idle")
    overhead_s = 2.0 if short else OVERHEAD_S
    measuring = threading.Thread(
        target=evidence.attempt, args=(lambda: _overhead(evidence, overhead_s),), daemon=True
    )
    measuring.start()
    names = ["idle", *WORKLOADS]
    for number, name in enumerate(names):
        left_s = deadline_s - 15 - (time.monotonic() - evidence.began_s)
        share_s = left_s / (len(names) - number) - SCENE_START_S
        seconds = 0.4 if short else min(SCENE_S, share_s)
        if not short and seconds < SCENE_LEAST_S:
            evidence.scenes.append(Scene(name, skipped="no time was left"))
            continue
        evidence.step(f"recording {name} for {seconds:.0f} s")
        during = _during_matmul(evidence, seconds) if name == "matmul" else []
        scene = Scene(name, skipped="it failed; the notes say how")
        evidence.scenes.append(scene)

        def record(scene: Scene = scene, seconds: float = seconds, during: Any = during) -> None:
            record_scene(
                evidence.machine,
                workshop,
                scene,
                seconds,
                recordings,
                during,
                interval_ms=200 if short else 1000,
            )

        evidence.attempt(record)
        if scene.skipped:
            evidence.note(f"{name} was skipped: {scene.skipped}")
        if name == "matmul":
            _judge_tensor(evidence, scene)
    measuring.join(overhead_s + 20)


def _walk(evidence: Evidence) -> None:
    is_simulated = evidence.machine.backend == "simulator"
    for trouble in support.walk_apart(is_simulated, WALK_LIMIT_S, evidence.answers.append):
        evidence.note(trouble)


def _compare(evidence: Evidence, load: str) -> None:
    evidence.compared += agreement.compare(evidence.machine, load)


def _overhead(evidence: Evidence, seconds: float) -> None:
    from bench.gpu.overhead import measure

    evidence.overhead = measure(evidence.machine.backend, seconds)


def _during_matmul(evidence: Evidence, seconds: float) -> list[Callable[[], None]]:
    def compare() -> None:
        time.sleep(seconds / 3)
        evidence.attempt(lambda: _compare(evidence, "matmul"))

    def ask_gpm() -> None:
        time.sleep(seconds / 4)
        over_s = seconds / 3
        metrics = gpm.between(evidence.machine.handle, over_s)
        evidence.answers += gpm.answers_of(metrics, over_s)
        evidence.tensor["gpm_percent"] = {str(metric): metrics.get(metric) for metric in gpm.TENSOR}

    return [
        compare,
        *([] if evidence.machine.handle is None else [lambda: evidence.attempt(ask_gpm)]),
    ]


def _judge_tensor(evidence: Evidence, scene: Scene) -> None:
    flops = scene.achieved.get("flop_per_second")
    if flops is None:
        return
    clock = scene.means.get("sm_clock_mhz", 0.0)
    evidence.tensor |= {
        "achieved_tflops": round(flops / 1e12, 1),
        "sm_clock_mhz": clock,
        "expected_percent": gpm.expected_tensor_percent(evidence.machine.name, flops, clock),
        "agent_percent": scene.means.get("tensor_active_percent"),
    }
