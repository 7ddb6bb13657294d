"""What `gpuwarden slurm install` plans, writes and misses."""

import subprocess
from pathlib import Path

import pytest

from gpuwarden_cli.commands.slurm import seen_host
from gpuwarden_cli.slurm.install import (
    SCRIPT,
    SlurmHost,
    missing_files,
    missing_lines,
    parse_config,
    script_path,
    script_text,
    wanted_files,
)

ALL = "Prolog=/etc/slurm/prolog.d/*\nEpilog=/etc/slurm/epilog.d/*\nPrologFlags=Alloc\n"


def host(text: str, path: str = "/etc/slurm/slurm.conf") -> SlurmHost:
    return SlurmHost(path, parse_config(text))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (ALL, []),
        ("# Prolog=/x/*\n", ALL.split()),
        ("prolog = /etc/slurm/prolog.d/*.sh\nEPILOG=/etc/slurm/epilog.d/6*\nPrologFlags=x11,contain", []),
        (f"Prolog=/etc/slurm/prolog.d/{SCRIPT}\nEpilog=/etc/slurm/epilog.d/*\nPrologFlags=DeferBatch", ["PrologFlags=DeferBatch,Alloc"]),
        (
            "Prolog=/opt/site/prolog\nEpilog=/etc/slurm/epilog.d/*\nPrologFlags=Alloc,\\\n  Serial",
            [f"# /opt/site/prolog is the Prolog already: add the line `/etc/slurm/prolog.d/{SCRIPT}` to it"],
        ),
    ],
)  # fmt: skip
def test_only_lines_that_slurm_conf_lacks_are_printed(text: str, lines: list[str]) -> None:
    assert missing_lines(host(text)) == lines


@pytest.mark.parametrize(
    ("text", "path", "script"),
    [
        ("", "/etc/slurm/slurm.conf", "/etc/slurm/prolog.d/"),
        ("", "/etc/slurm-llnl/slurm.conf", "/etc/slurm-llnl/prolog.d/"),
        ("", "/run/slurm/conf/slurm.conf", "/etc/slurm/prolog.d/"),
        ("Prolog=/shared/slurm/start.d/*.sh", "/etc/slurm/slurm.conf", "/shared/slurm/start.d/"),
        ("Prolog=/shared/slurm/start.d/*.py", "/etc/slurm/slurm.conf", "/etc/slurm/prolog.d/"),
    ],
)
def test_the_prolog_goes_where_slurm_conf_looks_for_it(text: str, path: str, script: str) -> None:
    assert script_path("Prolog", host(text, path)) == f"{script}{SCRIPT}"


@pytest.mark.parametrize("part", ["Prolog", "Epilog"])
def test_scripts_are_plain_shell(part: str) -> None:
    done = subprocess.run(
        ["sh", "-n"], input=script_text(part), text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert script_text(part).endswith("exit 0\n")


def test_install_plans_what_is_missing_until_nothing_is(tmp_path: Path) -> None:
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/slurm/slurm.conf").write_text("ClusterName=x\n")
    seen = seen_host(tmp_path, "/etc/slurm/slurm.conf")
    assert missing_lines(seen) == ALL.split()
    assert missing_files(seen) == wanted_files(seen)
    for file in wanted_files(seen):
        path = tmp_path / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text)
    (tmp_path / "etc/slurm/slurm.conf").write_text(ALL)
    seen = seen_host(tmp_path, "/etc/slurm/slurm.conf")
    assert missing_files(seen) == [] and missing_lines(seen) == []
