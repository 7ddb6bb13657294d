"""Records real training loops with the agent's own probes, for `bench.diagnosis.judge` to judge.

    python -m bench.diagnosis.record --python ENV/bin/python [--seeds 1] [--speeds 0.3,5] [--scenarios NAME,...]

Every run of a node is one file in --folder (docs/simulator.md has its form); those that are there are
skipped, so that it can be stopped at any time and continues where it was. Root is needed for control groups and
the network; what cannot be run is named. On a machine that does other things the labels are not true.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from bench.diagnosis.devices import DeviceProbe, DeviceProcesses
from bench.diagnosis.limits import LimitError, sweep
from bench.diagnosis.scenarios import NODES, SCENARIOS, SPEEDS_S, Node
from bench.diagnosis.stage import (
    Loop,
    Setting,
    StageError,
    background_load,
    check_python,
    make_files,
    network_store,
    running,
)

from gpuwarden.clock import SystemClock
from gpuwarden.lifecycle import StartError
from gpuwarden.models import model_named
from gpuwarden_agent.collect.host.node import HostProbe
from gpuwarden_agent.collect.processes.trees import ProcessProbe
from gpuwarden_agent.probe import Probe
from gpuwarden_simulator.recordings.recorder import Recorder, RecordingFile, RecordingTally

FOLDER = Path("build/diagnosis")
MODEL = "H100-SXM-80GB"
SECONDS = 125
BUSY_LOAD = 0.5
MISSED_MAX = 0.05
STOP_TIMEOUT_S = 30.0
IN_NETWORK = "GPUWARDEN_BENCH_NETWORK"
"""Set in the process that has a network of its own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run of a node."""

    node: Node
    speed_s: float
    seed: int
    is_loaded: bool = False

    @property
    def name(self) -> str:
        """File name of the recording."""
        return f"{self.node.name}-{self.speed_s:g}s-{self.seed}{'-loaded' * self.is_loaded}"

    def path(self, folder: Path) -> Path:
        """Where the recording is kept."""
        return folder / f"{self.name}.jsonl.gz"


def plans(args: argparse.Namespace) -> Iterator[Plan]:
    """All runs that are asked for."""
    for seed in args.seeds:
        for speed_s in args.speeds:
            for node in NODES:
                names = {scenario.name for scenario in node.scenarios(speed_s)}
                if names and (not args.scenarios or names & set(args.scenarios)):
                    yield Plan(node, speed_s, seed, args.loaded)


def label(loop: Loop) -> str:
    """Name of a GPU's probe, which says what is true of it."""
    return f"gpu{loop.device.index}:{loop.scenario.name}"


def record(plan: Plan, args: argparse.Namespace) -> str:
    """Make one recording; a line about it. Raises StageError, LimitError and StartError."""
    began_s = time.monotonic()
    with ExitStack() as stack:
        store = stack.enter_context(network_store()) if plan.node.is_behind_network else ""
        setting = Setting(
            python=args.python,
            files=(args.folder / "files").resolve(),
            speed_s=plan.speed_s,
            seed=plan.seed,
            store=store,
        )
        if plan.is_loaded:
            stack.enter_context(background_load())
        scenarios = plan.node.scenarios(plan.speed_s)
        loops = stack.enter_context(running(scenarios, setting))
        before = [loop.device.meter.use() for loop in loops]
        partial = args.folder / f"{plan.name}.partial"
        tally = asyncio.run(_recorded(plan, loops, partial, args.seconds))
        after = [loop.device.meter.use() for loop in loops]
    if tally.missed > MISSED_MAX * tally.ticks or tally.failed:
        raise StageError(f"{tally.missed} seconds missed, {tally.failed} readings failed: too busy")
    partial.rename(plan.path(args.folder))
    shares = (
        f"{loop.scenario.name} {100 * (b.busy_ns - a.busy_ns) / (b.at_ns - a.at_ns):.0f} % busy"
        for loop, a, b in zip(loops, before, after, strict=True)
    )
    return f"{time.monotonic() - began_s:.0f} s: {', '.join(shares)}"


