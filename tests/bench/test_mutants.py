"""Mutation testing finds what a test misses, and says when it cannot run."""

from pathlib import Path

import pytest
from bench.mutants import CORES, ROOT, Core, MutantsError, is_same_sql, main, measure
from tests.each import each

LIMITS = '''"""A made-up decision."""


class Limit:
    def __init__(self, most: int) -> None:
        self.most = most

    def is_over(self, count: int) -> bool:
        return count > self.most


def other(count: int) -> int:
    return count + 1
'''
TESTS = """from tiny_part.limits import Limit, other


def test_far_above_the_limit_is_over():
    assert Limit(10).is_over(20)
    assert not Limit(10).is_over(5)


def test_other():
    assert other(1) == %s
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A part of one module, whose test does not try the limit itself."""
    package, tests = tmp_path / "tiny" / "tiny_part", tmp_path / "tests"
    package.mkdir(parents=True)
    tests.mkdir()
    (package / "__init__.py").touch()
    (package / "limits.py").write_text(LIMITS)
    (tests / "test_limits.py").write_text(TESTS % 2)
    return tmp_path


@pytest.mark.slow
def test_the_change_that_no_test_notices_survives(root: Path) -> None:
    result = measure(
        Core("tiny_part.limits", ("tests/test_limits.py",)), root / "staged", root=root
    )
    (survivor,) = result.survivors
    assert (survivor.name.split()[0], survivor.line) == ("Limit.is_over", 9)
    assert "-        return count > self.most" in survivor.diff
    assert "+        return count >= self.most" in survivor.diff
    assert (result.killed, result.mutants) == (3, 4)


@pytest.mark.slow
def test_only_the_functions_asked_for_are_mutated(root: Path) -> None:
    core = Core("tiny_part.limits", ("tests/test_limits.py",), ("other",))
    result = measure(core, root / "staged", root=root)
    assert (result.killed, result.mutants, result.score_percent) == (2, 2, 100)


AT_IMPORT = """
def _made() -> int:
    return 10


MADE = _made()
"""
TESTS_OF_IT = """
from tiny_part.limits import MADE


def test_before_it_is_tried() -> None:
    assert True


def test_it_is_made() -> None:
    assert MADE == 10
"""


@pytest.mark.slow
def test_what_ran_at_import_is_tried_with_every_test(root: Path) -> None:
    (root / "tiny" / "tiny_part" / "limits.py").write_text(AT_IMPORT)
    (root / "tests" / "test_limits.py").write_text(TESTS_OF_IT)
    core = Core("tiny_part.limits", ("tests/test_limits.py",), runs_at_import=True)
    result = measure(core, root / "staged", root=root)
    assert (result.killed, result.mutants) == (1, 1)


@pytest.mark.slow
def test_a_test_that_fails_without_a_change_is_an_error(root: Path) -> None:
    (root / "tests" / "test_limits.py").write_text(TESTS % 3)
    with pytest.raises(MutantsError, match="see .*log.txt"):
        measure(Core("tiny_part.limits", ("tests/test_limits.py",)), root / "staged", root=root)


SQL = "\"SELECT t.a FROM t WHERE kind = 'gpu'\""


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        (SQL, SQL.lower(), True),
        (SQL, SQL.replace("t.a", "T.A"), True),
        (SQL, SQL.upper(), False),  # the quoted value is another one
        (SQL, SQL.replace("t.a", "t.b"), False),
        ('"a node"', '"A NODE"', False),  # no SQL
    ],
)
def test_sql_in_other_letters_is_the_same_but_for_what_it_quotes(
    before: str, after: str, is_same: bool
) -> None:
    assert is_same_sql(before, after) is is_same


@each("core", CORES)
def test_modules_and_tests_of_the_table_are_there(core: Core) -> None:
    assert list(ROOT.glob(f"*/{core.module.replace('.', '/')}.py"))
    assert all((ROOT / test).is_file() for test in core.tests)


def test_a_module_without_tests_named_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["gpuwarden.nothing"])
    assert "no tests are named for gpuwarden.nothing" in capsys.readouterr().err
