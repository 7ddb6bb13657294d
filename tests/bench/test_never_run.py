"""The report on coverage counts what tests run in any process, and names each function that none runs."""

import subprocess
import sys
from pathlib import Path

import pytest
from bench.never_run import NeverRun, by_part, joined, main, never_run

PROJECT = """[tool.coverage.run]
branch = true
parallel = true
patch = ["subprocess", "fork", "_exit"]
data_file = "data/data"
include = ["**/*/gpuwarden_*/**"]
"""
SHOP = '''"""A made-up part."""

import os
import sys


def called(count):
    if count > 1:
        return "many"
    return "one"


def forked():
    return 2


class Unused:
    def call(self):
        total = 1
        return total


if __name__ == "__main__":
    called(2)
    if os.fork() == 0:
        forked()
        os._exit(0)
    os.wait()
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A part of two modules, one of which a program has run."""
    package = tmp_path / "shop" / "gpuwarden_shop"
    package.mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (package / "__init__.py").touch()
    (package / "shop.py").write_text(SHOP)
    (package / "other.py").write_text("def nobody():\n    return 1\n")
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    program = "shop/gpuwarden_shop/shop.py"
    subprocess.run([sys.executable, "-m", "coverage", "run", program], cwd=tmp_path, check=True)
    return tmp_path


def test_functions_that_no_process_runs_are_named(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    report = joined(root / "data", root)
    found = {(f.name, f.line, f.lines) for f in never_run(report)}
    assert found == {("Unused.call", 18, 2), ("nobody", 1, 1)}
    parts = by_part(report)
    assert list(parts) == ["shop"]
    # Not run: both functions, the module that nobody imports, `return "one"` and one way of each branch. The child
    # of a fork is measured from the next call on.
    assert parts["shop"] == {"statements": 20, "branches": 6, "covered": 13 + 3}


def test_the_report_is_printed(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    assert main([str(root / "data")], root) == 0
    printed = capsys.readouterr().out
    assert "2 functions never run, of 3 lines" in printed
    assert "shop/gpuwarden_shop/shop.py:18  Unused.call  2" in printed


def test_a_function_without_statements_is_not_named() -> None:
    empty = {"missing_lines": [], "executed_lines": [], "start_line": 1}
    missed = {"missing_lines": [4, 5], "executed_lines": [], "start_line": 3}
    report = {"files": {"a/b.py": {"functions": {"": missed, "f": empty, "g": missed}}}}
    assert list(never_run(report)) == [NeverRun("a/b.py", "g", 3, 2)]
