"""Two agents of one name: the collector stores one of them, and says so to the other; `simulate` avoids it."""

import pytest

pytestmark = pytest.mark.slow

TWICE = """
SELECT count(*) - count(DISTINCT (gpu_uuid, ts)) FROM gpu_samples WHERE ts > now() - INTERVAL 1 HOUR
"""


def test_a_second_agent_of_a_name_is_refused_and_simulate_takes_a_free_one(world) -> None:
    collector = world.collector(has_rules=False)
    fleet = world.start("simulate", "--nodes", "2", "--gpus-per-node", "2")
    nodes = "SELECT node FROM nodes ORDER BY node"
    world.wait_for(lambda: len(world.ask(nodes)) == 2, "two nodes", collector)
    other = ("simulate", "--nodes", "1", "--gpus-per-node", "1", "--duration", "2")
    second = world.run(*other)
    assert "called sim-0003 as other agents send as sim-0001 and on" in second.stdout
    copy = world.start(
        "agent", "run", "--node", "sim-0001", "--backend", "simulator",
        "--collector-url", world.url, "--state-dir", str(world.folder / "copy"),
    )  # fmt: skip
    told = "SELECT message FROM events WHERE kind = 'node_claimed_twice'"
    world.wait_for(lambda: bool(world.ask(told)), "the event", collector)
    assert world.ask(told)[0][0].startswith("two agents send as node sim-0001: agent ")
    world.wait_for(lambda: "two machines must not have one name" in copy.output, "its log", copy)
    assert world.ask(TWICE) == [(0,)]
    copy.stop()
    assert fleet.stop() == 0
    assert "called" not in world.run(*other).stdout
    assert world.ask(nodes) == [("sim-0001",), ("sim-0002",), ("sim-0003",)]
