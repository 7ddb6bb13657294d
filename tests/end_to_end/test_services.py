"""The parts as services: host metrics alone, one reading, a simulated fleet."""

import shutil

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


def test_asking_for_nvml_where_there_is_none_is_refused_in_one_line(world) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this host has an NVIDIA driver")
    done = world.run("agent", "run", "--backend", "nvml", "--state-dir", "state", timeout=30)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "nvml" in done.stderr.lower() or "nvidia" in done.stderr.lower()
