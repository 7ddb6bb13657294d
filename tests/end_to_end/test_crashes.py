"""kill -9 of either side: nothing acknowledged is lost, nothing is stored twice, gaps are named."""

import time

import pytest

pytestmark = pytest.mark.slow
NODES, AWAY_S = 6, 3

GAPS = """
select node, gpu_uuid, ts, date_diff('second', lag(ts) over (partition by gpu_uuid order by ts), ts) d
from gpu_samples qualify d <> 1
"""


def test_a_collector_that_is_killed_loses_and_doubles_nothing(world) -> None:
    """Simulated nodes ship on; the collector is away for a while, twice."""
    collector = world.collector(has_rules=False)
    fleet = world.start("simulate", "--nodes", str(NODES), "--gpus-per-node", "2")
    samples = "select count(*) from gpu_samples"
    seconds = "select epoch(min(ts)), epoch(max(ts)), count(distinct gpu_uuid) from gpu_samples group by node"
    for _ in range(2):
        seen = world.one(samples) or 0
        world.wait_for(lambda seen=seen: (world.one(samples) or 0) > seen + 10 * NODES, "samples")
        first_ts = {first for first, _, _ in world.ask(seconds)}
        collector.kill()
        time.sleep(AWAY_S)
        collector = world.collector(has_rules=False)
    ended_s = time.time()
    assert fleet.stop() == 0, fleet.output
    total, distinct = world.ask("select count(*), count(distinct (gpu_uuid, ts)) from gpu_samples")[
        0
    ]
    assert total == distinct
    assert world.ask(GAPS) == []
    found = world.ask(seconds)
    assert len(found) == NODES
    assert {gpus for _, _, gpus in found} == {2}
    assert {first for first, _, _ in found} == first_ts
    assert min(last for _, last, _ in found) > ended_s - 2
    assert collector.stop() == 0


def test_an_agent_that_is_killed_misses_at_most_what_was_not_sealed_and_says_so(world) -> None:
    world.collector(has_rules=False)
    words = ("agent", "run", "--backend", "simulator", "--node", "n1", "--state-dir", "state")
    agent = world.start(*words)
    samples = "select count(distinct ts) from gpu_samples"
    world.wait_for(lambda: (world.one(samples) or 0) >= 8, "samples")
    agent.kill()
    killed_at = time.time()
    time.sleep(3)
    agent = world.start(*words)
    gap = "select duration_seconds, severity from events where kind = 'agent_gap'"
    world.wait_for(lambda: bool(world.ask(gap)), "an event that says how long the gap was")
    started_at = time.time()
    [(duration, severity)] = world.ask(gap)
    assert severity == "warning"
    missing = world.ask(GAPS)
    assert len({ts for _, _, ts, _ in missing}) == 1
    # At most the five seconds of the open batch are missing, besides those without an agent.
    away = started_at - killed_at
    assert max(d for *_, d in missing) <= 5 + away + 2
    assert abs(duration - (max(d for *_, d in missing) - 1)) <= 1
    assert agent.stop() == 0
    world.wait_for(
        lambda: bool(world.ask("select 1 from events where kind = 'agent_stopped'")),
        "a clean stop is an event",
    )
