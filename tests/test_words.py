"""One word for one thing: a public class name is in one module alone.

A second thing with the same word makes each search and each sentence about both ambiguous.
"""

import ast
from collections import defaultdict
from pathlib import Path

from bundle import PACKAGES

ROOT = Path(__file__).parent.parent
PARTS = (*PACKAGES, "release")


def modules_by_class() -> dict[str, list[str]]:
    found = defaultdict(list)
    for part in PARTS:
        for path in sorted((ROOT / part).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(str(path.relative_to(ROOT)))
    return found


def test_a_class_name_stands_for_one_thing() -> None:
    shared = {name: paths for name, paths in modules_by_class().items() if len(paths) > 1}
    assert shared == {}
