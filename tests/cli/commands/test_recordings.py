"""`gpuwarden agent record` and what plays its files, as a person calls them."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuwarden.lifecycle import StartError
from gpuwarden_agent.settings import AgentSettings
from gpuwarden_cli.composition.agent import sources_of
from gpuwarden_cli.main import main

RECORD = ["agent", "record", "--backend", "simulator", "--interval", "0.1", "--node", "gpu17"]


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> Path:
    """A short recording of a simulated node, made by the command."""
    path = tmp_path_factory.mktemp("recordings") / "r.jsonl.gz"
    assert main([*RECORD, "--output", str(path), "--duration", "1", "--label", "a trial"]) == 0
    return path


def test_the_recorded_node_can_be_played(recording: Path) -> None:
    settings = AgentSettings(backend="replay", replay_file=recording, node="player")
    sources = sources_of(settings)
    assert "of gpu17" in sources.message and "'a trial'" in sources.message
    assert "cut" not in sources.message
    assert [(p.name, p.simulated, p.blocking) for p in sources.probes] == [
        ("host", True, False),
        ("simulator", True, False),
    ]


def test_a_cut_recording_can_be_played_and_says_so(recording: Path, tmp_path) -> None:
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(recording.read_bytes()[:-5])
    message = sources_of(AgentSettings(backend="replay", replay_file=cut)).message
    assert "it was cut, and is played up to its last whole block" in message


def test_what_cannot_be_played_is_one_line(tmp_path, capsys) -> None:
    with pytest.raises(StartError, match="backend replay needs replay_file"):
        sources_of(AgentSettings(backend="replay"))
    rubbish = tmp_path / "rubbish"
    rubbish.write_bytes(b"rubbish")
    assert main(["simulate", "--nodes", "1", "--replay", str(rubbish)]) == 2
    assert (
        capsys.readouterr().err
        == f"gpuwarden: {rubbish} is not a recording: it has no whole block\n"
    )


def test_a_disk_that_is_full_is_one_line(capsys) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    assert main([*RECORD, "--output", "/dev/full", "--force", "--duration", "0.5"]) == 1
    assert Path("/dev/full").exists()
    assert capsys.readouterr().err.splitlines()[-1] == (
        "gpuwarden: /dev/full cannot be written: No space left on device; it is valid up to its first 0 bytes"
    )


def test_ctrl_c_ends_a_recording_cleanly(tmp_path) -> None:
    path = tmp_path / "r.jsonl.gz"
    code = "import sys; from gpuwarden_cli.main import main; sys.exit(main())"
    flags = [*RECORD, "--without-identity", "--output", str(path)]
    with subprocess.Popen(
        [sys.executable, "-c", code, *flags], stdout=subprocess.PIPE, text=True
    ) as process:
        ends = time.monotonic() + 20
        while not (path.exists() and path.stat().st_size) and time.monotonic() < ends:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert " missed), " in out
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert lines[-1]["ended"] is True
    assert lines[0]["node"] == "node-1"
