"""`gpuwarden simulate --script` and the setting `simulate_script` refuse a wrong script in a line."""

from pathlib import Path

import pytest

from gpuwarden.lifecycle import StartError
from gpuwarden_agent.settings import AgentSettings
from gpuwarden_cli.main import main
from gpuwarden_cli.services import probes_of

HANG = '[[fault]]\nat = "1m"\ngpu = 3\nfault = "hang"\n'


def test_a_wrong_script_ends_the_command_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(HANG)
    code = main(["simulate", "--nodes", "1", "--gpus-per-node", "2", "--script", str(path)])
    assert code == 2
    assert capsys.readouterr().err == f"gpuwarden: {path}:3: fault 1: gpu = 3 must be 0 to 1\n"


def test_the_setting_gives_the_simulated_node_its_faults(tmp_path: Path) -> None:
    path = tmp_path / "faults.toml"
    path.write_text(HANG)
    settings = AgentSettings(node="n", backend="simulator", simulate_script=path)
    (simulated,) = (probe for probe in probes_of(settings)[0] if probe.simulated)
    assert "events" in simulated.tables


def test_the_setting_of_a_script_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    settings = AgentSettings(node="n", backend="simulator", simulate_script=path)
    with pytest.raises(StartError, match=r"none\.toml: cannot be read"):
        probes_of(settings)
