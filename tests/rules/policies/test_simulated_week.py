"""A dry run over a week whose idle times are known: it finds each of them, what it cost, and which acts were wrong."""

import asyncio
from datetime import timedelta
from typing import Any

from tests.rules.policies.test_dry_run import policy
from tests.test_money import PRICES, Week

from gpuwarden.clock import SystemClock
from gpuwarden_rules.backtest.replay import replay
from gpuwarden_rules.definition.language import builtin_rules
from gpuwarden_rules.evaluation.fleet import locations
from gpuwarden_rules.policies.dry_run import DryRun, Outcome, dry_run
from gpuwarden_rules.policies.language import PolicyStep, StepKind
from gpuwarden_rules.testing.database import MemoryDatabase

FIRES_AFTER = timedelta(minutes=30)
WAIT = timedelta(hours=1)
SLACK = timedelta(minutes=12)
"""Steps of the replay and of the rule's minutes."""
IDLE = {0: (20, 45, 80, 110, 140, 400, 900), 1: (110, 120, 135, 200, 600), 2: ()}
"""Planted minutes of held, idle memory by GPU, each between five hours of work; at least SLACK from the rule's and the
policy's limits."""


def test_each_planted_idle_time_is_found_with_its_cost_and_the_wrong_acts() -> None:
    database = MemoryDatabase()
    week = Week(database)
    week.jobs = {gpu: f"5{gpu}" for gpu in IDLE}
    planted = []
    for gpu, idle in IDLE.items():
        spans = [("busy", 7 * 1440), *((kind, m) for one in idle for kind, m in (("held", one), ("busy", 300)))]  # fmt: skip
        week.lived(gpu, spans)
        until = week.end
        for minutes in reversed(idle):
            ends = until - timedelta(hours=5)
            planted.append((gpu, ends - timedelta(minutes=minutes), ends))
            until = ends - timedelta(minutes=minutes)
    database.advance_idleness()
    done = _tried(database, week)
    database.close()

    acted = {(t.subject.node, t.alert.began_at): t for t in done.of(Outcome.ACTED)}
    to_act = [(g, b, e) for g, b, e in planted if e - b > FIRES_AFTER + WAIT]
    assert len(acted) == len(to_act) == 9
    for gpu, begins, ends in to_act:
        (found,) = [t for (node, at), t in acted.items() if node == f"n{gpu}" and abs(at - begins) < SLACK]  # fmt: skip
        act_at = begins + FIRES_AFTER + WAIT
        assert found.act_at is not None and abs(found.act_at - act_at) < SLACK
        truth = PRICES[gpu] * (ends - act_at) / timedelta(hours=1)
        assert found.saved_usd is not None
        assert abs(found.saved_usd - truth) < PRICES[gpu] * 2 * SLACK / timedelta(hours=1)
        # Work that begins within an hour of the act is what it would have ended.
        assert found.is_wrong is (ends - act_at < timedelta(hours=1)), (gpu, begins)
    assert sum(t.is_wrong for t in acted.values()) == 5
    spared = [(g, b, e) for g, b, e in planted if FIRES_AFTER < e - b < FIRES_AFTER + WAIT]
    assert len(done.of(Outcome.SPARED)) == len(spared) == 2
    assert len(done.trials) == len(to_act) + len(spared), "the shortest idle time fires nothing"
    right = sum(PRICES[g] * (e - b - FIRES_AFTER - WAIT) / timedelta(hours=1) for g, b, e in to_act if e - b > FIRES_AFTER + WAIT + timedelta(hours=1))  # fmt: skip
    assert done.saved_usd is not None and abs(done.saved_usd / right - 1) < 0.05


def _tried(database: MemoryDatabase, week: Week) -> DryRun:
    (rule,) = [one for one in builtin_rules() if one.name == "gpu_idle_held"]
    steps = (
        PolicyStep(StepKind.ASK_OWNER, WAIT.total_seconds()),
        PolicyStep(StepKind.CANCEL_JOB, 0),
    )

    async def run() -> DryRun:
        found: Any = await replay(rule, database, week.begin, week.end, SystemClock())
        return await dry_run(policy(steps=steps), found, await locations(database), database)

    return asyncio.run(run())
