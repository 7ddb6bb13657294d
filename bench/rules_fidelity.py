"""Judges the built-in rules on a simulated fleet with scripted faults: caught, late, missed, false.

    python -m bench.rules_fidelity [--nodes 64] [--hours 168] [--seed 1]

Readings come every 15 s (gpu, host) and every minute (the rest), an hour at a time; rollups are the
collector's own SQL, events the agent's own edges, diagnoses the collector's own, the inventory that of each
instant. Every rule is evaluated
every five minutes, and around each change as often as it would be live, at least every minute; its alerts
live as live ones do, are joined into incidents, and a channel gets these. The exit code is 1 where a fault was late or missed or an alert was false. All faults
and what each must raise are in bench/fidelity/scenarios.py. SIGTERM ends it with the hour, and judges what was
lived so far.
"""

import argparse
import asyncio
import json
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timedelta
from multiprocessing import get_context

from bench.fidelity import scenarios, verdict
from bench.fidelity.fleet import START_MS, Fleet, Hour
from bench.fidelity.warehouse import HOUR_S, Warehouse

from gpuwarden.alert import Alert
from gpuwarden.clock import SystemClock, from_ms
from gpuwarden.diagnosis import Diagnosis
from gpuwarden_rules.backtest.query import BacktestQuery, Evaluation
from gpuwarden_rules.backtest.replay import RESOLUTION_S, between, evaluations, step_s_of
from gpuwarden_rules.definition.language import Rule, builtin_rules
from gpuwarden_rules.diagnosis import episodes
from gpuwarden_rules.diagnosis.observe import observe
from gpuwarden_rules.diagnosis.service import diagnoses_of
from gpuwarden_rules.evaluation.state import RuleState, step

CALM_STEP_S = 900.0
"""Between two evaluations while nothing is wrong anywhere, nor was within the hour before."""
DIAGNOSIS_S, CALM_DIAGNOSIS_S = 120.0, 300.0
"""The same of the diagnosis, which a collector makes every fifteen seconds."""

_fleet: Fleet | None = None


class ReplayedRule:
    """One rule on its way through the week."""

    def __init__(self, rule: Rule, warehouse: Warehouse) -> None:
        self.rule = rule
        self.episodes: dict[tuple[str, datetime], Alert] = {}
        self.seconds = 0.0
        self._warehouse = warehouse
        self._query = BacktestQuery(rule, warehouse, SystemClock())
        # The warehouse knows when a node last reported as of one instant only.
        self._is_single = "last_seen_at" in rule.sql
        self._state = RuleState()
        self._previous: Evaluation | None = None

    @property
    def queries(self) -> int:
        """Asked so far."""
        return self._query.queries

    async def follow(self, since: datetime, until: datetime, *, is_calm: bool = False) -> None:
        """Look from one instant to another, where the next call continues."""
        step_s = step_s_of(self.rule)
        step_s = max(step_s, CALM_STEP_S) if is_calm else step_s
        resolution_s = min(step_s, max(RESOLUTION_S, self.rule.interval_s))
        began = time.perf_counter()
        async for found in evaluations(
            self._evaluations, since, until, step_s, resolution_s, lambda: self._query.at_once
        ):
            if self._previous is not None and found.at <= self._previous.at:
                continue
            due = between(self._state, self._previous, found.at, self.rule)
            for at, rows in [*due, (found.at, found.rows)]:
                self._state, transitions = step(
                    self._state, rows, self.rule, at, self._warehouse.silent(at)
                )
                for alert in (t.alert for t in transitions):
                    if alert.fired_at is not None:
                        self.episodes[alert.fingerprint, alert.active_at] = alert
            self._previous = found
        self.seconds += time.perf_counter() - began

    async def _evaluations(self, instants: Sequence[datetime]) -> list[Evaluation]:
        known = [self._previous] if self._previous and instants[0] == self._previous.at else []
        rest = instants[len(known) :]
        if self._is_single:
            return known + [evaluation for at in rest for evaluation in await self._query.at([at])]
        return known + await self._query.at(rest)


class Diagnosing:
    """The diagnosis of the fleet on its way through the week, as the collector keeps it."""

    def __init__(self, warehouse: Warehouse) -> None:
        self.seconds = 0.0
        self._warehouse = warehouse
        self._state = episodes.EpisodeState()

    async def follow(self, since: datetime, until: datetime, *, is_calm: bool = False) -> None:
        """Look from one instant to another, and keep what was found."""
        began = time.perf_counter()
        every = timedelta(seconds=CALM_DIAGNOSIS_S if is_calm else DIAGNOSIS_S)
        changed: list[Diagnosis] = []
        at = since + every
        while at <= until:
            looked = diagnoses_of(await observe(self._warehouse, at), at)
            self._state, news = episodes.step(self._state, looked, at)
            changed += news
            at += every
        self._warehouse.keep(changed)
        self.seconds += time.perf_counter() - began


