"""Measures how often the diagnosis is right on simulated fleets, whose workloads are known: the confusion matrix.

    python -m bench.diagnosis.fleet [--seeds 3] [--looks 12] [--model H100-SXM-80GB]

Each fleet has one GPU of each kind of workload, four of those that take several, and eight whose jobs come and go;
it is looked at every four minutes, and a job in its first fifteen minutes is left out. Loops of seconds, and
real processes, are another matter: here a second is the shortest step.
"""

import argparse
import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

from gpuwarden.clock import from_ms
from gpuwarden.diagnosis import HEALTHY, INPUT_BOUND, Bottleneck
from gpuwarden.models import GpuModel, model_named
from gpuwarden_rules.diagnosis.observe import observe
from gpuwarden_rules.diagnosis.service import judged_of
from gpuwarden_rules.testing import MemoryDatabase
from gpuwarden_simulator import Placement, SimulatedNode, Workload, default_workloads
from gpuwarden_simulator.jobs.workload import Job

START_MS = 1_763_683_200_000
WINDOW_S = 140
LOOK_EVERY_S = 240
SETTLED_S = 900
WORKS = frozenset({Bottleneck.COMPUTE_BOUND, Bottleneck.BUSY, Bottleneck.CHECKPOINT})
"""Training that is healthy pauses for a checkpoint now and then."""
TOGETHER = frozenset({Workload.TRAINING, Workload.COMM_BOUND, Workload.PARTLY_IDLE})
RIGHT: dict[Workload, frozenset[Bottleneck]] = {
    Workload.FREE: frozenset({Bottleneck.IDLE_FREE}),
    Workload.IDLE_HELD: frozenset({Bottleneck.IDLE_HELD}),
    Workload.TRAINING: WORKS,
    Workload.CAPPED: WORKS,
    Workload.INFERENCE: frozenset({Bottleneck.SERVING}),
    Workload.INPUT_BOUND_CPU: frozenset({Bottleneck.LOADER_WORKERS}),
    Workload.INPUT_BOUND_STORAGE: frozenset({Bottleneck.STORAGE_DISK}),
    Workload.INPUT_BOUND_MAIN: frozenset({Bottleneck.LOADER_MAIN}),
    Workload.HOST_BOUND: frozenset({Bottleneck.HOST_BOUND}),
    Workload.THROTTLED_THERMAL: frozenset({Bottleneck.THROTTLED}),
    Workload.THROTTLED_POWER_BRAKE: frozenset({Bottleneck.THROTTLED}),
    Workload.PARTLY_IDLE: WORKS | {Bottleneck.IDLE_HELD, Bottleneck.IDLE_FREE},
    Workload.SMALL: frozenset({Bottleneck.SMALL_BATCH}),
    # Its checkpoints are checkpoints.
    Workload.COMM_BOUND: frozenset({Bottleneck.COMM_BOUND, Bottleneck.CHECKPOINT}),
    Workload.UNUSED: frozenset({Bottleneck.IDLE_FREE}),
    # That it had worked before, which a hang takes, is in the minutes that are not made here.
    Workload.BLOCKED: frozenset({Bottleneck.HUNG_BLOCKED, Bottleneck.IDLE_HELD}),
}


def fleet(model: GpuModel, seed: int) -> dict[str, SimulatedNode]:
    """One GPU of each kind, four of those that take several; and a node whose jobs come and go."""
    fixed: list[Placement] = []
    for kind in Workload:
        first = fixed[-1].gpus[-1] + 1 if fixed else 0
        fixed.append(Placement(tuple(range(first, first + (4 if kind in TOGETHER else 1))), kind))
    mixed = default_workloads(8, seed * 100, required=8)
    return {
        "kinds": SimulatedNode("kinds", fixed[-1].gpus[-1] + 1, model, seed, tuple(fixed)),
        "mixed": SimulatedNode("mixed", 8, model, seed, mixed),
    }


