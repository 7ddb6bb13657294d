"""Reports what tests run of each part, and the functions that no test runs: `make coverage`.

    python -m bench.never_run FOLDER

FOLDER has the files of `coverage run --parallel-mode` as `data.*`, and gets `coverage.json`. Percent counts lines and
branches. A function without a line of its own, as in a Protocol, is not counted. What a process does between its last
answer and kill -9 is not measured.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coverage import Coverage

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class NeverRun:
    """A function of which no line ran."""

    path: str
    name: str
    line: int
    lines: int


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Join what the processes measured, and print the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("folder", type=Path, help="where the processes wrote what they measured")
    folder = parser.parse_args(argv).folder
    report = joined(folder, root)
    print(f"{'part':<14}{'statements':>12}{'branches':>10}{'percent':>9}")
    for part, count in by_part(report).items():
        percent = 100 * count["covered"] / max(count["statements"] + count["branches"], 1)
        print(f"{part:<14}{count['statements']:>12}{count['branches']:>10}{percent:>8.1f}%")
    found = sorted(never_run(report), key=lambda f: (f.path, f.line))
    print(f"\n{len(found)} functions never run, of {sum(f.lines for f in found)} lines:")
    for function in found:
        print(f"{function.path}:{function.line}  {function.name}  {function.lines}")
    return 0


def joined(folder: Path, root: Path) -> Mapping[str, Any]:
    """coverage's report on all modules of the parts below `root`, also those that no process imported."""
    measured = Coverage(data_file=str(folder / "data"), config_file=str(root / "pyproject.toml"))
    measured.combine([str(folder)])
    packages = [init.parent for init in root.glob("[a-z]*/gpuwarden*/__init__.py")]
    modules = [path for package in packages for path in package.rglob("*.py")]
    measured.get_data().touch_files([str(path) for path in modules])
    measured.save()
    measured.json_report(outfile=str(folder / "coverage.json"))
    report: Mapping[str, Any] = json.loads((folder / "coverage.json").read_text())
    return report


def by_part(report: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Statements, branches and how many of both ran, by the folder of the part."""
    parts: dict[str, Counter[str]] = {}
    for path, file in sorted(report["files"].items()):
        summary = file["summary"]
        parts.setdefault(Path(path).parts[0], Counter()).update(
            statements=summary["num_statements"],
            branches=summary["num_branches"],
            covered=summary["covered_lines"] + summary["covered_branches"],
        )
    return parts


def never_run(report: Mapping[str, Any]) -> Iterator[NeverRun]:
    """Functions with statements of which none ran."""
    for path, file in report["files"].items():
        for name, function in file["functions"].items():
            missing = function["missing_lines"]
            if name and missing and not function["executed_lines"]:
                yield NeverRun(path, name, function["start_line"], len(missing))


if __name__ == "__main__":
    raise SystemExit(main())
