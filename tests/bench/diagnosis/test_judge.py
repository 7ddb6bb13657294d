"""Recordings are judged by their labels, and what is missing from them is missing."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.diagnosis import judge
from bench.diagnosis.pack import pack
from bench.diagnosis.recordings import LOSSES, load

from gpuwarden.diagnosis import Bottleneck

Write = Callable[..., Path]
STARVED = {
    "loader_workers": 2, "loader_cpu_percent": 97.0, "loader_saturated_percent": 100.0,
    "loader_idle_percent": 0.0, "loader_blocked_percent": 0.0, "cpu_percent": 200.0,
    "main_cpu_percent": 5.0, "cpus_allowed": 16, "loader_cpus_allowed": 16,
}  # fmt: skip


def test_a_run_is_read_with_its_labels_and_at_the_common_end(write_recording: Write) -> None:
    recording = load(write_recording("main-0.3s-2", ("loader_workers", "healthy"), 40.0, STARVED))
    assert (recording.run.speed_s, recording.run.seed, recording.run.is_loaded) == (0.3, 2, False)
    assert sorted(s.name for s in recording.scenarios.values()) == ["healthy", "loader_workers"]
    assert len(recording.tables["gpu_samples"]) == 256


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


def test_the_time_to_a_verdict_is_from_when_on_all_looks_are_right(write_recording: Write) -> None:
    recordings = [load(write_recording("main-0.3s-1", ("loader_workers",), 40.0, STARVED))]
    looks = judge.verdicts(recordings, before_end_s=judge.LOOKS_S)
    (seconds,) = judge.settled_s(looks, judge.seconds_of(recordings)).values()
    assert 75 <= seconds <= 112  # three quarters of a window at least, as looks go


def test_every_loss_leaves_less() -> None:
    row = {"ts": None, "read_bytes_total": 1, "pid": 2, "state": "S"}
    assert LOSSES["no /proc/PID/io"]("process_samples", row) == {"ts": None, "pid": 2, "state": "S"}
    assert LOSSES["driver's view only"]("process_samples", row) == {"ts": None, "pid": 2}
    assert LOSSES["no process data"]("process_samples", row) is None
    assert all(keep("gpus", row) == row for keep in LOSSES.values())


def test_a_packed_recording_is_judged_the_same_and_names_nobody(
    write_recording: Write, tmp_path: Path
) -> None:
    source = write_recording("main-0.3s-1", ("loader_workers", "healthy"), 40.0, STARVED)
    small = tmp_path / "main-0.3s-9.jsonl.gz"
    pack(source, small)
    for path in (source, small):
        assert [v.said for v in judge.verdicts([load(path)])[0]] == [Bottleneck.LOADER_WORKERS] * 2
    rows = load(small).tables["process_samples"]
    assert {row["username"] for row in rows} == {"bench"}
    assert {row["command"] for row in rows} == {"python jobs.py 0", "python jobs.py 1"}
    assert not any("cgroup" in row for row in rows)


def test_the_report_is_printed_and_a_folder_without_recordings_says_what_to_do(
    write_recording: Write, tmp_path: Path
) -> None:
    def run(folder: Path) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "bench.diagnosis.judge", "--folder", str(folder)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    empty = run(tmp_path / "nothing")
    assert empty.returncode == 1 and empty.stderr.count("\n") == 1
    assert "bench.diagnosis.record" in empty.stderr
    write_recording("main-0.3s-1", ("loader_workers", "healthy"), 40.0, STARVED)
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "- all data: 2 verdicts, 1 right, 0 unknown, 1 wrong; 1 healthy called input-bound" in done.stdout  # fmt: skip
    assert "`healthy` called `loader_workers` (1)" in done.stdout
    assert "| is anything wrong? | utilization below 50 % |" in done.stdout
