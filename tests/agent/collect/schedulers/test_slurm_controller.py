"""Rows from answers of Slurm's controller, from none, and from late ones."""

import stat
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuwarden.clock import ManualClock
from gpuwarden_agent.collect.schedulers.slurm_controller import (
    AskError,
    SlurmControllerProbe,
    run_command,
)
from gpuwarden_agent.probe import ProbeError, Reading

from .test_slurm_text import SINFO_22_05, SQUEUE_22_05


class Controller:
    """Answers as squeue and sinfo."""

    def __init__(self) -> None:
        self.squeue, self.sinfo = SQUEUE_22_05, SINFO_22_05
        self.error: str | None = None
        self.asked = 0
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self, argv: Sequence[str], deadline_s: float) -> str:
        self.asked += 1
        self.may_answer.wait(5)
        if self.error is not None:
            raise AskError(self.error)
        return self.squeue if argv[0] == "squeue" else self.sinfo


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 11, 23, tzinfo=UTC))


def answered(probe: SlurmControllerProbe, clock: ManualClock) -> Reading:
    """What it reads once the next round is over."""
    clock.advance(60)
    probe.read(0)
    until = time.monotonic() + 5
    while any(thread.name == "slurm-controller" for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.005)
    return probe.read(0)


def test_what_changes_is_told_once_and_all_again_after_an_hour(clock: ManualClock) -> None:
    controller = Controller()
    probe = SlurmControllerProbe(clock, controller)
    first = answered(probe, clock)
    assert [row["job"] for row in first["slurm_job_samples"]] == ["1", "3", "5"]
    assert [row["state"] for row in first["slurm_node_samples"]] == ["drained", "idle"]
    assert "events" not in first, "how things were before the agent is not news"
    assert answered(probe, clock) == {"slurm_job_samples": [], "slurm_node_samples": []}
    controller.squeue = SQUEUE_22_05.replace("RUNNING", "COMPLETED")
    (row,) = answered(probe, clock)["slurm_job_samples"]
    assert row["state"] == "completed" and "ended_at" in row
    clock.advance(3600)
    again = answered(probe, clock)
    assert (len(again["slurm_job_samples"]), len(again["slurm_node_samples"])) == (3, 2)


def test_drain_and_resume_are_events(clock: ManualClock) -> None:
    controller = Controller()
    probe = SlurmControllerProbe(clock, controller)
    answered(probe, clock)
    controller.sinfo = "gpunode|idle|batch|Unknown|Unknown|none\nother|draining|batch|ada(2001)|2026-11-23T10:00:00|fan\n"
    back, out = answered(probe, clock)["events"]
    assert (back["kind"], back["message"]) == (
        "slurm_node_back",
        "Slurm gives gpunode jobs again, it was drained",
    )
    assert (out["kind"], out["severity"]) == ("slurm_node_out", "warning")
    assert out["message"] == "Slurm gives other no jobs, it is draining: fan (by ada)"
    controller.sinfo = controller.sinfo.replace("draining", "drained")
    assert "events" not in answered(probe, clock), "draining to drained is no other thing"


def test_a_controller_that_does_not_answer_holds_nothing_up(clock: ManualClock) -> None:
    controller = Controller()
    probe = SlurmControllerProbe(clock, controller)
    controller.may_answer.clear()
    for _ in range(5):
        clock.advance(60)
        began = time.monotonic()
        assert probe.read(0)["slurm_job_samples"] == []
        assert time.monotonic() - began < 1
    assert controller.asked == 1, "never two at a time"
    controller.may_answer.set()
    controller.error = "squeue did not answer within 20 s"
    with pytest.raises(ProbeError, match="Slurm's controller: squeue did not answer within 20 s"):
        answered(probe, clock)
    controller.error = None
    assert answered(probe, clock)["slurm_job_samples"] == [], (
        "one that takes long is left alone for longer"
    )
    clock.advance(20 * 300)
    assert len(answered(probe, clock)["slurm_job_samples"]) == 3


def test_lines_that_are_not_understood_are_counted(clock: ManualClock) -> None:
    controller = Controller()
    controller.squeue += "slurmctld has a new kind of line\n"
    probe = SlurmControllerProbe(clock, controller)
    assert len(answered(probe, clock)["slurm_job_samples"]) == 3
    assert probe.failed == {"a line of squeue or sinfo": 1}


def command(folder: Path, text: str) -> None:
    path = folder / "squeue"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exec sleep 30", "squeue did not answer within 0.3 s"),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", "Unable to contact slurm controller"),
        ("exit 3", "squeue: no reason given"),
    ],
)  # fmt: skip
def test_a_command_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    command(tmp_path, text)
    with pytest.raises(AskError, match=said):
        run_command(["squeue"], 0.3)


def test_commands_run_in_utc_without_what_changes_their_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    command(tmp_path, 'echo "$TZ $SLURM_TIME_FORMAT $SQUEUE_FORMAT"')
    assert run_command(["squeue"], 5).split() == ["UTC", "standard"]
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(AskError, match="squeue is not installed here"):
        run_command(["squeue"], 5)
