"""Style as a test: sizes of functions, docstrings, words that are not ours."""

import ast
import re
import subprocess
from pathlib import Path

import pytest
from bundle import PACKAGES
from tests.each import each

ROOT = Path(__file__).parent.parent
PARTS = (*PACKAGES, "release")
SOURCES = {p for part in PARTS for p in (ROOT / part).rglob("*.py")}
PYTHON = sorted({*SOURCES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py")})
FUNCTION_LINES_MAX = 70


@each("path", PYTHON)
def test_a_file_says_what_it_is_for_its_functions_are_short_and_its_public_names_documented(
    path: Path,
) -> None:
    """Protocols' implementations may lean on the protocol."""
    tree = ast.parse(path.read_text())
    if path.name not in ("conftest.py", "__init__.py") or path in SOURCES:
        assert ast.get_docstring(tree), "say in one sentence what this file is for"
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [f"{f.name}: {lines_of(f)} lines" for f in functions if lines_of(f) > FUNCTION_LINES_MAX]
    assert not long
    public = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
    ]
    if path in SOURCES:
        assert not [node.name for node in public if not ast.get_docstring(node)]


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Of its body, without the docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_tracked_files_name_no_machine() -> None:
    """Nothing in the tree points at one person's or one machine's paths and hosts."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    pattern = re.compile(r"/(?:home|Users|work)/[a-z]|index-url")
    found = []
    for line in listed.stdout.splitlines():
        path = ROOT / line
        if path == Path(__file__) or not path.is_file():
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        found += [f"{line}: {m.group()}" for m in pattern.finditer(text) if line != "Makefile"]
    assert not found
