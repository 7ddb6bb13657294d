"""The README's commands, run as written there."""

import re
import shlex
from pathlib import Path

import pytest

from gpuwarden_cli.main import parser

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL)
LINES = [line for block in BLOCKS for line in block.splitlines() if line.strip()]
OURS = [shlex.split(line, comments=True)[1:] for line in LINES if line.startswith("gpuwarden ")]
MAKE = [line.split()[1] for line in LINES if line.startswith("make ")]
QUESTIONS = [
    words
    for words in OURS
    if words[0] in ("sql", "ask", "top", "alerts", "rules")
    or words[:2] in (["agent", "once"], ["agent", "config"])
]
"""Answered by a running system in test_up.py."""


def test_every_line_is_a_command_that_a_test_knows() -> None:
    known = ("gpuwarden ", "make ", "git clone ", "cd ", "pip install ", "#")
    assert [line for line in LINES if not line.startswith(known)] == []


@pytest.mark.parametrize("words", OURS, ids=" ".join)
def test_the_parser_accepts_each_command_of_the_readme(words) -> None:
    assert parser().parse_args(words).run


@pytest.mark.parametrize("target", MAKE)
def test_make_has_each_target_of_the_readme(target) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
