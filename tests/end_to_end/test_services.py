"""The parts as services: host metrics alone, one reading, a simulated fleet."""

import json
import shutil
from urllib.request import urlopen

import psutil
import pytest


def test_an_agent_without_a_gpu_ships_the_host_alone(world) -> None:
    """On a host without NVML `auto` says so in a line and invents no GPU."""
    world.collector()
    agent = world.start("agent", "run", "--state-dir", "state", "--node", "me")
    world.wait_for(lambda: (world.one("select count(*) from host_samples") or 0) >= 5, "samples")
    assert world.one("select count(*) from gpu_samples where simulated") == 0
    assert agent.stop() == 0
    assert agent.output.count("Traceback") == 0
    newest = "from host_samples order by ts desc limit 1"
    total, cpus = world.one(f"select memory_total_bytes {newest}"), psutil.cpu_count()
    assert total == psutil.virtual_memory().total
    assert world.one("select cpus from nodes where node = 'me'") == cpus
    assert world.one("select count(*) from host_samples") == world.one(
        "select count(distinct ts) from host_samples"
    )


def test_one_reading_is_a_table_and_json(world) -> None:
    done = world.run("agent", "once", "--format", "json", "--backend", "simulator")
    assert done.returncode == 0, done.stderr
    tables = json.loads(done.stdout)
    assert len(tables["gpu_samples"]) == len(tables["gpus"]) == 8
    host = tables["host_samples"][0]
    assert host["simulated"] is False
    assert tables["gpu_samples"][0]["simulated"] is True
    assert host["memory_total_bytes"] == psutil.virtual_memory().total
    shown = world.run("agent", "once")
    assert "cpu_util_percent" in shown.stdout


def test_asking_for_nvml_where_there_is_none_is_refused_in_one_line(world) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this host has an NVIDIA driver")
    done = world.run("agent", "run", "--backend", "nvml", "--state-dir", "state", timeout=30)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "nvml" in done.stderr.lower() or "nvidia" in done.stderr.lower()


@pytest.mark.slow
def test_a_simulated_fleet_ships_every_second_of_every_gpu(world) -> None:
    world.collector(has_rules=False)
    done = world.run("simulate", "--nodes", "5", "--gpus-per-node", "4", "--duration", "8")
    assert done.returncode == 0, done.stderr
    per_gpu = world.ask("select count(*), count(distinct ts) from gpu_samples group by gpu_uuid")
    assert len(per_gpu) == 20
    assert {rows == seconds for rows, seconds in per_gpu} == {True}
    assert min(rows for rows, _ in per_gpu) >= 7
    assert world.one("select bool_and(simulated) from gpu_samples") is True
    assert world.one("select count(*) from nodes") == 5


@pytest.mark.slow
def test_metrics_tell_of_the_collector_and_of_each_rule(world) -> None:
    world.collector()

    def metrics() -> str:
        with urlopen(f"{world.url}/metrics", timeout=5) as answer:
            return answer.read().decode()

    evaluated = 'gpuwarden_rules_evaluations_total{rule="gpu_idle_held"}'
    world.wait_for(lambda: evaluated in metrics(), "figures of the rules")
    assert "gpuwarden_collector_writer_alive 1" in metrics()