def insert(db: MemoryDatabase, node: SimulatedNode, name: str, end_ms: int) -> None:
    """The rows of a window that ends there. Windows must go forward."""
    found: dict[str, list[dict[str, Any]]] = {}
    for ts_ms in range(end_ms - 1000 * WINDOW_S, end_ms + 1, 1000):
        due = {table for table, every_s in node.tables.items() if ts_ms // 1000 % every_s == 0}
        for table, rows in node.read(ts_ms, due).items():
            for row in rows:
                row |= {"ts": from_ms(ts_ms), "node": name, "simulated": True}
                if "started_at" in row:
                    row["started_at"] = from_ms(row["started_at"])
                found.setdefault(table, []).append(row)
    for table, rows in found.items():
        db.insert(table, rows)


def jobs_at(node: SimulatedNode, at_ms: int) -> Iterator[tuple[int, Job]]:
    """What each GPU does, by index. Times must go forward."""
    for timeline in node._timelines:
        job = timeline.job_at(at_ms)
        yield from ((gpu, job) for gpu in job.gpus)


def truth(gpu: int, job: Job) -> Workload:
    """The kind that one GPU of a job shows: bad cooling is the fault of the first one alone."""
    if job.workload is Workload.THROTTLED_THERMAL and gpu != job.gpus[0]:
        return Workload.TRAINING
    return job.workload


def tally(model: str, seed: int, looks: int) -> Counter[tuple[Workload, Bottleneck]]:
    """What was said of what, in one fleet."""
    found: Counter[tuple[Workload, Bottleneck]] = Counter()
    nodes = fleet(model_named(model), seed)
    db = MemoryDatabase()
    for name, node in nodes.items():
        for table, rows in node.describe().items():
            more = {"agent_id": "a", "boot_id": "b"} if table == "nodes" else {"usd_per_hour": 2.0}
            db.insert(table, [{**row, "node": name, "simulated": True, **more} for row in rows])
    for look in range(looks):
        at_ms = START_MS + 1000 * (SETTLED_S + look * LOOK_EVERY_S)
        for name, node in nodes.items():
            insert(db, node, name, at_ms)
        judged, _ = judged_of(asyncio.run(observe(db, from_ms(at_ms))))
        said = {(j.seen.place.node, j.seen.place.gpu): j.verdict.bottleneck for j in judged}
        for name, node in nodes.items():
            for gpu, job in jobs_at(node, at_ms):
                if at_ms - job.started_ms >= 1000 * SETTLED_S:
                    found[truth(gpu, job), said[name, gpu]] += 1
    db.close()
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--looks", type=int, default=12)
    options.add_argument("--model", default="H100-SXM-80GB")
    args = options.parse_args()
    found: Counter[tuple[Workload, Bottleneck]] = Counter()
    for seed in range(1, args.seeds + 1):
        found += tally(args.model, seed, args.looks)
    right = sum(n for (kind, said), n in found.items() if said in RIGHT[kind])
    starved = {Workload.INPUT_BOUND_CPU, Workload.INPUT_BOUND_MAIN, Workload.INPUT_BOUND_STORAGE}
    accused = sum(
        n for (kind, said), n in found.items() if said in INPUT_BOUND and kind not in starved
    )
    missed = sum(n for (kind, said), n in found.items() if said in HEALTHY and kind in starved)
    unknown = sum(n for (_, said), n in found.items() if said is Bottleneck.UNKNOWN)
    wrong = found.total() - right - unknown
    print(f"{found.total()} verdicts: {right} right, {unknown} unknown, {wrong} wrong")
    print(f"{accused} called input-bound that are not, {missed} input-bound called healthy")
    for (kind, said), number in sorted(found.items()):
        mark = " " if said in RIGHT[kind] else "!"
        print(f"{mark} {kind.value:<22} {said.value:<16} {number}")


if __name__ == "__main__":
    main()