async def _recorded(
    plan: Plan, loops: Sequence[Loop], path: Path, seconds: float
) -> RecordingTally:
    clock = SystemClock()
    devices = [loop.device for loop in loops]
    probes: list[Probe] = [DeviceProbe(x.device, model_named(MODEL), label(x)) for x in loops]
    probes.append(HostProbe(clock))
    sources = [DeviceProcesses(device) for device in devices]
    probes.append(ProcessProbe([], clock, are_pids_ours=True, others=sources))
    file = RecordingFile(path, force=True)
    recorder = Recorder(plan.name, probes, file, clock, interval_ms=1000, deadline_s=5.0)
    return await recorder.run(asyncio.Event(), seconds)


def in_network(plan: Plan, args: argparse.Namespace) -> str:
    """The same, in a process that has a network of its own. Raises StageError."""
    options = {
        "--python": args.python,
        "--folder": str(args.folder),
        "--speeds": f"{plan.speed_s:g}",
        "--seeds": str(plan.seed),
        "--scenarios": plan.node.jobs[0],
        "--seconds": f"{args.seconds:g}",
    }
    words = [word for option in options.items() for word in option]
    child = subprocess.Popen(
        ["unshare", "--net", "--mount", sys.executable, "-m", __spec__.name, *words]
        + ["--loaded"] * plan.is_loaded,
        env={**os.environ, IN_NETWORK: "1"}, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        told, _ = child.communicate()
    except KeyboardInterrupt:
        child.terminate()
        child.wait(STOP_TIMEOUT_S)
        raise
    if child.returncode:
        raise StageError(told.strip() or "no network of its own: this needs root")
    return told.strip()


def parsed() -> argparse.Namespace:
    """The command line."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def numbers(text: str) -> list[float]:
        return [float(part) for part in text.split(",")]

    def known(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in SCENARIOS]:
            raise argparse.ArgumentTypeError(
                f"no scenario {unknown[0]!r}; there are: {', '.join(SCENARIOS)}"
            )
        return names

    options.add_argument("--folder", type=Path, default=FOLDER)
    options.add_argument("--python", default=sys.executable, help="an interpreter with PyTorch")
    options.add_argument("--scenarios", type=known, default=[], help="nodes that run one of these")
    options.add_argument("--seeds", type=lambda t: [int(s) for s in numbers(t)], default=[1])
    options.add_argument("--speeds", type=numbers, default=list(SPEEDS_S), help="seconds a step")
    options.add_argument("--seconds", type=float, default=SECONDS, help="length of a recording")
    options.add_argument("--loaded", action="store_true", help="with other work on the node")
    return options.parse_args()


def _stop(number: int, frame: FrameType | None) -> None:
    """Stop once: a second signal must not cut the cleaning up short."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> int:
    args = parsed()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    wanted = [plan for plan in plans(args) if not plan.path(args.folder).exists()]
    is_inside = IN_NETWORK in os.environ
    try:
        if not is_inside:
            check_python(args.python)
            make_files(args.folder / "files")
            sweep()
    except (StageError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    failed = 0
    for number, plan in enumerate(wanted, 1):
        load = os.getloadavg()[0]
        if not is_inside and number == 1 and load > BUSY_LOAD:
            print(
                f"the machine is busy (load {load:.1f}): labels may not be true of what it records"
            )
        try:
            away = plan.node.is_behind_network and not is_inside
            text = in_network(plan, args) if away else record(plan, args)
        except (StageError, LimitError, StartError) as error:
            failed += 1
            text = f"failed: {error}"
        except KeyboardInterrupt:
            if not is_inside:
                print(
                    f"stopped at {plan.name}; the same command continues from there",
                    file=sys.stderr,
                )
            return 130
        print(text if is_inside else f"{number}/{len(wanted)} {plan.name} {text}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
