"""What the built-in rules say about simulated workloads: who is accused rightly, wrongly, or missed.

    python bench/rules_fidelity.py [--hours 6] [--seeds 2] [--models H100-SXM-80GB,L4-24GB] [--every 5]

For each model and seed a small fleet is simulated in memory: every kind of workload once, for good,
beside nodes where jobs come and go. All rules are evaluated every five minutes and compared with what
the simulator did. A GPU counts once its job has run for SETTLED_MIN minutes. The exit code is 1 where
a settled GPU was accused wrongly or missed.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta

from gpuwarden.alert import Alert, AlertState
from gpuwarden.clock import from_ms
from gpuwarden.models import GpuModel, model_named
from gpuwarden_agent.simulator import Placement, SimulatedNode, Workload, default_workloads
from gpuwarden_agent.simulator.workload import Job
from gpuwarden_rules.language import Rule, builtin_rules
from gpuwarden_rules.state import step
from gpuwarden_rules.testing import MemoryDatabase

START_MS = 1_763_683_200_000
EVALUATE_S = 300
SETTLED_MIN = 50
"""Half an hour until a GPU is idle, ten minutes of another job's alert kept firing, and some."""
MODELS = "H100-SXM-80GB,A100-SXM-80GB,L4-24GB,MI300X-192GB,T4-16GB"
STARVED = (Workload.INPUT_BOUND_CPU, Workload.INPUT_BOUND_STORAGE, Workload.INPUT_BOUND_MAIN)
THERMAL = frozenset({"gpu_thermal_throttle_hw", "gpu_thermal_throttle_sw"})
EXPECTED: dict[Workload, frozenset[str]] = {
    Workload.FREE: frozenset({"gpu_idle_free"}),
    Workload.IDLE_HELD: frozenset({"gpu_idle_held"}),
    **dict.fromkeys(STARVED, frozenset({"gpu_data_loader_bound"})),
    Workload.THROTTLED_THERMAL: THERMAL,
    Workload.THROTTLED_POWER_BRAKE: frozenset({"gpu_power_brake"}),
    Workload.CAPPED: frozenset({"gpu_power_cap_loss"}),
}
"""Any one of these is right; kinds that are not named are healthy."""
OPTIONAL = frozenset({Workload.CAPPED})
"""Needs busy peers of the model, which a small fleet does not always have."""
UNSEEN_ON_AMD = frozenset({Workload.THROTTLED_POWER_BRAKE})
"""AMD's driver has neither the counter nor the bit: nothing can be said, and nothing may be."""


def fleet(model: GpuModel, seed: int) -> list[SimulatedNode]:
    """One GPU of each kind, four that train beside them, and two nodes whose jobs come and go."""
    kinds = tuple(Workload)
    fixed = [Placement((i,), kind) for i, kind in enumerate(kinds)]
    fixed += [Placement((len(kinds) + i,), Workload.TRAINING) for i in range(4)]
    nodes = [SimulatedNode("kinds", len(fixed), model, seed, tuple(fixed))]
    for number in range(2):
        placements = default_workloads(8, seed * 100 + number, required=8)
        nodes.append(SimulatedNode(f"mixed-{number}", 8, model, seed, placements))
    return nodes


def fill(db: MemoryDatabase, node: SimulatedNode, name: str, seconds: int, every: int) -> None:
    """All rows of a node, and its inventory at the catalogue's price."""
    inventory = node.describe()
    for table, rows in inventory.items():
        extra = {"agent_id": "a", "boot_id": "b"} if table == "nodes" else {"usd_per_hour": 2.0}
        db.insert(table, [{**row, "node": name, "simulated": True, **extra} for row in rows])
    pending: dict[str, list[dict[str, object]]] = {}
    for offset in range(0, seconds + 1, every):
        ts = from_ms(START_MS + offset * 1000)
        due = {table for table, every_s in node.tables.items() if offset % every_s < every}
        for table, rows in node.read(START_MS + offset * 1000, due).items():
            for row in rows:
                row = {**row, "ts": ts, "node": name, "simulated": True}
                if "started_at" in row:
                    row["started_at"] = from_ms(row["started_at"])
                pending.setdefault(table, []).append(row)
        if offset % 3600 == 0 or offset == seconds:
            for table, rows in pending.items():
                db.insert(table, rows)
            pending.clear()


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


def accused(state: Mapping[str, Alert]) -> dict[str, set[int] | None]:
    """GPUs that fire, by node; None: all of the node's."""
    found: dict[str, set[int] | None] = {}
    for alert in state.values():
        if alert.state is not AlertState.FIRING:
            continue
        gpus = found.setdefault(alert.labels["node"], set())
        if "gpu" not in alert.labels:
            found[alert.labels["node"]] = None
        elif gpus is not None:
            gpus.add(int(alert.labels["gpu"]))
    return found


