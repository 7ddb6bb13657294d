"""The flags of `gpuwarden import`."""

import subprocess
import sys

import pytest

from gpuwarden_cli.main import parser


def test_the_flags_are_there_and_exclude_each_other() -> None:
    args = parser().parse_args(["import", "a", "-", "--node", "n1", "--day-first", "--dry-run"])
    assert (len(args.files), args.node, args.day_first, args.dry_run) == (2, "n1", True, True)
    with pytest.raises(SystemExit):
        parser().parse_args(["import", "a", "--day-first", "--month-first"])


def test_the_command_line_loads_no_arrow() -> None:
    """A GPU host has the agent's packages alone, and every command builds this parser."""
    code = "import sys; from gpuwarden_cli.main import parser; parser(); print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_machine_without_the_agents_packages_can_import() -> None:
    code = (
        "import sys; sys.modules |= dict.fromkeys(['pynvml', 'nanoarrow', 'h11', 'duckdb', 'aiohttp']);"
        " import gpuwarden_cli.import_logs.run"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
