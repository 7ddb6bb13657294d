"""Completion offers what the parser takes, and a shell shows it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.test_main import all_parsers

from gpuwarden_cli.commands.completion import SCRIPTS, offered
from gpuwarden_cli.main import main, parser

CASES = {
    "nod": {"nodes"},
    "slurm ": {"install", "uninstall", "status", "summarize"},
    "alerts list --sta": {"--state"},
    "alerts list --state f": {"firing"},
    "rma n1": {"n1", "n1/0"},
    "alerts list --node n2": {"n2"},
    "ask idle-h": {"idle-holders"},
    "completion f": {"fish"},
    "import not": set(),
    "sql --param ": set(),
}
"""What is typed, and what is offered for its last word."""
CALLS = {
    "bash": """source ./script; COMP_WORDS=({words}); COMP_CWORD=$(({count} - 1))
        _gpuwarden; printf '%s\\n' "${{COMPREPLY[@]}}" """,
    "zsh": """compdef() {{ : }}; _files() {{ print -l -- *(N) }}
        _describe() {{ local one; for one in ${{(P)2}}; do print -r -- ${{one%%:*}}; done }}
        source ./script; words=({words}); CURRENT={count}; _gpuwarden""",
    "fish": "source ./script; complete -C '{typed}'",
}


def names(answering) -> None:
    rows = [["n1"], ["n1/0"], ["n2"], ["a\x1b[2J"], ["b c"]]
    columns = [{"name": "node", "type": "VARCHAR"}]
    answering(200, {"columns": columns, "rows": rows, "truncated": False})


def test_commands_flags_choices_and_names_are_offered(answering, capsys) -> None:
    wrong = {}
    for typed, expected in CASES.items():
        names(answering)
        assert main(["completion", "words", "--", *typed.split(" ")]) == 0
        found = {line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()}
        if found != expected:
            wrong[typed] = found
    assert wrong == {}


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_shell_shows_them(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(SCRIPTS[shell])
    command = tmp_path / "bin" / "gpuwarden"
    command.parent.mkdir()
    run = "import sys; from gpuwarden_cli.main import main; sys.exit(main())"
    command.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{run}' \"$@\"\n")
    command.chmod(0o755)
    words = "'gpuwarden' 'alerts' 'list' '--sta'"
    done = subprocess.run(
        [shell, "-c", CALLS[shell].format(words=words, count=4, typed="gpuwarden alerts list --sta")],
        cwd=tmp_path, env={"PATH": f"{command.parent}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert (done.stdout.partition("\t")[0].strip(), done.stderr) == ("--state", "")


def test_every_command_and_flag_is_offered() -> None:
    for made in all_parsers(parser()):
        words = made.prog.split()[1:]
        flags = {text for text, _ in offered(parser(), [*words, "-"])}
        assert flags == set(made._option_string_actions), words


def test_without_a_collector_no_names_are_offered(capsys, monkeypatch) -> None:
    monkeypatch.setenv("GPUWARDEN_URL", "http://127.0.0.1:1")
    assert main(["completion", "words", "--", "rma", ""]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["completion", "fish"]) == 0
    assert capsys.readouterr().out == SCRIPTS["fish"]
