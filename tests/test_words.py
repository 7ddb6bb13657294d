"""One word for one thing: names of public classes."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
PARTS = ("contract", "agent", "simulator", "collector", "rules", "dashboards", "cli", "release")
DONE = ("contract", "rules", "dashboards", "cli")
"""Parts none of whose class names may stand anywhere else."""
SHARED = frozenset(
    {
        *("Address", "Answer", "Asked", "Device", "Disk", "Drop", "Entry", "Failed"),
        *("Files", "Header", "Health", "HealthReader", "Held", "Ledger", "Limits", "Look"),
        *("Message", "Mount", "Owner", "Part", "Plan", "Policy", "Refused", "Report"),
        *("Rows", "Sealer", "Seen", "Source", "Span", "State", "Tally", "Wait"),
    }
)
"""Names that agent, collector and installer still give to several classes. Take one out when it is gone;
add none: a second thing with the same word makes every search and every sentence about both ambiguous."""


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
    assert {name: paths for name, paths in shared.items() if name not in SHARED} == {}
    within = {
        name: paths for name, paths in shared.items() if any(p.startswith(DONE) for p in paths)
    }
    assert within == {}
