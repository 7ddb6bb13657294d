"""A node's GPUs are tested beside its agent, and `gpuwarden accept` judges them by what both sent."""

import json

import pytest
from tests.end_to_end.conftest import World

pytestmark = pytest.mark.slow
AGENT = ("--backend", "simulator", "--node", "n1")


def checked(world: World) -> dict[str, tuple[str, str]]:
    found = json.loads(world.run("accept", "n1", "--format", "json").stdout)
    return {row["check"]: (row["status"], row["finding"]) for row in found}


def test_a_node_is_tested_and_accepted_by_it(world: World) -> None:
    world.collector()
    agent = ("--collector-url", world.url, "--state-dir", str(world.folder / "agent"))
    world.start("agent", "run", *AGENT, *agent)
    world.wait_for(lambda: world.one("SELECT count(*) FROM gpus_now") == 8, "samples arrive")
    assert checked(world)["tests"][0] == "unknown"
    tests = ("agent", "test-gpus", "0", "1", *AGENT, "--library", "numpy", "--seconds", "2")
    done = world.run(*tests, "--collector-url", world.url)
    assert done.returncode == 0, done.stderr
    assert "0 of 14 tests failed" in done.stdout and "run " in done.stderr
    world.wait_for(
        lambda: checked(world)["clocks under load"][0] == "ok", "the load's samples arrive"
    )
    found = checked(world)
    assert found["tests"][0] == "ok" and found["tests"][1].startswith("14 of run ")
    assert found["speed"] == ("unknown", "no other node's tests to compare with")
    uuid = world.one("SELECT gpu_uuid FROM gpus WHERE gpu = 1")
    record = json.loads(world.run("rma", uuid, "--format", "json").stdout)
    assert len(record["tests"]) == 7
    # A collector that is away loses no result: they are printed, and the exit code says so.
    away = world.run(*tests, "--collector-url", "http://127.0.0.1:9")
    assert away.returncode not in (0, 1) and "matmul_fp16" in away.stdout
    assert "the results are not sent" in away.stderr