class Tally:
    """How often each kind was seen, and which sets of rules spoke of it."""

    def __init__(self, unseen: frozenset[Workload] = frozenset()) -> None:
        self.unseen = unseen
        self.seen: Counter[Workload] = Counter()
        self.said: Counter[tuple[Workload, str]] = Counter()
        self.wrong: Counter[tuple[Workload, str]] = Counter()

    def add(self, kind: Workload, rules: set[str]) -> None:
        """One GPU at one instant."""
        self.seen[kind] += 1
        for rule in rules:
            self.said[kind, rule] += 1
        expected = frozenset() if kind in self.unseen else EXPECTED.get(kind, frozenset())
        for rule in rules - expected:
            self.wrong[kind, rule] += 1
        if expected and not rules & expected and kind not in OPTIONAL:
            self.wrong[kind, "missed"] += 1


def replay(model: GpuModel, seed: int, hours: float, every: int, tally: Tally, texts: dict) -> None:
    """One fleet's hours through all rules."""
    rules = builtin_rules()
    seconds = int(hours * 3600)
    nodes = fleet(model, seed)
    names = ["kinds", "mixed-0", "mixed-1"]
    db = MemoryDatabase()
    for node, name in zip(nodes, names, strict=True):
        fill(db, node, name, seconds, every)
    states: dict[str, Mapping[str, Alert]] = {rule.name: {} for rule in rules}
    fresh = fleet(model, seed)
    for offset in range(0, seconds + 1, EVALUATE_S):
        at_ms = START_MS + offset * 1000
        said = {rule.name: evaluate(rule, db, states, at_ms, texts) for rule in rules}
        for node, name in zip(fresh, names, strict=True):
            for gpu, job in jobs_at(node, at_ms):
                if at_ms - max(job.started_ms, START_MS) < SETTLED_MIN * 60_000:
                    continue
                spoke = {r for r, at in said.items() if name in at and speaks(at[name], gpu)}
                tally.add(truth(gpu, job), spoke)
    db.close()


def evaluate(
    rule: Rule, db: MemoryDatabase, states: dict, at_ms: int, texts: dict
) -> dict[str, set[int] | None]:
    """One evaluation; remembers a text of each rule."""
    now = from_ms(at_ms) + timedelta(milliseconds=1)
    rows = db.run(rule.sql, rule.bindings(now)).records()
    states[rule.name], _ = step(states[rule.name], rows, rule, now)
    for alert in states[rule.name].values():
        texts.setdefault(rule.name, {})[alert.summary] = alert.remedy
    return accused(states[rule.name])


def speaks(gpus: set[int] | None, gpu: int) -> bool:
    """Whether a node's alert or a GPU's own names it."""
    return gpus is None or gpu in gpus


def table(tally: Tally) -> str:
    """Kinds by rules: share of instants at which the rule fired, in per cent."""
    rules = [rule.name for rule in builtin_rules()]
    short = [
        name.removeprefix("gpu_").replace("_throttle", "").replace("_bound", "") for name in rules
    ]
    lines = [f"{'workload':22} {'instants':>8} " + " ".join(f"{s:>11}" for s in short)]
    for kind in Workload:
        seen = tally.seen[kind]
        cells = []
        for name in rules:
            share = 100 * tally.said[kind, name] / seen if seen else 0
            mark = "" if not share or name in EXPECTED.get(kind, ()) else "!"
            cells.append(f"{mark}{share:.1f}" if share else ".")
        lines.append(f"{kind:22} {seen:8} " + " ".join(f"{cell:>11}" for cell in cells))
    lines += [f"WRONG {kind}: {what}, {n} instants" for (kind, what), n in tally.wrong.items()]
    return "\n".join(lines)


def main() -> int:
    """Replay every model and seed, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=6)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--every", type=int, default=5, help="seconds between samples")
    parser.add_argument("--minutes-max", type=float, default=10, help="start no fleet after this")
    parser.add_argument("--texts", action="store_true", help="print some of the texts")
    args = parser.parse_args()
    tally, texts = Tally(), {}
    began = time.perf_counter()
    for name in args.models.split(","):
        for seed in range(1, args.seeds + 1):
            if time.perf_counter() - began > args.minutes_max * 60:
                print(f"{name} seed {seed}: out of time, left out")
                continue
            one = Tally(UNSEEN_ON_AMD if name.startswith("MI") else frozenset())
            replay(model_named(name), seed, args.hours, args.every, one, texts)
            for total, part in (
                (tally.seen, one.seen),
                (tally.said, one.said),
                (tally.wrong, one.wrong),
            ):
                total.update(part)
            elapsed = time.perf_counter() - began
            print(
                f"{name} seed {seed}: {sum(one.wrong.values())} wrong, {elapsed:.0f} s", flush=True
            )
            for (kind, what), n in one.wrong.items():
                print(f"    {kind}: {what} x{n}")
    print(table(tally))
    if args.texts:
        for rule, found in texts.items():
            print(f"\n{rule}")
            for summary, remedy in list(found.items())[:: max(1, len(found) // 6)]:
                print(f"  - {summary}\n    {remedy}")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
