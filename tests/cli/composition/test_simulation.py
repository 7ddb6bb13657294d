"""Sources of an agent, and simulated fleets; the services themselves run in the end-to-end tests."""

import json
import socket
import sys
from pathlib import Path

import pytest

from gpuwarden.lifecycle import StartError
from gpuwarden_agent.settings import AgentSettings
from gpuwarden_cli.composition.agent import sources_of
from gpuwarden_cli.composition.simulation import free_names, run_simulation
from gpuwarden_cli.composition.supervision import SIMULATOR_MISSING
from gpuwarden_cli.main import main


def test_the_simulator_backend_stands_beside_the_real_host() -> None:
    settings = AgentSettings(backend="simulator", simulate_gpus=4)
    sources = sources_of(settings)
    assert sources.message == "4 simulated H100-SXM-80GB GPUs"
    assert [(p.name, p.simulated, "host_samples" in p.tables) for p in sources.probes] == [
        ("host", False, True),
        ("simulator", True, False),
    ]


def test_a_model_that_does_not_exist_is_refused() -> None:
    with pytest.raises(StartError, match="--model: several GPU models start with 'H100'"):
        run_simulation(
            nodes=1,
            gpus_per_node=1,
            model_names="H100",
            seed=1,
            collector_url="http://127.0.0.1:1",
            duration_s=1,
            history_s=0,
            state_dir=None,
        )


def test_a_fleet_whose_batches_nobody_took_says_that_they_are_lost(capsys) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        code = run_simulation(
            nodes=1,
            gpus_per_node=1,
            model_names="L4-24GB",
            seed=1,
            collector_url=f"http://127.0.0.1:{sock.getsockname()[1]}",
            duration_s=0.5,
            history_s=0,
            state_dir=None,
        )
    assert code == 1
    streams = capsys.readouterr()
    assert "simulating 1 node with 1 L4-24GB each for 0.5 s" in streams.out
    assert "--state-dir keeps them" in streams.err


@pytest.fixture
def no_simulator(monkeypatch) -> None:
    """As on a GPU host: the package is nowhere on the path, and what imports it is not loaded yet."""
    users = ("gpuwarden_simulator", "gpuwarden_cli.composition")
    for name in [n for n in sys.modules if n.startswith(users)]:
        monkeypatch.delitem(sys.modules, name)
    left = [folder for folder in sys.path if not Path(folder, "gpuwarden_simulator").exists()]
    monkeypatch.setattr(sys, "path", left)


@pytest.mark.parametrize(
    "argv",
    [
        ["agent", "run", "--backend", "simulator"],
        ["up", "--simulate", "1", "--port", "1"],
    ],
    ids=" ".join,
)
def test_a_host_without_the_simulator_says_in_one_line_how_to_get_it(
    argv, capsys, monkeypatch, tmp_path, no_simulator
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    assert capsys.readouterr().err == f"gpuwarden: {SIMULATOR_MISSING}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_host_needs_no_simulator_to_be_watched(capsys, no_simulator) -> None:
    assert main(["agent", "once", "--format", "json"]) == 0
    assert "host_samples" in json.loads(capsys.readouterr().out)


def test_a_fleet_takes_the_first_names_that_no_other_agent_has(tmp_path) -> None:
    (tmp_path / "n2").mkdir()
    in_use = {"n0", "n2", "n4"}

    def names(count: int, state_dir: Path | None) -> list[str]:
        return free_names(count, lambda number: f"n{number}", in_use, state_dir)

    assert names(3, None) == ["n1", "n3", "n5"]
    assert names(3, tmp_path) == ["n1", "n2", "n3"], "the spool in the folder is its own"
    assert names(0, None) == []


def test_an_agent_with_a_name_that_no_host_has_does_not_start() -> None:
    with pytest.raises(StartError, match="node: 'v 1' cannot be the name .* by setting node"):
        sources_of(AgentSettings(backend="simulator", node="v 1"))
