"""`gpuwarden agent doctor` prints both tables and exits by what was found."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.doctor import Check
from gpuwarden.lifecycle import StartError
from gpuwarden_agent.collect.nvidia.timing import CallReport
from gpuwarden_agent.doctor import CallCost
from gpuwarden_cli.commands.doctor import rendered, run_here
from gpuwarden_cli.main import main

CALL = CallCost(
    "gpu0", CallReport("nvmlX", "power_usage_mw", False, "NOT_SUPPORTED", 0.0123, None, 9, 10)
)
CHECK = Check("kernel_log", "warn", "may not be read", "give it CAP_SYSLOG")


def test_people_get_what_is_wrong_first_and_then_the_calls() -> None:
    text = rendered([CHECK], [CALL], "table")
    assert "warn    may not be read; do: give it CAP_SYSLOG" in text
    line = text.splitlines()[-1].split()
    assert line == [
        "nvmlX",
        "power_usage_mw",
        "gpu0",
        "no",
        "NOT_SUPPORTED",
        "0.012",
        "–",
        "10",
        "s",
    ]


def test_programs_get_both_tables_or_the_calls() -> None:
    made = json.loads(rendered([CHECK], [CALL], "json"))
    assert made["checks"][0]["remedy"] == "give it CAP_SYSLOG"
    assert made["calls"][0] | {"source": "gpu0", "code": "NOT_SUPPORTED"} == made["calls"][0]
    assert rendered([CHECK], [CALL], "csv").startswith("call,reading,source,")


def test_a_collector_that_is_away_or_does_not_run_is_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away = ("--backend", "simulator", "--collector-url", "http://127.0.0.1:1", "--format", "json")
    assert main(["agent", "doctor", "--state-dir", str(tmp_path), *away]) == 1
    checks = {c["name"]: c["status"] for c in json.loads(capsys.readouterr().out)["checks"]}
    assert (checks["collector"], checks["host"]) == ("fail", "ok")
    assert main(["collector", "doctor", "--data-dir", str(tmp_path)]) == 1
    streams = capsys.readouterr()
    assert f"collector   fail    no collector runs on {tmp_path}" in streams.out
    assert streams.err == ""


def here(folder: Path, form: str) -> int:
    return run_here(argparse.Namespace(format=form), etc=folder / "etc", opt=folder / "opt")


def installed(folder: Path, part: str, script: str) -> None:
    """A part whose command is a script: the environment of another part has no say in it."""
    (folder / "etc").mkdir(exist_ok=True)
    (folder / "etc" / f"{part}.toml").touch()
    command = folder / "opt" / part / "bin" / "gpuwarden"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)


def test_each_installed_part_is_examined_by_its_own_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StartError, match="neither part is installed here"):
        here(tmp_path, "table")
    installed(tmp_path, "agent", 'echo "{\\"words\\": \\"$*\\"}"')
    assert here(tmp_path, "json") == 0
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert found == {
        "agent": {"words": f"agent doctor --config {tmp_path}/etc/agent.toml --format json"}
    }
    installed(tmp_path, "collector", "echo broken; exit 1")
    assert here(tmp_path, "json") == 1
    found = json.loads(capfd.readouterr().out)
    assert found["collector"]["checks"][0]["status"] == "fail"
    assert here(tmp_path, "table") == 1
    assert capfd.readouterr().out.startswith("collector\nbroken\n")
