"""The cases of the built-in rules, read once for all tests of a process."""

from functools import cache
from pathlib import Path

from gpuwarden_rules.definition.language import builtin_paths
from gpuwarden_rules.testing import Case, load_cases

FILES = [path.with_name(path.stem + ".test.yaml") for path in builtin_paths()]


@cache
def cases_in(path: Path) -> list[Case]:
    """The cases of one of the FILES."""
    return load_cases(path)
