"""The units are what systemd accepts, and what the code does."""

import configparser
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SYSTEMD = ROOT / "systemd"
UNITS = ("gpuwarden-agent", "gpuwarden-collector")


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed (Debian: apt install systemd)")
    return path


@pytest.fixture
def installed(tmp_path) -> list[Path]:
    """The units with the path of a command that exists here."""
    command = Path(sys.executable).with_name("gpuwarden")
    paths = []
    for unit in UNITS:
        text = (SYSTEMD / f"{unit}.service").read_text()
        path = tmp_path / f"{unit}.service"
        path.write_text(re.sub(r"/opt/gpuwarden/\w+/bin/gpuwarden", str(command), text))
        paths.append(path)
    return paths


def test_systemd_finds_nothing_to_complain_about(installed) -> None:
    command = [tool("systemd-analyze"), "verify", "--man=no", *map(str, installed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(("unit", "most"), [("gpuwarden-agent", 3.0), ("gpuwarden-collector", 2.0)])
def test_units_stay_below_their_exposure_score(installed, unit, most) -> None:
    path = next(p for p in installed if p.stem == unit)
    command = [
        tool("systemd-analyze"), "security", "--offline=true", f"--threshold={int(most * 10)}",
        "--no-pager", str(path),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout.splitlines()[-1:]


def test_sysusers_and_tmpfiles_are_read() -> None:
    sysusers = [tool("systemd-sysusers"), "--dry-run", str(SYSTEMD / "sysusers.d/gpuwarden.conf")]
    done = subprocess.run(sysusers, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    fields = [
        line.split()
        for line in (SYSTEMD / "tmpfiles.d/gpuwarden.conf").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert all(len(f) == 6 and f[0] == "d" and f[1].startswith("/") for f in fields)


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_starts_a_command_that_exists_with_settings_that_load(unit, tmp_path) -> None:
    """ExecStart's command line is parsed by the real parser, its TOML by the real loader."""
    from gpuwarden_cli.main import main

    config = configparser.ConfigParser(strict=False, interpolation=None)
    config.read(SYSTEMD / f"{unit}.service")
    words = config["Service"]["ExecStart"].split()[1:]
    name = Path(words[-1]).name
    example = SYSTEMD / name
    everything_on = "\n".join(
        line.removeprefix("# ") if "=" in line and "the #" not in line else line
        for line in example.read_text().splitlines()
    )
    assert set(tomllib.loads(everything_on))
    words[1], words[-1] = "config", str(example)
    assert main([*words, "--format", "json"]) == 0


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_is_watched_and_comes_back(unit) -> None:
    config = configparser.ConfigParser(strict=False, interpolation=None)
    config.read(SYSTEMD / f"{unit}.service")
    service = config["Service"]
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) >= 10
    assert service["Restart"] == "always"
    assert service["NoNewPrivileges"] == "yes"
    assert service["CapabilityBoundingSet"] == ""
