"""`gpuwarden rules list|check|test`."""

import argparse
import asyncio
import sys
import textwrap
from pathlib import Path

from gpuwarden_cli.output import render, terminal_width


def rules_list(args: argparse.Namespace) -> int:
    """Every rule that would run."""
    from gpuwarden_rules.language import load_all

    columns = ["rule", "severity", "interval_s", "for_s", "keep_firing_for_s", "summary"]
    rows = [
        [r.name, r.severity.value, r.interval_s, r.for_s, r.keep_firing_for_s, str(r.summary)]
        for r in load_all(paths_of(args.files, tests=False))
    ]
    print(render(columns, rows, args.format, width=terminal_width()), end="")
    return 0


def rules_check(args: argparse.Namespace) -> int:
    """Whether rule files are right: language, and SQL against the tables. 1 when one is not."""
    from gpuwarden_rules.testing.check import check

    paths = paths_of(args.files, tests=False)
    problems = asyncio.run(check(paths))
    if args.format != "table":
        rows = [[p.path, p.line, p.column, p.message] for p in problems]
        print(render(["file", "line", "column", "problem"], rows, args.format), end="")
    elif problems:
        print("\n".join(map(str, problems)), file=sys.stderr)
    else:
        print(f"{len(paths)} rule files are right")
    return 1 if problems else 0


def rules_test(args: argparse.Namespace) -> int:
    """Run the cases of `*.test.yaml` files; 1 when one fails."""
    from gpuwarden_rules.testing.runner import run_file

    results = [result for path in paths_of(args.files, tests=True) for result in run_file(path)]
    failed = [result for result in results if not result.passed]
    if args.format == "table":
        for result in results:
            print(f"{'ok  ' if result.passed else 'FAIL'} {Path(result.path).name}: {result.name}")
            if not result.passed:
                print(
                    textwrap.indent(f"at {result.path}:{result.line}\n{result.difference}", "     ")
                )
        print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    else:
        rows = [[r.path, r.line, r.name, r.passed, r.difference or None] for r in results]
        print(render(["file", "line", "case", "passed", "difference"], rows, args.format), end="")
    return 1 if failed else 0


def paths_of(given: list[Path], *, tests: bool) -> list[Path]:
    """Rule files or their tests: those given, folders opened; the built-in pack for none."""
    from gpuwarden_rules.language import builtin_paths

    folders = given or sorted({path.parent for path in builtin_paths()})
    found: list[Path] = []
    for path in folders:
        found += sorted(path.rglob("*.yaml")) if path.is_dir() else [path]
    return [path for path in found if path.name.endswith(".test.yaml") == tests]
