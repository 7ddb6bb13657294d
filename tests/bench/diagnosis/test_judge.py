"""Recordings are judged by their labels, and what is missing from them is missing."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.diagnosis import judge
from bench.diagnosis.recordings import LOSSES, load

from gpuwarden.diagnosis import Bottleneck

Write = Callable[..., Path]
STARVED = {
    "loader_workers": 2, "loader_cpu_percent": 97.0, "loader_saturated_percent": 100.0,
    "loader_idle_percent": 0.0, "loader_blocked_percent": 0.0, "cpu_percent": 200.0,
    "main_cpu_percent": 5.0, "cpus_allowed": 16, "loader_cpus_allowed": 16,
}  # fmt: skip


def test_a_right_verdict_and_a_wrong_one_are_told_apart(write_recording: Write) -> None:
    recordings = [
        load(write_recording("main-0.3s-1", ("loader_workers", "healthy"), 40.0, STARVED))
    ]
    found = {v.scenario.name: v for v in judge.verdicts(recordings)[0]}
    assert {v.said for v in found.values()} == {Bottleneck.LOADER_WORKERS}
    assert found["loader_workers"].is_right and found["healthy"].is_wrong
    of = judge.scores(list(found.values()))
    assert of[Bottleneck.LOADER_WORKERS] == (0.5, 1.0)
    assert of[Bottleneck.COMPUTE_BOUND] == (None, 0.0)
    assert judge.macro_f1(list(found.values())) == pytest.approx(1 / 3)
    blind = judge.verdicts(recordings, LOSSES["no process data"])[0]
    assert all(v.is_unknown for v in blind)


def test_every_loss_leaves_less() -> None:
    row = {"ts": None, "read_bytes_total": 1, "pid": 2, "state": "S"}
    assert LOSSES["no /proc/PID/io"]("process_samples", row) == {"ts": None, "pid": 2, "state": "S"}
    assert LOSSES["driver's view only"]("process_samples", row) == {"ts": None, "pid": 2}
    assert LOSSES["no process data"]("process_samples", row) is None
    assert all(keep("gpus", row) == row for keep in LOSSES.values())


def test_the_figures_are_printed_and_a_folder_without_recordings_is_an_error(
    write_recording: Write, tmp_path: Path
) -> None:
    def run(folder: Path) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "bench.diagnosis.judge", "--folder", str(folder)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)

    empty = run(tmp_path / "nothing")
    assert empty.returncode == 1 and empty.stderr.count("\n") == 1
    write_recording("main-0.3s-1", ("loader_workers", "healthy"), 40.0, STARVED)
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "all data: 2 verdicts, 1 right, 0 unknown, 1 wrong; 1 healthy called input-bound" in done.stdout  # fmt: skip
