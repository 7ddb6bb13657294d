"""The command line itself: help, one-line errors, exit codes."""

import argparse
import shlex
import subprocess
import sys

import pytest

from gpuwarden.lifecycle import StartError
from gpuwarden_cli import main as command
from gpuwarden_cli.main import main, parser
from gpuwarden_cli.parser import EXAMPLES


def all_parsers(top: argparse.ArgumentParser):
    yield top
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from all_parsers(sub)


def test_every_command_and_flag_explains_itself() -> None:
    for sub in all_parsers(parser()):
        assert sub.description, sub.prog
        for action in sub._actions:
            assert action.help or isinstance(action, argparse._SubParsersAction), (
                f"{sub.prog} {action.dest}"
            )
        sub.format_help()


def commands(top: argparse.ArgumentParser, path: tuple[str, ...] = ()):
    """Every command that can be run, by its words."""
    groups = [a for a in top._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups:
        yield " ".join(path), top
    for group in groups:
        for name, sub in group.choices.items():
            yield from commands(sub, (*path, name))


def test_the_help_of_each_command_ends_with_an_example_that_can_be_typed() -> None:
    top = parser()
    found = dict(commands(top))
    assert EXAMPLES.keys() == found.keys()
    for name, sub in found.items():
        example = EXAMPLES[name]
        assert sub.format_help().endswith(f"\nexample:\n  {example}\n"), name
        words = shlex.split(example.partition(" > ")[0])
        assert " ".join(words).startswith(f"gpuwarden {name}"), name
        top.parse_args(words[1:])


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["upp"], "invalid choice: 'upp'"),
        (["up", "--port", "99999"], "99999 is not a port number"),
        (["up", "--simulate", "-1"], "-1 must be between 0 and 100000"),
        (["simulate", "--nodes", "2"], "one of the arguments --gpus-per-node --replay is required"),
        (["sql", "select 1", "--format", "xml"], "invalid choice: 'xml'"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(argv, line, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert line in err
    assert err.count("\n") == 1


def failing(monkeypatch, error: BaseException) -> None:
    def run(_args: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(command.sql, "sql", run)


def test_an_error_for_people_is_one_line_also_out_of_a_group(monkeypatch, capsys) -> None:
    failing(monkeypatch, ExceptionGroup("tasks", [StartError("port 8750 is in use")]))
    assert main(["sql", "select 1"]) == 2
    assert capsys.readouterr().err == "gpuwarden: port 8750 is in use\n"


def test_a_bug_is_not_hidden(monkeypatch) -> None:
    failing(monkeypatch, ExceptionGroup("tasks", [StartError("x"), KeyError("bug")]))
    with pytest.raises(ExceptionGroup):
        main(["sql", "select 1"])


def test_a_missing_package_names_the_extra(monkeypatch, capsys) -> None:
    failing(monkeypatch, ModuleNotFoundError("No module named 'duckdb'", name="duckdb"))
    assert main(["sql", "select 1"]) == 2
    assert "pip install 'gpuwarden[all]'" in capsys.readouterr().err
    failing(monkeypatch, ModuleNotFoundError("x", name="gpuwarden_typo"))
    with pytest.raises(ModuleNotFoundError):
        main(["sql", "select 1"])


def test_asking_loads_nothing_heavy() -> None:
    """`gpuwarden sql` must start fast, also on a host with one part installed."""
    code = (
        "import sys, gpuwarden_cli.main as m; m.parser();"
        "print([n for n in ('duckdb', 'pyarrow', 'pandas', 'aiohttp', 'nanoarrow', 'yaml')"
        " if n in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
