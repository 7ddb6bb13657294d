"""Completion scripts do in their shells what the parser says."""

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.cli.test_main import all_parsers

from gpuwarden_cli.commands.completion import SHELLS, levels, script
from gpuwarden_cli.main import main, parser

NAMES = "n1\nn1/0\nn2"
CASES = {
    "gpuwarden nod": {"nodes"},
    "gpuwarden nodes ": {"list", "show", "forget"},
    "gpuwarden nodes list --sta": {"--state"},
    "gpuwarden nodes list --state s": {"silent"},
    "gpuwarden gpus show n1": {"n1", "n1/0"},
    "gpuwarden alerts list --node n2": {"n2"},
    "gpuwarden ask idle-h": {"idle-holders"},
    "gpuwarden schema gpu_holders": {"gpu_holders_now"},
    "gpuwarden completion f": {"fish"},
    "gpuwarden import not": {"notes.csv"},
    "gpuwarden sql --param ": set(),
}
"""What is typed, and what is offered for its last word."""
BASH = """
source ./script
compopt() {{ :; }}
COMP_WORDS=({words}); COMP_CWORD=$(({count} - 1))
_gpuwarden; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
ZSH = """
compdef() {{ : }}
_describe() {{ local one; for one in ${{(P)2}}; do print -r -- ${{one%%:*}}; done }}
_files() {{ print -l -- *(N) }}
_message() {{ : }}
compadd() {{ shift; print -l -- "$@" }}
source ./script
words=({words}); CURRENT={count}
_gpuwarden | grep -- "^$LAST" || true
"""


def offered(shell: str, typed: str, folder: Path) -> set[str]:
    words = typed.split()
    if typed.endswith(" "):
        words.append("")
    quoted = " ".join(f"'{word}'" for word in words)
    source = {"bash": BASH, "zsh": ZSH}.get(shell, "source ./script; complete -C '{typed}'")
    text = source.format(words=quoted, count=len(words), typed=typed)
    run = subprocess.run(
        [shell, "-c", text] if shell != "zsh" else [shell, "-f", "-c", text],
        cwd=folder,
        env={"PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": str(folder), "LAST": words[-1]},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert run.stderr == ""
    return {line.partition("\t")[0] for line in run.stdout.splitlines() if line.strip()}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_commands_flags_choices_and_names(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script(shell, parser()))
    (tmp_path / "notes.csv").touch()
    (tmp_path / "bin").mkdir()
    asked = tmp_path / "bin" / "gpuwarden"
    asked.write_text(f"#!/bin/sh\nprintf '%s\\n' '{NAMES}'\n")
    asked.chmod(0o755)
    wrong = {
        typed: found
        for typed, expected in CASES.items()
        if (found := offered(shell, typed, tmp_path)) != expected
    }
    assert wrong == {}


def test_every_command_and_flag_is_in_the_scripts() -> None:
    found = list(levels(parser()))
    assert len(found) == len(list(all_parsers(parser())))
    flags = {flag.text for level in found for flag in level.flags}
    assert {"--label", "--format", "-f", "--collector-url"} <= flags
    for shell in SHELLS:
        text = script(shell, parser())
        assert all(level.path[-1] in text for level in found if level.path)


def test_the_command_prints_a_script_and_names_or_nothing(answering, capsys, monkeypatch) -> None:
    assert main(["completion", "fish"]) == 0
    assert capsys.readouterr().out.startswith("set -g __gpuwarden_paths")
    columns = [{"name": "node", "type": "VARCHAR"}]
    answering(
        200, {"columns": columns, "rows": [["n1"], ["a\x1b[2J"], ["b c"]], "truncated": False}
    )
    assert main(["completion", "names"]) == 0
    assert capsys.readouterr().out == "n1\n"
    monkeypatch.setenv("GPUWARDEN_URL", "http://127.0.0.1:1")
    assert main(["completion", "names"]) == 0
    assert capsys.readouterr() == ("", "")
