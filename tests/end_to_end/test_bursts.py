"""A burst by the command: from the collector to the agent of a node and back, and what ends it otherwise."""

import json

import pytest


@pytest.mark.slow
def test_a_burst_is_asked_for_taken_and_shown(world) -> None:
    collector = world.collector(has_rules=False)
    fleet = world.start("simulate", "--nodes", "1", "--gpus-per-node", "2")
    world.wait_for(lambda: world.one("select count(*) from gpus") == 2, "GPUs are known", fleet)
    done = world.run("burst", "sim-0001/1", "--hz", "50", "--seconds", "3", "--format", "json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    power = [row for row in rows if row["metric"] == "power_watts"]
    assert {row["gpu"] for row in rows} == {1}
    assert 75 <= len(power) <= 151
    assert power == sorted(power, key=lambda row: row["at_us"])
    stored = "select count(*), count(distinct burst), max(ts) - min(ts) < interval 4 second from burst_samples"
    assert world.ask(stored)[0][1:] == (1, True)
    shown = world.run("burst", "sim-0001/0", "--seconds", "1")
    assert "means of a second" in shown.stdout
    assert "20 readings at 20 Hz." in shown.stdout
    wrong = world.run("burst", "sim-0001/0", "--hz", "400")
    assert wrong.returncode == 2
    assert wrong.stderr == "gpuwarden: hz must be 1 to 50, not 400.0\n"
    assert "there is no GPU 'sim-0009/0'" in world.run("burst", "sim-0009/0").stderr
    # An agent that is killed tells no end: the command says so, and nothing is left to run twice.
    asked = world.start("burst", "sim-0001/0", "--seconds", "5")
    waiting = "select count(*) from events where kind = 'burst_done'"
    before = world.one(waiting)
    fleet.kill()
    assert asked.popen.wait(150) == 2
    assert "sent no batch" in asked.output or "did the agent of sim-0001 stop?" in asked.output
    again = world.start("simulate", "--nodes", "1", "--gpus-per-node", "2")
    world.wait_for(
        lambda: (world.one("select count(*) from events where kind = 'agent_started'") or 0) >= 2,
        "it is back",
        again,
    )
    assert world.one(waiting) == before
    assert again.stop() == 0
    assert collector.stop() == 0