def _begin(nodes: int, hours: float, seed: int) -> None:
    global _fleet
    _fleet = Fleet(nodes, seed, scenarios.plan(nodes, hours, seed))


def _hour(begin_s: int, end_s: int) -> Hour:
    assert _fleet is not None
    return _fleet.read(begin_s, end_s)


def _hours(nodes: int, hours: float, seed: int) -> Iterator[tuple[int, int, Hour]]:
    """Each hour's rows; the next hour is lived by another process meanwhile."""
    spans = [
        (begin_s, min(begin_s + HOUR_S, round(hours * 3600)))
        for begin_s in range(0, round(hours * 3600), HOUR_S)
    ]
    with ProcessPoolExecutor(1, get_context("spawn"), _begin, (nodes, hours, seed)) as pool:
        coming = pool.submit(_hour, *spans[0])
        for number, (begin_s, end_s) in enumerate(spans):
            hour = coming.result()
            if number + 1 < len(spans):
                coming = pool.submit(_hour, *spans[number + 1])
            yield begin_s, end_s, hour


def replay(
    nodes: int, hours: float, seed: int, *, progress: bool = False
) -> tuple[list[ReplayedRule], Diagnosing, float]:
    """All rules through all hours, the diagnosis that one of them rests on, and the hours that were lived."""
    told_to_stop = []
    signal.signal(signal.SIGTERM, lambda *_: told_to_stop.append(True))
    inventory = Fleet(nodes, seed, ()).describe()
    warehouse = Warehouse(inventory)
    replays = [ReplayedRule(rule, warehouse) for rule in builtin_rules()]
    diagnosing = Diagnosing(warehouse)
    incidents = scenarios.plan(nodes, hours, seed)
    began = time.perf_counter()
    for begin_s, end_s, hour in _hours(nodes, hours, seed):
        warehouse.load(hour, begin_s)
        since, until = from_ms(START_MS + begin_s * 1000), from_ms(START_MS + end_s * 1000)
        is_calm = scenarios.is_calm(incidents, begin_s - HOUR_S, end_s)
        asyncio.run(diagnosing.follow(since, until, is_calm=is_calm))
        for replayed in replays:
            asyncio.run(replayed.follow(since, until, is_calm=is_calm))
        if progress:
            fired = sum(len(replayed.episodes) for replayed in replays)
            peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            print(
                f"hour {begin_s // HOUR_S + 1} of {hours:g}: {time.perf_counter() - began:.0f} s,"
                f" {fired} alerts, {peak_mib} MiB",
                file=sys.stderr, flush=True,
            )  # fmt: skip
        if told_to_stop:
            return replays, diagnosing, end_s / HOUR_S
    return replays, diagnosing, hours


def _dearest(replays: Sequence[ReplayedRule]) -> Sequence[ReplayedRule]:
    return sorted(replays, key=lambda replayed: -replayed.seconds)[:5]


def main() -> int:
    """Replay, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--hours", type=float, default=168)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quiet", action="store_true", help="no line for each hour")
    args = parser.parse_args()
    began = time.perf_counter()
    replays, diagnosing, hours = replay(args.nodes, args.hours, args.seed, progress=not args.quiet)
    incidents = scenarios.plan(args.nodes, args.hours, args.seed)
    episodes = [alert for replayed in replays for alert in replayed.episodes.values()]
    rules = [replayed.rule for replayed in replays]
    found = verdict.judge(incidents, episodes, rules, round(hours * HOUR_S * 1000))
    print(verdict.table(found))
    figures = {
        "nodes": args.nodes,
        "gpus": sum(scenarios.gpus_of(n) for n in range(args.nodes)),
        "hours": hours,
        "seed": args.seed,
        "incidents": sum(i.begin_ms < hours * HOUR_S * 1000 for i in incidents),
        **found.figures(),
        "queries": sum(replayed.queries for replayed in replays),
        "query_seconds": round(sum(replayed.seconds for replayed in replays), 1),
        "diagnosis_seconds": round(diagnosing.seconds, 1),
        "dearest": {c.rule.name: round(c.seconds, 1) for c in _dearest(replays)},
        "wall_seconds": round(time.perf_counter() - began, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(figures))
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
