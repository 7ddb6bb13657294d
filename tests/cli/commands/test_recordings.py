"""`gpuwarden agent record` and what plays its files, as a person calls them."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from gpuwarden.lifecycle import StartError
from gpuwarden_agent.settings import AgentSettings
from gpuwarden_cli.commands.recordings import summary
from gpuwarden_cli.composition.agent import sources_of
from gpuwarden_cli.main import main
from gpuwarden_simulator.recordings.recorder import RecordingTally

RECORD = ["agent", "record", "--backend", "simulator", "--interval", "0.1", "--node", "gpu17"]


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> Path:
    """A short recording of a simulated node, made by the command."""
    path = tmp_path_factory.mktemp("recordings") / "r.jsonl.gz"
    assert main([*RECORD, "--output", str(path), "--duration", "1", "--label", "a trial"]) == 0
    return path


def test_it_says_what_it_recorded(tmp_path, capsys) -> None:
    path = tmp_path / "r.jsonl.gz"
    assert main([*RECORD, "--output", str(path), "--duration", "0.3"]) == 0
    streams = capsys.readouterr()
    assert re.match(r"\d ticks? \(\d+ missed\), \d+ rows of ", streams.out)
    assert streams.out.rstrip().endswith(f"{path.stat().st_size:,} bytes in {path}")
    assert f"recording to {path}" in streams.err


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


def test_a_file_that_is_there_is_kept(recording: Path, capsys) -> None:
    before = recording.read_bytes()
    assert main([*RECORD, "--output", str(recording)]) == 2
    assert "--force writes over it" in capsys.readouterr().err
    assert recording.read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--interval", "0.01"], "--interval 0.01 must be between 0.1 and 60 seconds"),
        (["--duration", "0"], "0 must be a number of seconds above 0"),
        (["--duration", "inf"], "inf must be a number of seconds above 0"),
        (["--duration", "x"], "invalid seconds value: 'x'"),
    ],
)
def test_a_wrong_flag_is_one_line_and_makes_no_file(tmp_path, capsys, flags, says) -> None:
    path = tmp_path / "r"
    try:
        code = main([*RECORD, "--output", str(path), *flags])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and says in lines[0]
    assert not path.exists()


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


def test_the_summary_counts_what_is_wrong(tmp_path) -> None:
    tally = RecordingTally(
        ticks=2, missed=1, rows=Counter(gpu_samples=3, events=0), failed=1,
        left_out=Counter({"gpu_samples.power_watts": 2}), bytes_written=1234,
    )  # fmt: skip
    assert summary(tally, 1, Path("f")) == (
        "2 ticks (1 missed), 3 rows of 1 table from 1 probe, 1 reading failed, 1,234 bytes in f;"
        " 2 values skipped as impossible: gpu_samples.power_watts"
    )
